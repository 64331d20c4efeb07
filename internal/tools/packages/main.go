// Command packages builds what is shipped: packages for Debian and for distributions with RPM, an SBOM of each program,
// and, for a release, the source, an apt repository, a container image and the sums of it all. Two builds of the same
// source have the same bytes, wherever they are made.
//
// It is a module of its own, so that what writes packages is no dependency of the program.
//
// Usage, from this directory (`make packages` and `make release` do so):
//
//	go run . -top TOP -out DIR -version VERSION [-arch amd64,arm64] [-release] [-key KEY]
//
// A build has these steps:
//
//   - build.go: the program and the libraries of `ironwarp run` are built for each processor;
//   - stage.go: `make install-files` lays out what a host gets, and the documents are added;
//   - sbom.go, notices.go: what the program is made of, and the licences of that;
//   - describe.go: the packages' names, dependencies and scripts, which nfpm writes;
//   - release.go, image.go, apt.go: the rest of a release.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	var o options
	flag.StringVar(&o.top, "top", "../../..", "`directory` of the source")
	flag.StringVar(&o.out, "out", "dist", "`directory` for what is built; it is emptied first")
	flag.StringVar(&o.version, "version", "", "version, as git describe says it")
	arch := flag.String("arch", runtime.GOARCH, "`processors`, with commas between")
	flag.BoolVar(&o.release, "release", false, "build the source, the apt repository, the image and the sums as well")
	flag.StringVar(&o.key, "key", "", "`key` of GnuPG that signs the apt repository; none: it is not signed")
	flag.Parse()
	o.arch = strings.FieldsFunc(*arch, func(r rune) bool { return r == ',' || r == ' ' })
	syscall.Umask(0o022) // directories that install(1) makes are the same wherever it runs
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "packages: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	top, out, version, key string
	arch                   []string
	release                bool
}

func run(o options) error {
	if len(o.arch) == 0 {
		return fmt.Errorf("no processor is named; say -arch %s", runtime.GOARCH)
	}
	var err error
	if o.top, err = filepath.Abs(o.top); err != nil {
		return err
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b := &build{top: o.top, work: work, out: o.out, described: o.version}
	if b.date, err = sourceDate(o.top); err != nil {
		return err
	}
	if b.version, err = packageVersion(o.version, b.date); err != nil {
		return err
	}
	if o.release {
		if err := b.committed(); err != nil {
			return err
		}
	}
	if err := clean(o.out); err != nil {
		return err
	}
	if err := b.host(); err != nil {
		return err
	}
	for _, arch := range o.arch {
		if err := b.packages(arch); err != nil {
			return fmt.Errorf("packages for %s: %w", arch, err)
		}
	}
	if o.release {
		if err := b.rest(o.arch, o.key); err != nil {
			return err
		}
	}
	for _, name := range b.written {
		fmt.Println(filepath.Join(o.out, name))
	}
	return nil
}

// clean makes a directory, and removes what an earlier build has left in it. It fails where it has something else.
func clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), name) && e.Name() != "SHA256SUMS" && e.Name() != aptDir {
			return fmt.Errorf("%s has %s in it, which no build has made: name another directory", dir, e.Name())
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}
