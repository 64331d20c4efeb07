package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) pathCommand() *cli.Command {
	order := func(name, usage string) *cli.Command {
		return &cli.Command{Name: name, Usage: usage, ArgsUsage: "PEER PATH", Flags: remote(), BashComplete: w.completePaths,
			Action: func(c *cli.Context) error { return w.pathOrder(c, name) }}
	}
	return &cli.Command{
		Name:  "path",
		Usage: "the paths of block sessions",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list those of open sessions, with all peers or with one", ArgsUsage: "[PEER]", Flags: remote(), Action: w.pathList, BashComplete: w.completePeers},
			{
				Name: "add", Usage: "declare a further path to a peer; sessions use it at once", ArgsUsage: "PEER ADDRESS=LOCAL_ADDRESS",
				Description: "ADDRESS is the peer's, LOCAL_ADDRESS this host's. The peer declares the same pair from its side.",
				Flags: remote(
					&cli.StringFlag{Name: "name", Usage: "its `NAME` (default: ADDRESS)"},
					&cli.StringFlag{Name: "transport", Usage: "tcp, sctp, sctp-udp or auto (default: the peer's)"},
					&cli.UintFlag{Name: "port", Usage: "TCP or SCTP `PORT` the peer listens on there (default: the peer's)"},
				),
				Action: w.pathAdd, BashComplete: w.completePeers,
			},
			{Name: "rm", Usage: "remove a path; its I/O goes on by the others", ArgsUsage: "PEER PATH", Flags: remote(), Action: w.pathRemove, BashComplete: w.completePaths},
			order(api.PathDisconnect, "take a path of open sessions down until it is reconnected"),
			order(api.PathReconnect, "bring a path up again at once"),
		},
	}
}

func (w *ironwarp) sessionCommand() *cli.Command {
	return &cli.Command{
		Name:  "session",
		Usage: "block sessions, which spread I/O over paths",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list them", Flags: remote(), Action: w.sessionList},
			{Name: "show", Usage: "show those with a peer, and their paths", ArgsUsage: "PEER", Flags: remote(), Action: w.sessionShow, BashComplete: w.completePeers},
			{
				Name: "policy", Usage: "spread the I/O of open sessions with a peer in another way", ArgsUsage: "PEER POLICY",
				Description: "Until they are closed, or the policy in the peer's file changes: `ironwarp peer set --policy` is for ever.\n" +
					"min-inflight: the path with the fewest requests under way. round-robin: one after the other.\n" +
					"min-latency: the path that answers soonest. preferred: the first that is up; the others stand by.",
				Flags: remote(), Action: w.sessionPolicy, BashComplete: w.completePolicies(rtrs.Policies),
			},
			{
				Name: "no-path", Usage: "have I/O of open sessions with a peer wait, or fail, while there is no path", ArgsUsage: "PEER queue|fail",
				Description: "Until they are closed, or no_path in the peer's file changes: `ironwarp peer set --no-path` is for ever.",
				Flags:       remote(&cli.DurationFlag{Name: "fail-after", Usage: "`TIME` without a path after which it fails (default: " + config.FormatDuration(config.DefaultFailAfter) + ")"}),
				Action:      w.sessionNoPath, BashComplete: w.completePolicies(config.NoPaths),
			},
		},
	}
}

// completePaths completes a peer, then one of its paths.
func (w *ironwarp) completePaths(c *cli.Context) {
	w.complete(c, func(ctx context.Context, cl *api.Client) (names []string) {
		peers, _ := cl.Peers(ctx)
		for _, p := range peers {
			switch {
			case c.NArg() == 0:
				names = append(names, p.Name)
			case p.Name == c.Args().First():
				names = append(names, p.Address)
				for _, q := range p.Paths {
					names = append(names, q.Name)
				}
			}
		}
		return names
	})
}

// completePolicies completes a peer, then a policy.
func (w *ironwarp) completePolicies(policies func() []string) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		if c.NArg() == 0 {
			w.completePeers(c)
			return
		}
		w.complete(c, func(context.Context, *api.Client) []string { return policies() })
	}
}

func (w *ironwarp) pathList(c *cli.Context) error {
	peer := c.Args().First()
	get := only((*api.Client).Sessions, func(s api.Session) bool { return s.Role == "client" && (peer == "" || s.Peer == peer) })
	return list(w, c, get, "no session is open", w.pathTable)
}

func (w *ironwarp) pathAdd(c *cli.Context) error {
	a := c.Args()
	if c.Uint("port") > 65535 {
		return &usageError{msg: fmt.Sprintf("port %d is out of range", c.Uint("port")), fix: "allowed: 1 to 65535"}
	}
	pair, err := pairOf(a.Get(1), a.Get(1))
	if err != nil {
		return err
	}
	q := api.Path{Name: c.String("name"), Pair: pair, Port: uint16(c.Uint("port")), Transport: c.String("transport")}
	p, err := w.client(c).AddPath(c.Context, a.Get(0), q)
	if err != nil {
		return err
	}
	return w.print(c, p, func() {
		w.printf("path to peer %s at %s added: %s\n", p.Name, q.Address, p.Source)
		w.pathProblems(p)
	})
}

