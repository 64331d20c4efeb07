package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How many jobs run at once. Labs wait for timers of TCP and IKE, the others
// for each other and the disk: two processors carry so many without being late.
const (
	labsAtOnce  = 4
	unitsAtOnce = 3
)

// perJob is how many tests of a package of labs run one after the other.
const perJob = 8

// job is one run of a test binary.
type job struct {
	pass, pkg, variant string
	part               string // of the package's tests, as 1/3; empty: all
	dir, binary        string
	tests              []string // nil: all
}

// slow are packages some of whose jobs take minutes: labs, and others.
var slow = []string{labPrefix + "/chaos", labPrefix + "/peers", labPrefix + "/ipsectest", labPrefix + "/ikematrix", labPrefix + "/demo", labPrefix + "/machine", labPrefix + "/simulation",
	"/verbs", "/rtrs", "/daemon/directory", "/daemon"}

// slowFirst puts their jobs before the others: one that began last would go on alone.
func slowFirst(jobs []job) []job {
	rank := func(j job) int {
		if i := slices.IndexFunc(slow, func(name string) bool { return strings.HasSuffix(j.pkg, name) }); i >= 0 {
			return i
		}
		return len(slow)
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return rank(a) - rank(b) })
	return jobs
}

// lane runs jobs, some of them at once.
type lane struct {
	queue chan job
	busy  sync.WaitGroup // jobs added and not done
}

// start begins to carry out what is added.
func (l *lane) start(ctx context.Context, r *runner, atOnce int) {
	l.queue = make(chan job, 4096)
	for range atOnce {
		go func() {
			for j := range l.queue {
				r.job(ctx, j)
				l.busy.Done()
			}
		}()
	}
}

func (l *lane) add(jobs ...job) {
	l.busy.Add(len(jobs))
	for _, j := range jobs {
		l.queue <- j
	}
}

// seal marks that nothing more is added.
func (l *lane) seal() { close(l.queue) }

// drain waits until all that was added is done.
func (l *lane) drain() { l.busy.Wait() }

// job runs a test binary as go test does, through the same translator.
func (r *runner) job(ctx context.Context, j job) {
	args := []string{"tool", "test2json", "-t", "-p", j.pkg, j.binary,
		"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + r.timeout.String()}
	if j.tests != nil {
		args = append(args, "-test.run=^("+strings.Join(j.tests, "|")+")$")
	}
	r.mu.Lock()
	r.jobs = append(r.jobs, j)
	r.mu.Unlock()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = j.dir
	cmd.Env = append(os.Environ(), "PWD="+j.dir)
	r.run(cmd, j.pass, strings.TrimSpace(shorten(j.pkg)+" "+j.part), j.variant)
}

// run merges the output of a command, which has the form of go test -json. The command
// runs in a process group of its own, so that an interrupt ends the test binaries with
// it.
func (r *runner) run(cmd *exec.Cmd, pass, what, variant string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begin := time.Now()
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.fault("run "+what+" ("+pass+")", err.Error())
		return
	}
	failures, ended := 0, false
	readErr := r.results.read(pipe, pass, variant, func(d packageDone) {
		failures += d.failed
		ended = true
		r.printPackage(pass, what+variant, d)
	})
	if readErr != nil {
		io.Copy(io.Discard, pipe)
	}
	err = cmd.Wait()
	r.took(pass, what+variant, begin, cmd)
	if readErr != nil || !ended || err != nil && failures == 0 {
		r.fault("run "+what+" ("+pass+")", fmt.Sprintf("%v; its output: %v\n%s", err, readErr, stderr.String()))
	}
}

// timing is what a step cost.
type timing struct {
	pass, what string
	wall, cpu  time.Duration
}

// took records what a command cost, with all processes that it has waited for.
func (r *runner) took(pass, what string, begin time.Time, cmd *exec.Cmd) {
	t := timing{pass: pass, what: what, wall: time.Since(begin)}
	if s := cmd.ProcessState; s != nil {
		t.cpu = s.UserTime() + s.SystemTime()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, t)
}

// timed runs a command, records what it cost, and returns what it printed.
func (r *runner) timed(cmd *exec.Cmd, pass, what string) ([]byte, error) {
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	r.took(pass, what, begin, cmd)
	if err == nil {
		fmt.Fprintf(r, "ok   %-6s %-40s %6.1fs\n", pass, what, time.Since(begin).Seconds())
	}
	return out, err
}
