package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/internal/tools/rfc5042"
)

// labPrefix marks packages that set up whole hosts; they drive other
// processes, so the race detector would find nothing in them.
const labPrefix = "/integration"

// attackPrefix marks packages whose tests are run again in a build in which each
// attack's check is switched off; there the attack has to succeed.
const attackPrefix = labPrefix + "/attack"

// scenes are other packages whose tests are run in such a build, too: there each scene
// has to lose what was written.
var scenes = []string{"/rnbd", "/nbd"}

// weakened is added to the names of those packages.
const weakened = " [weakened]"

type runner struct {
	out     io.Writer
	results *results
	timeout time.Duration
	broken  []string // faults that belong to no test
	shaky   []shakyTest
}

// shakyTest is a test of host labs that has failed, and passed when it was run
// again.
type shakyTest struct {
	key    testKey
	output []string // of the failure
}

// maxAgain is how many tests of a package are run again: where more have failed
// it was not chance.
const maxAgain = 3

func (r *runner) all(ctx context.Context, patterns []string) bool {
	pkgs, labs, attacks, err := listPackages(ctx, patterns)
	if err != nil {
		r.fault("go list", err.Error())
		return r.report()
	}
	r.vet(ctx, patterns)
	if len(pkgs) > 0 {
		if race, why := raceAvailable(ctx); race {
			r.pass(ctx, "race", ".", "", append([]string{"-race"}, pkgs...))
		} else {
			fmt.Fprintf(r.out, "the race detector is not used: %s\n", why)
		}
		r.pass(ctx, "plain", ".", "", pkgs)
	}
	if slices.Contains(patterns, "./...") {
		r.nested(ctx)
	}
	if len(labs) > 0 {
		// One lab at a time: they share the machine's two cores and its namespaces.
		r.pass(ctx, "hosts", ".", "", append([]string{"-p", "1"}, labs...))
		for _, pkg := range labs {
			r.again(ctx, pkg, "")
		}
	}
	if len(attacks) > 0 {
		r.pass(ctx, "weak", ".", weakened, append([]string{"-p", "1", "-tags", "weakened"}, attacks...))
		for _, pkg := range attacks {
			r.again(ctx, pkg, weakened, "-tags", "weakened")
		}
	}
	if slices.Contains(patterns, "./...") {
		r.table(rfc5042.Document)
	}
	return r.report()
}

// again gives the tests of host labs that have failed a second try. They drive
// real kernels and strongSwans, which a machine may keep from running for
// seconds. The report names those that pass now, with what they had said.
func (r *runner) again(ctx context.Context, pkg, variant string, flags ...string) {
	names, taken := r.results.withdraw(pkg + variant)
	if len(names) > 0 && len(names) <= maxAgain {
		r.pass(ctx, "again", ".", variant, append(flags, "-run", "^("+strings.Join(names, "|")+")$", pkg))
	}
	for k, v := range taken {
		now, ran := r.results.tests[k]
		switch {
		case !ran:
			r.results.tests[k] = v
		case now.outcome == passed:
			r.shaky = append(r.shaky, shakyTest{k, v.output})
		}
	}
}

// table holds the run to the table of RFC 5042: each test that it names has run, or
// says why it did not.
func (r *runner) table(document string) {
	src, err := os.ReadFile(document)
	if err != nil {
		r.fault("the table of RFC 5042", err.Error())
		return
	}
	rows, complaints := rfc5042.Parse(src)
	missing := rfc5042.Missing(rows, func(test string) bool {
		for k := range r.results.tests {
			if rfc5042.Names(test, k.pkg, k.test) {
				return true
			}
		}
		return false
	})
	for _, m := range missing {
		complaints = append(complaints, fmt.Sprintf("%s did not run", m))
	}
	if len(complaints) > 0 {
		r.fault("the table of RFC 5042 in "+document, strings.Join(complaints, "\n"))
	}
}

