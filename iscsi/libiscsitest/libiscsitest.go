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

var failedAsserts = regexp.MustCompile(`asserts\s+\d+\s+\d+\s+\d+\s+(\d+)`)

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
	skipped := output
	for _, kind := range mayLack {
		skipped = strings.ReplaceAll(skipped, "[SKIPPED] "+kind, "")
	}
	m := failedAsserts.FindStringSubmatch(output)
	switch {
	case m == nil && ctx.Err() == nil && cmd.ProcessState != nil && !cmd.ProcessState.Exited():
		return Crashed, output + cmd.ProcessState.String()
	case m == nil || m[1] != "0":
		return Failed, output
	case strings.Contains(skipped, "[SKIPPED]") || strings.Contains(skipped, "[SKIPPING]"):
		return Skipped, output
	}
	return Passed, output
}
