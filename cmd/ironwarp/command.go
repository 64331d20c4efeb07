package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

// checkArgs fails unless a command was given the arguments that its ArgsUsage names. Names in brackets
// are optional.
func checkArgs(c *cli.Context) error {
	names, got := strings.Fields(c.Command.ArgsUsage), c.Args().Slice()
	required := len(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n[0] == '[' }))
	usage := "usage: " + strings.Join(append([]string{c.Command.HelpName, "[flags]"}, names...), " ")
	switch {
	case len(got) < required:
		return &usageError{msg: fmt.Sprintf("%s is missing", names[len(got)]), fix: usage}
	case len(got) > len(names) && (len(names) == 0 || !strings.Contains(names[len(names)-1], "...")):
		return &usageError{msg: fmt.Sprintf("one argument too many: %q", got[len(names)]), fix: usage}
	}
	return nil
}

// fileFlag is the absolute path of the file that a flag names; empty if it names none.
func fileFlag(c *cli.Context, flag string) (path string, err error) {
	if path = c.String(flag); path != "" {
		path, err = filepath.Abs(path)
	}
	return path, err
}

// whichConfig is the daemon's main file, or, with no daemon running, the one
// that the flags name.
func (w *ironwarp) whichConfig(c *cli.Context, cl *api.Client) (path string, offline bool, err error) {
	info, err := cl.Info(c.Context)
	switch {
	case err == nil:
		return info.Config, false, nil
	case api.NotRunning(err):
		path, _ = configPath(c)
		path, err = filepath.Abs(path)
		return path, true, err
	}
	return "", false, err
}

// change changes the configuration: the running daemon does it, or, with none running, inFiles, from
// the main file on. It fails as these do.
func (w *ironwarp) change(c *cli.Context, inFiles func(main string) error, byDaemon func(*api.Client) error) (offline bool, err error) {
	cl := w.client(c)
	main, offline, err := w.whichConfig(c, cl)
	switch {
	case err != nil:
		return false, err
	case offline:
		return true, inFiles(main)
	}
	return false, byDaemon(cl)
}

// remove removes the export or target that the first argument names.
func (w *ironwarp) remove(c *cli.Context, kind string, fromFiles func(main, name string) error, byDaemon func(cl *api.Client, ctx context.Context, name string, force bool) error) error {
	name := c.Args().First()
	_, err := w.change(c,
		func(main string) error { return fromFiles(main, name) },
		func(cl *api.Client) error { return byDaemon(cl, c.Context, name, c.Bool("force")) })
	if err != nil {
		return err
	}
	return w.print(c, struct {
		Removed string `json:"removed"`
	}{name}, func() { w.printf("%s %s removed; its data was not touched\n", kind, name) })
}

// list prints what the daemon has of something: by table, or the line none if there is nothing.
func list[T any](w *ironwarp, c *cli.Context, get func(*api.Client, context.Context) ([]T, error), none string, table func([]T)) error {
	all, err := get(w.client(c), c.Context)
	if err != nil {
		return err
	}
	return w.print(c, all, func() {
		if len(all) == 0 {
			w.printf("%s\n", none)
			return
		}
		table(all)
	})
}

// only is get without what keep does not keep.
func only[T any](get func(*api.Client, context.Context) ([]T, error), keep func(T) bool) func(*api.Client, context.Context) ([]T, error) {
	return func(cl *api.Client, ctx context.Context) ([]T, error) {
		all, err := get(cl, ctx)
		return slices.DeleteFunc(all, func(v T) bool { return !keep(v) }), err
	}
}