func (r *runner) fault(what, text string) {
	r.broken = append(r.broken, what)
	fmt.Fprintf(r.out, "FAIL %s\n%s\n", what, strings.TrimRight(text, "\n"))
}

// listPackages sorts the packages: labs are those of host labs, attacks are those of
// them that are run in a weakened build, too.
func listPackages(ctx context.Context, patterns []string) (pkgs, labs, attacks []string, err error) {
	module, err := output(ctx, "go", "list", "-m")
	if err != nil {
		return nil, nil, nil, err
	}
	all, err := output(ctx, "go", append([]string{"list"}, patterns...)...)
	if err != nil {
		return nil, nil, nil, err
	}
	for p := range strings.FieldsSeq(all) {
		switch dir := strings.TrimPrefix(p, strings.TrimSpace(module)); {
		case dir == attackPrefix || strings.HasPrefix(dir, attackPrefix+"/"):
			attacks = append(attacks, p)
			labs = append(labs, p)
		case strings.HasPrefix(dir, labPrefix):
			labs = append(labs, p)
		case slices.Contains(scenes, dir):
			attacks = append(attacks, p)
			pkgs = append(pkgs, p)
		default:
			pkgs = append(pkgs, p)
		}
	}
	return pkgs, labs, attacks, nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

func (r *runner) vet(ctx context.Context, patterns []string) {
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"vet"}, patterns...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.fault("go vet", string(out))
		return
	}
	fmt.Fprintf(r.out, "ok   %-6s %-40s %6.1fs\n", "vet", strings.Join(patterns, " "), time.Since(start).Seconds())
}

// raceAvailable says whether this toolchain can build with -race.
func raceAvailable(ctx context.Context) (ok bool, why string) {
	env, err := output(ctx, "go", "env", "CGO_ENABLED", "CC")
	if err != nil {
		return false, err.Error()
	}
	f := strings.Fields(env)
	if len(f) < 2 || f[0] != "1" {
		return false, "cgo is off (CGO_ENABLED=0 or no C compiler; package gcc)"
	}
	if _, err := exec.LookPath(f[1]); err != nil {
		return false, fmt.Sprintf("no C compiler (%v; package gcc)", err)
	}
	if out, err := output(ctx, "go", "build", "-race", "-o", os.DevNull, "runtime/race"); err != nil {
		return false, fmt.Sprintf("a program does not build with it: %v %s", err, out)
	}
	return true, ""
}

// nested tests the modules below this one, which have dependencies that the
// project's users must not get. Where these cannot be had, their tests are skipped.
func (r *runner) nested(ctx context.Context) {
	dirs, err := nestedModules(".")
	if err != nil {
		r.fault("nested modules", err.Error())
	}
	for _, dir := range dirs {
		if _, err := output(ctx, "go", "list", "-C", dir, "-deps", "-test", "./..."); err != nil {
			why := []string{"what the module in " + dir + " depends on cannot be had, as without a network:", err.Error()}
			r.results.record(testKey{dir, "(the module)"}, verdict{outcome: skipped, output: why, pass: "nested"})
			continue
		}
		r.pass(ctx, "nested", dir, "", []string{"./..."})
	}
}

// nestedModules are the directories below root that have a go.mod.
func nestedModules(root string) (dirs []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() == "go.mod" && filepath.Dir(path) != root:
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	return dirs, err
}

// pass runs go test once, in a directory, and merges what it says; variant is added
// to the names of packages. go test runs in a process group of its own, so that an
// interrupt ends the test binaries with it.
func (r *runner) pass(ctx context.Context, name, dir, variant string, args []string) {
	if ctx.Err() != nil {
		return
	}
	args = append([]string{"test", "-json", "-timeout", r.timeout.String()}, args...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.fault("go test ("+name+")", err.Error())
		return
	}
	failures := 0
	readErr := r.results.read(pipe, name, variant, func(d packageDone) {
		failures += d.failed
		r.printPackage(name, d)
	})
	if readErr != nil {
		r.fault("go test ("+name+")", fmt.Sprintf("its -json output: %v", readErr))
		io.Copy(io.Discard, pipe)
	}
	if err := cmd.Wait(); err != nil && failures == 0 {
		r.fault("go test ("+name+")", fmt.Sprintf("%v\n%s", err, stderr.String()))
	}
}

