package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) reloadCommand() *cli.Command {
	return &cli.Command{
		Name: "reload", Usage: "make the daemon read its configuration again",
		Description: "Differences are applied; streams that run are not touched unless their peer or export is gone.\n" +
			"Exit status 1: it was applied, but something in it cannot be used, such as a secret's file. 2: it has faults, and nothing changed.",
		Flags: remote(),
		Action: func(c *cli.Context) error {
			r, err := w.client(c).Reload(c.Context)
			if err != nil {
				return err
			}
			err = w.print(c, r, func() {
				for _, l := range r.Changed {
					w.printf("%s\n", l)
				}
				for _, l := range r.Restart {
					w.printf("%s\n", w.warn("takes effect when the daemon restarts: "+l))
				}
				for _, e := range r.Unusable {
					w.problem(e)
				}
				if len(r.Changed)+len(r.Restart)+len(r.Unusable) == 0 {
					w.printf("nothing has changed\n")
				}
			})
			if err == nil && len(r.Unusable) > 0 {
				return silent(1)
			}
			return err
		},
	}
}

func (w *ironwarp) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "versions of this command and of the running daemon", Flags: remote(),
		Action: func(c *cli.Context) error {
			v := struct {
				Version string    `json:"version"`
				Go      string    `json:"go"`
				Daemon  *api.Info `json:"daemon,omitempty"`
			}{Version: version, Go: runtime.Version()}
			ctx, cancel := context.WithTimeout(c.Context, 2*time.Second)
			defer cancel()
			info, err := w.client(c).Info(ctx)
			if err == nil {
				v.Daemon = &info
			}
			return w.print(c, v, func() {
				w.printf("ironwarp %s, %s %s/%s\n", v.Version, v.Go, runtime.GOOS, runtime.GOARCH)
				if v.Daemon != nil {
					w.printf("daemon   %s, process %d, %s\n", info.Version, info.PID, info.ControlSocket)
				}
			})
		},
	}
}

var (
	//go:embed completion.bash
	bashCompletion string
	//go:embed completion.zsh
	zshCompletion string
	//go:embed completion.fish
	fishCompletion string
)

func (w *ironwarp) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print completion for a shell", ArgsUsage: "bash|zsh|fish",
		Description: "bash: ironwarp completion bash > /etc/bash_completion.d/ironwarp\n" +
			"zsh:  ironwarp completion zsh > /usr/share/zsh/site-functions/_ironwarp\n" +
			"fish: ironwarp completion fish > /usr/share/fish/vendor_completions.d/ironwarp.fish",
		Action: func(c *cli.Context) error {
			name := c.Args().First()
			switch name {
			case "bash":
				w.printf("%s", bashCompletion)
			case "zsh":
				w.printf("%s", zshCompletion)
			case "fish":
				w.printf("%s", fishCompletion)
			default:
				return &usageError{msg: fmt.Sprintf("no completion for %q", name), fix: "shells: bash, zsh, fish"}
			}
			return nil
		},
		BashComplete: func(*cli.Context) { w.printf("bash\nzsh\nfish\n") },
	}
}

// manCommand prints the manual page, for packagers and `make install`.
func (w *ironwarp) manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Usage: "print the manual page, of all or of one command (ironwarp man attach | man -l -)", ArgsUsage: "[COMMAND]",
		Flags: []cli.Flag{&cli.StringFlag{Name: "dir", Usage: "write the pages of all to `DIR`, as ironwarp.8, ironwarp-attach.8 and so on"}},
		Action: func(c *cli.Context) error {
			pages, err := manual(c.App)
			if err != nil {
				return err
			}
			if dir := c.String("dir"); dir != "" {
				for name, page := range pages {
					if err := os.WriteFile(filepath.Join(dir, name+".8"), []byte(page), 0o644); err != nil {
						return fmt.Errorf("write the manual: %w", err)
					}
				}
				return nil
			}
			name := strings.Join(append([]string{c.App.Name}, c.Args().Slice()...), "-")
			page, ok := pages[name]
			if !ok {
				return &usageError{msg: fmt.Sprintf("there is no page %s", name), fix: "name one of the commands of `ironwarp --help`, or none"}
			}
			w.printf("%s", page)
			return nil
		},
		BashComplete: func(c *cli.Context) {
			for _, cmd := range c.App.VisibleCommands() {
				w.printf("%s\n", cmd.Name)
			}
		},
	}
}

// manual are the pages of the manual by their names: ironwarp, which has all, and ironwarp-attach and so on, each of one
// command.
func manual(app *cli.App) (map[string]string, error) {
	all, err := app.ToManWithSection(8)
	if err != nil {
		return nil, err
	}
	pages := map[string]string{app.Name: all}
	for _, cmd := range app.VisibleCommands() {
		if cmd.Name == "help" {
			continue
		}
		one := &cli.App{Name: app.Name + "-" + cmd.Name, Usage: cmd.Usage, Description: cmd.Description, Flags: cmd.Flags, Commands: cmd.Subcommands}
		typed := app.Name + " " + cmd.Name
		one.UsageText = typed + " [options] " + cmd.ArgsUsage
		if len(cmd.Subcommands) > 0 {
			one.UsageText = typed + " COMMAND [options] [ARGUMENTS...]"
		}
		page, err := one.ToManWithSection(8)
		if err != nil {
			return nil, err
		}
		// The library writes of a whole program.
		page = strings.Replace(page, ".SH GLOBAL OPTIONS", ".SH OPTIONS", 1)
		pages[one.Name] = strings.Replace(page, ".SH SYNOPSIS\n"+one.Name+"\n", ".SH SYNOPSIS\n"+typed+"\n", 1)
	}
	return pages, nil
}
