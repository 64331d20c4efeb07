// Command interop proves IronWarp against other RDMA stacks: it boots a virtual
// machine with Linux' soft-iWARP (siw), runs our program and theirs against
// each other in both roles, and prints a table of what worked. make interop
// runs it.
//
//	interop [-binary bin/ironwarp] [-cache .cache/vm] [-document docs/interop.md] [-run regexp] [-keep] [-v]
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

	"github.com/ironwarp/ironwarp/integration/vm"
)

// runTime bounds the run in the virtual machine. It takes a minute on two idle
// processors, six on busy ones.
const runTime = 15 * time.Minute

func main() {
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
	document := flag.String("document", "", "write the table to this Markdown `file`, after a complete run")
	only := flag.String("run", "", "run only the cases whose names match this `regexp`")
	keep := flag.Bool("keep", false, "keep the logs of all cases and say where they are")
	verbose := flag.Bool("v", false, "show the virtual machine's console")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	if *binary, err = filepath.Abs(*binary); err != nil {
		return false, err
	}
	if _, err := os.Stat(*binary); err != nil {
		return false, fmt.Errorf("%w; make build makes it", err)
	}
	begin := time.Now()
	im, err := vm.Build(ctx, *cache, os.Stdout)
	if err != nil {
		return false, err
	}
	var chosen []Case
	for _, c := range cases() {
		if match.MatchString(c.Name()) {
			chosen = append(chosen, c)
		}
	}
	out, err := os.MkdirTemp("", "ironwarp-interop-")
	if err != nil {
		return false, err
	}
	defer func() {
		if *keep || !ok && err == nil {
			fmt.Printf("the logs are in %s\n", out)
			return
		}
		err = errors.Join(err, os.RemoveAll(out))
	}()
	fmt.Printf("%d cases against siw on Linux %s, in a virtual machine\n", len(chosen), im.Kernel)
	o := vm.Options{Timeout: runTime}
	if *verbose {
		o.Console = os.Stdout
	}
	res, err := im.Run(ctx, out, script(*binary, chosen), o)
	if err != nil {
		return false, err
	}
	if res.Status != 0 {
		return false, fmt.Errorf("the script in the virtual machine ended with exit status %d:\n%s", res.Status, res.Output)
	}
	wire, err := readStartups(filepath.Join(out, "wire.pcap"), firstPort, firstPort+len(chosen))
	if err != nil {
		return false, err
	}
	ok = true
	var verdicts []Verdict
	for i, c := range chosen {
		e := readEvidence(out, c)
		e.Startup = wire[firstPort+i]
		v := judge(c, e)
		ok = ok && v.Expected()
		verdicts = append(verdicts, v)
	}
	printTable(os.Stdout, verdicts)
	fmt.Printf("%s in %.0f s\n", summary(verdicts), time.Since(begin).Seconds())
	if *document == "" || *only != "" {
		return ok, nil
	}
	return ok, writeFile(*document, func(w io.Writer) { writeDocument(w, im, verdicts) })
}

func writeFile(path string, write func(io.Writer)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	write(f)
	return f.Close()
}
