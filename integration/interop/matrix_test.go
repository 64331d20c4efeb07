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

// TestMain runs the matrix when a test starts this program with a script's command
// line.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ikematrix" {
		main()
	}
	os.Exit(m.Run())
}

// TestMatrixBeginsWithTheFlagsOfTheScript: a wrong flag for a shorter run would skip
// the matrix, which a test program does not report as a failure.
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

// TestWhatIsLeftOutIsThere: a test that was renamed would no longer be left out.
func TestWhatIsLeftOutIsThere(t *testing.T) {
	patterns := map[string][]string{"integration/ipsectest": {kernelTests, planeless, largeESP}}
	for _, p := range sctpPrograms {
		dir := p.name
		for _, d := range []string{"integration/" + p.name, "transport/" + p.name, p.name} {
			if _, err := os.Stat(filepath.Join("..", "..", d)); err == nil {
				dir = d
				break
			}
		}
		patterns[dir] = append(patterns[dir], p.tests, p.skip, p.large)
	}
	for dir, all := range patterns {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d test files, %v", dir, len(files), err)
		}
		var source strings.Builder
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(b)
		}
		for _, one := range strings.Split(strings.Join(all, "|"), "|") {
			name, _, _ := strings.Cut(one, "/")
			name = strings.TrimPrefix(strings.TrimPrefix(name, "^"), "Test")
			name = strings.TrimSuffix(name, "$")
			if name != "" && !regexp.MustCompile(`\nfunc Test\w*`+name).MatchString(source.String()) {
				t.Errorf("%s has no test whose name has %q in it", dir, name)
			}
		}
	}
}
