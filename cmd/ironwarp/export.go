package main

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "files and block devices that peers may attach",
		Subcommands: []*cli.Command{
			{
				Name: "add", Usage: "offer a file or block device", ArgsUsage: "NAME PATH",
				Flags: remote(append(partitionFlags(), configFlag(),
					&cli.StringSliceFlag{Name: "allow", Usage: "`PEER` that may attach it; repeat for more"},
					&cli.BoolFlag{Name: "read-only", Usage: "refuse writes"},
					&cli.StringFlag{Name: "writers", Usage: "how many may have it attached for writing: `one` (the default); migration, two while a virtual machine moves; or shared, if all of them know of each other"},
					&cli.StringFlag{Name: "trust", Usage: "trust `MODEL` of the sessions of peers that may attach it: " + strings.Join(config.Trusts(), ", ") + " (default: as for all exports)"},
				)...),
				Action: w.exportAdd,
			},
			w.exportSetCommand(),
			{Name: "rm", Usage: "stop offering it", ArgsUsage: "NAME", Action: w.exportRemove, BashComplete: w.completeExports,
				Flags: remote(configFlag(), &cli.BoolFlag{Name: "force", Usage: "also when peers have it attached: their I/O fails"})},
			{Name: "repair", Usage: "offer it again, once its storage has lost acknowledged writes and was repaired", ArgsUsage: "NAME", Action: w.exportRepair, BashComplete: w.completeExports, Flags: remote()},
			{Name: "resize", Usage: "give its file another size, which peers that have it attached see", ArgsUsage: "NAME SIZE", Action: w.exportResize, BashComplete: w.completeExports,
				Description: "SIZE is a number of bytes, or one with KiB, MiB, GiB or TiB. A block device is resized by its own tools; its export follows.",
				Flags:       remote(&cli.BoolFlag{Name: "shrink", Usage: "also to less than it has: what is behind that is lost. No peer may have it attached"})},
			{Name: "fence", Usage: "make sure that a peer writes to it no more, until it attaches it anew", ArgsUsage: "NAME PEER", Action: w.exportFence, BashComplete: w.completeExports,
				Description: "What the peer has begun ends first; all that comes later fails there with EPERM, also after restarts of either host.\n" +
					"PEER is a name, or an identity that a writer had. With status 0 nothing of the peer reaches the storage any more;\n" +
					"with 8 it is fenced, and I/O that it had begun has not ended in time.",
				Flags: remote(&cli.DurationFlag{Name: "timeout", Value: time.Minute, Usage: "give up waiting for the peer's I/O after this `TIME`"})},
			{Name: "ls", Usage: "list the exports", Flags: remote(), Action: w.exportList},
		},
	}
}

func (w *ironwarp) exportAdd(c *cli.Context) error {
	a := c.Args()
	path, err := filepath.Abs(a.Get(1))
	if err != nil {
		return err
	}
	spec := api.ExportSpec{Name: a.Get(0), Path: path, ReadOnly: c.Bool("read-only"), Writers: c.String("writers"), Allow: c.StringSlice("allow"), Trust: c.String("trust"), Partition: c.String("partition"), Label: c.String("label")}
	e := api.Export{ExportSpec: spec}
	offline, err := w.change(c,
		func(main string) (err error) { e.Source, err = daemon.AddExport(main, spec); return err },
		func(cl *api.Client) (err error) { e, err = cl.AddExport(c.Context, spec); return err })
	if err != nil {
		return err
	}
	return w.print(c, e, func() {
		w.printf("export %s added: %s\n", e.Name, e.Source)
		switch {
		case len(e.Allow) == 0:
			w.printf("nobody may attach it yet: no --allow PEER was given\n")
		case offline:
			w.printf("the daemon is not running; the export is offered when it starts\n")
		default:
			w.printf("%s may attach it (%s)\n", strings.Join(e.Allow, ", "), bytesText(float64(e.Size)))
		}
		w.problem(e.Problem)
		w.problem(e.Warning)
	})
}

func (w *ironwarp) exportSetCommand() *cli.Command {
	return &cli.Command{
		Name: "set", Usage: "change an export: who may attach it, its file, its settings", ArgsUsage: "NAME",
		Description: "Settings without a flag stay as they are. Peers that may still attach it notice nothing.",
		Flags: remote(append(partitionFlags(), configFlag(),
			&cli.StringSliceFlag{Name: "allow", Usage: "further `PEER` that may attach it; repeat for more"},
			&cli.StringSliceFlag{Name: "disallow", Usage: "`PEER` that may no longer attach it, and is cut off; repeat for more"},
			&cli.StringFlag{Name: "path", Usage: "another `FILE` or block device"},
			&cli.BoolFlag{Name: "read-only", Usage: "refuse writes; --read-only=false accepts them again"},
			&cli.StringFlag{Name: "writers", Usage: "how many may have it attached for writing: `one`, migration or shared; those who have it attached keep it"},
			&cli.StringFlag{Name: "trust", Usage: "trust `MODEL` as with add; '' for that of all exports"},
		)...),
		Action: w.exportSet, BashComplete: w.completeExports,
	}
}

