package iscsitest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// Options say how a target is tested. The zero value tests what can be tested without writing to the disk, and without an attack.
type Options struct {
	Only    []string      // globs, as of path.Match, of the IDs of cases, or groups; none: all
	Repeat  int           // how often each case runs, 0: once
	Seed    uint64        // of what is random
	Allow   Need          // Data, Hostile; Secrets follows from the target, and Soak from Soak
	Soak    time.Duration // how long the cases of group soak take, 0: they are skipped
	Timeout time.Duration // for one answer, 0: 10 s
	Recover time.Duration // for a target that is down to come back, 0: 30 s

	// Dial connects over TCP, nil: the host's TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Transport is what iSER runs on, nil: within this host.
	Transport *transport.Config
	// Progress is called after each case, with how many there are.
	Progress func(r *Result, done, all int)
}

// tries is how often a case is begun anew after a connection has ended where nothing ends it.
const tries = 5

// caseTime is how many timeouts a case may take.
const caseTime = 15

// Select returns the cases that run, for a target and with options.
func Select(t *Target, o *Options) []Case {
	var all []Case
	for _, c := range Cases() {
		if !c.over(t.Over) {
			continue
		}
		wanted := len(o.Only) == 0
		for _, glob := range o.Only {
			ok, _ := path.Match(glob, c.ID)
			wanted = wanted || ok || glob == c.Group()
		}
		if wanted {
			all = append(all, c)
		}
	}
	return all
}

// ErrUnreachable means that nobody answers where the target is to be.
var ErrUnreachable = errors.New("iscsitest: the target can't be reached")

// Run tests a target. It fails with ErrTarget for globs that are none, with ErrUnreachable, and with ctx's error, of
// which the report says how far it has come.
func Run(ctx context.Context, target Target, o Options) (*Report, error) {
	for _, glob := range o.Only {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrTarget, glob, err)
		}
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Recover == 0 {
		o.Recover = 30 * time.Second
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}
	if target.CHAP != nil {
		o.Allow |= Secrets
	}
	if o.Soak > 0 {
		o.Allow |= Soak
	}
	o.Repeat = max(o.Repeat, 1)
	r := &runner{ctx: ctx, target: &target, o: &o, w: &watch{}}
	l, err := connect(ctx, &target, &o)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	l.close()
	report := &Report{Target: target.URL(), Seed: o.Seed}
	cases := Select(&target, &o)
	first := slices.IndexFunc(cases, func(c Case) bool { return c.run == nil }) // of the rules, which have one verdict each
	if first < 0 {
		first = len(cases)
	}
	all := first*o.Repeat + len(cases) - first
	for range o.Repeat {
		for i := range cases[:first] {
			x := r.judge(&cases[i])
			if ctx.Err() != nil {
				return report, ctx.Err()
			}
			report.Results = append(report.Results, x)
			r.progress(&x, len(report.Results), all)
		}
	}
	for i := range cases[first:] {
		c := &cases[first+i]
		x := r.w.result(ruleOf(c.ID))
		x.describe(c, target.Over)
		report.Results = append(report.Results, x)
		r.progress(&x, len(report.Results), all)
	}
	return report, nil
}

func ruleOf(id string) rule {
	for i := range rules {
		if rules[i].ID == id {
			return rule(i)
		}
	}
	panic("iscsitest: no rule " + id)
}

type runner struct {
	ctx    context.Context
	target *Target
	o      *Options
	w      *watch
	down   bool // the target was gone, and has not come back
}

func (r *runner) progress(x *Result, done, all int) {
	if r.o.Progress != nil {
		r.o.Progress(x, done, all)
	}
}

func (x *Result) describe(c *Case, over Transport) {
	x.Case, x.Over, x.Level, x.Source, x.Says = c.ID, over, c.Level, c.Source, c.Says
}

// judge runs a case, more than once if its connection is lost, and looks at whether the target has survived it.
func (r *runner) judge(c *Case) (x Result) {
	began := time.Now()
	defer func() {
		x.describe(c, r.target.Over)
		x.Took = time.Since(began)
	}()
	for _, n := range []struct {
		need Need
		why  string
	}{{Data, "it writes to the disk, which has not been allowed (--dataloss)"}, {Hostile, "it attacks the target, which has not been allowed (--hostile)"},
		{Secrets, "it needs a secret (--chap-user, --chap-secret-file)"}, {Soak, "it takes a while, which has not been asked for (--soak TIME)"}} {
		if c.Need&n.need&^r.o.Allow != 0 {
			return Result{Verdict: Skip, Found: n.why}
		}
	}
	var trace []Event  // of the last run
	var places []place // at which a connection was lost
	for x.Tries < tries {
		x.Tries++
		t := r.run(c)
		var e ended
		if e = t.attempt(); e.verdict == TargetDown && r.back() {
			continue // it was not there for a moment
		}
		x.Verdict, x.Found = e.verdict, e.found
		if trace = t.events; e.verdict != Pass && e.verdict != Skip {
			x.Trace = trace
		}
		if !e.lost {
			places = nil
			break
		}
		places = append(places, t.at)
	}
	if !same(places) {
		x.Verdict = Inconclusive
		x.Found += fmt.Sprintf(" (%d of %d runs were lost, at different places)", len(places), x.Tries)
	}
	if x.Verdict != Skip && x.Verdict != TargetDown && !r.back() {
		x.Found = strings.TrimSuffix("nobody can connect any more after this: "+x.Found, ": ")
		x.Verdict, x.Trace = TargetDown, trace
	}
	return x
}

// same reports that connections were lost at one place. How much was sent until that was noticed, and how much had
// come by then, may be a matter of time, but not both.
func same(places []place) bool {
	sent := func(a, b place) bool { return a.sent == b.sent }
	received := func(a, b place) bool { return a.received == b.received }
	return len(slices.CompactFunc(slices.Clone(places), sent)) <= 1 || len(slices.CompactFunc(slices.Clone(places), received)) <= 1
}

// run prepares a run of a case.
func (r *runner) run(c *Case) *T {
	h := fnv.New64a()
	h.Write([]byte(c.ID))
	ctx, cancel := context.WithTimeout(r.ctx, caseTime*r.o.Timeout+r.o.Soak)
	t := &T{ctx: ctx, target: r.target, o: r.o, c: c, rng: rand.New(rand.NewPCG(r.o.Seed, h.Sum64())), began: time.Now(), watch: r.w}
	t.defers(cancel)
	r.w.at = t
	return t
}

// back waits until somebody can connect. A target that has not come back once is not waited for again.
func (r *runner) back() bool {
	within := r.o.Recover
	if r.down {
		within = 0
	}
	r.down = !r.up(within)
	return !r.down
}

// up reports whether somebody can connect, within a time.
func (r *runner) up(within time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.ctx, within)
	defer cancel()
	one, enough := context.WithTimeout(r.ctx, r.o.Timeout)
	defer enough()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := connect(one, r.target, r.o)
		if err == nil {
			l.close()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}
