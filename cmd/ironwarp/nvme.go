package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) nvmeCommand() *cli.Command {
	return &cli.Command{
		Name:  "nvme",
		Usage: "disks for NVMe hosts, over RDMA",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "offer a subsystem with one namespace; more of them are written to its file", ArgsUsage: "NAME",
				Description: "All that is asked of a host has to hold: it is one of the peers, and its NQN is one of the hosts. A peer with IPsec\nhas --nvme-port, on both hosts.",
				Flags: remote(configFlag(),
					&cli.StringFlag{Name: "nqn", Usage: "its NVMe qualified `NAME` (default: one of this host's name and NAME)"},
					&cli.PathFlag{Name: "path", Usage: "file or block device `PATH` of namespace 1"},
					&cli.StringFlag{Name: "export", Usage: "in place of --path the `EXPORT` whose disk it is"},
					&cli.IntFlag{Name: "block-size", Usage: "`BYTES` of a logical block: 512 or 4096", Value: 512},
					&cli.BoolFlag{Name: "read-only", Usage: "hosts do not write"},
					&cli.BoolFlag{Name: "thin", Usage: "give back what hosts deallocate", Value: true},
					&cli.StringSliceFlag{Name: "peer", Usage: "`PEER` whose hosts may connect; repeat for more"},
					&cli.StringSliceFlag{Name: "host", Usage: "`NQN` of a host that may connect (default: any on these peers); repeat for more"},
					&cli.StringSliceFlag{Name: "address", Usage: "`ADDRESS` of a portal (default: those at which the peers reach this host); repeat for more"},
					&cli.UintFlag{Name: "port", Usage: "TCP `PORT` of the portals", Value: config.DefaultNVMePort},
					&cli.BoolFlag{Name: "insecure-undeclared", Usage: "hosts that are no peers may connect, in clear: for labs only"},
				),
				Action: w.nvmeAdd,
			},
			{Name: "rm", Usage: "stop offering it; the data stay", ArgsUsage: "NAME", Action: w.nvmeRemove, BashComplete: w.completeSubsystems,
				Flags: remote(configFlag(), &cli.BoolFlag{Name: "force", Usage: "also when it has controllers: their I/O fails"})},
			{Name: "ls", Usage: "list the subsystems", Flags: remote(), Action: w.nvmeList},
			{Name: "show", Usage: "show a subsystem, its namespaces and who may connect", ArgsUsage: "NAME", Flags: remote(), Action: w.nvmeShow, BashComplete: w.completeSubsystems},
			{Name: "controller", Usage: "controllers of hosts", Subcommands: []*cli.Command{
				{Name: "ls", Usage: "list them", Flags: remote(), Action: w.nvmeControllers},
				{Name: "end", Usage: "end one; its host may connect again", ArgsUsage: "ID", Flags: remote(), Action: w.nvmeControllerEnd},
			}},
		},
	}
}

func (w *ironwarp) completeSubsystems(c *cli.Context) {
	w.complete(c, names((*api.Client).NVMeSubsystems, func(s api.NVMeSubsystem) string { return s.Name }))
}

func (w *ironwarp) nvmeAdd(c *cli.Context) error {
	if c.Uint("port") > 65535 {
		return &usageError{msg: fmt.Sprintf("port %d is out of range", c.Uint("port")), fix: "allowed: 1 to 65535"}
	}
	path, err := fileFlag(c, "path")
	if err != nil {
		return err
	}
	n := api.NVMeNamespaceSpec{NSID: 1, Path: path, Export: c.String("export"), BlockSize: c.Int("block-size"), ReadOnly: c.Bool("read-only")}
	if (n.Path == "") == (n.Export == "") {
		return &usageError{msg: "not one of --path and --export", fix: "name the disk of namespace 1 by one of them"}
	}
	if !c.Bool("thin") {
		n.Thin = new(bool)
	}
	spec := api.NVMeSubsystemSpec{Name: c.Args().First(), NQN: c.String("nqn"), Port: uint16(c.Uint("port")), Addresses: given(c, "address"), Peers: given(c, "peer"), Hosts: given(c, "host"),
		InsecureUndeclared: c.Bool("insecure-undeclared"), Namespaces: []api.NVMeNamespaceSpec{n}}
	s := api.NVMeSubsystem{NVMeSubsystemSpec: spec}
	offline, err := w.change(c,
		func(main string) (err error) { s.Source, err = daemon.AddSubsystem(main, spec); return err },
		func(cl *api.Client) (err error) { s, err = cl.AddNVMeSubsystem(c.Context, spec); return err })
	if err != nil {
		return err
	}
	return w.print(c, s, func() {
		w.printf("subsystem %s added: %s\n", s.Name, s.Source)
		switch {
		case offline:
			w.printf("the daemon is not running; the subsystem is offered when it starts\n")
		case len(s.Peers) == 0 && !s.InsecureUndeclared:
			w.printf("nobody may connect yet: no --peer PEER was given\n")
		default:
			w.printf("%s at %s\n", s.NQN, orDash(strings.Join(s.Portals, " ")))
		}
		w.problem(s.Problem)
	})
}

