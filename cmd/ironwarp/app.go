package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

// ironwarp is one run of the command.
type ironwarp struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stdout is one: colours and redrawing are fine
	errTerminal    bool // stderr is one: progress may be redrawn
	width          int  // of the page in columns; 0: tables may have any width
}

// run is the whole command. It returns the exit status: 0, or that of the failure
// (exitStatus).
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	w := &ironwarp{stdin: stdin, stdout: stdout, stderr: stderr, terminal: isTerminal(stdout), errTerminal: isTerminal(stderr)}
	app := w.app()
	if w.completeValue(app, args) {
		return 0
	}
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil {
		return 0
	}
	err = forbidden(err)
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
		EnableBashCompletion:   true,
		Suggest:                true,
		UseShortOptionHandling: false,
		Reader:                 w.stdin,
		Writer:                 w.stdout,
		ErrWriter:              w.stderr,
		ExitErrHandler:         func(*cli.Context, error) {},
		Flags:                  []cli.Flag{socketFlag(), configFlag(), jsonFlag()},
		Commands: slices.Concat(
			group("disks", w.attachCommand(), w.detachCommand(), w.lsCommand(), w.exportCommand(), w.poolCommand(), w.volumeCommand(), w.targetCommand(), w.iscsiCommand(), w.nvmeCommand()),
			group("hosts", w.peerCommand(), w.partitionCommand(), w.pathCommand(), w.sessionCommand(), w.fabricCommand(), w.pingCommand(), w.benchCommand(), w.rpingCommand(), w.runCommand(), w.rdmaCommand()),
			group("protection", w.saCommand(), w.profileCommand(), w.securityCommand(), w.blockCommand(), w.pkiCommand()),
			group("the daemon", w.initCommand(), w.daemonCommand(), w.reloadCommand(), w.statusCommand(), w.streamCommand(), w.captureCommand(), w.extcapCommand(), w.ulpCommand(), w.webCommand(), w.doctorCommand()),
			group("this command", w.versionCommand(), w.completionCommand(), w.manCommand()),
		),
	}
	w.guard(app.Commands)
	app.OnUsageError = usageErrorOf
	app.Action = unknownCommand(app.Commands)
	return app
}

// group puts commands under a heading of the help.
func group(heading string, commands ...*cli.Command) []*cli.Command {
	for _, c := range commands {
		c.Category = heading
	}
	return commands
}

// guard makes each command treat wrong use alike.
func (w *ironwarp) guard(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = usageErrorOf
		if len(c.Subcommands) > 0 {
			w.guard(c.Subcommands)
			c.Action = unknownCommand(c.Subcommands)
			continue
		}
		action := c.Action
		c.Action = func(ctx *cli.Context) error {
			if err := checkArgs(ctx); err != nil {
				return err
			}
			if !ctx.Bool("wide") {
				w.width = pageWidth(w.stdout)
			}
			return action(ctx)
		}
	}
}

// pageWidth is the terminal's width, or COLUMNS. Output to a file or a program has no
// width.
func pageWidth(stdout io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := stdout.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil {
			return n
		}
	}
	return 0
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
func remote(more ...cli.Flag) []cli.Flag {
	wide := &cli.BoolFlag{Name: "wide", Usage: "all columns of tables, even if the terminal has no room for them"}
	return append(more, socketFlag(), jsonFlag(), wide)
}

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
	return api.NewClient(controlSocket(c))
}

func controlSocket(c *cli.Context) string {
	return cmp.Or(set(c, "socket"), os.Getenv("IRONWARP_SOCKET"), config.DefaultSocket)
}

// configPath is the main configuration file, and whether it was named.
func configPath(c *cli.Context) (path string, named bool) {
	path = cmp.Or(set(c, "config"), os.Getenv("IRONWARP_CONFIG"))
	return cmp.Or(path, config.DefaultPath), path != ""
}
