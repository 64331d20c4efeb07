package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "peers, SAs, streams, sessions, disks and their rates",
		Flags: remote(
			&cli.BoolFlag{Name: "resources", Aliases: []string{"r"}, Usage: "who uses how much of the RNIC, instead"},
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "repeat until Ctrl-C"},
			&cli.DurationFlag{Name: "interval", Value: 2 * time.Second, Usage: "`TIME` between updates with --watch"},
		),
		Action: w.status,
	}
}

func (w *ironwarp) status(c *cli.Context) error {
	cl := w.client(c)
	look := func() (any, func(), error) {
		st, err := cl.Status(c.Context)
		return st, func() { w.statusPage(st) }, err
	}
	if c.Bool("resources") {
		look = func() (any, func(), error) {
			r, err := cl.Resources(c.Context)
			return r, func() { w.resourcesPage(r) }, err
		}
	}
	if !c.Bool("watch") {
		v, page, err := look()
		if err != nil {
			return err
		}
		return w.print(c, v, page)
	}
	if c.Duration("interval") < 100*time.Millisecond {
		return &usageError{msg: "--interval is too short", fix: "use at least 100ms"}
	}
	tick := time.NewTicker(c.Duration("interval"))
	defer tick.Stop()
	for {
		v, page, err := look()
		switch {
		case c.Context.Err() != nil:
			return nil
		case err != nil && !api.NotRunning(err):
			return err
		case asJSON(c):
			if err == nil {
				err = json.NewEncoder(w.stdout).Encode(api.Lists(v))
			}
			if err != nil {
				return err
			}
		default:
			if w.terminal {
				w.printf("\x1b[H\x1b[2J")
			}
			w.printf("%s\n", time.Now().Format("15:04:05"))
			if err != nil {
				w.printf("%s\n", err)
			} else {
				page()
			}
		}
		select {
		case <-c.Context.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *ironwarp) statusPage(st api.Status) {
	w.printf("ironwarp %s, process %d, up %s", st.Info.Version, st.Info.PID, ageText(time.Since(st.Info.Started).Seconds()))
	if st.Info.Config != "" { // empty for a ULP
		w.printf(", configuration %s", st.Info.Config)
	}
	w.printf("\n")
	for _, l := range st.Listeners {
		w.printf("%s %s\n", w.stateText(l.State), listenerText(l))
		w.problem(l.Problem)
	}
	for _, l := range st.Portals {
		w.printf("%s %s for iSCSI initiators\n", w.stateText(l.State), l.Address)
		w.problem(l.Problem)
	}
	if st.IKE != nil {
		w.printf("%s: %s %s\n", st.IKE.Name, w.stateText(st.IKE.State), st.IKE.Detail)
		w.problem(st.IKE.Problem)
	}
	if st.Refused > 0 {
		w.printf("refused connections: %d, the last: %s\n", st.Refused, st.LastRefused)
		if st.LastRefusedFix != "" {
			w.printf("  %s\n", st.LastRefusedFix)
		}
	}
	if g := st.Guard; g != nil && g.BlockedIn+g.BlockedOut > 0 {
		w.printf("clear packets stopped by the guard: %d in, %d out\n", g.BlockedIn, g.BlockedOut)
	}
	for _, b := range st.Blocks {
		w.printf("%s\n", w.warn(blockText(b)))
	}
	for _, p := range st.Captures {
		w.printf("%s\n", w.warn(captureText(p)))
	}
	for _, e := range st.Unusable {
		w.problem(e)
	}
	if st.Permissive != "" {
		w.printf("%s\n", w.bad("INSECURE: "+st.Permissive+": what the policy of partitions denies is logged, and let pass"))
	}
	for _, p := range st.Partitions {
		w.printf("partition %s: pkey %s, port %d, label %s, %s\n", p.Name, p.PKey, p.Port, orDash(p.Label), countSAs(p.Streams, "stream"))
	}
	if len(st.Peers) == 0 {
		w.printf("no peers; add one with `ironwarp peer add NAME ADDRESS`\n")
	} else {
		w.printf("\n")
		w.peerTable(st.Peers)
		for _, p := range st.Peers {
			w.insecure(p)
			for _, s := range p.PathStates {
				if s.Reachable == api.PathUnreachable || s.Problem != nil {
					w.printf("peer %s: path %s\n", p.Name, w.pathText(s))
				}
				w.problem(s.Problem)
			}
			for _, t := range p.Carrier.Tried {
				w.printf("peer %s: %s\n", p.Name, w.warn(fmt.Sprintf("%s does not work, %s is used: %s", t.Transport, p.Carrier.Transport, t.Error)))
			}
			w.narrowPath(p)
			w.problem(p.Problem)
		}
	}
	section(w, st.SAs, w.saTable)
	section(w, st.Streams, w.streamTable)
	section(w, st.Sessions, w.sessionTable)
	section(w, slices.DeleteFunc(slices.Clone(st.Sessions), func(s api.Session) bool {
		return len(s.Paths) < 2 && !slices.ContainsFunc(s.Paths, func(p api.SessionPath) bool { return p.State == api.PathGivenUp })
	}), w.pathTable)
	section(w, st.Attachments, w.attachmentTable)
	section(w, st.Targets, w.targetTable)
	section(w, st.NVMe, w.nvmeTable)
	section(w, st.TargetSessions, w.targetSessionTable)
	section(w, st.Exports, w.exportTable)
	section(w, st.Pools, w.poolTable)
}

// section prints a table behind an empty line, unless there is nothing to print.
func section[T any](w *ironwarp, all []T, table func([]T)) {
	if len(all) > 0 {
		w.printf("\n")
		table(all)
	}
}

func listenerText(l api.Listener) string {
	if of := l.Partition; of != "" {
		l.Partition = ""
		return listenerText(l) + ", partition " + of
	}
	switch {
	case l.Transport == transport.SCTPUDP.String():
		return fmt.Sprintf("%s over SCTP in UDP, port %d", l.Address, l.UDPPort)
	case l.Transport == transport.SCTP.String():
		return strings.Join(append([]string{l.Address + " over SCTP"}, l.More...), ", and at ")
	}
	return l.Address
}

func (w *ironwarp) streamTable(streams []api.Stream) {
	const most = 50
	t := w.sheet("stream", "peer", "?service", "?flow", "?protection", "state", ">age", ">in", ">out")
	for _, s := range streams[:min(len(streams), most)] {
		state := api.PeerUp
		if s.Paused {
			state = api.PeerPaused
		}
		t.row(s.ID, s.Peer, serviceText(s), s.Flow, s.Protection, w.stateText(state), ageText(s.AgeSeconds), bytesText(float64(s.BytesIn)), bytesText(float64(s.BytesOut)))
	}
	t.print()
	if len(streams) > most {
		w.printf("... and %d more; --json has them all\n", len(streams)-most)
	}
}
