package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/tools/rfc5042"
)

// feed runs a pass made of events given as "action package test [output]".
func feed(t *testing.T, r *results, pass string, lines ...string) []packageDone {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		f := strings.SplitN(l, " ", 4)
		for len(f) < 4 {
			f = append(f, "")
		}
		if f[2] == "-" {
			f[2] = ""
		}
		fmt.Fprintf(&b, "{\"Action\":%q,\"Package\":%q,\"Test\":%q,\"Output\":%q}\n", f[0], f[1], f[2], f[3])
	}
	var done []packageDone
	if err := r.read(strings.NewReader(b.String()), pass, "", func(d packageDone) { done = append(done, d) }); err != nil {
		t.Fatal(err)
	}
	return done
}

func line(r *results) string { return (&runner{results: r}).closingLine() }

func TestParentsCountThroughTheirSubtests(t *testing.T) {
	r := newResults()
	feed(t, r, "plain",
		"run m/a TestT", "run m/a TestT/one", "run m/a TestT/two", "run m/a TestU",
		"pass m/a TestT/one", "skip m/a TestT/two", "pass m/a TestT", "pass m/a TestU", "pass m/a -")
	if got, want := line(r), "2 passed, 0 failed, 1 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFailureOfOneSubtestIsCountedOnce(t *testing.T) {
	r := newResults()
	feed(t, r, "plain",
		"run m/a TestT", "run m/a TestT/one", "run m/a TestT/two",
		"pass m/a TestT/one", "fail m/a TestT/two", "fail m/a TestT", "fail m/a -")
	if got, want := line(r), "1 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParentThatFailsByItselfIsCounted(t *testing.T) {
	r := newResults()
	feed(t, r, "plain", "run m/a TestT", "run m/a TestT/one",
		"pass m/a TestT/one", "fail m/a TestT", "fail m/a -")
	if got, want := line(r), "1 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPackageThatDiesFailsItsRunningTest(t *testing.T) {
	r := newResults()
	done := feed(t, r, "race", "run m/a TestDone", "pass m/a TestDone", "run m/a TestHangs",
		"output m/a TestHangs panic: test timed out", "fail m/a -")
	if got, want := line(r), "1 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(done) != 1 || done[0].failed != 1 || done[0].outcome != failed {
		t.Errorf("package summary: %+v", done)
	}
}

// TestPackageThatDiesWithinATest has the end of a binary that panics: test2json puts the
// test's name into its last event, and the package has none of its own.
func TestPackageThatDiesWithinATest(t *testing.T) {
	r := newResults()
	done := feed(t, r, "hosts", "run m/a TestT", "run m/a TestT/one", "output m/a TestT/one panic: test timed out", "fail m/a TestT/one")
	if got, want := line(r), "0 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(done) != 1 || done[0].failed != 1 || done[0].outcome != failed {
		t.Errorf("package summary: %+v", done)
	}
}

func TestBuildFailureCountsAsFailureAndShowsItsOutput(t *testing.T) {
	r := newResults()
	in := `{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1: bad\n"}
{"ImportPath":"m/a","Action":"build-fail"}
{"Action":"start","Package":"m/a"}
{"Action":"fail","Package":"m/a","FailedBuild":"m/a"}
`
	if err := r.read(strings.NewReader(in), "plain", "", func(packageDone) {}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	run := &runner{out: &out, results: r}
	if run.report() {
		t.Error("a build failure was reported as success")
	}
	if !strings.Contains(out.String(), "a.go:1: bad") {
		t.Errorf("the compiler's message is missing:\n%s", out.String())
	}
	if got, want := line(r), "0 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPassesAreMerged(t *testing.T) {
	r := newResults()
	feed(t, r, "race", "run m/a TestAllocs", "skip m/a TestAllocs", "run m/a TestRacy", "fail m/a TestRacy", "fail m/a -")
	feed(t, r, "plain", "run m/a TestAllocs", "pass m/a TestAllocs", "run m/a TestRacy", "pass m/a TestRacy", "pass m/a -")
	if got, want := line(r), "1 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if v := r.tests[testKey{"m/a", "TestRacy"}]; v.pass != "race" {
		t.Errorf("the failure is attributed to pass %q", v.pass)
	}
}

