package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/ikematrix"
	"github.com/ironwarp/ironwarp/integration/vm"
)

const testLogText = `=== RUN   TestPlain
--- PASS: TestPlain (1.00s)
=== RUN   TestSkipped
    lab.go:3: the kernel has ESP
--- SKIP: TestSkipped (0.00s)
=== RUN   TestRows
=== RUN   TestRows/one
=== ATTR  TestRows/one row tunnel mode
=== ATTR  TestRows/one detail 5 packets
=== RUN   TestRows/two
=== ATTR  TestRows/two row transport mode
    two.go:7: it leaks
    two.go:8: time=now level=INFO msg=x
        08:35:57 11[NET] received packet
=== RUN   TestRows/three
--- FAIL: TestRows (9.00s)
    --- PASS: TestRows/one (1.00s)
    --- FAIL: TestRows/two (1.00s)
    --- PASS: TestRows/three (1.00s)
=== RUN   TestBrokenOff
`

func TestLogsOfTestsAreRead(t *testing.T) {
	got := readTests(testLogText)
	want := []Test{
		{Name: "TestPlain", Result: resultPass},
		{Name: "TestSkipped", Result: resultSkip, Why: "the kernel has ESP"},
		{Name: "TestRows/one", Result: resultPass, Row: "tunnel mode", Detail: "5 packets"},
		{Name: "TestRows/two", Result: resultFail, Row: "transport mode"},
		{Name: "TestBrokenOff", Result: resultFail},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if p, f, s := countTests(got); p != 2 || f != 2 || s != 1 {
		t.Errorf("%d passed, %d failed, %d skipped", p, f, s)
	}
	if c := complaints(testLogText, "TestRows/two"); c != "    two.go:7: it leaks" {
		t.Errorf("complaints: %q", c)
	}
}

// Parallel tests and those that are run again leave the rows in the order in which the
// source has the tests, in each run.
func TestRowsAreInTheOrderOfTheSource(t *testing.T) {
	log := `=== RUN   TestA
=== PAUSE TestA
=== RUN   TestB
=== PAUSE TestB
=== CONT  TestB
=== RUN   TestB/2
=== PAUSE TestB/2
=== RUN   TestB/1
=== PAUSE TestB/1
=== CONT  TestB/1
=== RUN   TestB/1/x
=== ATTR  TestB/1/x row B1x
=== CONT  TestA
=== ATTR  TestA row A
=== CONT  TestB/2
=== RUN   TestB/2/x
=== ATTR  TestB/2/x row B2x
`
	rows := func(ts []Test) (s string) {
		for _, t := range rowsOf(ts) {
			s += t.Row + " "
		}
		return s
	}
	first := readTests(log)
	if got := rows(first); got != "A B2x B1x " {
		t.Errorf("the rows of a log: %s", got)
	}
	var o trouble
	if got := rows(o.retried(first, log, readTests("=== RUN   TestA\n=== ATTR  TestA row A again\n--- PASS: TestA (1.00s)\n"))); got != "A again B2x B1x " {
		t.Errorf("the rows with those that were run again: %s", got)
	}
}

// A test whose rows passed can itself fail.
func TestParentThatFailsAloneIsReported(t *testing.T) {
	got := readTests("=== RUN   TestX\n=== RUN   TestX/a\n=== ATTR  TestX/a row what\n--- FAIL: TestX (1.00s)\n    --- PASS: TestX/a (0.50s)\n")
	if len(got) != 2 || got[0].Name != "TestX" || got[0].Result != resultFail {
		t.Errorf("%+v", got)
	}
}

func TestScriptOfESPIsShell(t *testing.T) {
	l := &lab{agent: "/b dir/agent", self: "/a dir/it's", built: "/a dir"}
	for only, programs := range map[string]int{"": 3, "TestKernelESP/it's": 1} {
		wantScript(t, l.espScriptFor(only, false), programs)
		wantScript(t, l.espScriptFor(only, true), programs)
	}
}

// tableVar turns the tests below into a table all of whose rows are begun, as in the
// programs whose rows the scripts leave out.
const tableVar = "IRONWARP_INTEROP_TABLE"

// TestPhase2DeleteLeavesTheStreamUpIsLeftOutWhole and the next have the names of tables
// of which a shorter run leaves out rows: with the script's pattern such a row is not
// even begun, for a row that is begun without its parts shows nothing.
func TestPhase2DeleteLeavesTheStreamUpIsLeftOutWhole(t *testing.T) {
	l := &lab{}
	leftOut(t, l.espScriptFor("", false), "IKEv1", "IKEv2", "IKEv2/local,_busy")
	leftOut(t, l.espScriptFor("", true), "", "IKEv1", "IKEv1/local,_busy", "IKEv2", "IKEv2/local,_busy")
}

func TestPhase2DeleteLeavesAssociationsUpIsLeftOutWhole(t *testing.T) {
	l := &lab{}
	leftOut(t, l.sctpScriptFor("", false), "SCTP in UDP", "kernel_SCTP_IKEv2", "kernel_SCTP_IKEv2/local,_busy")
	leftOut(t, l.sctpScriptFor("", true), "SCTP_in_UDP_IKEv1", "SCTP_in_UDP_IKEv2", "SCTP_in_UDP_IKEv2/local,_busy", "kernel_SCTP_IKEv2")
}

// leftOut runs its caller as a table, with the pattern of what ipsectest skips in a
// script: no row that begins with out may be begun; the rows in must be.
func leftOut(t *testing.T, script, out string, in ...string) {
	t.Helper()
	if os.Getenv(tableVar) != "" {
		for _, row := range []string{"IKEv1", "IKEv2", "SCTP in UDP IKEv1", "SCTP in UDP IKEv2", "kernel SCTP IKEv2"} {
			t.Run(row, func(t *testing.T) {
				for _, part := range []string{"local, busy", "local, during stream set-up"} {
					t.Run(part, func(*testing.T) {})
				}
			})
		}
		return
	}
	m := regexp.MustCompile(`(?m)^run ipsectest .*-test\.skip '([^']*)'`).FindStringSubmatch(script)
	if m == nil {
		t.Fatalf("no pattern in the script:\n%s", script)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$", "-test.skip", m[1])
	cmd.Env = append(os.Environ(), tableVar+"=1")
	log, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	begun := func(row string) bool { return strings.Contains(string(log), "=== RUN   "+t.Name()+"/"+row) }
	if out != "" && begun(strings.ReplaceAll(out, " ", "_")) {
		t.Errorf("%s is begun with the pattern %s", out, m[1])
	}
	for _, row := range in {
		if !begun(row + "\n") {
			t.Errorf("%s is left out with the pattern %s", row, m[1])
		}
	}
}

// wantScript fails the test unless script is valid for bash and runs that many
// programs.
func wantScript(t *testing.T, script string, programs int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-n", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if n := strings.Count(script, "\nrun "); n != programs {
		t.Errorf("%d programs are run, want %d:\n%s", n, programs, script)
	}
}

// leave writes the files that programs leave in the guest's directory.
func leave(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestProgramThatBreaksOffIsAFailure(t *testing.T) {
	const pass = "=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n"
	for name, c := range map[string]struct {
		files  map[string]string
		failed int
	}{
		"all is well":        {map[string]string{"kernel.log": pass, "kernel.status": "0\n"}, 0},
		"a failed test":      {map[string]string{"kernel.log": testLogText, "kernel.status": "1\n"}, 3},
		"a leaked goroutine": {map[string]string{"kernel.log": pass, "kernel.status": "1\n"}, 1},
		"a limit":            {map[string]string{"kernel.log": "=== RUN   TestA\n", "kernel.status": "124\n"}, 2},
		"no status":          {map[string]string{"kernel.log": pass}, 1},
		"no matrix":          {map[string]string{"kernel.log": pass, "kernel.status": "0\n", "ikematrix.log": "panic: x\n"}, 1},
	} {
		o, err := readESP(leave(t, c.files))
		if err != nil || len(o.unexpected()) != c.failed {
			t.Errorf("%s: %d failures of %+v, %v; want %d", name, len(o.unexpected()), o, err, c.failed)
		}
	}
	if _, err := readESP(t.TempDir()); err == nil {
		t.Error("a run that has left nothing is taken")
	}
}

func TestDocumentHasARowForEachTestOfKernelESP(t *testing.T) {
	esp := &espOutcome{kernel: readTests(testLogText), matrix: &ikematrix.Report{Complete: true}}
	r := newReport(&lab{image: &vm.Image{}}, outcome{}, esp, nil)
	var b strings.Builder
	r.document(&b)
	for _, want := range []string{"## Kernel ESP", "| tunnel mode | ok |", "| transport mode | FAILED |", "ipsec-matrix.md"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
	b.Reset()
	r.print(&b, t.TempDir())
	if want := "ok; 5 packets"; !strings.Contains(b.String(), want) {
		t.Errorf("%q is not in:\n%s", want, b.String())
	}
}

func TestSecondTryReplacesTheFirst(t *testing.T) {
	const first = "=== RUN   TestA\n    a.go:1: too late\n--- FAIL: TestA (1.00s)\n=== RUN   TestB\n--- PASS: TestB (0.00s)\n"
	for name, c := range map[string]struct {
		again, status string
		failed, shaky int
	}{
		"passes":      {"=== RUN   TestA\n--- PASS: TestA (1.00s)\nPASS\n", "0\n", 0, 1},
		"fails again": {"=== RUN   TestA\n--- FAIL: TestA (1.00s)\nFAIL\n", "1\n", 1, 0},
		"breaks off":  {"=== RUN   TestA\n", "124\n", 2, 0},
	} {
		o, err := readESP(leave(t, map[string]string{"kernel.log": first, "kernel.status": "1\n", "kernel-again.log": c.again, "kernel-again.status": c.status}))
		if err != nil || len(o.unexpected()) != c.failed || len(o.shaky) != c.shaky || len(o.kernel) != 2 {
			t.Errorf("%s: %d failures of %+v, %v; want %d", name, len(o.unexpected()), o, err, c.failed)
		}
		if c.shaky > 0 && !strings.Contains(o.shaky[0], "too late") {
			t.Errorf("%s: %q", name, o.shaky)
		}
	}
}

// TestGuestRunsAgainWhatHasFailed lets the guest's script run a program that
// fails the first time.
func TestGuestRunsAgainWhatHasFailed(t *testing.T) {
	_, functions, found := strings.Cut(programsScript, "# run NAME")
	if !found {
		t.Fatal("the script has no functions")
	}
	for name, c := range map[string]struct {
		log, status string
		args        string // of the second try; "": there is none
	}{
		"two failed":   {"--- FAIL: TestA (1s)\n    --- FAIL: TestA/x (1s)\n--- FAIL: TestB (1s)\n", "1", "-test.v -test.run ^(TestA|TestB)$"},
		"all is well":  {"--- PASS: TestA (1s)\n", "0", ""},
		"a limit":      {"--- FAIL: TestA (1s)\n", "124", ""},
		"four failed":  {"--- FAIL: TestA (1s)\n--- FAIL: TestB (1s)\n--- FAIL: TestC (1s)\n--- FAIL: TestD (1s)\n", "1", ""},
		"none is told": {"panic: x\n", "1", ""},
	} {
		dir := leave(t, map[string]string{"p.log": c.log, "p.status": c.status + "\n"})
		out, err := exec.Command("bash", "-c", "set -u\nout="+dir+"\n#"+functions+"\nagain p 10 echo -test.v\n").CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		got, _ := os.ReadFile(filepath.Join(dir, "p-again.log"))
		if strings.TrimSpace(string(got)) != c.args {
			t.Errorf("%s: the second try was %q, want %q", name, got, c.args)
		}
	}
}
