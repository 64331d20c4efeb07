package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) targetCommand() *cli.Command {
	return &cli.Command{
		Name:  "target",
		Usage: "disks for iSCSI initiators",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "offer a target; its LUNs come with `lun add`, or the first with --path or --export", ArgsUsage: "NAME",
				Description: "All that is asked of an initiator has to hold: its host is one of the peers, its name is one of the initiators,\nand it knows a secret. A peer with IPsec has --iscsi-port, on both hosts.",
				Flags: remote(append(lunFlags(), configFlag(),
					&cli.StringFlag{Name: "iqn", Usage: "its iSCSI `NAME` (default: one of this host's name and NAME)"},
					&cli.StringFlag{Name: "alias", Usage: "a `TEXT` that initiators show"},
					&cli.StringSliceFlag{Name: "peer", Usage: "`PEER` whose initiators may log in; repeat for more"},
					&cli.StringSliceFlag{Name: "initiator", Usage: "iSCSI `NAME` of an initiator that may log in (default: any on these peers); repeat for more"},
					&cli.StringFlag{Name: "chap-user", Usage: "the initiator's `NAME` in CHAP"},
					&cli.StringFlag{Name: "chap-secret-file", Usage: "`FILE` with its secret, mode 0600"},
					&cli.StringFlag{Name: "target-user", Usage: "the target's `NAME` in CHAP, if it authenticates itself as well"},
					&cli.StringFlag{Name: "target-secret-file", Usage: "`FILE` with the target's secret, mode 0600"},
					&cli.StringSliceFlag{Name: "address", Usage: "`ADDRESS` of a portal (default: those at which the peers reach this host); repeat for more"},
					&cli.UintFlag{Name: "port", Usage: "TCP `PORT` of the portals", Value: config.DefaultISCSIPort},
					&cli.BoolFlag{Name: "insecure-undeclared", Usage: "hosts that are no peers may log in, in clear: for labs only"},
				)...),
				Action: w.targetAdd,
			},
			{Name: "rm", Usage: "stop offering it", ArgsUsage: "NAME", Action: w.targetRemove, BashComplete: w.completeTargets,
				Flags: remote(configFlag(), &cli.BoolFlag{Name: "force", Usage: "also when it has sessions: their I/O fails"})},
			{Name: "ls", Usage: "list the targets", Flags: remote(), Action: w.targetList},
			{Name: "show", Usage: "show a target, its LUNs and who may log in", ArgsUsage: "NAME", Flags: remote(), Action: w.targetShow, BashComplete: w.completeTargets},
			{Name: "lun", Usage: "LUNs of a target", Subcommands: []*cli.Command{
				{Name: "add", Usage: "add one; the target's sessions end, and come back by themselves", ArgsUsage: "TARGET", Action: w.lunAdd, BashComplete: w.completeTargets,
					Flags: remote(append(lunFlags(), configFlag(), &cli.IntFlag{Name: "number", Usage: "its `NUMBER` (default: 0)"})...)},
				{Name: "rm", Usage: "remove one, and its reservations; its data stays", ArgsUsage: "TARGET NUMBER", Action: w.lunRemove, BashComplete: w.completeTargets, Flags: remote(configFlag())},
			}},
			{Name: "session", Usage: "sessions of initiators", Subcommands: []*cli.Command{
				{Name: "ls", Usage: "list them", Flags: remote(), Action: w.targetSessions},
				{Name: "end", Usage: "end one; its initiator may log in again", ArgsUsage: "ID", Flags: remote(), Action: w.targetSessionEnd},
			}},
			{Name: "chap", Usage: "secrets of CHAP", Subcommands: []*cli.Command{
				{Name: "generate", Usage: "write a new random secret to a file of mode 0600", ArgsUsage: "FILE", Action: w.chapGenerate,
					Flags: []cli.Flag{jsonFlag(), &cli.BoolFlag{Name: "show", Usage: "print it as well"}}},
			}},
		},
	}
}

func lunFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "path", Usage: "a LUN of a `FILE` or block device that is no export"},
		&cli.StringFlag{Name: "export", Usage: "a LUN of the disk of `EXPORT`, which peers may only read then"},
		&cli.IntFlag{Name: "block-size", Usage: "`BYTES` of its blocks: 512 (the default) or 4096"},
		&cli.BoolFlag{Name: "read-only", Usage: "refuse writes"},
		&cli.BoolFlag{Name: "removable", Usage: "a removable medium"},
		&cli.BoolFlag{Name: "thin", Usage: "offer UNMAP; --thin=false does not", Value: true},
	}
}

// lunOf is the LUN that the flags describe, if any does.
func lunOf(c *cli.Context) (l api.LUNSpec, some bool, err error) {
	l = api.LUNSpec{Number: c.Int("number"), Export: c.String("export"), BlockSize: c.Int("block-size"), ReadOnly: c.Bool("read-only"), Removable: c.Bool("removable")}
	if !c.Bool("thin") {
		l.Thin = new(bool)
	}
	if p := c.String("path"); p != "" {
		if l.Path, err = filepath.Abs(p); err != nil {
			return l, false, err
		}
	}
	if l.Path != "" && l.Export != "" {
		return l, false, &usageError{msg: "--path and --export exclude each other", fix: "a LUN is one disk"}
	}
	return l, l.Path != "" || l.Export != "", nil
}

func (w *ironwarp) targetAdd(c *cli.Context) error {
	a, err := args(c, "NAME")
	if err != nil {
		return err
	}
	if c.Uint("port") > 65535 {
		return &usageError{msg: fmt.Sprintf("port %d is out of range", c.Uint("port")), fix: "allowed: 1 to 65535"}
	}
	spec := api.TargetSpec{Name: a[0], IQN: c.String("iqn"), Alias: c.String("alias"), Port: uint16(c.Uint("port")), Addresses: c.StringSlice("address"),
		Peers: c.StringSlice("peer"), Initiators: c.StringSlice("initiator"), InsecureUndeclared: c.Bool("insecure-undeclared")}
	user := api.CHAPUser{User: c.String("chap-user"), TargetUser: c.String("target-user")}
	for _, f := range []struct {
		flag string
		to   *string
	}{{"chap-secret-file", &user.SecretFile}, {"target-secret-file", &user.TargetSecretFile}} {
		if name := c.String(f.flag); name != "" {
			if *f.to, err = filepath.Abs(name); err != nil {
				return err
			}
		}
	}
	if user != (api.CHAPUser{}) {
		spec.CHAP = append(spec.CHAP, user)
	}
	l, some, err := lunOf(c)
	if err != nil {
		return err
	}
	if some {
		spec.LUNs = append(spec.LUNs, l)
	}
	cl := w.client(c)
	main, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	t := api.Target{TargetSpec: spec}
	if offline {
		t.Source, err = daemon.AddTarget(main, spec)
	} else {
		t, err = cl.AddTarget(c.Context, spec)
	}
	if err != nil {
		return err
	}
	return w.print(c, t, func() {
		w.printf("target %s added: %s\n", t.Name, t.Source)
		switch {
		case offline:
			w.printf("the daemon is not running; the target is offered when it starts\n")
		case len(t.Peers) == 0 && !t.InsecureUndeclared:
			w.printf("nobody may log in yet: no --peer PEER was given\n")
		default:
			w.printf("%s at %s\n", t.IQN, orDash(strings.Join(t.Portals, " ")))
		}
		w.problem(t.Problem)
	})
}

func (w *ironwarp) targetRemove(c *cli.Context) error {
	a, err := args(c, "NAME")
	if err != nil {
		return err
	}
	cl := w.client(c)
	main, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	if offline {
		err = config.RemoveTarget(main, a[0])
	} else {
		err = cl.RemoveTarget(c.Context, a[0], c.Bool("force"))
	}
	if err != nil {
		return err
	}
	return w.print(c, struct {
		Removed string `json:"removed"`
	}{a[0]}, func() { w.printf("target %s removed; its data was not touched\n", a[0]) })
}

func (w *ironwarp) targetList(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	all, err := w.client(c).Targets(c.Context)
	if err != nil {
		return err
	}
	return w.print(c, all, func() {
		if len(all) == 0 {
			w.printf("no targets; add one with `ironwarp target add --peer PEER --path FILE NAME`\n")
			return
		}
		w.targetTable(all)
		for _, t := range all {
			w.problem(t.Problem)
		}
	})
}

