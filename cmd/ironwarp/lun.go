package main

import (
	"fmt"
	"strconv"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

func lunFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "path", Usage: "a LUN of a `FILE` or block device that is no export"},
		&cli.StringFlag{Name: "export", Usage: "a LUN of the disk of `EXPORT`, which peers may only read then"},
		&cli.IntFlag{Name: "block-size", Usage: "`BYTES` of its blocks: 512 (the default) or 4096"},
		&cli.BoolFlag{Name: "read-only", Usage: "refuse writes"},
		&cli.BoolFlag{Name: "removable", Usage: "a removable medium"},
		&cli.BoolFlag{Name: "sanitize", Usage: "DANGEROUS: let initiators erase all of it by SANITIZE"},
		&cli.BoolFlag{Name: "thin", Usage: "offer UNMAP; --thin=false does not", Value: true},
	}
}

// lunOf is the LUN that the flags describe, if any does.
func lunOf(c *cli.Context) (l api.LUNSpec, some bool, err error) {
	l = api.LUNSpec{Number: c.Int("number"), Export: c.String("export"), BlockSize: c.Int("block-size"), ReadOnly: c.Bool("read-only"), Removable: c.Bool("removable"), Sanitize: c.Bool("sanitize")}
	if !c.Bool("thin") {
		l.Thin = new(false)
	}
	if l.Path, err = fileFlag(c, "path"); err != nil {
		return l, false, err
	}
	if l.Path != "" && l.Export != "" {
		return l, false, &usageError{msg: "--path and --export exclude each other", fix: "a LUN is one disk"}
	}
	return l, l.Path != "" || l.Export != "", nil
}

// changeLUNs changes the LUNs of a target, and prints what was done.
func (w *ironwarp) changeLUNs(c *cli.Context, done string, inFiles func(main, target string) (source string, err error), byDaemon func(cl *api.Client, target string) (api.Target, error)) error {
	t := api.Target{TargetSpec: api.TargetSpec{Name: c.Args().First()}}
	offline, err := w.change(c,
		func(main string) (err error) { t.Source, err = inFiles(main, t.Name); return err },
		func(cl *api.Client) (err error) { t, err = byDaemon(cl, t.Name); return err })
	if err != nil {
		return err
	}
	return w.print(c, t, func() {
		w.printf("%s: %s\n", done, t.Source)
		if offline {
			w.printf("the daemon is not running; the change takes effect when it starts\n")
		}
		w.problem(t.Problem)
	})
}

func (w *ironwarp) lunAdd(c *cli.Context) error {
	l, some, err := lunOf(c)
	if err != nil {
		return err
	}
	if !some {
		return &usageError{msg: "which disk is the LUN to be?", fix: "give --path FILE or --export EXPORT"}
	}
	return w.changeLUNs(c, fmt.Sprintf("LUN %d added to target %s", l.Number, c.Args().First()),
		func(main, target string) (string, error) { return daemon.AddLUN(main, target, l) },
		func(cl *api.Client, target string) (api.Target, error) { return cl.AddLUN(c.Context, target, l) })
}

func (w *ironwarp) lunRemove(c *cli.Context) error {
	target, number := c.Args().First(), c.Args().Get(1)
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return &usageError{msg: fmt.Sprintf("%q is no number of a LUN", number), fix: fmt.Sprintf("allowed: 0 to %d", config.MaxLUN)}
	}
	return w.changeLUNs(c, fmt.Sprintf("LUN %d of target %s removed; its data was not touched", n, target),
		func(main, target string) (string, error) { return daemon.RemoveLUN(main, target, int(n)) },
		func(cl *api.Client, target string) (api.Target, error) {
			return cl.RemoveLUN(c.Context, target, int(n))
		})
}
