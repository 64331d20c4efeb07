// Command fuzz runs every fuzz target of the module, one after the other, each
// for a while, and reports what they found.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	each := flag.Duration("time", 2*time.Minute, "how long to run each target")
	run := flag.String("run", "", "only targets whose name contains this, as in verbs.FuzzStream")
	list := flag.Bool("list", false, "list the targets and end")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: fuzz [flags] [package...]\n\nRuns each fuzz target of the packages, ./... if none is named.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	pkgs := flag.Args()
	if len(pkgs) == 0 {
		pkgs = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := fuzz(ctx, pkgs, *run, *each, *list)
	switch {
	case ctx.Err() != nil:
		os.Exit(130)
	case err != nil:
		fmt.Fprintf(os.Stderr, "fuzz: %v\n", err)
		os.Exit(2)
	case found > 0:
		fmt.Printf("%d findings. Each is a file below testdata/fuzz of its package: it becomes a test case when it is added to the repository.\n", found)
		os.Exit(1)
	}
}

// fuzz runs the targets and returns how many found something.
func fuzz(ctx context.Context, pkgs []string, only string, each time.Duration, list bool) (found int, err error) {
	targets, err := find(ctx, pkgs)
	if err != nil {
		return 0, err
	}
	ran := 0
	for _, t := range targets {
		if !strings.Contains(t.String(), only) {
			continue
		}
		ran++
		if list {
			fmt.Println(t)
			continue
		}
		r := t.run(ctx, each)
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		fmt.Printf("%-40s %s\n", t, r)
		if r.failed {
			found++
			fmt.Println(indent(r.output))
		}
	}
	if ran == 0 {
		return 0, fmt.Errorf("no fuzz target matches %q in %s", only, strings.Join(pkgs, " "))
	}
	return found, nil
}

// target is a fuzz function.
type target struct{ pkg, name string }

// String is short: the last element of the package and the name.
func (t target) String() string { return t.pkg[strings.LastIndexByte(t.pkg, '/')+1:] + "." + t.name }

// find lists the fuzz functions of pkgs.
func find(ctx context.Context, pkgs []string) ([]target, error) {
	out, err := command(ctx, append([]string{"test", "-list", "^Fuzz", "-json"}, pkgs...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s%s", err, out, exit.Stderr)
		}
		return nil, fmt.Errorf("list the targets of %s: %w", strings.Join(pkgs, " "), err)
	}
	return parseList(out)
}

// run fuzzes with t for a while. Inputs are not minimized: with targets that
// have goroutines that takes the whole time and finds nothing smaller.
func (t target) run(ctx context.Context, each time.Duration) result {
	out, err := command(ctx, "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", "1x", t.pkg).CombinedOutput()
	return judge(string(out), err != nil)
}

func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	// The workers of go test end with it only if it may end by itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}