// pathProblems prints what keeps paths of a peer from being used.
func (w *ironwarp) pathProblems(p api.Peer) {
	w.problem(p.Problem)
	for _, s := range p.PathStates {
		w.problem(s.Problem)
	}
}

func (w *ironwarp) pathRemove(c *cli.Context) error {
	a := c.Args()
	p, err := w.client(c).RemovePath(c.Context, a.Get(0), a.Get(1))
	if err != nil {
		return err
	}
	return w.print(c, p, func() { w.printf("path %s to peer %s removed\n", a.Get(1), p.Name) })
}

func (w *ironwarp) pathOrder(c *cli.Context, order string) error {
	a := c.Args()
	list, err := w.client(c).OrderPath(c.Context, api.PathRequest{Peer: a.Get(0), Path: a.Get(1), Order: order})
	if err != nil {
		return err
	}
	return w.print(c, list, func() {
		w.printf("path %s to peer %s: %s\n", a.Get(1), a.Get(0), map[string]string{api.PathDisconnect: "disconnected until `ironwarp path reconnect`", api.PathReconnect: "reconnecting"}[order])
	})
}

func (w *ironwarp) sessionList(c *cli.Context) error {
	return list(w, c, (*api.Client).Sessions, "no session is open", w.sessionTable)
}

func (w *ironwarp) sessionTable(list []api.Session) {
	t := w.sheet("session", "role", "state", ">age", ">streams", ">in flight", ">reconnects", "?policy", "?no path")
	for _, s := range list {
		t.row(s.Peer, s.Role, w.stateText(s.State), ageText(s.AgeSeconds), s.Streams, s.InFlight, s.Reconnects, orDash(s.Policy), noPathText(s))
	}
	t.print()
}

func (w *ironwarp) sessionShow(c *cli.Context) error {
	peer := c.Args().First()
	list, err := only((*api.Client).Sessions, func(s api.Session) bool { return s.Peer == peer })(w.client(c), c.Context)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return &api.Error{Code: api.CodeNotFound, Message: "no session with " + peer + " is open", Fix: "`ironwarp session ls` lists them"}
	}
	return w.print(c, list, func() {
		w.sessionTable(list)
		w.pathTable(slices.DeleteFunc(slices.Clone(list), func(s api.Session) bool { return len(s.Paths) == 0 }))
	})
}

func (w *ironwarp) sessionPolicy(c *cli.Context) error {
	a := c.Args()
	list, err := w.client(c).SetPolicy(c.Context, api.PolicyRequest{Peer: a.Get(0), Policy: a.Get(1)})
	if err != nil {
		return err
	}
	return w.print(c, list, func() { w.printf("sessions with peer %s: %s\n", a.Get(0), a.Get(1)) })
}

func noPathText(s api.Session) string {
	if s.FailAfterSeconds > 0 {
		return "fails after " + config.FormatDuration(time.Duration(s.FailAfterSeconds*float64(time.Second)))
	}
	return orDash(s.NoPath)
}

func (w *ironwarp) sessionNoPath(c *cli.Context) error {
	a := c.Args()
	list, err := w.client(c).SetPolicy(c.Context, api.PolicyRequest{Peer: a.Get(0), NoPath: a.Get(1), FailAfter: durationText(c, "fail-after")})
	if err != nil {
		return err
	}
	return w.print(c, list, func() {
		for _, s := range list {
			w.printf("session with peer %s: I/O without a path %s\n", a.Get(0), map[bool]string{true: "waits", false: noPathText(s)}[s.FailAfterSeconds == 0])
		}
	})
}

// pathTable prints the paths of sessions.
func (w *ironwarp) pathTable(sessions []api.Session) {
	if len(sessions) == 0 {
		return
	}
	t := w.sheet("session", "path", "address", "transport", "state", ">age", ">in flight", ">latency", ">failovers", "?>replays", "?>reconnects", "?>failed")
	var problems []*api.Error
	for _, s := range sessions {
		for _, p := range s.Paths {
			state := p.State
			switch {
			case p.Avoided:
				state = "avoided"
			case p.Paused:
				state = api.PeerPaused
			}
			replayed := uint64(0)
			for _, n := range p.Replays {
				replayed += n
			}
			t.row(s.Peer, p.Name, p.Address, orDash(p.Transport), w.stateText(state), ageText(p.AgeSeconds), p.InFlight, latencyText(p.LatencySeconds), p.Failovers, replayed, p.Reconnects, p.Failures)
			if p.Problem != nil {
				problems = append(problems, &api.Error{Message: fmt.Sprintf("path %s to %s: %s", p.Name, s.Peer, p.Problem.Message), Fix: p.Problem.Fix})
			}
		}
	}
	t.print()
	for _, e := range problems {
		w.problem(e)
	}
}

func latencyText(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f us", seconds*1e6)
}
