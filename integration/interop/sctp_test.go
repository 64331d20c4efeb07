package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/vm"
)

func TestScriptOfSCTPIsShell(t *testing.T) {
	l := &lab{binary: "/a dir/it's/ironwarp", built: "/b dir"}
	for only, programs := range map[string]int{"": len(sctpPrograms) + 1, "TestX/it's": len(sctpPrograms)} {
		wantScript(t, l.sctpScriptFor(only, false), programs)
		wantScript(t, l.sctpScriptFor(only, true), programs)
	}
}

// sctpFiles are the programs' files when all is well.
func sctpFiles() map[string]string {
	files := map[string]string{"demo.log": "step\n\nok    no clear packet\nok    the data came\n", "demo.status": "0\n"}
	for _, p := range sctpPrograms {
		files[p.name+".log"] = "=== RUN   TestA\n=== ATTR  TestA row " + p.name + " works\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n--- SKIP: TestB (0.00s)\nPASS\n"
		files[p.name+".status"] = "0\n"
	}
	return files
}

func TestOutcomeOfSCTPIsEveryProgramsAndTheDemos(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		failed     int
	}{
		"all is well":      {"x", "", 0},
		"a failed test":    {"ksctp.log", "=== RUN   TestA\n--- FAIL: TestA (0.00s)\n", 1},
		"a skipped row":    {"verbs.log", "=== RUN   TestA\n=== ATTR  TestA row x\n--- SKIP: TestA (0.00s)\nPASS\n", 1},
		"a limit":          {"chaos.status", "124\n", 1},
		"the demo fails":   {"demo.status", "1\n", 1},
		"the demo is gone": {"demo.status", "", 1},
	} {
		files := sctpFiles()
		files[c.file] = c.text
		o, err := readSCTP(leave(t, files), true)
		if err != nil || len(o.unexpected()) != c.failed {
			t.Errorf("%s: %d failures of %+v, %v; want %d", name, len(o.unexpected()), o, err, c.failed)
		}
	}
	if _, err := readSCTP(t.TempDir(), false); err == nil {
		t.Error("a run that has left nothing is taken")
	}
}

func TestDocumentHasARowForEachTestOverSCTP(t *testing.T) {
	files := sctpFiles()
	files["verbs.log"] = "=== RUN   TestA\n=== ATTR  TestA row verbs works\n    x_test.go:1: not so\n--- FAIL: TestA (0.00s)\n"
	files["verbs.status"] = "1\n"
	o, err := readSCTP(leave(t, files), true)
	if err != nil {
		t.Fatal(err)
	}
	r := newReport(&lab{image: &vm.Image{}}, outcome{}, nil, &o)
	var b strings.Builder
	r.document(&b)
	for _, want := range []string{"## SCTP", "| ksctp works | ok |", "| verbs works | FAILED |", "| " + demoRow + " | ok |", "1 unexpected"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
	b.Reset()
	r.print(&b, t.TempDir())
	for _, want := range []string{"ok; 2 of 2 claims hold", "x_test.go:1: not so"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, b.String())
		}
	}
}

// TestCrashOfTheKernelsSCTPIsKnown, and that of anything else is not taken for one.
func TestCrashOfTheKernelsSCTPIsKnown(t *testing.T) {
	const trace = "[  346.547009] BUG: kernel NULL pointer dereference, address: 0000000000000070\n[  346.559632] RIP: 0010:__pskb_pull_tail+0x1d5/0x4a0\n[  346.566127] Call Trace:\n[  346.572160]  <TASK>\n[  346.572782]  %s\n[  346.573325]  ? ip_route_input_noref+0x6d/0xb0\n[  346.584941] Kernel panic - not syncing: Fatal exception in interrupt\n"
	for where, want := range map[string]bool{"sctp_rcv+0x456/0xf60 [sctp]": true, "esp_input+0x45/0x60 [esp4]": false, "sctp_rcv+0x456/0xf60 [sctp_diag]": false} {
		if got := sctpCrashed.MatchString(fmt.Sprintf(trace, where)); got != want {
			t.Errorf("%s: %t", where, got)
		}
	}
	if sctpCrashed.MatchString("--- FAIL: TestA\n  sctp_rcv+0x456/0xf60 [sctp]\n") {
		t.Error("what is no crash is taken for one")
	}
}

// TestMachineRunsOnceMoreAfterACrash: after a crash of foreign code, at most maxTries times, and after nothing else.
func TestMachineRunsOnceMoreAfterACrash(t *testing.T) {
	crash, other := fmt.Errorf("%w: see the console", errSCTPCrashed), errors.New("a test failed")
	for name, c := range map[string]struct {
		runs []error // how each ends; the last one's way for all others
		want error
		n    int
	}{
		"no crash":        {[]error{nil}, nil, 1},
		"one crash":       {[]error{crash, nil}, nil, 2},
		"always a crash":  {[]error{crash}, crash, maxTries},
		"another failure": {[]error{other, nil}, other, 1},
		"both":            {[]error{crash, other, nil}, other, 2},
	} {
		var n, told int
		err := onCrash(errSCTPCrashed, func(string) { told++ }, func(try int) error {
			if n++; try != n {
				t.Errorf("%s: run %d is called %d", name, n, try)
			}
			return c.runs[min(n, len(c.runs))-1]
		})
		if err != c.want || n != c.n || told != n-1 {
			t.Errorf("%s: %v after %d runs, %d of them reported; want %v after %d", name, err, n, told, c.want, c.n)
		}
	}
}
