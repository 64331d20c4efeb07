// Package libiscsitest runs the tests of libiscsi's suite (iscsi-test-cu, of Debian's libiscsi-bin), a
// process for each: one of them that fails may leave reservations and hooks that others fail by.
package libiscsitest

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Suite is the program.
type Suite struct {
	Path    string
	Preload string // a library that goes before others (LD_PRELOAD), if any
}

// Find finds the suite. It fails with exec.ErrNotFound.
func Find() (Suite, error) {
	path, err := exec.LookPath("iscsi-test-cu")
	return Suite{Path: path}, err
}

// Tests are the names of all tests of one initiator, as in SCSI.Read10.Simple.
func (s Suite) Tests(ctx context.Context) (names []string) {
	list, _ := exec.CommandContext(ctx, s.Path, "-l").Output() // which ends with a status of failure
	for name := range strings.FieldsSeq(string(list)) {
		if f := strings.Split(name, "."); len(f) == 3 && (f[0] == "SCSI" || f[0] == "iSCSI") {
			names = append(names, name)
		}
	}
	return names
}

// Verdict is what a test says of a unit.
type Verdict string

// Verdicts. A test that does not come to its end has failed; Crashed is one whose process was ended
// by a signal that nobody sent it.
const (
	Passed  Verdict = "passed"
	Skipped Verdict = "skipped"
	Failed  Verdict = "failed"
	Crashed Verdict = "crashed"
)

// CUnit's summary: of the tests how many have run and failed, and how many asserts have. A suite whose initialization
// fails, as when nobody can log in, has run none, and none has failed.
var (
	testsRun      = regexp.MustCompile(`(?m)^\s*tests\s+\d+\s+(\d+)\s+\d+\s+(\d+)\s`)
	failedAsserts = regexp.MustCompile(`(?m)^\s*asserts\s+\d+\s+\d+\s+\d+\s+(\d+)\s`)
)

// hasRun reports whether a summary says that a test has run and nothing of it failed, and whether there is a summary.
func hasRun(output string) (well, ended bool) {
	tests, asserts := testsRun.FindStringSubmatch(output), failedAsserts.FindStringSubmatch(output)
	if tests == nil || asserts == nil {
		return false, false
	}
	return tests[1] != "0" && tests[2] == "0" && asserts[1] == "0", true
}

// Run runs a test with the unit of a URL, which it overwrites, for as long as limit at most. A test that
// goes through several kinds of something may skip those in mayLack.
func (s Suite) Run(ctx context.Context, test, url string, limit time.Duration, mayLack ...string) (v Verdict, output string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Path, "-d", "-S", "-V", "-t", "ALL."+test[strings.Index(test, ".")+1:], url, url)
	cmd.WaitDelay = time.Second
	if s.Preload != "" {
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+s.Preload)
	}
	b, _ := cmd.CombinedOutput()
	output = string(b)
	_, skipped, _ := strings.Cut(output, "\nSuite: ") // before it libiscsi looks at what the unit has
	for _, kind := range mayLack {
		skipped = strings.ReplaceAll(skipped, "[SKIPPED] "+kind, "")
	}
	well, ended := hasRun(output)
	switch {
	case !ended && ctx.Err() == nil && cmd.ProcessState != nil && !cmd.ProcessState.Exited():
		return Crashed, output + cmd.ProcessState.String()
	case !well:
		return Failed, output
	case strings.Contains(skipped, "[SKIPPED]") || strings.Contains(skipped, "[SKIPPING]"):
		return Skipped, output
	}
	return Passed, output
}
