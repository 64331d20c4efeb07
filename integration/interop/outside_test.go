package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/vm"
)

func TestPowerCutsAreReported(t *testing.T) {
	const row = "what was flushed is there"
	for _, x := range []struct {
		log, status     string
		passed, trouble int
	}{
		{"=== RUN   TestRealPowerCut\n=== ATTR  TestRealPowerCut row " + row + "\n--- PASS: TestRealPowerCut (69.06s)\nPASS\n", "0", 1, 0},
		{"=== RUN   TestRealPowerCut\n=== ATTR  TestRealPowerCut row " + row + "\n--- FAIL: TestRealPowerCut (69.06s)\nFAIL\n", "1", 0, 1},
		{"=== RUN   TestRealPowerCut\n    vm_test.go:1: there is no root\n--- SKIP: TestRealPowerCut (0.00s)\nPASS\n", "0", 0, 1},
		{"", "2", 0, 1},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"history.log": x.log, "history.status": x.status} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		o := outsideOutcome{outside: outsides[0]}
		var err error
		if o.tests, err = o.readProgram(dir, o.log); err != nil {
			t.Fatal(err)
		}
		r := newReport(&lab{image: &vm.Image{}}, outcome{}, nil, nil)
		r.outside = []*outsideOutcome{&o}
		if r.passed() != x.passed || len(r.unexpected()) != x.trouble {
			t.Errorf("%q: %d passed, %d failed, want %d and %d", x.log, r.passed(), len(r.unexpected()), x.passed, x.trouble)
		}
		o.mayLack = true
		if skipped := strings.Count(x.log, "--- SKIP"); r.skipped() != skipped || len(r.unexpected()) != x.trouble-skipped {
			t.Errorf("%q: %d skipped and %d failed where it may be skipped, want %d and %d", x.log, r.skipped(), len(r.unexpected()), skipped, x.trouble-skipped)
		}
		var doc bytes.Buffer
		r.document(&doc)
		if x.passed > 0 && !strings.Contains(doc.String(), "| "+row+" | ok |") {
			t.Errorf("the document has no row for it:\n%s", doc.String())
		}
	}
}
