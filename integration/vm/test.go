package vm

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// RunTest builds the machine whose files are in a directory, and runs the calling test in it: script returns what is run
// there, which ends with the test's program self, in the directory here. It fails the test unless it has passed there, and
// returns what was printed.
func RunTest(t testing.TB, cache string, o Options, script func(here, self string) string) string {
	t.Helper()
	image, err := Build(t.Context(), cache, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	self, serr := os.Executable()
	here, err := os.Getwd()
	if err := errors.Join(serr, err); err != nil {
		t.Fatal(err)
	}
	o.Console = t.Output()
	res, err := image.Run(t.Context(), t.TempDir(), script(here, self), o)
	if err != nil || res.Status != 0 {
		t.Errorf("exit status %d: %v", res.Status, err)
	}
	if !strings.Contains(res.Output, "--- PASS: "+t.Name()) {
		t.Error("in the virtual machine it was not run")
	}
	return res.Output
}