func (w *ironwarp) nvmeRemove(c *cli.Context) error {
	return w.remove(c, "subsystem", config.RemoveSubsystem, (*api.Client).RemoveNVMeSubsystem)
}

func (w *ironwarp) nvmeList(c *cli.Context) error {
	return list(w, c, (*api.Client).NVMeSubsystems, "no subsystems; add one with `ironwarp nvme add --peer PEER --path FILE NAME`", w.nvmeTable)
}

func (w *ironwarp) nvmeTable(all []api.NVMeSubsystem) {
	t := w.sheet("subsystem", "state", ">namespaces", ">controllers", "peers", "?portals", "nqn")
	for _, v := range all {
		peers := strings.Join(v.Peers, " ")
		if v.InsecureUndeclared {
			peers = strings.TrimSpace(peers + " " + w.bad("anybody"))
		}
		t.row(v.Name, w.stateText(v.State), len(v.Namespaces), v.Controllers, orDash(peers), orDash(strings.Join(v.Portals, " ")), v.NQN)
	}
	t.print()
	for _, v := range all {
		w.problem(v.Problem)
	}
}

func (w *ironwarp) nvmeShow(c *cli.Context) error {
	v, err := w.client(c).NVMeSubsystem(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		line := func(name string, value any) { w.printf("%-16s %v\n", name, value) }
		line("subsystem", v.Name)
		line("nqn", v.NQN)
		line("state", w.stateText(v.State))
		line("portals", orDash(strings.Join(v.Portals, " ")))
		line("peers", orDash(strings.Join(v.Peers, " ")))
		if v.InsecureUndeclared {
			line("anybody", w.bad("hosts that are no peers may connect, in clear"))
		}
		line("hosts", orDash(strings.Join(v.Hosts, " ")))
		line("connects", fmt.Sprintf("%d, refused: %d", v.Connects, v.Refused))
		line("file", v.Source)
		if len(v.Units) > 0 {
			t := w.sheet(">nsid", "state", ">size", "mode", "disk", "?uuid")
			for _, u := range v.Units {
				disk := u.Path
				if disk == "" {
					disk = "export " + u.Export
				}
				t.row(u.NSID, w.stateText(u.State), bytesText(float64(u.Size)), modeText(u.ReadOnly), disk, orDash(u.UUID))
			}
			t.print()
		}
		w.problem(v.Problem)
	})
}

func (w *ironwarp) nvmeControllers(c *cli.Context) error {
	return list(w, c, (*api.Client).NVMeControllers, "no host is connected", w.nvmeControllerTable)
}

func (w *ironwarp) nvmeControllerTable(all []api.NVMeController) {
	t := w.sheet(">controller", "subsystem", "peer", "host", "?from", "?>age", ">queues", ">in flight", "?>read", "?>written", ">errors")
	for _, v := range all {
		subsystem := v.Subsystem
		if v.Discovery {
			subsystem = "(discovery)"
		}
		t.row(v.ID, subsystem, orDash(v.Peer), v.Host, v.Address, ageText(v.AgeSeconds), v.Queues, v.InFlight, bytesText(float64(v.IO.ReadBytes)), bytesText(float64(v.IO.WriteBytes)), v.IO.Errors)
	}
	t.print()
}

func (w *ironwarp) nvmeControllerEnd(c *cli.Context) error {
	id, err := strconv.Atoi(c.Args().First())
	if err != nil {
		return &usageError{msg: fmt.Sprintf("%q is no number of a controller", c.Args().First()), fix: "`ironwarp nvme controller ls` lists them"}
	}
	v, err := w.client(c).EndNVMeController(c.Context, id)
	if err != nil {
		return err
	}
	return w.print(c, v, func() { w.printf("controller %d of %s was ended\n", v.ID, v.Host) })
}
