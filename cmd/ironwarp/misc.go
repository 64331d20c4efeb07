package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) reloadCommand() *cli.Command {
	return &cli.Command{
		Name: "reload", Usage: "make the daemon read its configuration again",
		Description: "Differences are applied; streams that run are not touched unless their peer or export is gone.",
		Flags:       remote(),
		Action: func(c *cli.Context) error {
			if _, err := args(c); err != nil {
				return err
			}
			r, err := w.client(c).Reload(c.Context)
			if err != nil {
				return err
			}
			return w.print(c, r, func() {
				for _, l := range r.Changed {
					w.printf("%s\n", l)
				}
				for _, l := range r.Restart {
					w.printf("%s\n", w.warn("takes effect when the daemon restarts: "+l))
				}
				if len(r.Changed)+len(r.Restart) == 0 {
					w.printf("nothing has changed\n")
				}
			})
		},
	}
}

func (w *ironwarp) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "versions of this command and of the running daemon", Flags: remote(),
		Action: func(c *cli.Context) error {
			if _, err := args(c); err != nil {
				return err
			}
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
)

func (w *ironwarp) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print completion for a shell", ArgsUsage: "bash|zsh",
		Description: "bash: ironwarp completion bash > /etc/bash_completion.d/ironwarp\n" +
			"zsh:  ironwarp completion zsh > /usr/share/zsh/site-functions/_ironwarp",
		Action: func(c *cli.Context) error {
			a, err := args(c, "bash|zsh")
			if err != nil {
				return err
			}
			switch a[0] {
			case "bash":
				w.printf("%s", bashCompletion)
			case "zsh":
				w.printf("%s", zshCompletion)
			default:
				return &usageError{msg: fmt.Sprintf("no completion for %q", a[0]), fix: "shells: bash, zsh"}
			}
			return nil
		},
		BashComplete: func(*cli.Context) { w.printf("bash\nzsh\n") },
	}
}

// complete prints the command's flags where one was begun, else candidates that
// the daemon knows, and nothing if it does not answer at once.
func (w *ironwarp) complete(c *cli.Context, list func(context.Context, *api.Client) []string) {
	if n := len(os.Args); n > 2 && strings.HasPrefix(os.Args[n-2], "-") {
		cli.DefaultCompleteWithFlags(c.Command)(c)
		return
	}
	ctx, cancel := context.WithTimeout(c.Context, time.Second)
	defer cancel()
	for _, name := range list(ctx, w.client(c)) {
		w.printf("%s\n", name)
	}
}

func (w *ironwarp) completePeers(c *cli.Context) {
	w.complete(c, func(ctx context.Context, cl *api.Client) (names []string) {
		peers, _ := cl.Peers(ctx)
		for _, p := range peers {
			names = append(names, p.Name)
		}
		return names
	})
}

func (w *ironwarp) completeExports(c *cli.Context) {
	w.complete(c, func(ctx context.Context, cl *api.Client) (names []string) {
		exports, _ := cl.Exports(ctx)
		for _, e := range exports {
			names = append(names, e.Name)
		}
		return names
	})
}

func (w *ironwarp) completeAttachments(c *cli.Context) {
	w.complete(c, func(ctx context.Context, cl *api.Client) (names []string) {
		list, _ := cl.Attachments(ctx)
		for _, at := range list {
			names = append(names, at.Name())
		}
		return names
	})
}
