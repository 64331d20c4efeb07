package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) ulpCommand() *cli.Command {
	return &cli.Command{
		Name: "ulp", Usage: "local users of the daemon",
		Description: "ULPs are users of this host who use the daemon without root's rights, each with disks, a quota and a trust model of its own.\n" +
			"A ULP without users and groups is for root's programs under `ironwarp run`.",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "let users of this host use the daemon, or root's programs have streams", ArgsUsage: "NAME",
				Description: "Users may do what --peer and --export say, each ULP without seeing what another has. With --ports their programs under `ironwarp run` have\n" +
					"streams with programs on these peers, whose hosts need the same ports for this one. Without --user and --group the ports are for root's programs.",
				Flags: remote(ulpFlags()...), Action: w.ulpAdd,
			},
			{
				Name: "set", Usage: "change who a ULP is and what it may", ArgsUsage: "NAME", BashComplete: w.completeULPs,
				Description: "Settings without a flag stay as they are; one that is given empty ('') becomes the default, and a list is replaced as a whole.\n" +
					"What a user may do no more ends at once. Other ports make the SAs with their peers anew.",
				Flags: remote(ulpFlags()...), Action: w.ulpSet,
			},
			{Name: "rm", Usage: "remove it: its users are refused from now on", ArgsUsage: "NAME", Action: w.ulpRemove, BashComplete: w.completeULPs,
				Flags: remote(configFlag(), &cli.BoolFlag{Name: "force", Usage: "also when it has disks attached, or programs have streams at its ports: all that ends"})},
			{Name: "ls", Usage: "list the ULPs; a ULP sees only itself, and what it may do", Flags: remote(), Action: w.ulpList},
			{Name: "show", Usage: "show everything about a ULP", ArgsUsage: "NAME", Flags: remote(), Action: w.ulpShow, BashComplete: w.completeULPs},
		},
	}
}

func (w *ironwarp) ulpList(c *cli.Context) error {
	return list(w, c, (*api.Client).ULPs, "no ULPs: only root may use the daemon; `ironwarp ulp add` lets others use it", w.ulpTable)
}

func (w *ironwarp) ulpTable(list []api.ULP) {
	t := w.sheet("ulp", "users", "groups", "?trust", "?may use", "?ports", "?listens", ">disks", ">connections", ">refused")
	for _, u := range list {
		t.row(u.Name, orDash(strings.Join(u.Users, " ")), orDash(strings.Join(u.Groups, " ")), u.Trust, mayUseText(u), portsText(u), yesText(u.Listen), u.Attachments, u.Connections, u.Refused)
	}
	t.print()
	for _, u := range list {
		w.problem(u.Problem)
	}
}

// mayUseText is what a ULP may use.
func mayUseText(u api.ULP) string {
	if u.Privileged {
		return "everything (privileged)"
	}
	return strings.Join(slices.Concat(u.Peers, u.Exports), " ")
}

func yesText(yes bool) string {
	if yes {
		return "yes"
	}
	return "-"
}

// ulpFlags are those of `ulp add` and `ulp set`.
func ulpFlags() []cli.Flag {
	return append(partitionFlags(), []cli.Flag{
		configFlag(),
		&cli.StringSliceFlag{Name: "user", Usage: "`NAME` or number of a user of this host; repeat for more"},
		&cli.StringSliceFlag{Name: "group", Usage: "`NAME` or number of a group whose members are users; repeat for more"},
		&cli.StringSliceFlag{Name: "peer", Usage: "`PEER` that it may use: attach all that it offers, and have programs' streams with it; repeat for more"},
		&cli.StringSliceFlag{Name: "export", Usage: "`PEER/EXPORT` that it may attach; repeat for more"},
		&cli.StringSliceFlag{Name: "ports", Usage: "ports of its programs' streams, `FIRST/SIZE` such as 18432/512; repeat for more"},
		&cli.StringFlag{Name: "transport", Usage: "what carries these streams: `tcp|sctp-udp`", DefaultText: "tcp"},
		&cli.BoolFlag{Name: "listen", Usage: "its programs may take connections at these ports; --listen=false lets them dial only"},
		&cli.BoolFlag{Name: "privileged", Usage: "it may do all that root may"},
		&cli.StringFlag{Name: "trust", Usage: "trust `MODEL` of its sessions: " + strings.Join(config.Trusts(), ", ") + " (default: that of the service attachments)"},
		&cli.StringFlag{Name: "memory", Usage: "memory that it may have, `SIZE` such as 64MiB (default: its fair share)"},
		&cli.UintFlag{Name: "streams", Usage: "`NUMBER` of RDMA streams that it may have (default: its fair share)"},
		&cli.UintFlag{Name: "attachments", Usage: "`NUMBER` of disks that it may have attached", DefaultText: fmt.Sprint(config.DefaultAttachments)},
	}...)
}

// ulpKeys are the keys of api.ULPSpec that flags are about.
var ulpKeys = map[string]string{"user": "users", "group": "groups", "peer": "peers", "export": "exports", "ports": "ports", "transport": "transport", "listen": "listen", "privileged": "privileged", "trust": "trust",
	"memory": "max_memory_bytes", "streams": "max_streams", "attachments": "max_attachments", "partition": "partition", "label": "label"}

