package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) daemonCommand() *cli.Command {
	return &cli.Command{
		Name: "daemon", Usage: "run the daemon of this host",
		Description: "It runs until SIGTERM or Ctrl-C; SIGHUP makes it read its configuration again.\n" +
			"The kernel's guard stays in place when it ends.",
		Flags: []cli.Flag{
			configFlag(),
			&cli.StringFlag{Name: "log-level", Usage: "debug, info, warn or error (default: what the configuration says)"},
			&cli.StringFlag{Name: "log-format", Usage: "text or json (default: what the configuration says)"},
			&cli.BoolFlag{Name: "check", Usage: "only check the configuration; exit status 1: part of it cannot be used, 2: no daemon starts with it"},
		},
		Action: w.daemon,
	}
}

func (w *ironwarp) daemon(c *cli.Context) error {
	level, format := c.String("log-level"), c.String("log-format")
	if err := checkWord("--log-level", level, "debug", "info", "warn", "error"); err != nil {
		return err
	}
	if err := checkWord("--log-format", format, "text", "json"); err != nil {
		return err
	}
	path, named := configPath(c)
	if c.Bool("check") {
		cfg, err := config.Load(path, named)
		if err != nil {
			return err
		}
		if unusable := daemon.Unusable(cfg); len(unusable) > 0 {
			w.printf("a daemon starts with %s, but not all of it can be used:\n", cfg.Path)
			for _, e := range unusable {
				w.problem(e)
			}
			return silent(1)
		}
		w.printf("%s is fine: %d peers, %d exports\n", cfg.Path, len(cfg.Peers), len(cfg.Exports))
		return nil
	}
	d, err := daemon.Start(c.Context, daemon.Options{
		Config: path, Named: named, Version: version,
		Log: func(l config.Log) *slog.Logger {
			if level != "" {
				l.Level = level
			}
			if format != "" {
				l.Format = format
			}
			return w.logger(l)
		},
	})
	if err != nil {
		return err
	}
	reloadOn(c.Context, d)
	return d.Close()
}

// reloadOn reloads at each SIGHUP until ctx ends.
func reloadOn(ctx context.Context, d *daemon.Daemon) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			d.ReloadAndLog(ctx)
		}
	}
}

func (w *ironwarp) logger(l config.Log) *slog.Logger {
	var level slog.Level
	// The word has been checked.
	_ = level.UnmarshalText([]byte(l.Level))
	opt := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, api.Plain(err.Error()))
		}
		return a
	}}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w.stderr, opt))
	}
	return slog.New(slog.NewTextHandler(w.stderr, opt))
}

func checkWord(flag, got string, allowed ...string) error {
	if got == "" {
		return nil
	}
	for _, a := range allowed {
		if got == a {
			return nil
		}
	}
	return &usageError{msg: fmt.Sprintf("%s %q is not known", flag, got), fix: fmt.Sprintf("allowed: %v", allowed)}
}