func (w *ironwarp) targetTable(all []api.Target) {
	t := w.sheet("target", "state", ">luns", ">sessions", "peers", "?portals", "iqn")
	for _, v := range all {
		peers := strings.Join(v.Peers, " ")
		if v.InsecureUndeclared {
			peers = strings.TrimSpace(peers + " " + w.bad("anybody"))
		}
		t.row(v.Name, w.stateText(v.State), len(v.LUNs), v.Sessions, orDash(peers), orDash(strings.Join(v.Portals, " ")), v.IQN)
	}
	t.print()
}

func (w *ironwarp) targetShow(c *cli.Context) error {
	a, err := args(c, "NAME")
	if err != nil {
		return err
	}
	v, err := w.client(c).Target(c.Context, a[0])
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		line := func(name string, value any) { w.printf("%-16s %v\n", name, value) }
		line("target", v.Name)
		line("iqn", v.IQN)
		line("state", w.stateText(v.State))
		line("portals", orDash(strings.Join(v.Portals, " ")))
		line("peers", orDash(strings.Join(v.Peers, " ")))
		if v.InsecureUndeclared {
			line("anybody", w.bad("hosts that are no peers may log in, in clear"))
		}
		line("initiators", orDash(strings.Join(v.Initiators, " ")))
		for _, u := range v.CHAP {
			line("chap", u.User+" "+u.SecretFile)
		}
		line("logins", fmt.Sprintf("%d, refused: %d", v.Logins, v.RefusedLogins))
		line("file", v.Source)
		if len(v.Units) > 0 {
			t := w.sheet(">lun", "state", ">size", "mode", "disk", "?>read", "?>written", ">errors")
			for _, u := range v.Units {
				disk := u.Path
				if disk == "" {
					disk = "export " + u.Export
				}
				t.row(u.Number, w.stateText(u.State), bytesText(float64(u.Size)), modeText(u.ReadOnly), disk, bytesText(float64(u.IO.ReadBytes)), bytesText(float64(u.IO.WriteBytes)), u.IO.Errors)
			}
			t.print()
		}
		w.problem(v.Problem)
	})
}

// changedTarget prints what a target is after a change of its LUNs.
func (w *ironwarp) changedTarget(c *cli.Context, t api.Target, what string, offline bool) error {
	return w.print(c, t, func() {
		w.printf("%s: %s\n", what, t.Source)
		if offline {
			w.printf("the daemon is not running; the change takes effect when it starts\n")
		}
		w.problem(t.Problem)
	})
}

func (w *ironwarp) lunAdd(c *cli.Context) error {
	a, err := args(c, "TARGET")
	if err != nil {
		return err
	}
	l, some, err := lunOf(c)
	if err != nil {
		return err
	}
	if !some {
		return &usageError{msg: "which disk is the LUN to be?", fix: "give --path FILE or --export EXPORT"}
	}
	cl := w.client(c)
	main, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	t := api.Target{TargetSpec: api.TargetSpec{Name: a[0]}}
	if offline {
		t.Source, err = daemon.AddLUN(main, a[0], l)
	} else {
		t, err = cl.AddLUN(c.Context, a[0], l)
	}
	if err != nil {
		return err
	}
	return w.changedTarget(c, t, fmt.Sprintf("LUN %d added to target %s", l.Number, t.Name), offline)
}

func (w *ironwarp) lunRemove(c *cli.Context) error {
	a, err := args(c, "TARGET", "NUMBER")
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(a[1], 10, 8)
	if err != nil {
		return &usageError{msg: fmt.Sprintf("%q is no number of a LUN", a[1]), fix: fmt.Sprintf("allowed: 0 to %d", config.MaxLUN)}
	}
	cl := w.client(c)
	main, offline, err := w.whichConfig(c, cl)
	if err != nil {
		return err
	}
	t := api.Target{TargetSpec: api.TargetSpec{Name: a[0]}}
	if offline {
		t.Source, err = daemon.RemoveLUN(main, a[0], int(number))
	} else {
		t, err = cl.RemoveLUN(c.Context, a[0], int(number))
	}
	if err != nil {
		return err
	}
	return w.changedTarget(c, t, fmt.Sprintf("LUN %d of target %s removed; its data was not touched", number, t.Name), offline)
}