// ulpSpec is what the flags say of a ULP.
func ulpSpec(c *cli.Context) (api.ULPSpec, error) {
	spec := api.ULPSpec{Name: c.Args().First(), Users: given(c, "user"), Groups: given(c, "group"), Peers: given(c, "peer"), Exports: given(c, "export"), Ports: given(c, "ports"),
		Transport: c.String("transport"), Listen: c.Bool("listen"), Privileged: c.Bool("privileged"), Trust: c.String("trust"), MaxStreams: int64(min(c.Uint("streams"), 1<<31)), MaxAttachments: int(min(c.Uint("attachments"), 1<<30)), Partition: c.String("partition"), Label: c.String("label")}
	if text := c.String("memory"); text != "" {
		var err error
		if spec.MaxMemory, err = config.ParseSize(text); err != nil {
			return spec, &usageError{msg: "memory: " + err.Error()}
		}
	}
	return spec, nil
}

func (w *ironwarp) ulpAdd(c *cli.Context) error {
	spec, err := ulpSpec(c)
	if err != nil {
		return err
	}
	u := api.ULP{ULPSpec: spec}
	offline, err := w.change(c,
		func(main string) (err error) { u.Source, err = daemon.AddULP(main, spec); return err },
		func(cl *api.Client) (err error) { u, err = cl.AddULP(c.Context, spec); return err })
	if err != nil {
		return err
	}
	return w.print(c, u, func() {
		w.printf("ULP %s added: %s\n", u.Name, u.Source)
		w.programPorts(u)
		if offline {
			w.printf("the daemon is not running; the ULP is admitted when it starts\n")
		}
		w.problem(u.Problem)
	})
}

// portsText is the ports of a ULP's programs, and what carries their streams unless that is TCP.
func portsText(u api.ULP) string {
	text := orDash(strings.Join(u.Ports, " "))
	if u.Transport != "" {
		text += " over " + u.Transport
	}
	return text
}

// programPorts prints who has ports for programs, and what the other hosts need.
func (w *ironwarp) programPorts(u api.ULP) {
	if len(u.Ports) == 0 {
		return
	}
	whose, with := "its users'", "all peers"
	if len(u.Users)+len(u.Groups) == 0 {
		whose = "root's"
	}
	if !u.Privileged {
		with = strings.Join(u.Peers, ", ")
	}
	w.printf("ports of %s programs: %s, with %s; there this host needs the same\n", whose, portsText(u), with)
}

func (w *ironwarp) ulpSet(c *cli.Context) error {
	spec, err := ulpSpec(c)
	if err != nil {
		return err
	}
	name := spec.Name
	change := api.ULPChange{ULPSpec: spec}
	for flag, key := range ulpKeys {
		if c.IsSet(flag) {
			change.Set = append(change.Set, key)
		}
	}
	if slices.Sort(change.Set); len(change.Set) == 0 {
		return &usageError{msg: "nothing to change", fix: "say what with flags, see `ironwarp ulp set --help`; `ironwarp ulp show " + name + "` shows the present settings"}
	}
	u := api.ULP{ULPSpec: api.ULPSpec{Name: name}}
	offline, err := w.change(c,
		func(main string) (err error) { u.Source, err = daemon.SetULP(main, name, change); return err },
		func(cl *api.Client) (err error) { u, err = cl.SetULP(c.Context, name, change); return err })
	if err != nil {
		return err
	}
	return w.print(c, u, func() {
		w.printf("ULP %s changed: %s\n", u.Name, u.Source)
		if offline {
			w.printf("the daemon is not running; the change takes effect when it starts\n")
		} else if slices.Contains(change.Set, "ports") || slices.Contains(change.Set, "transport") || slices.Contains(change.Set, "peers") {
			w.programPorts(u)
		}
		w.problem(u.Problem)
	})
}

func (w *ironwarp) ulpRemove(c *cli.Context) error {
	name := c.Args().First()
	_, err := w.change(c,
		func(main string) error { return daemon.RemoveULP(main, name) },
		func(cl *api.Client) error { return cl.RemoveULP(c.Context, name, c.Bool("force")) })
	if err != nil {
		return err
	}
	return w.print(c, struct {
		Removed string `json:"removed"`
	}{name}, func() { w.printf("ULP %s removed\n", name) })
}

func (w *ironwarp) ulpShow(c *cli.Context) error {
	name := c.Args().First()
	all, err := w.client(c).ULPs(c.Context)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(u api.ULP) bool { return u.Name == name })
	if i < 0 {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown ULP %q", name), Fix: "`ironwarp ulp ls` lists them"}
	}
	u := all[i]
	return w.print(c, u, func() {
		line := func(name string, value any) { w.printf("%-16s %v\n", name, value) }
		most := func(text string) string { return cmp.Or(text, "its fair share") }
		line("ulp", u.Name)
		if len(u.Users)+len(u.Groups) == 0 {
			line("users", "root's programs alone")
		} else {
			line("users", orDash(strings.Join(u.Users, " ")))
			line("groups", orDash(strings.Join(u.Groups, " ")))
		}
		line("may use", mayUseText(u))
		line("ports", portsText(u))
		line("listens", yesText(u.Listen))
		line("trust", orDash(u.Trust))
		var memory, streams string
		if u.MaxMemory > 0 {
			memory = "up to " + config.FormatSize(u.MaxMemory)
		}
		if u.MaxStreams > 0 {
			streams = fmt.Sprintf("up to %d", u.MaxStreams)
		}
		line("memory", most(memory))
		line("streams", most(streams))
		line("disks", fmt.Sprintf("%d, up to %d", u.Attachments, u.MaxAttachments))
		line("connections", fmt.Sprintf("%d, refused: %d", u.Connections, u.Refused))
		if u.Source != "" {
			line("file", u.Source)
		}
		w.problem(u.Problem)
	})
}

// ownerText is the owner of a disk, in a list that has some of ULPs.
func ownerText(at api.Attachment) string { return cmp.Or(at.ULP, "root") }

func ofULPs(list []api.Attachment) bool {
	return slices.ContainsFunc(list, func(at api.Attachment) bool { return at.ULP != "" })
}
