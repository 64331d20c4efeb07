// Command ironwarp-csi is IronWarp's plugin for the Container Storage Interface. On each node it serves the Node service over the
// host's daemon; once in a cluster it serves the Controller service over a daemon whose host may manage pools. docs/kubernetes.md
// says how both are deployed.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ironwarp/ironwarp/csi/driver"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// version is set by the linker.
var version = "devel"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "ironwarp-csi: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	c := driver.Config{Version: version}
	f := flag.NewFlagSet("ironwarp-csi", flag.ContinueOnError)
	endpoint := f.String("endpoint", "unix:///csi/csi.sock", "`socket` on which the plugin is called")
	socket := f.String("socket", "/run/ironwarp/ironwarp.sock", "control `socket` of this host's daemon")
	verbose := f.Bool("verbose", false, "log every call, and not only those that fail")
	probe := f.String("probe", "", "ask the plugin at the endpoint whether it is live, or whether it is ready, and end; `WHAT` is live or ready")
	show := f.Bool("version", false, "print the version and end")
	f.BoolVar(&c.Controller, "controller", false, "serve the Controller service")
	f.Func("host", "storage `host` of the controller: the name of a peer that lets this host manage its pools, or . for this host; NAME:KEY=VALUE,... if only nodes of that topology reach it; may be repeated", func(s string) error {
		name, labels, _ := strings.Cut(s, ":")
		t, err := driver.ParseTopology(labels)
		c.Hosts = append(c.Hosts, driver.Host{Name: name, Topology: t})
		return err
	})
	f.BoolVar(&c.Node, "node", false, "serve the Node service")
	f.StringVar(&c.NodeID, "node-id", os.Getenv("NODE_NAME"), "by which storage hosts know this node: the `name` that they have for their peer, or its IKE identity as id:IDENTITY; default: NODE_NAME")
	f.Func("topology", "`KEY=VALUE,...` of this node", func(s string) (err error) {
		c.Topology, err = driver.ParseTopology(s)
		return err
	})
	f.Int64Var(&c.Most, "max-volumes", 0, "how many volumes this node may have at once; 0: as many as its daemon attaches")
	f.StringVar(&c.BaseDir, "base-dir", "/var/lib/kubelet", "`folder` below which volumes may be mounted")
	f.StringVar(&c.StateDir, "state-dir", "/var/lib/kubelet/plugins/"+driver.Name+"/staged", "`folder` for notes of what is staged")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if *show {
		fmt.Println(version)
		return nil
	}
	if *probe != "" {
		return driver.Ask(context.Background(), *endpoint, *probe)
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	daemon := api.NewClient(*socket)
	defer daemon.Close()
	s, err := driver.New(daemon, c)
	if err != nil {
		return err
	}
	l, err := driver.Listen(*endpoint)
	if err != nil {
		return err
	}
	c.Log.Info("ready", "version", version, "endpoint", *endpoint, "controller", c.Controller, "node", c.Node)
	return s.Serve(ctx, l)
}