func (r *runner) printPackage(pass string, d packageDone) {
	if d.noTests && d.outcome != failed {
		return
	}
	word := "ok  "
	if d.outcome == failed {
		word = "FAIL"
	}
	fmt.Fprintf(r.out, "%s %-6s %-40s %6.1fs  %d passed", word, pass, shorten(d.pkg), d.elapsed, d.passed)
	if d.failed > 0 {
		fmt.Fprintf(r.out, ", %d failed", d.failed)
	}
	if d.skips > 0 {
		fmt.Fprintf(r.out, ", %d skipped", d.skips)
	}
	fmt.Fprintln(r.out)
}

// shorten drops the host, owner and module of an import path.
func shorten(pkg string) string {
	if parts := strings.SplitN(pkg, "/", 4); len(parts) == 4 {
		return parts[3]
	}
	return pkg
}

func (r *runner) report() bool {
	bad := r.results.leaves(failed)
	for _, k := range bad {
		v := r.results.tests[k]
		name := k.test
		if name == "" {
			name = "(the package itself)"
		}
		fmt.Fprintf(r.out, "\n--- FAIL: %s %s [%s]\n", shorten(k.pkg), name, v.pass)
		for _, line := range clip(v.output, 200) {
			fmt.Fprint(r.out, "    ", line)
		}
	}
	for _, s := range r.shaky {
		fmt.Fprintf(r.out, "\n--- FAILED ONCE, and passed when run again: %s %s\n", shorten(s.key.pkg), s.key.test)
		for _, line := range clip(s.output, 60) {
			fmt.Fprint(r.out, "    ", line)
		}
	}
	if len(r.results.measured) > 0 {
		fmt.Fprintln(r.out, "\nmeasured:")
	}
	for _, m := range r.results.measured {
		fmt.Fprintf(r.out, "  %s %s: %s\n", shorten(m.key.pkg), m.key.test, m.text)
	}
	if skips := r.results.leaves(skipped); len(skips) > 0 {
		fmt.Fprintf(r.out, "\nskipped, and why:\n")
		for _, g := range groupSkips(r.results, skips) {
			fmt.Fprintf(r.out, "  %s\n", g.reason)
			for _, t := range g.tests {
				fmt.Fprintf(r.out, "    %s\n", t)
			}
		}
	}
	fmt.Fprintln(r.out)
	return len(bad) == 0 && len(r.broken) == 0
}

type skipGroup struct {
	reason string
	tests  []string
}

func groupSkips(r *results, keys []testKey) []skipGroup {
	byReason := make(map[string][]string)
	for _, k := range keys {
		reason := skipReason(r.tests[k].output)
		byReason[reason] = append(byReason[reason], shorten(k.pkg)+" "+k.test)
	}
	var groups []skipGroup
	for reason, tests := range byReason {
		groups = append(groups, skipGroup{reason, tests})
	}
	slices.SortFunc(groups, func(a, b skipGroup) int { return strings.Compare(a.reason, b.reason) })
	return groups
}

// clip keeps the head and tail of a long output.
func clip(lines []string, limit int) []string {
	if len(lines) <= limit {
		return lines
	}
	cut := []string{fmt.Sprintf("... %d lines ...\n", len(lines)-limit)}
	return slices.Concat(lines[:limit/2], cut, lines[len(lines)-limit/2:])
}

func (r *runner) closingLine() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped",
		len(r.results.leaves(passed)), len(r.results.leaves(failed))+len(r.broken), len(r.results.leaves(skipped)))
}
