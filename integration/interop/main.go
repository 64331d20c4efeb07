// Command interop tests IronWarp against other RDMA stacks: it boots a virtual machine
// with Linux' soft-iWARP (siw), runs our program and theirs against each other in both
// roles, and prints what worked. make interop runs it.
//
//	interop [-binary bin/ironwarp] [-cache .cache/vm] [-document docs/interop.md] [-matrix docs/ipsec-matrix.md]
//	        [-part siw|esp|sctp|power|device|iscsi|nvme|programs|selinux|csi|mounted] [-run regexp] [-whole] [-repeat n] [-at-once n]
//	        [-logs directory] [-summary file] [-v]
//
// One machine runs rping of librdmacm against ironwarp rping, and the conformance suite
// (package iwarptest/conformance) with package verbs at one end and siw at the other.
// Another one has the kernel's ESP: there run the tests of integration/ipsectest, some
// of them with siw inside of ESP, and the matrix of integration/ikematrix. The third
// has the kernel's SCTP: the tests of transport and transport/ksctp, those of verbs,
// integration/ipsectest, integration/chaos and integration/peers that are about it, and
// the demo. The tests of integration/history
// that cut a host's power kill a machine of their own, those of integration/chaos attach
// a disk as a block device in one and boot another from a vhost-user socket, those of
// integration/initiators have its kernel log in to our iSCSI target and attach our NVMe namespace, integration/selinux
// boots it with SELinux, and integration/newcomer follows README in one. In the machines the suite and the matrix are this program:
//
//	interop suite -agent PROGRAM [-results file] [flags of go test]
//	interop ikematrix [-results file] [-kernel] [flags of go test]
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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironwarp/ironwarp/integration/ikematrix"
	"github.com/ironwarp/ironwarp/integration/siw"
	"github.com/ironwarp/ironwarp/integration/vm"
	"github.com/ironwarp/ironwarp/internal/tools/howlong"
	"github.com/ironwarp/ironwarp/iwarptest/agent"
)

