package main

import (
	"context"
	"io"
	"os"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

// ironwarp is one run of the command.
type ironwarp struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stdout is one: colours and redrawing are welcome
	errTerminal    bool // stderr is one: progress may be redrawn
}

// run is the whole command. It returns the exit status: 0, 1 for a failure, 2
// for wrong use.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	w := &ironwarp{stdin: stdin, stdout: stdout, stderr: stderr, terminal: isTerminal(stdout), errTerminal: isTerminal(stderr)}
	app := w.app()
	err := app.RunContext(ctx, args)
	if err == nil {
		return 0
	}
	w.report(err, wantsJSON(args))
	return exitStatus(err)
}

func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (w *ironwarp) app() *cli.App {
	app := &cli.App{
		Name:                   "ironwarp",
		Usage:                  "a userspace RNIC, and a secure block link between hosts on top of it",
		Version:                version,
		HideVersion:            true,
		EnableBashCompletion:   true,
		Suggest:                true,
		UseShortOptionHandling: false,
		Reader:                 w.stdin,
		Writer:                 w.stdout,
		ErrWriter:              w.stderr,
		ExitErrHandler:         func(*cli.Context, error) {},
		Flags:                  []cli.Flag{socketFlag(), configFlag(), jsonFlag()},
		Commands: []*cli.Command{
			w.daemonCommand(),
			w.peerCommand(),
			w.exportCommand(),
			w.attachCommand(),
			w.detachCommand(),
			w.lsCommand(),
			w.ulpCommand(),
			w.statusCommand(),
			w.streamCommand(),
			w.blockCommand(),
			w.saCommand(),
			w.profileCommand(),
			w.securityCommand(),
			w.pkiCommand(),
			w.pingCommand(),
			w.benchCommand(),
			w.rpingCommand(),
			w.doctorCommand(),
			w.reloadCommand(),
			w.versionCommand(),
			w.completionCommand(),
		},
	}
	guard(app.Commands)
	app.OnUsageError = usageErrorOf
	app.Action = unknownCommand(app.Commands)
	return app
}

// guard gives each command the same treatment of wrong use.
func guard(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = usageErrorOf
		if len(c.Subcommands) > 0 {
			guard(c.Subcommands)
			c.Action = unknownCommand(c.Subcommands)
			continue
		}
		action := c.Action
		c.Action = func(ctx *cli.Context) error {
			if err := flagsFirst(ctx); err != nil {
				return err
			}
			return action(ctx)
		}
	}
}

func socketFlag() cli.Flag {
	return &cli.StringFlag{Name: "socket", Usage: "control `SOCKET` of the daemon (IRONWARP_SOCKET; default " + config.DefaultSocket + ")"}
}

func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Usage: "main configuration `FILE` (IRONWARP_CONFIG; default " + config.DefaultPath + ")"}
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print JSON for programs"}
}

// remote are the flags of each command that talks to the daemon.
func remote(more ...cli.Flag) []cli.Flag { return append(more, socketFlag(), jsonFlag()) }

// set finds a flag where it was set, at the command or before it.
func set(c *cli.Context, name string) string {
	for _, l := range c.Lineage() {
		if l.Command != nil && l.IsSet(name) {
			if v := l.String(name); v != "" {
				return v
			}
		}
	}
	return ""
}

func asJSON(c *cli.Context) bool {
	for _, l := range c.Lineage() {
		if l.Command != nil && l.Bool("json") {
			return true
		}
	}
	return false
}

// client is the API of the daemon that the flags name.
func (w *ironwarp) client(c *cli.Context) *api.Client {
	socket := set(c, "socket")
	if socket == "" {
		socket = os.Getenv("IRONWARP_SOCKET")
	}
	if socket == "" {
		socket = config.DefaultSocket
	}
	return api.NewClient(socket)
}

// configPath is the main configuration file, and whether it was named.
func configPath(c *cli.Context) (path string, named bool) {
	if p := set(c, "config"); p != "" {
		return p, true
	}
	if p := os.Getenv("IRONWARP_CONFIG"); p != "" {
		return p, true
	}
	return config.DefaultPath, false
}
