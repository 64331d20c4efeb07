package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
)

// event is one line of `go test -json` (go doc cmd/test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string // build-output and build-fail events
	Test        string
	Output      string
	Key, Value  string // attr events
	Elapsed     float64
	FailedBuild string
}

type outcome uint8

const (
	running outcome = iota
	skipped
	passed
	failed
)

type testKey struct{ pkg, test string }

// verdict is what became of one test. A test that runs in several passes fails
// if any of them fails and is skipped only if all of them skip it.
type verdict struct {
	outcome outcome
	output  []string // of the pass that decided
	pass    string
}

// results collects the verdicts of several `go test` passes.
type results struct {
	mu       sync.Mutex // guards the fields below it
	tests    map[testKey]*verdict
	measured []measurement
}

// measurement is what a test has measured, t.Attr("measured", ...): figures that
// it does not judge.
type measurement struct {
	key  testKey
	text string
}

func newResults() *results { return &results{tests: make(map[testKey]*verdict)} }

// packageDone notifies a listener that a package has finished in the current pass.
type packageDone struct {
	pkg                   string
	outcome               outcome
	noTests               bool
	elapsed               float64
	passed, failed, skips int
	output                []string // the package's own output, set on failure
}

// read consumes the events of one pass until EOF. variant is added to the names of
// packages, so that what they do in another build counts by itself.
func (r *results) read(in io.Reader, pass, variant string, done func(packageDone)) error {
	type key = testKey
	output := make(map[key][]string)
	builds := make(map[string][]string)
	current := make(map[key]outcome)
	open := make(map[string]float64) // packages that have not ended, with what their last event took
	finish := func(k key, o outcome) {
		current[k] = o
		r.record(k, verdict{outcome: o, output: output[k], pass: pass})
	}
	dec := json.NewDecoder(in)
	for {
		var e event
		if err := dec.Decode(&e); err == io.EOF {
			// The end of a test binary that dies within a test carries that test's name.
			for pkg, elapsed := range open {
				done(r.closePackage(event{Action: "fail", Package: pkg, Elapsed: elapsed}, output, current, finish))
			}
			return nil
		} else if err != nil {
			return err
		}
		if e.Package != "" {
			e.Package += variant
			open[e.Package] = e.Elapsed
		}
		k := key{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			builds[e.ImportPath] = append(builds[e.ImportPath], e.Output)
		case "output":
			output[k] = append(output[k], e.Output)
		case "attr":
			if e.Key == "measured" {
				r.mu.Lock()
				r.measured = append(r.measured, measurement{k, e.Value})
				r.mu.Unlock()
			}
		case "run":
			current[k] = running
		case "pass", "fail", "skip":
			if e.Test != "" {
				finish(k, outcomeOf(e.Action))
				continue
			}
			if e.FailedBuild != "" {
				output[k] = append(output[k], builds[e.FailedBuild]...)
			}
			delete(open, e.Package)
			done(r.closePackage(e, output, current, finish))
		}
	}
}

func outcomeOf(action string) outcome {
	switch action {
	case "pass":
		return passed
	case "fail":
		return failed
	}
	return skipped
}

// closePackage settles a package: tests that were still running when it died
// have failed, and a failure that no test owns (build error, exit, panic in
// TestMain, data race after the last test) is counted under the package.
func (r *results) closePackage(e event, output map[testKey][]string, current map[testKey]outcome, finish func(testKey, outcome)) packageDone {
	d := packageDone{pkg: e.Package, outcome: outcomeOf(e.Action), elapsed: e.Elapsed}
	own := make(map[testKey]outcome)
	for k, o := range current {
		if k.pkg != e.Package || k.test == "" {
			continue
		}
		if o == running && e.Action == "fail" {
			finish(k, failed)
			o = failed
		}
		own[k] = o
	}
	parents := ancestry(own)
	owned := false
	for k, o := range own {
		if countsThroughSubtests(k, o, parents) {
			continue
		}
		switch o {
		case passed:
			d.passed++
		case skipped:
			d.skips++
		case failed:
			d.failed++
			owned = true
		}
	}
	d.noTests = d.passed+d.failed+d.skips == 0
	if e.Action == "fail" {
		d.output = output[testKey{e.Package, ""}]
		if !owned {
			finish(testKey{e.Package, ""}, failed)
			d.failed++
		}
	}
	return d
}

func (r *results) record(k testKey, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.tests[k]
	if !ok || v.outcome > old.outcome {
		r.tests[k] = &v
	}
}

// ancestry reports, for every test that has subtests, whether one of them failed.
func ancestry(all map[testKey]outcome) map[testKey]bool {
	parents := make(map[testKey]bool)
	for k, o := range all {
		for name := k.test; ; {
			i := strings.LastIndexByte(name, '/')
			if i < 0 {
				break
			}
			name = name[:i]
			parent := testKey{k.pkg, name}
			parents[parent] = parents[parent] || o == failed
		}
	}
	return parents
}

// countsThroughSubtests reports that a test's own outcome is not counted: its
// subtests stand for it, except where it failed and none of them did.
func countsThroughSubtests(k testKey, o outcome, parents map[testKey]bool) bool {
	childFailed, isParent := parents[k]
	return isParent && (o != failed || childFailed)
}

// leaves returns the tests with the given outcome, sorted. A test with
// subtests counts through them, unless it failed and none of them did.
//
// unlocked: all has ended.
func (r *results) leaves(want outcome) []testKey {
	outcomes := make(map[testKey]outcome, len(r.tests))
	for k, v := range r.tests {
		outcomes[k] = v.outcome
	}
	parents := ancestry(outcomes)
	var keys []testKey
	for k, o := range outcomes {
		if o == want && !countsThroughSubtests(k, o, parents) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b testKey) int {
		if c := strings.Compare(a.pkg, b.pkg); c != 0 {
			return c
		}
		return strings.Compare(a.test, b.test)
	})
	return keys
}

// skipReason is the message of a skipped test: what t.Skip printed, without
// the file position.
func skipReason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if _, rest, ok := strings.Cut(line, ".go:"); ok {
			if _, msg, ok := strings.Cut(rest, ": "); ok {
				line = msg
			}
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "(no reason given)"
	}
	return strings.Join(said, " ")
}
