package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/tools/rfc5042"
)

// labPrefix marks packages that set up whole hosts; they drive other
// processes, so the race detector would find nothing in them.
const labPrefix = "/integration"

// attackPrefix marks packages whose tests are run again in a build in which each
// attack's check is switched off; there the attack has to succeed.
const attackPrefix = labPrefix + "/attack"

// scenes are other packages whose tests are run in such a build, too: each scene has to
// lose written data there. Of those that are no labs it is scenesTest.
var scenes = []string{labPrefix + "/history", labPrefix + "/simulation", "/rnbd", "/rtrs", "/nbd", "/ipsec/invite"}

// scenesTest runs a package's scenes with their checks switched off; there is none of that
// name in another build.
const scenesTest = "TestScenesWithoutTheirChecks"

// weakened is added to the names of those packages.
const weakened = " [weakened]"

// The passes. Each test runs in the first of them that suits its package.
const (
	passRace  = "race"  // with the race detector: all but labs
	passPlain = "plain" // without it: what it had skipped, such as counts of allocations
	passHosts = "hosts" // labs
	passWeak  = "weak"  // attacks on the weakened build
)

type runner struct {
	results *results
	timeout time.Duration
	whole   bool   // the plain pass is of all tests
	work    string // directory for test binaries
	lanes   [2]lane
	begin   time.Time

	mu     sync.Mutex // guards the fields below it
	out    io.Writer
	broken []string // faults that belong to no test
	times  []timing
	jobs   []job // that have been run
}

// all runs what the patterns name. Three things happen at once: binaries are
// built, labs run, and tests of single packages run. Most tests wait most of the
// time, so that none of the three is much slower than it would be alone.
func (r *runner) all(ctx context.Context, patterns []string) bool {
	r.begin = time.Now()
	p, err := listPackages(ctx, patterns)
	if err == nil {
		r.work, err = os.MkdirTemp("", "ironwarp-tests-")
	}
	if err != nil {
		r.fault("go list", err.Error())
		return r.report()
	}
	defer os.RemoveAll(r.work)
	labs, units := &r.lanes[0], &r.lanes[1]
	labs.start(ctx, r, labsAtOnce)
	units.start(ctx, r, unitsAtOnce)
	r.program(ctx, p.labs)
	labs.add(slowFirst(r.build(ctx, passHosts, "", p.labs))...)
	race, why := raceAvailable(ctx)
	if race {
		units.add(r.build(ctx, passRace, "", p.units, "-race")...)
	} else if len(p.units) > 0 {
		fmt.Fprintf(r, "the race detector is not used: %s\n", why)
	}
	labs.add(r.build(ctx, passWeak, weakened, p.attacks, "-tags", "weakened")...)
	labs.seal()
	r.vet(ctx, patterns)
	if slices.Contains(patterns, "./...") {
		r.nested(ctx)
	}
	plain := r.build(ctx, passPlain, "", p.units)
	if race && !r.whole {
		units.drain()
		plain = r.left(plain)
	}
	units.add(plain...)
	units.seal()
	units.drain()
	labs.drain()
	if slices.Contains(patterns, "./...") {
		r.table(rfc5042.Document)
	}
	return r.report()
}

// left narrows jobs to the tests that all passes so far have skipped.
func (r *runner) left(jobs []job) (out []job) {
	r.results.mu.Lock()
	defer r.results.mu.Unlock()
	for _, j := range jobs {
		var names []string
		for k, v := range r.results.tests {
			if top, _, _ := strings.Cut(k.test, "/"); k.pkg == j.pkg && v.outcome == skipped && !slices.Contains(names, top) {
				names = append(names, top)
			}
		}
		if len(names) > 0 {
			slices.Sort(names)
			j.tests = names
			out = append(out, j)
		}
	}
	return out
}

// table checks the run against the table of RFC 5042: each test that it names has run, or
// reported why it did not.
//
// unlocked: all has ended.
func (r *runner) table(document string) {
	src, err := os.ReadFile(document)
	if err != nil {
		r.fault("the table of RFC 5042", err.Error())
		return
	}
	rows, complaints := rfc5042.Parse(src)
	missing := rfc5042.Missing(rows, func(test string) bool {
		for k := range r.results.tests {
			if rfc5042.Names(test, k.pkg, k.test) {
				return true
			}
		}
		return false
	})
	for _, m := range missing {
		complaints = append(complaints, fmt.Sprintf("%s did not run", m))
	}
	if len(complaints) > 0 {
		r.fault("the table of RFC 5042 in "+document, strings.Join(complaints, "\n"))
	}
}

func (r *runner) fault(what, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, what)
	fmt.Fprintf(r.out, "FAIL %s\n%s\n", what, strings.TrimRight(text, "\n"))
}

// Write prints to the report, from any goroutine.
func (r *runner) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(b)
}

// program builds `ironwarp` once for the labs, which otherwise do that for each
// package.
func (r *runner) program(ctx context.Context, labs []string) {
	const name = "IRONWARP_BINARY"
	if len(labs) == 0 || os.Getenv(name) != "" {
		return
	}
	path := filepath.Join(r.work, "ironwarp")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "./cmd/ironwarp")
	if out, err := r.timed(cmd, "build", "ironwarp"); err != nil {
		r.fault("go build ./cmd/ironwarp", string(out))
		return
	}
	os.Setenv(name, path)
}

func (r *runner) vet(ctx context.Context, patterns []string) {
	out, err := r.timed(exec.CommandContext(ctx, "go", append([]string{"vet"}, patterns...)...), "vet", strings.Join(patterns, " "))
	if err != nil {
		r.fault("go vet", string(out))
	}
}
