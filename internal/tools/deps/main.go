// Command deps installs the Debian packages that a make target needs and that
// this machine lacks.
//
//	go run ./internal/tools/deps [-optional] test|demo|bench|interop
//
// It says which packages are missing and why they are wanted, and installs
// only those. That takes root. With -optional a package that cannot be had is
// reported and the exit status is still 0: the tests that need it say so when
// they are skipped.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	optional := flag.Bool("optional", false, "exit 0 even when packages stay missing")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: deps [-optional] %s\n", strings.Join(setNames(), "|"))
		flag.PrintDefaults()
	}
	flag.Parse()
	set, ok := sets[flag.Arg(0)]
	if flag.NArg() != 1 || !ok {
		flag.Usage()
		os.Exit(2)
	}
	missing := missingOf(set)
	if len(missing) == 0 {
		return
	}
	report(os.Stdout, flag.Arg(0), missing)
	err := install(missing)
	if err == nil {
		if missing = missingOf(set); len(missing) > 0 {
			err = fmt.Errorf("apt-get succeeded, yet these are still incomplete: %s", names(missing))
		}
	}
	if err == nil {
		return
	}
	if *optional {
		fmt.Printf("going on without them: %v\n", err)
		return
	}
	fmt.Fprintf(os.Stderr, "make %s: %v\n", flag.Arg(0), err)
	os.Exit(1)
}

func setNames() []string {
	var n []string
	for k := range sets {
		n = append(n, k)
	}
	slices.Sort(n)
	return n
}

func report(w io.Writer, target string, missing []debPackage) {
	fmt.Fprintf(w, "make %s needs Debian packages that are not here:\n", target)
	for _, p := range missing {
		fmt.Fprintf(w, "  %-32s %s\n", p.name, p.why)
	}
}

func names(ps []debPackage) string {
	var n []string
	for _, p := range ps {
		n = append(n, p.name)
	}
	return strings.Join(n, " ")
}

func missingOf(set []debPackage) []debPackage {
	var missing []debPackage
	for _, p := range set {
		if slices.ContainsFunc(p.files, func(f string) bool { return !present(f) }) {
			missing = append(missing, p)
		}
	}
	return missing
}

// present looks for a file as a root shell would find it: /usr/sbin and /sbin
// are not in every user's PATH.
func present(file string) bool {
	if strings.Contains(file, "/") {
		m, err := filepath.Glob(file)
		return err == nil && len(m) > 0
	}
	if _, err := exec.LookPath(file); err == nil {
		return true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return true
		}
	}
	return false
}
