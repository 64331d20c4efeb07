package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/integration/vm"
)

//go:embed programs.sh
var programsScript string

// programs runs a script that begins with programsScript in a machine of its own. Its
// files are in the directory out.
func (l *lab) programs(ctx context.Context, script, out string, limit time.Duration) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	options := l.options
	options.Timeout = limit
	res, err := l.run(ctx, out, script, options)
	if werr := os.WriteFile(filepath.Join(out, "console"), []byte(res.Output), 0o644); werr != nil {
		return werr
	}
	if errors.Is(err, vm.ErrDied) && crashed.MatchString(res.Output) {
		return fmt.Errorf("%w\n%w", errSiwCrashed, err)
	}
	if errors.Is(err, vm.ErrDied) && sctpCrashed.MatchString(res.Output) {
		return fmt.Errorf("%w\n%w", errSCTPCrashed, err)
	}
	if err != nil {
		return err
	}
	if res.Status != 0 {
		return fmt.Errorf("the script in the virtual machine ended with exit status %d:\n%s", res.Status, res.Output)
	}
	return nil
}

// trouble is what went wrong apart from failed tests.
type trouble struct {
	broken []string // programs that did not run to their end, and why
	shaky  []string // tests that failed, and passed when run again
}

// secondTry marks the files of a second try.
const secondTry = "-again"

// readProgram reads a test program's results in a directory, including those of a
// second try.
func (o *trouble) readProgram(dir, name string) ([]Test, error) {
	log, err := os.ReadFile(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	tests := readTests(string(log))
	if again, err := os.ReadFile(filepath.Join(dir, name+secondTry+".log")); err == nil {
		tests = o.retried(tests, string(log), readTests(string(again)))
		name, log = name+secondTry, again
	}
	o.ended(dir, name, string(log), tests)
	return tests, nil
}

// retried replaces the results of tests that were run again, in their places.
func (o *trouble) retried(first []Test, log string, second []Test) []Test {
	top := func(t Test) string { name, _, _ := strings.Cut(t.Name, "/"); return name }
	isAgain := func(t Test) bool { return slices.ContainsFunc(second, func(s Test) bool { return top(s) == top(t) }) }
	for _, t := range first {
		if t.Result != resultFail || !isAgain(t) {
			continue
		}
		if !slices.ContainsFunc(second, func(s Test) bool { return top(s) == top(t) && s.Result == resultFail }) {
			o.shaky = append(o.shaky, fmt.Sprintf("%s\n%s", t.Name, complaints(log, t.Name)))
		}
	}
	place := make(map[string]int)
	for i, t := range first {
		place[top(t)] = i
	}
	all := append(slices.DeleteFunc(slices.Clone(first), isAgain), second...)
	slices.SortStableFunc(all, func(a, b Test) int { return cmp.Compare(place[top(a)], place[top(b)]) })
	return all
}

// ended records a program that failed for another reason than its tests: a limit of
// time, a panic, a leaked goroutine.
func (o *trouble) ended(dir, name, log string, tests []Test) {
	status := readStatus(dir, name)
	for _, t := range tests {
		if t.Result == resultFail && status == "1" {
			return // reported with the test
		}
	}
	if status != "0" {
		o.broken = append(o.broken, fmt.Sprintf("%s ended with exit status %q: %s", name, status, lastLine(log)))
	}
}

func (o *trouble) print(w io.Writer) {
	for _, b := range o.broken {
		fmt.Fprintln(w, b)
	}
	for _, s := range o.shaky {
		fmt.Fprintln(w, "FAILED ONCE, and passed when run again:", s)
	}
}

func readStatus(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name+".status"))
	return strings.TrimSpace(string(b))
}
