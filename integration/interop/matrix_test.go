package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/ikematrix"
	hosts "github.com/ironwarp/ironwarp/integration/lab"
)

// TestMain is the matrix where a test runs this program with the command line of a
// script.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ikematrix" {
		main()
	}
	os.Exit(m.Run())
}

// TestMatrixBeginsWithTheFlagsOfTheScript: with some flag of a shorter run the matrix
// was skipped, which is no failure of a test program.
func TestMatrixBeginsWithTheFlagsOfTheScript(t *testing.T) {
	hosts.Require(t)
	for _, whole := range []bool{false, true} {
		m := regexp.MustCompile(`(?m)^run ikematrix [0-9]+ \S+ (.*?)( &)?$`).FindStringSubmatch(new(lab).espScriptFor("", whole))
		if m == nil {
			t.Fatal("the script does not run the matrix")
		}
		out := t.TempDir()
		flags := strings.ReplaceAll(strings.ReplaceAll(m[1], "$out", out), " -kernel ", " ")
		cmd := exec.CommandContext(t.Context(), os.Args[0], append(strings.Fields(flags), "-test.run", "Matrix/no row")...)
		log, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", flags, err, log)
		}
		r, err := ikematrix.ReadReport(filepath.Join(out, "ikematrix.json"))
		if err != nil || r.StrongSwan == "" || r.Complete {
			t.Errorf("%s: %+v, %v\n%s", flags, r, err, log)
		}
	}
}
