package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/integration/siw"
	"github.com/ironwarp/ironwarp/integration/vm"
)

// Limits of time. On two idle processors building a machine takes a minute and all runs
// some three; on busy ones it is several times that.
const (
	buildTime = 15 * time.Minute
	runTime   = 40 * time.Minute
	suiteTime = 30 * time.Minute
)

// guestMemory is in MiB; half of it has to hold the capture.
const guestMemory = 2048

// lab has the paths of everything that a run uses.
type lab struct {
	image  *vm.Image
	binary string // ironwarp
	self   string // this program, which is also the suite
	agent  string
	// built is the directory of the test programs, which make interop builds.
	built   string
	options vm.Options

	mu    sync.Mutex // guards the fields below it
	times []machineTime
}

// machineTime is the cost of a machine's run.
type machineTime struct {
	name       string
	clock, cpu time.Duration
}

// run boots a machine for a script, and records its cost under the name of the
// directory that gets its files.
func (l *lab) run(ctx context.Context, out, script string, o vm.Options) (vm.Result, error) {
	begin := time.Now()
	res, err := l.image.Run(ctx, out, script, o)
	l.took(filepath.Base(out), time.Since(begin), res.CPU)
	return res, err
}

// took records what something has cost.
func (l *lab) took(name string, clock, cpu time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, machineTime{name, clock, cpu})
}

// printTimes prints where the time went.
//
// unlocked: all has ended.
func (l *lab) printTimes(w io.Writer) {
	fmt.Fprintf(w, "\n%-22s %8s %8s\n", "the machine", "clock", "CPU")
	for _, t := range l.times {
		fmt.Fprintf(w, "%-22s %7.0fs %7.0fs\n", t.name, t.clock.Seconds(), t.cpu.Seconds())
	}
}

// program is the path of one of these test programs.
func (l *lab) program(name string) string { return filepath.Join(l.built, name) }

// plan is what one virtual machine is to do.
type plan struct {
	cases []Case
	suite string // regexp for the names of the suite's tests; empty: none
}

// outcome is the result of a plan.
type outcome struct {
	rping  []Verdict
	suite  []SuiteVerdict
	broken string // why the suite did not run to its end
}

// crashed matches a crash of the guest's kernel in siw, or in what is between siw and
// its consumer.
var crashed = regexp.MustCompile(`RIP: 0010:\S+ \[(siw|iw_cm|rdma_cm|rdma_ucm|ib_uverbs|ib_core)\]`)

// errSiwCrashed means that siw has crashed the guest's kernel.
var errSiwCrashed = errors.New("siw crashed the kernel of the virtual machine")

// onCrash carries out run, and once more each time that foreign code crashes its machine, up to maxTries times in
// all. try counts from 1 on. It fails as the last run does.
func onCrash(crash error, progress func(string), run func(try int) error) error {
	for try := 1; ; try++ {
		err := run(try)
		if !errors.Is(err, crash) || try == maxTries {
			return err
		}
		progress(fmt.Sprintf("%v; once more", err))
	}
}

// attempt boots a virtual machine and carries out a plan; its files are in the
// directory out.
func (l *lab) attempt(ctx context.Context, p plan, out string) (o outcome, err error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return o, err
	}
	res, err := l.run(ctx, out, l.script(p), l.options)
	if err := os.WriteFile(filepath.Join(out, "console"), []byte(res.Output), 0o644); err != nil {
		return o, err
	}
	if errors.Is(err, vm.ErrDied) && crashed.MatchString(res.Output) {
		return o, fmt.Errorf("%w\n%w", errSiwCrashed, err)
	}
	if err != nil {
		return o, err
	}
	if res.Status != 0 {
		return o, fmt.Errorf("the script in the virtual machine ended with exit status %d:\n%s", res.Status, res.Output)
	}
	wire, err := readCapture(filepath.Join(out, "wire.pcap"))
	if err != nil {
		return o, err
	}
	for i, c := range p.cases {
		e := readEvidence(out, c)
		e.Startup, e.Faults = wire.startup(firstPort+i), wire.ofPort(firstPort+i)
		o.rping = append(o.rping, judge(c, e))
	}
	if p.suite == "" {
		return o, nil
	}
	f, err := os.Open(filepath.Join(out, "suite.results"))
	if err != nil {
		return o, err
	}
	defer f.Close()
	results, complete, err := siw.ReadResults(f)
	if err != nil {
		return o, err
	}
	log, err := os.ReadFile(filepath.Join(out, "suite.log"))
	if err != nil {
		return o, err
	}
	if !complete {
		o.broken = "the suite ended early: " + lastLine(string(log))
	}
	for _, r := range results {
		o.suite = append(o.suite, judgeSuite(r, wire))
	}
	return o, nil
}

// maxTries is how often something is run whose failure the foreign kernel is to blame for.
const maxTries = 3

// all carries out a plan, and repeats what siw is to blame for.
func (l *lab) all(ctx context.Context, p plan, out string, progress func(string)) (o outcome, err error) {
	for try := 1; ; try++ {
		dir := filepath.Join(out, fmt.Sprintf("try%d", try))
		next, err := l.attempt(ctx, p, dir)
		if errors.Is(err, errSiwCrashed) && try < maxTries {
			progress(fmt.Sprintf("%v; once more", err))
			continue
		}
		if err != nil {
			return o, err
		}
		o.merge(next, try)
		p = o.again()
		if len(p.cases) == 0 && p.suite == "" || try == maxTries {
			return o, nil
		}
		progress(fmt.Sprintf("siw sent what is wrong on the wire; once more: %d runs of rping, %s of the suite", len(p.cases), p.suite))
	}
}

// merge puts newer verdicts in place of older ones.
func (o *outcome) merge(next outcome, try int) {
	o.broken = next.broken
	for _, v := range next.rping {
		v.Tries = try
		if i := slices.IndexFunc(o.rping, func(old Verdict) bool { return old.Name() == v.Name() }); i >= 0 {
			o.rping[i] = v
		} else {
			o.rping = append(o.rping, v)
		}
	}
	for _, v := range next.suite {
		v.Tries = try
		if i := slices.IndexFunc(o.suite, func(old SuiteVerdict) bool { return old.same(v) }); i >= 0 {
			o.suite[i] = v
		} else {
			o.suite = append(o.suite, v)
		}
	}
}

// again is the plan that repeats what siw is to blame for.
func (o *outcome) again() (p plan) {
	for _, v := range o.rping {
		if !v.Expected() && v.Blame == Peer {
			p.cases = append(p.cases, v.Case)
		}
	}
	var names []string
	for _, v := range o.suite {
		if !v.Expected() && v.Blame == Peer {
			names = append(names, "^"+strings.ReplaceAll(regexp.QuoteMeta(v.TestName()), "/", "$/^")+"$")
		}
	}
	if len(names) > 0 {
		p.suite = strings.Join(names, "|")
	}
	return p
}
