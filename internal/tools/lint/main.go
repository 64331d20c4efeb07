// Command lint holds the project's own checks, which gofmt, vet and
// staticcheck do not know:
//
//   - imports point down the list of layers (layers.go);
//   - no Go file is longer than 800 lines;
//   - exported names have comments that begin with them, and say how a function fails
//     (comments.go);
//   - a test that skips says why, and no test sleeps;
//   - integration/README.md has a line for each folder below it, and docs/architecture.md
//     lists the packages in the order of the layers;
//   - the documents name only commands, flags, make targets, tests and files
//     that exist;
//   - every requirement of RFC 5042 has a row with a test in docs/security.md, and
//     every check of internal/checks is used and has an attack (security.go);
//   - the switches that weaken a build are in weakened.go and nowhere else, and with
//     all of them on that file does what the product does (switches.go);
//   - what a mutex guards is touched only while it is held (locks.go);
//   - nothing layers TLS under or over RDMAP (RFC 5042 section 5.4.2).
//
// Usage, from the top of the repository:
//
//	go run ./internal/tools/lint [-binary bin/ironwarp]
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/internal/tools/rfc5042"
)

// finding is one breach of a rule.
type finding struct {
	file string
	line int // 0: the whole file or package
	text string
}

func (f finding) String() string {
	if f.line == 0 {
		return fmt.Sprintf("%s: %s", f.file, f.text)
	}
	return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text)
}

func main() {
	binary := flag.String("binary", "bin/ironwarp", "built `program` whose help the documents are checked against")
	flag.Parse()
	found, err := check(*binary)
	for _, f := range found {
		fmt.Println(f)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "lint: %v\n", err)
		os.Exit(2)
	}
	if len(found) > 0 {
		fmt.Printf("%d findings\n", len(found))
		os.Exit(1)
	}
}

func check(binary string) ([]finding, error) {
	files, err := trackedFiles()
	if err != nil {
		return nil, err
	}
	pkgs, err := listImports()
	if err != nil {
		return nil, err
	}
	found := append(checkImports(pkgs), checkLayers(pkgs)...)
	tests := make(map[string][]string)
	use := checkUse{make(map[string]bool), make(map[string]bool)}
	for _, f := range files {
		if !strings.HasSuffix(f, ".go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		found = append(found, checkLength(f, src)...)
		undocumented, err := checkComments(f, src)
		if err != nil {
			return nil, err
		}
		found = append(found, undocumented...)
		if err := use.note(f, src); err != nil {
			return nil, err
		}
		switches, err := checkSwitch(f, src)
		if err != nil {
			return nil, err
		}
		found = append(found, switches...)
		if dir := path.Dir(f); path.Base(f) == weakChecks && dir != switchesDir {
			product, err := os.ReadFile(path.Join(dir, productChecks))
			if err != nil {
				return nil, err
			}
			found = append(found, checkTwins(dir, product, src)...)
		}
		if strings.HasSuffix(f, "_test.go") {
			found = append(found, checkTest(f, src)...)
			for _, name := range testNames(src) {
				tests[name] = append(tests[name], path.Dir(f))
			}
		}
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		return nil, err
	}
	docs := &docChecker{commands: askHelp(runHelp(binary)), targets: makeTargets(makefile), tests: tests, exists: exists}
	for _, f := range files {
		if !strings.HasSuffix(f, ".md") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		found = append(found, docs.check(f, src)...)
		if f == indexFile {
			found = append(found, checkIndex(f, src, files)...)
		}
		if f == mapFile {
			found = append(found, checkMap(f, src)...)
		}
		if f == rfc5042.Document {
			found = append(found, checkTable(src, tests)...)
		}
	}
	src, err := os.ReadFile(checksFile)
	if err != nil {
		return nil, err
	}
	found = append(found, checkChecks(src, use)...)
	locks, err := checkLocks()
	if err != nil {
		return nil, err
	}
	return append(found, locks...), docs.commands.err
}

// trackedFiles lists what git knows and what it would add, leaving out files
// that were deleted from the work tree.
func trackedFiles() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w; the checks run in a clone", err)
	}
	var files []string
	for name := range bytes.SplitSeq(out, []byte{0}) {
		if f := string(name); f != "" && exists(f) {
			files = append(files, f)
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
