package main

import (
	"fmt"
	"os"
	"slices"
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
				Flags: remote(append(append(lunFlags(), targetFlags()...),
					&cli.StringFlag{Name: "iqn", Usage: "its iSCSI `NAME` (default: one of this host's name and NAME)"},
				)...),
				Action: w.targetAdd,
			},
			{
				Name: "set", Usage: "change a target's settings", ArgsUsage: "NAME", BashComplete: w.completeTargets,
				Description: "Settings without a flag stay as they are; one that is given empty ('') becomes the default, and a list is replaced as a whole.\nOf CHAP the user that is named is added, or gets other secrets. Sessions of those who may not log in any more end, others go on.",
				Flags: remote(append(targetFlags(),
					&cli.StringSliceFlag{Name: "remove-chap-user", Usage: "`NAME` of an initiator in CHAP that is not let in any more; repeat for more"},
					&cli.BoolFlag{Name: "no-chap", Usage: "ask no initiator for a secret"},
				)...),
				Action: w.targetSet,
			},
			{Name: "rm", Usage: "stop offering it", ArgsUsage: "NAME", Action: w.targetRemove, BashComplete: w.completeTargets,
				Flags: remote(configFlag(), &cli.BoolFlag{Name: "force", Usage: "also when it has sessions: their I/O fails"})},
			{Name: "ls", Usage: "list the targets", Flags: remote(), Action: w.targetList},
			{Name: "show", Usage: "show a target, its LUNs and who may log in", ArgsUsage: "NAME", Flags: remote(), Action: w.targetShow, BashComplete: w.completeTargets},
			{Name: "lun", Usage: "LUNs of a target", Subcommands: []*cli.Command{
				{Name: "add", Usage: "add one; initiators that are logged in are told", ArgsUsage: "TARGET", Action: w.lunAdd, BashComplete: w.completeTargets,
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

// targetFlags are those of `target add` and `target set`.
func targetFlags() []cli.Flag {
	return append(partitionFlags(), []cli.Flag{
		configFlag(),
		&cli.StringFlag{Name: "alias", Usage: "a `TEXT` that initiators show"},
		&cli.StringSliceFlag{Name: "peer", Usage: "`PEER` whose initiators may log in; repeat for more"},
		&cli.StringSliceFlag{Name: "initiator", Usage: "iSCSI `NAME` of an initiator that may log in (default: any on these peers); repeat for more"},
		&cli.StringFlag{Name: "chap-user", Usage: "the initiator's `NAME` in CHAP"},
		&cli.StringFlag{Name: "chap-secret-file", Usage: "`FILE` with its secret, mode 0600"},
		&cli.StringFlag{Name: "target-user", Usage: "the target's `NAME` in CHAP, if it authenticates itself as well"},
		&cli.StringFlag{Name: "target-secret-file", Usage: "`FILE` with the target's secret, mode 0600"},
		&cli.StringSliceFlag{Name: "address", Usage: "`ADDRESS` of a portal (default: those at which the peers reach this host); repeat for more"},
		&cli.UintFlag{Name: "port", Usage: "TCP `PORT` of the portals", Value: config.DefaultISCSIPort},
		&cli.StringFlag{Name: "redirect", Usage: "send initiators to `ADDRESS`, with :PORT behind it if that is not 3260"},
		&cli.BoolFlag{Name: "redirect-permanent", Usage: "and tell them that this is for good"},
		&cli.UintFlag{Name: "error-recovery-level", Usage: "the highest `LEVEL` that initiators may have: 1 asks again for damaged data, 2 also keeps commands of a connection that fails for another", Value: config.DefaultErrorRecoveryLevel},
		&cli.BoolFlag{Name: "iser", Usage: "serve it over RDMA as well; --iser=false over TCP alone", Value: true},
		&cli.BoolFlag{Name: "insecure-undeclared", Usage: "hosts that are no peers may log in, in clear: for labs only"},
	}...)
}

// targetKeys are the keys of api.TargetSpec that flags are about.
var targetKeys = map[string]string{"alias": "alias", "peer": "peers", "initiator": "initiators", "address": "addresses", "port": "port", "redirect": "redirect", "redirect-permanent": "redirect_permanent",
	"error-recovery-level": "error_recovery_level", "iser": "iser", "insecure-undeclared": "insecure_undeclared", "chap-user": "chap", "no-chap": "chap", "partition": "partition", "label": "label"}

// targetSpec is what the flags say of a target.
func targetSpec(c *cli.Context) (spec api.TargetSpec, err error) {
	if c.Uint("port") > 65535 {
		return spec, &usageError{msg: fmt.Sprintf("port %d is out of range", c.Uint("port")), fix: "allowed: 1 to 65535"}
	}
	level := uint32(min(c.Uint("error-recovery-level"), config.MaxErrorRecoveryLevel+1))
	if level > config.MaxErrorRecoveryLevel {
		return spec, &usageError{msg: "this is no error recovery level", fix: fmt.Sprintf("allowed: 0 to %d", config.MaxErrorRecoveryLevel)}
	}
	spec = api.TargetSpec{Name: c.Args().First(), Alias: c.String("alias"), Port: uint16(c.Uint("port")), Addresses: given(c, "address"), Peers: given(c, "peer"), Initiators: given(c, "initiator"),
		ErrorRecoveryLevel: &level, InsecureUndeclared: c.Bool("insecure-undeclared"), Redirect: c.String("redirect"), RedirectPermanent: c.Bool("redirect-permanent"), Partition: c.String("partition"), Label: c.String("label")}
	if !c.Bool("iser") {
		spec.ISER = new(bool)
	}
	user := api.CHAPUser{User: c.String("chap-user"), TargetUser: c.String("target-user")}
	if user.SecretFile, err = fileFlag(c, "chap-secret-file"); err != nil {
		return spec, err
	}
	if user.TargetSecretFile, err = fileFlag(c, "target-secret-file"); err != nil {
		return spec, err
	}
	if user != (api.CHAPUser{}) {
		spec.CHAP = append(spec.CHAP, user)
	}
	return spec, nil
}

// given are the values of a flag, without empty ones.
func given(c *cli.Context, flag string) []string {
	return slices.DeleteFunc(c.StringSlice(flag), func(s string) bool { return s == "" })
}

func (w *ironwarp) targetSet(c *cli.Context) error {
	spec, err := targetSpec(c)
	if err != nil {
		return err
	}
	name := spec.Name
	change := api.TargetChange{TargetSpec: spec, RemoveCHAP: given(c, "remove-chap-user")}
	for flag, key := range targetKeys {
		if c.IsSet(flag) {
			change.Set = append(change.Set, key)
		}
	}
	slices.Sort(change.Set)
	change.Set = slices.Compact(change.Set)
	switch {
	case len(spec.CHAP) > 0 && spec.CHAP[0].User == "":
		return &usageError{msg: "a secret of CHAP, and nobody whose it is", fix: "name the initiator as well: --chap-user NAME"}
	case len(spec.CHAP) > 0 && c.Bool("no-chap"):
		return &usageError{msg: "--chap-user and --no-chap exclude each other", fix: "use one of them"}
	case len(change.Set) == 0 && len(change.RemoveCHAP) == 0:
		return &usageError{msg: "nothing to change", fix: "say what with flags, see `ironwarp target set --help`; `ironwarp target show " + name + "` shows the present settings"}
	}
	t := api.Target{TargetSpec: api.TargetSpec{Name: name}}
	offline, err := w.change(c,
		func(main string) (err error) { t.Source, err = daemon.SetTarget(main, name, change); return err },
		func(cl *api.Client) (err error) { t, err = cl.SetTarget(c.Context, name, change); return err })
	if err != nil {
		return err
	}
	return w.print(c, t, func() {
		w.printf("target %s changed: %s\n", t.Name, t.Source)
		if offline {
			w.printf("the daemon is not running; the change takes effect when it starts\n")
		}
		w.problem(t.Problem)
	})
}

func (w *ironwarp) targetAdd(c *cli.Context) error {
	spec, err := targetSpec(c)
	if err != nil {
		return err
	}
	spec.IQN = c.String("iqn")
	l, some, err := lunOf(c)
	if err != nil {
		return err
	}
	if some {
		spec.LUNs = append(spec.LUNs, l)
	}
	t := api.Target{TargetSpec: spec}
	offline, err := w.change(c,
		func(main string) (err error) { t.Source, err = daemon.AddTarget(main, spec); return err },
		func(cl *api.Client) (err error) { t, err = cl.AddTarget(c.Context, spec); return err })
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
	return w.remove(c, "target", config.RemoveTarget, (*api.Client).RemoveTarget)
}

func (w *ironwarp) targetList(c *cli.Context) error {
	return list(w, c, (*api.Client).Targets, "no targets; add one with `ironwarp target add --peer PEER --path FILE NAME`", w.targetTable)
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
	for _, v := range all {
		w.problem(v.Problem)
	}
}

func (w *ironwarp) targetShow(c *cli.Context) error {
	v, err := w.client(c).Target(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		line := func(name string, value any) { w.printf("%-16s %v\n", name, value) }
		line("target", v.Name)
		line("iqn", v.IQN)
		line("state", w.stateText(v.State))
		line("portals", orDash(strings.Join(v.Portals, " ")))
		if v.Redirect != "" {
			line("redirect", v.Redirect+map[bool]string{true: ", for good"}[v.RedirectPermanent])
		}
		line("peers", orDash(strings.Join(v.Peers, " ")))
		if v.InsecureUndeclared {
			line("anybody", w.bad("hosts that are no peers may log in, in clear"))
		}
		if v.ISER != nil && !*v.ISER {
			line("iser", "no: sessions are over TCP alone")
		}
		line("initiators", orDash(strings.Join(v.Initiators, " ")))
		if v.ErrorRecoveryLevel != nil {
			line("error recovery", fmt.Sprintf("up to level %d", *v.ErrorRecoveryLevel))
		}
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

func (w *ironwarp) targetSessions(c *cli.Context) error {
	return list(w, c, (*api.Client).TargetSessions, "no initiator is logged in", w.targetSessionTable)
}

func (w *ironwarp) targetSessionTable(all []api.TargetSession) {
	t := w.sheet("session", "target", "peer", "initiator", "?chap", "over", "?from", "?>age", "?recovery", ">in flight", "?>read", "?>written", ">errors")
	for _, s := range all {
		target := s.Target
		if s.Discovery {
			target = "(discovery)"
		}
		t.row(s.ID, target, orDash(s.Peer), s.Initiator, orDash(s.CHAP), s.Transport, s.Address, ageText(s.AgeSeconds), recoveryText(&s), s.InFlight, bytesText(float64(s.IO.ReadBytes)), bytesText(float64(s.IO.WriteBytes)), s.IO.Errors)
	}
	t.print()
}

// recoveryText is a session's ErrorRecoveryLevel, and how many connections have failed whose commands wait.
func recoveryText(s *api.TargetSession) string {
	text := fmt.Sprint(s.Recovery)
	if s.Failed > 0 {
		text += fmt.Sprintf(", %d failed", s.Failed)
	}
	return text
}

func (w *ironwarp) targetSessionEnd(c *cli.Context) error {
	s, err := w.client(c).EndTargetSession(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, s, func() { w.printf("session %s of %s was ended\n", s.ID, s.Initiator) })
}

func (w *ironwarp) chapGenerate(c *cli.Context) error {
	name := c.Args().First()
	if _, err := os.Lstat(name); err == nil {
		return &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("%s exists already", name), Fix: "name another file, or remove it: the secret in it may be in use"}
	}
	text := chap.Generate()
	s, err := auth.NewSecret([]byte(text))
	if err == nil {
		err = s.Save(name)
	}
	if err != nil {
		return err
	}
	v := struct {
		File   string `json:"file"`
		Secret string `json:"secret,omitempty"`
	}{File: name}
	if c.Bool("show") {
		v.Secret = text
	}
	return w.print(c, v, func() {
		if v.Secret != "" {
			w.printf("%s\n", v.Secret) // alone, for a pipe
			return
		}
		w.printf("a secret was written to %s\n", v.File)
	})
}