func (w *ironwarp) exportSet(c *cli.Context) error {
	name := c.Args().First()
	change := api.ExportChange{Allow: c.StringSlice("allow"), Disallow: c.StringSlice("disallow")}
	if c.IsSet("path") {
		path, err := filepath.Abs(c.String("path"))
		if err != nil {
			return err
		}
		change.Path = &path
	}
	if c.IsSet("read-only") {
		change.ReadOnly = new(c.Bool("read-only"))
	}
	if c.IsSet("trust") {
		change.Trust = new(c.String("trust"))
	}
	if c.IsSet("writers") {
		change.Writers = new(c.String("writers"))
	}
	if c.IsSet("partition") {
		change.Partition = new(c.String("partition"))
	}
	if c.IsSet("label") {
		change.Label = new(c.String("label"))
	}
	if change.Partition == nil && change.Label == nil && len(change.Allow)+len(change.Disallow) == 0 && change.Path == nil && change.ReadOnly == nil && change.Writers == nil && change.Trust == nil {
		return &usageError{msg: "nothing to change", fix: "say what with flags, see `ironwarp export set --help`"}
	}
	e := api.Export{ExportSpec: api.ExportSpec{Name: name}}
	offline, err := w.change(c,
		func(main string) (err error) { e.Source, err = daemon.SetExport(main, name, change); return err },
		func(cl *api.Client) (err error) { e, err = cl.SetExport(c.Context, name, change); return err })
	if err != nil {
		return err
	}
	return w.print(c, e, func() {
		w.printf("export %s changed: %s\n", e.Name, e.Source)
		if offline {
			w.printf("the daemon is not running; the change takes effect when it starts\n")
		} else {
			w.printf("may attach it: %s\n", orDash(strings.Join(e.Allow, ", ")))
		}
		w.problem(e.Problem)
	})
}

func (w *ironwarp) exportRemove(c *cli.Context) error {
	return w.remove(c, "export", config.RemoveExport, (*api.Client).RemoveExport)
}

func (w *ironwarp) exportRepair(c *cli.Context) error {
	e, err := w.client(c).RepairExport(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, e, func() {
		w.printf("export %s is offered again; peers that had it attached attach it anew and check the file system on it\n", e.Name)
		w.problem(e.Problem)
	})
}

func (w *ironwarp) exportResize(c *cli.Context) error {
	a := c.Args()
	size, err := config.ParseSize(a.Get(1))
	if err != nil {
		return &usageError{msg: err.Error()}
	}
	e, err := w.client(c).ResizeExport(c.Context, a.Get(0), api.ResizeRequest{Size: size, Shrink: c.Bool("shrink")})
	if err != nil {
		return err
	}
	return w.print(c, e, func() {
		w.printf("export %s has %s (%d bytes)\n", e.Name, bytesText(float64(e.Size)), e.Size)
		w.problem(e.Problem)
	})
}

func (w *ironwarp) exportFence(c *cli.Context) error {
	a := c.Args()
	f, err := w.client(c).FenceExport(c.Context, a.Get(0), api.FenceRequest{Peer: a.Get(1), TimeoutSeconds: c.Duration("timeout").Seconds()})
	if err != nil {
		return err
	}
	return w.print(c, f, func() {
		if len(f.Tokens) == 0 {
			w.printf("%s writes to export %s no more: it had nothing to fence (generation %d)\n", f.Peer, f.Export, f.Generation)
			return
		}
		w.printf("%s is fenced from export %s in generation %d; attachments that are void: %d; I/Os under way that have ended: %d\n",
			f.Peer, f.Export, f.Generation, len(f.Tokens), f.Drained)
		w.printf("it may attach it anew; `ironwarp export set --disallow %s %s` prevents that\n", f.Peer, f.Export)
	})
}

func (w *ironwarp) exportList(c *cli.Context) error {
	return list(w, c, (*api.Client).Exports, "no exports; add one with `ironwarp export add --allow PEER NAME PATH`", w.exportTable)
}

func (w *ironwarp) exportTable(exports []api.Export) {
	t := w.sheet("export", ">size", "mode", "state", "allowed", "?>open", "?>generation", "?>read", "?>written", ">errors", "?path")
	for _, e := range exports {
		t.row(e.Name, bytesText(float64(e.Size)), modeText(e.ReadOnly || e.LUN), w.stateText(e.State), orDash(strings.Join(e.Allow, " ")),
			e.Opens, e.Generation, rateText(e.IO.ReadBytesSec), rateText(e.IO.WriteBytesSec), e.IO.Errors, e.Path)
	}
	t.print()
	for _, e := range exports {
		w.problem(e.Problem)
	}
}

func modeText(readOnly bool) string {
	if readOnly {
		return "ro"
	}
	return "rw"
}