func (w *ironwarp) targetSessions(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	all, err := w.client(c).TargetSessions(c.Context)
	if err != nil {
		return err
	}
	return w.print(c, all, func() {
		if len(all) == 0 {
			w.printf("no initiator is logged in\n")
			return
		}
		w.targetSessionTable(all)
	})
}

func (w *ironwarp) targetSessionTable(all []api.TargetSession) {
	t := w.sheet("session", "target", "peer", "initiator", "?chap", "?from", "?>age", ">in flight", "?>read", "?>written", ">errors")
	for _, s := range all {
		target := s.Target
		if s.Discovery {
			target = "(discovery)"
		}
		t.row(s.ID, target, orDash(s.Peer), s.Initiator, orDash(s.CHAP), s.Address, ageText(s.AgeSeconds), s.InFlight, bytesText(float64(s.IO.ReadBytes)), bytesText(float64(s.IO.WriteBytes)), s.IO.Errors)
	}
	t.print()
}

func (w *ironwarp) targetSessionEnd(c *cli.Context) error {
	a, err := args(c, "ID")
	if err != nil {
		return err
	}
	s, err := w.client(c).EndTargetSession(c.Context, a[0])
	if err != nil {
		return err
	}
	return w.print(c, s, func() { w.printf("session %s of %s was ended\n", s.ID, s.Initiator) })
}

func (w *ironwarp) chapGenerate(c *cli.Context) error {
	a, err := args(c, "FILE")
	if err != nil {
		return err
	}
	if _, err := os.Lstat(a[0]); err == nil {
		return &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("%s exists already", a[0]), Fix: "name another file, or remove it: the secret in it may be in use"}
	}
	text := chap.Generate()
	s, err := auth.NewSecret([]byte(text))
	if err == nil {
		err = s.Save(a[0])
	}
	if err != nil {
		return err
	}
	v := struct {
		File   string `json:"file"`
		Secret string `json:"secret,omitempty"`
	}{File: a[0]}
	if c.Bool("show") {
		v.Secret = text
	}
	return w.print(c, v, func() {
		w.printf("a secret was written to %s\n", v.File)
		if v.Secret != "" {
			w.printf("%s\n", v.Secret)
		}
	})
}

func (w *ironwarp) iscsiCommand() *cli.Command {
	return &cli.Command{
		Name:  "iscsi",
		Usage: "iSCSI portals of other hosts",
		Subcommands: []*cli.Command{{
			Name: "discover", Usage: "ask a peer's portal for its targets (SendTargets)", ArgsUsage: "PORTAL", Action: w.iscsiDiscover, BashComplete: w.completePeers,
			Description: "PORTAL is a peer's name, or one of its addresses, with :PORT behind it if that is not 3260.",
			Flags: remote(&cli.StringFlag{Name: "initiator", Usage: "iSCSI `NAME` to log in by (default: one of this host's name)"},
				&cli.StringFlag{Name: "chap-user", Usage: "`NAME` in CHAP"}, &cli.StringFlag{Name: "chap-secret-file", Usage: "`FILE` with the secret, mode 0600"}),
		}},
	}
}

func (w *ironwarp) iscsiDiscover(c *cli.Context) error {
	a, err := args(c, "PORTAL")
	if err != nil {
		return err
	}
	q := api.DiscoverRequest{Portal: a[0], Initiator: c.String("initiator"), User: c.String("chap-user"), SecretFile: c.String("chap-secret-file")}
	if q.SecretFile != "" {
		if q.SecretFile, err = filepath.Abs(q.SecretFile); err != nil {
			return err
		}
	}
	all, err := w.client(c).Discover(c.Context, q)
	if err != nil {
		return err
	}
	return w.print(c, all, func() {
		if len(all) == 0 {
			w.printf("there is no target for this initiator\n")
		}
		for _, t := range all {
			for _, p := range t.Portals {
				w.printf("%s %s\n", p, t.IQN)
			}
		}
	})
}
