package newcomer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const top = "../.."

// modeVar says when the tests with machines are run: always, or those alone whose
// inputs have changed since they passed. Without it they are skipped.
const (
	modeVar     = "IRONWARP_NEWCOMER"
	modeChanged = "changed"
)

// stampFile is committed: the tests that have passed, and the digest of their inputs at
// that time.
const stampFile = "passed.json"

// A change of its inputs makes a test run again in CI: README's commands, common and
// the test's own files. The program itself is not one: other tests cover it.
var (
	common = []string{"Makefile", "integration/newcomer/newcomer_test.go", "integration/newcomer/readme.go", "integration/machine/boot.sh", "integration/machine/root.go"}
	inputs = map[string][]string{
		"TestDemo":     {"internal/tools/deps", "integration/demo"},
		"TestTest":     {"internal/tools/deps"},
		"TestTwoHosts": {"packaging"},
		"TestPackages": {"packaging", "internal/tools/packages"},

		"TestTaskLink":     {"packaging", "integration/newcomer/tasks_test.go", taskLink},
		"TestTaskISCSI":    {"packaging", "integration/newcomer/tasks_test.go", taskLink, taskISCSI},
		"TestTaskJudge":    {"integration/newcomer/tasks_test.go", taskJudge},
		"TestTaskPrograms": {"packaging", "integration/newcomer/tasks_test.go", taskLink, taskPrograms},
	}
)

// git runs git in this repository, whoever owns it.
func git(t *testing.T, args ...string) (string, error) {
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "git", append([]string{"-c", "safe.directory=*", "-C", top}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// sections are those of README that have the tests' commands.
var sections = map[string][]string{"TestDemo": {"Go", "See it work"}, "TestTest": {"Go"}, "TestTwoHosts": {"Go", "Two hosts by hand", "RDMA programs between the hosts"}}

// inputsOf are the paths of the inputs of a test.
func inputsOf(test string) []string { return append(slices.Clone(common), inputs[test]...) }

// digest is that of a test's inputs in the last commit, which is what the machines
// clone.
func digest(t *testing.T, test string) (string, error) {
	out, err := git(t, append([]string{"ls-tree", "-r", "HEAD", "--"}, inputsOf(test)...)...)
	var blocks []block
	for _, section := range sections[test] {
		blocks = append(blocks, of(readme(t), section)...)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q%s", blocks, out))
	return hex.EncodeToString(sum[:16]), err
}

// stamp skips a test that is not to be run, and records one that has passed.
func stamp(t *testing.T) {
	t.Helper()
	mode := os.Getenv(modeVar)
	if mode == "" {
		t.Skip("make newcomer runs it: it takes minutes and the Internet")
	}
	now, err := digest(t, t.Name())
	if err != nil {
		t.Skipf("the machines clone this repository, and it is none of git's: %v", err)
	}
	if mode == modeChanged && passed(t)[t.Name()] == now {
		t.Skip("it has passed with this README, Makefile, these units and lists")
	}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		if out, err := git(t, append([]string{"diff", "--exit-code", "--stat", "HEAD", "--"}, inputsOf(t.Name())...)...); err != nil {
			t.Logf("that it has passed is not noted down, for not all that it depends on is committed:\n%s", out)
			return
		}
		all := passed(t)
		all[t.Name()] = now
		b, err := json.MarshalIndent(all, "", "\t")
		if err := errors.Join(err, os.WriteFile(stampFile, append(b, '\n'), 0o644)); err != nil {
			t.Error(err)
		}
	})
}

// passed reads the stamps.
func passed(t *testing.T) map[string]string {
	all := make(map[string]string)
	b, err := os.ReadFile(stampFile)
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return all
}

// A path that does not exist would never change.
func TestInputsOfEachTestAreThere(t *testing.T) {
	if _, err := git(t, "rev-parse", "HEAD"); err != nil {
		t.Skip(err)
	}
	seen := make(map[string]string)
	for test := range inputs {
		for _, p := range inputsOf(test) {
			if _, err := os.Stat(filepath.Join(top, p)); err != nil {
				t.Errorf("%s: %v", test, err)
			}
		}
		sum, err := digest(t, test)
		if err != nil || seen[sum] != "" {
			t.Errorf("%s: %v, the digest is that of %q", test, err, seen[sum])
		}
		seen[sum] = test
	}
}
