// Command interop proves IronWarp against other RDMA stacks: it boots a virtual
// machine with Linux' soft-iWARP (siw), runs our program and theirs against
// each other in both roles, and prints what worked. make interop runs it.
//
//	interop [-binary bin/ironwarp] [-cache .cache/vm] [-document docs/interop.md]
//	        [-run regexp] [-repeat n] [-logs directory] [-summary file] [-v]
//
// Two things are run: rping of librdmacm against ironwarp rping, and the
// conformance suite (package iwarptest/conformance) with package verbs at one
// end and siw at the other. In the virtual machine the suite is this program,
// too:
//
//	interop suite -agent PROGRAM [-results file] [flags of go test]
//
// The exit status is 1 when a result is not the expected one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/integration/siw"
	"github.com/ironwarp/ironwarp/integration/vm"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "suite" {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		siw.Main()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "interop: %v\n", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) (ok bool, err error) {
	binary := flag.String("binary", "bin/ironwarp", "the program under test")
	cache := flag.String("cache", ".cache/vm", "directory of built virtual machines")
	agents := flag.String("agents", ".cache/siw", "directory of built programs for siw's end")
	document := flag.String("document", "", "write the results to this Markdown `file`, after a complete run that went as expected")
	only := flag.String("run", "", "run only what matches this `regexp`: names of rping's cases, and of the suite's tests as in Siw/we-dial-ipv4-crc/send")
	repeat := flag.Int("repeat", 1, "run each of rping's cases so many times and the suite not at all, to look for what is rare")
	logs := flag.String("logs", "", "keep the logs and captures in this `directory`; without it those of a failed run are kept in one of their own")
	summary := flag.String("summary", "", "write \"N passed, N failed, N skipped\" to this `file`")
	verbose := flag.Bool("v", false, "show the virtual machine's console")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	begin := time.Now()
	l, err := prepare(ctx, *binary, *cache, *agents)
	if errors.Is(err, vm.ErrNoPackage) && *summary != "" {
		err = errors.Join(err, writeSummary(*summary, 0, 0, 1))
	}
	if err != nil {
		return false, err
	}
	if *verbose {
		l.options.Console = os.Stdout
	}
	p := plan{suite: *only}
	if *only == "" {
		p.suite = "."
	}
	for _, c := range cases() {
		if !match.MatchString(c.Name()) {
			continue
		}
		if *repeat == 1 {
			p.cases = append(p.cases, c)
			continue
		}
		p.suite = ""
		for c.Round = 1; c.Round <= *repeat; c.Round++ {
			p.cases = append(p.cases, c)
		}
	}
	out := *logs
	if out == "" {
		if out, err = os.MkdirTemp("", "ironwarp-interop-"); err != nil {
			return false, err
		}
	} else if err := os.MkdirAll(out, 0o755); err != nil {
		return false, err
	}
	defer func() {
		if *logs != "" || !ok || err != nil {
			fmt.Printf("the logs and captures are in %s\n", out)
			return
		}
		err = errors.Join(err, os.RemoveAll(out))
	}()
	fmt.Printf("rping and the conformance suite against siw on Linux %s, in a virtual machine\n", l.image.Kernel)
	o, err := l.all(ctx, p, out, func(s string) { fmt.Println(s) })
	if err != nil {
		return false, err
	}
	r := newReport(l, o)
	r.print(os.Stdout, out)
	fmt.Printf("%s in %.0f s\n", r.summary(), time.Since(begin).Seconds())
	ok = r.failed() == 0
	if *summary != "" {
		if err := writeSummary(*summary, r.passed(), r.failed(), 0); err != nil {
			return false, err
		}
	}
	if *document == "" || *only != "" || *repeat != 1 || !ok {
		return ok, nil
	}
	return ok, writeFile(*document, r.document)
}

func writeSummary(path string, passed, failed, skipped int) error {
	line := fmt.Sprintf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return os.WriteFile(path, []byte(line), 0o644)
}

// prepare finds or builds what a run needs.
func prepare(ctx context.Context, binary, cache, agents string) (l *lab, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, buildTime, fmt.Errorf("it took longer than %v", buildTime))
	defer cancel()
	l = &lab{options: vm.Options{Timeout: runTime, Memory: guestMemory}}
	if l.binary, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.binary); err != nil {
		return nil, fmt.Errorf("%w; make build makes it", err)
	}
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.agent, err = siw.Build(ctx, agents); err != nil {
		return nil, err
	}
	l.image, err = vm.Build(ctx, cache, os.Stdout)
	return l, err
}

func writeFile(path string, write func(io.Writer)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	write(f)
	return f.Close()
}