func TestMeasurementsAreReported(t *testing.T) {
	r := newResults()
	in := `{"Action":"run","Package":"m/a/b/net","Test":"TestT"}
{"Action":"attr","Package":"m/a/b/net","Test":"TestT","Key":"measured","Value":"longest 7 ms"}
{"Action":"attr","Package":"m/a/b/net","Test":"TestT","Key":"row","Value":"other"}
{"Action":"pass","Package":"m/a/b/net","Test":"TestT"}
`
	if err := r.read(strings.NewReader(in), "hosts", "", func(packageDone) {}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	(&runner{out: &out, results: r}).report()
	if got := out.String(); !strings.Contains(got, "net TestT: longest 7 ms") || strings.Contains(got, "other") {
		t.Errorf("the report:\n%s", got)
	}
}

func TestSkipsAreListedByReason(t *testing.T) {
	r := newResults()
	feed(t, r, "plain",
		"run m/a/b/net TestOne", "output m/a/b/net TestOne     one_test.go:10: needs root", "skip m/a/b/net TestOne",
		"run m/a/b/net TestTwo", "output m/a/b/net TestTwo     one_test.go:20: needs root", "skip m/a/b/net TestTwo", "pass m/a/b/net -")
	var out bytes.Buffer
	if !(&runner{out: &out, results: r}).report() {
		t.Error("skips were reported as failure")
	}
	if got := out.String(); strings.Count(got, "needs root") != 1 || !strings.Contains(got, "net TestOne") || !strings.Contains(got, "net TestTwo") {
		t.Errorf("skip list:\n%s", got)
	}
}

func TestFaultOutsideTestsMakesTheRunFail(t *testing.T) {
	var out bytes.Buffer
	run := &runner{out: &out, results: newResults()}
	run.fault("go vet", "x.go:1: suspicious")
	if run.report() {
		t.Error("a vet fault was reported as success")
	}
	if got, want := run.closingLine(), "0 passed, 1 failed, 0 skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadRejectsOutputThatIsNotJSON(t *testing.T) {
	if err := newResults().read(strings.NewReader("not json\n"), "plain", "", func(packageDone) {}); err == nil {
		t.Error("garbage was read without an error")
	}
}

func TestNestedModulesAreFound(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"go.mod", "a/b/go.mod", "a/go.sum", ".cache/x/go.mod", "a/testdata/go.mod", "c/go.mod"} {
		p := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dirs, err := nestedModules(root)
	if want := []string{filepath.Join(root, "a/b"), filepath.Join(root, "c")}; err != nil || !slices.Equal(dirs, want) {
		t.Errorf("%v, want %v: %v", dirs, want, err)
	}
}

// What a nested module depends on may be out of reach: then its tests are skipped,
// with the reason. Otherwise they are run.
func TestNestedModules(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOPROXY", "off")
	for f, text := range map[string]string{
		"go.mod":         "module example.com/top\n",
		"good/go.mod":    "module example.com/good\n\ngo 1.26\n",
		"good/x_test.go": "package good\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) {}\n",
		"bad/go.mod":     "module example.com/bad\n\ngo 1.26\n\nrequire example.com/nowhere v1.0.0\n",
		"bad/x_test.go":  "package bad\n\nimport _ \"example.com/nowhere\"\n",
	} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &runner{out: io.Discard, results: newResults(), timeout: time.Minute}
	r.nested(t.Context())
	if got := r.closingLine(); got != "1 passed, 0 failed, 1 skipped" {
		t.Error(got, r.broken)
	}
	for _, k := range r.results.leaves(skipped) {
		if reason := skipReason(r.results.tests[k].output); !strings.Contains(reason, "bad") || !strings.Contains(reason, "module lookup disabled") {
			t.Errorf("the reason is %q", reason)
		}
	}
}

// A nested module whose go.mod lags behind is a fault: nothing that it needs is out of reach.
func TestNestedModuleThatLagsBehind(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOPROXY", "off")
	for f, text := range map[string]string{
		"go.mod":         "module example.com/top\n\ngo 1.26\n",
		"top.go":         "package top\n",
		"late/go.mod":    "module example.com/late\n\ngo 1.25\n\nrequire example.com/top v0.0.0\n\nreplace example.com/top => ../\n",
		"late/x_test.go": "package late\n\nimport _ \"example.com/top\"\n",
	} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &runner{out: io.Discard, results: newResults(), timeout: time.Minute}
	r.nested(t.Context())
	if len(r.broken) != 1 || len(r.results.leaves(skipped)) != 0 {
		t.Errorf("broken: %q, skipped: %v", r.broken, r.results.leaves(skipped))
	}
}

// What a test does in a weakened build counts beside what it does otherwise.
func TestVariantsCountByThemselves(t *testing.T) {
	r := newResults()
	feed(t, r, "hosts", "run m/a TestT", "pass m/a TestT", "pass m/a -")
	in := `{"Action":"run","Package":"m/a","Test":"TestT"}
{"Action":"fail","Package":"m/a","Test":"TestT"}
{"Action":"fail","Package":"m/a"}
`
	if err := r.read(strings.NewReader(in), "weak", weakened, func(packageDone) {}); err != nil {
		t.Fatal(err)
	}
	if p, f := r.leaves(passed), r.leaves(failed); len(p) != 1 || p[0].pkg != "m/a" || len(f) != 1 || f[0].pkg != "m/a [weakened]" {
		t.Errorf("passed %v, failed %v", p, f)
	}
}

// Tests that the table of RFC 5042 names must have run, be it to say why not.
func TestTableOfRFC5042(t *testing.T) {
	var table strings.Builder
	for i := range rfc5042.Rows {
		fmt.Fprintf(&table, "| R%d | `attack.TestOne`, `attack.TestTwo` |\n", i+1)
	}
	document := filepath.Join(t.TempDir(), "security.md")
	if err := os.WriteFile(document, []byte(table.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &runner{out: io.Discard, results: newResults()}
	feed(t, r.results, "hosts", "run m/attack TestOne", "pass m/attack TestOne", "run m/attack TestTwo", "skip m/attack TestTwo", "pass m/attack -")
	if r.table(document); len(r.broken) > 0 {
		t.Errorf("complains of tests that ran: %q", r.broken)
	}
	r.results = newResults()
	feed(t, r.results, "hosts", "run m/attack TestOne", "pass m/attack TestOne", "pass m/attack -")
	if r.table(document); len(r.broken) != 1 {
		t.Errorf("a test that did not run: %q", r.broken)
	}
}
