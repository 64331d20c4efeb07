package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

// usageError is wrong use of the command line: exit status 2.
type usageError struct {
	msg string
	fix string
}

func (e *usageError) Error() string {
	if e.fix == "" {
		return e.msg
	}
	return e.msg + "\n" + e.fix
}

// silent ends the command with a status when everything has been printed already.
type silent int

func (s silent) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// exitStatus is that of the error's kind (api.ExitStatus): 2 for a mistake of the
// user's, on the command line or in a file.
func exitStatus(err error) int {
	var s silent
	var u *usageError
	var c config.Errors
	var a *api.Error
	switch {
	case errors.As(err, &s):
		return int(s)
	case errors.As(err, &u), errors.As(err, &c):
		return 2
	case errors.As(err, &a):
		return api.ExitStatus(a.Code)
	}
	return 1
}

// forbidden says what to do about a file that this user may not read or write, unless the error says so itself.
func forbidden(err error) error {
	var u *usageError
	var a *api.Error
	if os.Geteuid() == 0 || !errors.Is(err, fs.ErrPermission) || errors.As(err, &u) || errors.As(err, &a) {
		return err
	}
	return &api.Error{Code: api.CodeForbidden, Message: err.Error(), Fix: "run the command with sudo"}
}

// report prints an error to stderr.
func (w *ironwarp) report(err error, asJSON bool) {
	var s silent
	if errors.As(err, &s) {
		return
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if asJSON {
		var a *api.Error
		if !errors.As(err, &a) {
			a = &api.Error{Code: api.CodeInternal, Message: err.Error()}
			if exitStatus(err) == 2 {
				a.Code = api.CodeInvalid
			}
		}
		json.NewEncoder(w.stderr).Encode(map[string]*api.Error{"error": a})
		return
	}
	lines := strings.Split(strings.TrimSpace(api.Plain(err.Error())), "\n")
	fmt.Fprintf(w.stderr, "ironwarp: %s\n", lines[0])
	for _, l := range lines[1:] {
		fmt.Fprintf(w.stderr, "  %s\n", l)
	}
}

// wantsJSON looks for --json where flags could not be parsed.
func wantsJSON(args []string) bool {
	return slices.Contains(args, "--json") || slices.Contains(args, "-json")
}

func usageErrorOf(c *cli.Context, err error, _ bool) error {
	name, flags := "ironwarp", c.App.Flags
	if c.Command != nil && c.Command.HelpName != "" {
		name, flags = c.Command.HelpName, c.Command.Flags
	}
	fix := "see `" + name + " --help`"
	if _, wrong, ok := strings.Cut(err.Error(), "flag provided but not defined: -"); ok {
		var known []string
		for _, f := range flags {
			known = append(known, f.Names()...)
		}
		if m := meant(strings.TrimLeft(wrong, "-"), known, "--"); m != "" {
			fix = m + "\n" + fix
		}
	}
	return &usageError{msg: err.Error(), fix: fix}
}

// unknownCommand is the action of commands that have subcommands.
func unknownCommand(commands []*cli.Command) cli.ActionFunc {
	return func(c *cli.Context) error {
		if !c.Args().Present() {
			return cli.ShowSubcommandHelp(c)
		}
		name := c.Args().First()
		names := make([]string, 0, len(commands))
		for _, cmd := range commands {
			names = append(names, cmd.Name)
		}
		fix := "commands: " + strings.Join(names, ", ")
		if m := meant(name, names, ""); m != "" {
			fix = m + "\n" + fix
		}
		return &usageError{msg: fmt.Sprintf("unknown command %q", name), fix: fix}
	}
}
