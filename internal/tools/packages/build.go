package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// build is one run.
type build struct {
	top       string    // of the source
	work      string    // for what is in between
	out       string    // for what is shipped
	described string    // the version that the program says
	version   string    // that of the packages
	date      time.Time // of all files
	hostBin   string    // the program for this machine
	written   []string  // what is shipped, by its name in out
}

// libraries are those of `ironwarp run`.
const libraries = "usr/lib/ironwarp"

// host builds the program for this machine, which writes its manual.
func (b *build) host() error {
	b.hostBin = filepath.Join(b.work, "ironwarp-"+runtime.GOARCH)
	return b.program(runtime.GOARCH, b.hostBin)
}

// program builds the program as one static file, which needs no C library: the same wherever it is built.
func (b *build) program(arch, file string) error {
	return b.run([]string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch},
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.version="+b.described, "-o", file, "./cmd/ironwarp")
}

// rdma builds the libraries with which `ironwarp run` runs programs of libibverbs, where it can be done: they are C, so
// for this machine's processor, with its compiler and the headers of its rdma-core. Otherwise it returns why not.
func (b *build) rdma(arch, dir string) (missing string, err error) {
	switch _, err := exec.LookPath("cc"); {
	case arch != runtime.GOARCH:
		return "it is built on " + arch + " alone, as it takes a C compiler", nil
	case err != nil:
		return "there is no C compiler: apt-get install gcc libc6-dev libibverbs-dev librdmacm-dev", nil
	}
	for _, header := range []string{"/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h", "/usr/include/stdlib.h"} {
		if _, err := os.Stat(header); err != nil {
			return fmt.Sprintf("%v: apt-get install gcc libc6-dev libibverbs-dev librdmacm-dev", err), nil
		}
	}
	return "", b.run(nil, "go", "run", "./internal/tools/rdmalib", "-strip", "-out", dir)
}

// run runs a program in the source's directory. It fails with what the program says.
func (b *build) run(env []string, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = b.top
	cmd.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8", "TZ=UTC", "GOFLAGS=-trimpath", "SOURCE_DATE_EPOCH="+strconv.FormatInt(b.date.Unix(), 10)), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// libcNeeded is the version of glibc that ELF files need at least, such as 2.34. It fails where they need none.
func libcNeeded(files ...string) (string, error) {
	most := [2]int{}
	for _, file := range files {
		f, err := elf.Open(file)
		if err != nil {
			return "", err
		}
		symbols, err := f.ImportedSymbols()
		f.Close()
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		for _, s := range symbols {
			var v [2]int
			if n, _ := fmt.Sscanf(s.Version, "GLIBC_%d.%d", &v[0], &v[1]); n == 2 && (v[0] > most[0] || v[0] == most[0] && v[1] > most[1]) {
				most = v
			}
		}
	}
	if most == [2]int{} {
		return "", fmt.Errorf("%s need no version of the C library", strings.Join(files, ", "))
	}
	return fmt.Sprintf("%d.%d", most[0], most[1]), nil
}
