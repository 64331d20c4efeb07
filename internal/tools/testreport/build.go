package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// packages are those that have tests, by kind: labs set up hosts, units are all others,
// and attacks are those that are run in a weakened build, too.
type packages struct{ units, labs, attacks []string }

func listPackages(ctx context.Context, patterns []string) (p packages, err error) {
	module, err := output(ctx, "go", "list", "-m")
	if err != nil {
		return p, err
	}
	all, err := output(ctx, "go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, patterns...)...)
	if err != nil {
		return p, err
	}
	for name := range strings.FieldsSeq(all) {
		dir := strings.TrimPrefix(name, strings.TrimSpace(module))
		if dir == attackPrefix || strings.HasPrefix(dir, attackPrefix+"/") || slices.Contains(scenes, dir) {
			p.attacks = append(p.attacks, name)
		}
		if strings.HasPrefix(dir, labPrefix) {
			p.labs = append(p.labs, name)
		} else {
			p.units = append(p.units, name)
		}
	}
	return p, nil
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

// build makes the test binaries of packages and returns the jobs of running them:
// one for a package, several for a package of labs with many tests. Paths are
// trimmed, so that a fresh clone finds in the build cache what another one left.
func (r *runner) build(ctx context.Context, pass, variant string, pkgs []string, flags ...string) (jobs []job) {
	if len(pkgs) == 0 || ctx.Err() != nil {
		return nil
	}
	dir := filepath.Join(r.work, pass)
	in := map[string]string{} // the directory of each package's binary
	for i, group := range distinct(pkgs) {
		to := filepath.Join(dir, strconv.Itoa(i))
		if err := os.MkdirAll(to, 0o700); err != nil {
			r.fault("build tests", err.Error())
			return nil
		}
		for _, pkg := range group {
			in[pkg] = to
		}
		args := []string{"test", "-c", "-trimpath", "-o", to + "/"}
		if pass != passWeak {
			args = append(args, "-vet=off") // go vet looks at the same files, once
		}
		args = append(append(args, flags...), group...)
		if out, err := r.timed(exec.CommandContext(ctx, "go", args...), "build", pass); err != nil {
			r.fault("build the tests ("+pass+")", string(out))
		}
	}
	// With other flags a package may have no tests.
	list := append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"}, flags...)
	where, err := output(ctx, "go", append(list, pkgs...)...)
	if err != nil {
		r.fault("go list", err.Error())
		return nil
	}
	for line := range strings.Lines(where) {
		pkg, src, _ := strings.Cut(strings.TrimSpace(line), " ")
		j := job{pass: pass, pkg: pkg, variant: variant, dir: src, binary: filepath.Join(in[pkg], filepath.Base(pkg)+".test")}
		if _, err := os.Stat(j.binary); err != nil {
			r.fault("build the tests ("+pass+")", fmt.Sprintf("there is none of %s", pkg))
			continue
		}
		if pass == passWeak && !strings.Contains(pkg, labPrefix+"/") {
			j.tests = []string{scenesTest}
		}
		if j.tests == nil && (pass == passHosts || pass == passWeak) {
			jobs = append(jobs, j.split(ctx)...)
		} else {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// distinct divides packages into groups in which no two have the same last name: their binaries would have it, too, and go
// builds no such two at once.
func distinct(pkgs []string) (groups [][]string) {
	for _, pkg := range pkgs {
		i := slices.IndexFunc(groups, func(g []string) bool {
			return !slices.ContainsFunc(g, func(o string) bool { return filepath.Base(o) == filepath.Base(pkg) })
		})
		if i < 0 {
			i, groups = len(groups), append(groups, nil)
		}
		groups[i] = append(groups[i], pkg)
	}
	return groups
}

// split divides a lab's tests, in turns, among jobs of about perJob tests.
func (j job) split(ctx context.Context) []job {
	cmd := exec.CommandContext(ctx, j.binary, "-test.list", "^(Test|Fuzz|Example)")
	cmd.Dir = j.dir
	out, err := cmd.Output()
	names := strings.Fields(string(out))
	n := (len(names) + perJob - 1) / perJob
	if err != nil || n < 2 {
		return []job{j} // what is wrong shows when it runs
	}
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = j
		jobs[i].part = fmt.Sprintf("%d/%d", i+1, n)
	}
	for i, name := range names {
		jobs[i%n].tests = append(jobs[i%n].tests, name)
	}
	return jobs
}

// raceAvailable reports whether this toolchain can build with -race.
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
			// What it needs may well be had: its go.mod lags behind that of the module above, on which it builds.
			if strings.Contains(err.Error(), "updates to go.mod needed") {
				r.fault("the module in "+dir, err.Error()+"\nrun `go mod tidy` there")
				continue
			}
			why := []string{"the dependencies of the module in " + dir + " cannot be had here, as without a network:", err.Error()}
			r.results.record(testKey{dir, "(the module)"}, verdict{outcome: skipped, output: why, pass: "nested"})
			continue
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout", r.timeout.String(), "./...")
		cmd.Dir = dir
		r.run(cmd, "nested", dir, "")
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
	slices.Sort(dirs)
	return dirs, err
}
