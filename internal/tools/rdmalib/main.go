// Command rdmalib builds the libraries with which `ironwarp run` has programs of libibverbs run: libibverbs.so.1 of
// rdmalib/c, and libironwarp-rnic.so, which is package rdmalib. It needs a C compiler, and libibverbs-dev and librdmacm-dev
// for their headers.
//
// Some programs link libraries of drivers, which want symbols of the libibverbs that they came with, under a version that
// changes with each release of rdma-core. They are taken from the libibverbs.so.1 that is installed; nobody calls them,
// since there is no such driver's device.
//
// Usage, from the top of the repository:
//
//	go run ./internal/tools/rdmalib [-race] [-strip] -out DIR
package main

import (
	"debug/elf"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	out := flag.String("out", "bin/rdma", "`directory` for the libraries")
	race := flag.Bool("race", false, "build the engine with the race detector")
	sanitize := flag.String("sanitize", "", "sanitizers of the C compiler for libibverbs.so.1, as address")
	strip := flag.Bool("strip", false, "leave symbols for debuggers out, so that the libraries are the same wherever they are built")
	flag.Parse()
	if err := build(*out, *race, *strip, *sanitize); err != nil {
		fmt.Fprintf(os.Stderr, "rdmalib: %v\n", err)
		os.Exit(1)
	}
}

func build(out string, race, strip bool, sanitize string) error {
	for _, header := range []string{"/usr/include/infiniband/verbs.h", "/usr/include/infiniband/sa.h", "/usr/include/rdma/rdma_user_cm.h"} {
		if _, err := os.Stat(header); err != nil {
			return fmt.Errorf("%w; apt-get install libibverbs-dev librdmacm-dev", err)
		}
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return fmt.Errorf("%w; apt-get install gcc", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rdmalib-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	sources, err := filepath.Glob("rdmalib/c/*.c")
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("there is no rdmalib/c/*.c here: run it from the top of the repository")
	}
	private, err := writePrivate(dir, compiler)
	if err != nil {
		return err
	}
	if private != "" {
		sources = append(sources, private)
	}
	args := []string{"-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared",
		"-I", "rdmalib/c", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=" + filepath.Join(dir, "map"), "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete",
		"-o", filepath.Join(out, "libibverbs.so.1")}
	if sanitize != "" {
		args = append(args, "-fsanitize="+sanitize)
	}
	ldflags := "-X runtime.godebugDefault=asyncpreemptoff=1"
	if strip {
		args = append(args, "-Wl,-s")
		ldflags += " -s -w -buildid=" // it is made of where the source is, too
	}
	if err := run(compiler, append(append(args, sources...), "-lpthread", "-ldl")...); err != nil {
		return err
	}
	// Go's threads are not interrupted for each other: SIGURG, with which they would be, is the program's.
	args = []string{"build", "-trimpath", "-buildmode=c-shared", "-buildvcs=false", "-ldflags=" + ldflags, "-o", filepath.Join(out, "libironwarp-rnic.so")}
	if race {
		args = append(args, "-race")
	}
	if err := run("go", append(args, "./rdmalib/rnic")...); err != nil {
		return err
	}
	return os.Remove(filepath.Join(out, "libironwarp-rnic.h")) // of cgo; nobody includes it
}

func run(program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, text)
	}
	return nil
}

// ours are symbols of the private versions that libibverbs.so.1 of rdmalib/c has itself: tools of rdma-core call them.
var ours = []string{"ibv_query_gid_type", "ibv_read_ibdev_sysfs_file"}

// signals are functions of libc that rdmalib/c stands before: programs want them under a version that is the machine's.
var signals = []string{"sigaction", "signal", "sigset", "__sysv_signal"}

// signalVersions are those functions by version.
func signalVersions(compiler string) (map[string][]string, error) {
	path, err := exec.Command(compiler, "-print-file-name=libc.so.6").Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", compiler, err)
	}
	f, err := elf.Open(strings.TrimSpace(string(path)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	versions := map[string][]string{}
	for _, s := range symbols {
		if slices.Contains(signals, s.Name) && s.Section != elf.SHN_UNDEF {
			versions[s.Version] = append(versions[s.Version], s.Name)
		}
	}
	return versions, nil
}

// writePrivate writes the version script, with the private versions of the libibverbs that is installed and those of functions
// of libc, and a C file with the symbols of the former. It returns the file's name, "" if there are none.
func writePrivate(dir, compiler string) (string, error) {
	script, err := os.ReadFile("rdmalib/c/libibverbs.map")
	if err != nil {
		return "", err
	}
	functions, variables, err := privateSymbols()
	if err != nil {
		return "", err
	}
	var c strings.Builder
	for _, version := range slices.Sorted(maps.Keys(functions)) {
		names := functions[version]
		fmt.Fprintf(&c, "// %s\n", version)
		for _, n := range names {
			if !slices.Contains(ours, n) {
				fmt.Fprintf(&c, "__attribute__((visibility(\"default\"))) int %s(void) { return 95; } // EOPNOTSUPP\n", n)
			}
		}
		for _, n := range variables[version] {
			fmt.Fprintf(&c, "__attribute__((visibility(\"default\"))) char %s[64];\n", n)
		}
		script = fmt.Appendf(script, "%s { global: %s; };\n", version, strings.Join(slices.Concat(names, variables[version]), "; "))
	}
	signals, err := signalVersions(compiler)
	if err != nil {
		return "", err
	}
	for _, version := range slices.Sorted(maps.Keys(signals)) {
		names := signals[version]
		script = fmt.Appendf(script, "%s { global: %s; };\n", version, strings.Join(names, "; "))
	}
	if err := os.WriteFile(filepath.Join(dir, "map"), script, 0o644); err != nil {
		return "", err
	}
	if c.Len() == 0 {
		return "", nil
	}
	name := filepath.Join(dir, "private.c")
	return name, os.WriteFile(name, []byte(c.String()), 0o644)
}

// privateSymbols are the functions and variables of each private version of the libibverbs.so.1 that is installed; none, if
// none is.
func privateSymbols() (functions, variables map[string][]string, err error) {
	functions, variables = map[string][]string{}, map[string][]string{}
	path, err := installed()
	if path == "" || err != nil {
		return functions, variables, err
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || !strings.HasPrefix(s.Version, "IBVERBS_PRIVATE_") || s.Name == s.Version {
			continue
		}
		switch elf.ST_TYPE(s.Info) {
		case elf.STT_FUNC:
			functions[s.Version] = append(functions[s.Version], s.Name)
		case elf.STT_OBJECT:
			if s.Section != elf.SHN_ABS {
				variables[s.Version] = append(variables[s.Version], s.Name)
			}
		}
	}
	return functions, variables, nil
}

func installed() (string, error) {
	var found string
	for _, pattern := range []string{"/usr/lib/*/libibverbs.so.1", "/usr/lib64/libibverbs.so.1", "/usr/lib/libibverbs.so.1"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, n := range names {
			if _, err := os.Stat(n); err == nil || !os.IsNotExist(err) {
				found = n
			}
		}
	}
	return found, nil
}