func main() {
	programs := map[string]func(){"suite": siw.Main, "ikematrix": ikematrix.Main}
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		program := programs[os.Args[1]]
		os.Args = append(os.Args[:1], os.Args[2:]...)
		program()
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

// arguments are those of the command line.
type arguments struct {
	binary, built, cache, agents string
	document, matrix             string
	part, only                   string
	repeat, atOnce               int
	logs, summary                string
	whole, verbose               bool
}

func parse() (a arguments, err error) {
	flag.StringVar(&a.binary, "binary", "bin/ironwarp", "the program under test")
	flag.StringVar(&a.built, "built", ".cache", "`directory` of the test programs")
	flag.StringVar(&a.cache, "cache", ".cache/vm", "directory of built virtual machines")
	flag.StringVar(&a.agents, "agents", ".cache/siw", "directory of built programs for siw's end")
	flag.StringVar(&a.document, "document", "", "write the results to this Markdown `file`, after a run with -whole that went as expected")
	flag.StringVar(&a.matrix, "matrix", "", "and those of the matrix to this one")
	flag.StringVar(&a.part, "part", "", "run only `siw` (rping and the suite), esp (what has the kernel's ESP), sctp, power (whose power is cut), device (a disk as the kernel's block device, and as a guest's), iscsi (the kernel's initiators), nvme (its NVMe host), programs (of libibverbs), fabric (opensm and InfiniBand's programs), selinux (a kernel with SELinux), csi (volumes of the CSI driver) or mounted (README on hosts with systemd)")
	flag.StringVar(&a.only, "run", "", "run only what matches this `regexp`: names of rping's cases, of the suite's tests as in Siw/we-dial-ipv4-crc/send, and of those of the test programs")
	flag.BoolVar(&a.whole, "whole", false, "run everything; without it pairs of settings of the largest tables are left out and tests that make test has with userland ESP, and the documents stay as they are")
	flag.IntVar(&a.repeat, "repeat", 1, "run each of rping's cases so many times and nothing else, to look for what is rare")
	flag.IntVar(&a.atOnce, "at-once", 2, "how many virtual machines run at once")
	flag.StringVar(&a.logs, "logs", "", "keep the logs and captures in this `directory`; without it those of a failed run are kept in one of their own")
	flag.StringVar(&a.summary, "summary", "", "write \"N passed, N failed, N skipped\" to this `file`")
	flag.BoolVar(&a.verbose, "v", false, "show the virtual machine's console")
	flag.Parse()
	if a.repeat > 1 {
		a.part = partSiw
	}
	if a.atOnce < 1 {
		return a, fmt.Errorf("-at-once %d: at least one machine has to run", a.atOnce)
	}
	switch a.part {
	case "", partSiw, partESP, partSCTP, partPower, partDevice, partISCSI, partNVMe, partPrograms, partFabric, partSELinux, partCSI, partMounted:
	default:
		return a, fmt.Errorf("-part %s: there are %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s and %s", a.part, partSiw, partESP, partSCTP, partPower, partDevice, partISCSI, partNVMe, partPrograms, partFabric, partSELinux, partCSI, partMounted)
	}
	_, err = regexp.Compile(a.only)
	if err != nil {
		err = fmt.Errorf("-run: %w", err)
	}
	return a, err
}

// String is the make command for the run.
func (a arguments) String() string {
	var args []string
	if a.whole {
		args = append(args, "-whole")
	}
	if a.part != "" {
		args = append(args, "-part "+a.part)
	}
	if a.only != "" {
		args = append(args, "-run "+a.only)
	}
	if a.repeat > 1 {
		args = append(args, fmt.Sprintf("-repeat %d", a.repeat))
	}
	if len(args) == 0 {
		return "make interop"
	}
	return fmt.Sprintf("make interop ARGS='%s'", strings.Join(args, " "))
}

// firstTime is how long a first run takes on two processors, including building the
// machines; 0: unknown.
func (a arguments) firstTime() time.Duration {
	if a.String() == "make interop" {
		return 20 * time.Minute
	}
	return 0
}

// The parts of a run, each in a machine of its own.
const (
	partSiw      = "siw"
	partESP      = "esp"
	partSCTP     = "sctp"
	partPower    = "power"
	partDevice   = "device"
	partISCSI    = "iscsi"
	partNVMe     = "nvme"
	partPrograms = "programs"
	partSELinux  = "selinux"
	partFabric   = "fabric"
	partCSI      = "csi"
	partMounted  = "mounted"
)

// includes reports whether a part is to be run.
func (a arguments) includes(part string) bool { return a.part == "" || a.part == part }

// documents reports that nothing is left out, so that the documents can be written from
// the results.
func (a arguments) documents() bool { return a.whole && a.part == "" && a.only == "" && a.repeat == 1 }

// plan is what the machine with siw is to do.
func (a arguments) plan() (p plan) {
	if !a.includes(partSiw) {
		return p
	}
	if p.suite = a.only; p.suite == "" {
		p.suite = "."
	}
	match := regexp.MustCompile(a.only)
	for _, c := range cases() {
		if !match.MatchString(c.Name()) {
			continue
		}
		if a.repeat == 1 {
			p.cases = append(p.cases, c)
			continue
		}
		p.suite = ""
		for c.Round = 1; c.Round <= a.repeat; c.Round++ {
			p.cases = append(p.cases, c)
		}
	}
	return p
}

func run(ctx context.Context) (ok bool, err error) {
	a, err := parse()
	if err != nil {
		return false, err
	}
	begin := time.Now()
	long := howlong.Begin(os.Stdout, filepath.Join(a.built, "times.json"), a.String(), a.firstTime())
	l, err := prepare(ctx, a)
	if errors.Is(err, vm.ErrNoPackage) && a.summary != "" {
		err = errors.Join(err, writeSummary(a.summary, 0, 0, 1))
	}
	if err != nil {
		return false, err
	}
	out := a.logs
	if out == "" {
		if out, err = os.MkdirTemp("", "ironwarp-interop-"); err != nil {
			return false, err
		}
	} else if err := os.MkdirAll(out, 0o755); err != nil {
		return false, err
	}
	defer func() {
		if a.logs != "" || !ok || err != nil {
			fmt.Printf("the logs and captures are in %s\n", out)
			return
		}
		err = errors.Join(err, os.RemoveAll(out))
	}()
	r, err := l.report(ctx, a, out)
	if err != nil {
		return false, err
	}
	r.print(os.Stdout, out)
	l.printTimes(os.Stdout)
	unexpected := r.unexpected()
	for _, name := range unexpected {
		fmt.Println("UNEXPECTED:", name)
	}
	fmt.Printf("%s in %.0f s\n", r.summary(), time.Since(begin).Seconds())
	if err := long.End(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	ok = len(unexpected) == 0
	if a.summary != "" {
		if err := writeSummary(a.summary, r.passed(), len(unexpected), r.skipped()); err != nil {
			return false, err
		}
	}
	if !ok || !a.documents() {
		return ok, nil
	}
	if a.document != "" {
		err = writeFile(a.document, r.document)
	}
	if a.matrix != "" && r.esp.matrix != nil {
		err = errors.Join(err, ikematrix.WriteDocument(a.matrix, r.esp.matrix))
	}
	return ok, err
}

// report runs what the arguments ask for, the longest machine first, some of them
// side by side.
func (l *lab) report(ctx context.Context, a arguments, out string) (*report, error) {
	var o outcome
	var esp *espOutcome
	var sctp *sctpOutcome
	outer := make([]*outsideOutcome, len(outsides))
	progress := func(s string) { fmt.Println(s) }
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(a.atOnce)
	if a.includes(partSCTP) {
		g.Go(func() error {
			fmt.Printf("hosts with the SCTP of Linux %s between them, in a virtual machine\n", l.image.Kernel)
			s, err := l.sctp(ctx, a.only, a.whole, out, progress)
			sctp = &s
			return err
		})
	}
	if a.includes(partESP) {
		g.Go(func() error {
			fmt.Printf("hosts with the ESP of Linux %s between them, in a virtual machine\n", l.image.Kernel)
			e, err := l.espAgain(ctx, a.only, a.whole, out, progress)
			esp = &e
			return err
		})
	}
	if a.includes(partSiw) {
		g.Go(func() (err error) {
			fmt.Printf("rping and the conformance suite against siw on Linux %s, in a virtual machine\n", l.image.Kernel)
			o, err = l.all(ctx, a.plan(), out, progress)
			return err
		})
	}
	for i, o := range outsides {
		if !o.chosen(a) {
			continue
		}
		g.Go(func() error {
			where := "with Linux " + l.image.Kernel + ", in a virtual machine"
			if o.here {
				where = "on this host"
			}
			fmt.Printf("%s, %s\n", o.what, where)
			p, err := l.outside(ctx, o, a.cache, out)
			outer[i] = &p
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	r := newReport(l, o, esp, sctp)
	r.outside = slices.DeleteFunc(outer, func(o *outsideOutcome) bool { return o == nil })
	return r, nil
}

func writeSummary(path string, passed, failed, skipped int) error {
	line := fmt.Sprintf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return os.WriteFile(path, []byte(line), 0o644)
}

// prepare finds or builds what a run needs.
func prepare(ctx context.Context, a arguments) (l *lab, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, buildTime, fmt.Errorf("it took longer than %v", buildTime))
	defer cancel()
	l = &lab{options: vm.Options{Timeout: runTime, Memory: guestMemory}}
	if a.verbose {
		l.options.Console = os.Stdout
	}
	for path, to := range map[string]*string{a.binary: &l.binary, a.built: &l.built} {
		if *to, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if _, err := os.Stat(*to); err != nil {
			return nil, fmt.Errorf("%w; make interop makes it", err)
		}
	}
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.agent, err = agent.Build(ctx, a.agents); err != nil {
		return nil, err
	}
	l.image, err = vm.Build(ctx, a.cache, os.Stdout)
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
