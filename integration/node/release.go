package node

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Release builds the program as the last tag before the working tree's HEAD has it, and returns
// the tag and the program's path. If older is set, its protocols' minor versions are 0, as
// those of a release before are. It skips the test where there is no such tag: outside of a
// repository, or in a clone without history.
func Release(t testing.TB, older bool) (tag, binary string) {
	t.Helper()
	git := func(args ...string) string {
		t.Helper()
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Skipf("git does not have the last release here: %s: %v: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
		}
		return strings.TrimSpace(string(out))
	}
	tag = git("describe", "--tags", "--abbrev=0")
	dir := t.TempDir()
	archive := filepath.Join(dir, "release.tar")
	git("-C", git("rev-parse", "--show-toplevel"), "archive", "--output", archive, tag)
	tree := filepath.Join(dir, "tree")
	run := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	if err := os.Mkdir(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	run(tree, "tar", "-xf", archive)
	if older {
		for _, protocol := range []string{"rtrs", "rnbd"} {
			if err := age(filepath.Join(tree, protocol, "wire.go")); err != nil {
				t.Fatal(err)
			}
		}
	}
	binary = filepath.Join(dir, "ironwarp")
	run(tree, "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "./cmd/ironwarp")
	return tag, binary
}

// version is where a protocol's source has its version.
var version = regexp.MustCompile(`(const Version (?:rtrs\.)?Protocol = 0x[0-9A-F]{2})([0-9A-F]{2})\n`)

// age makes a protocol's minor version 0. It fails where the source has no version, or that one.
func age(path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := version.FindAllSubmatch(source, -1)
	if len(at) != 1 || string(at[0][2]) == "00" {
		return fmt.Errorf("%s has no version with a minor number above 0: %q", path, at)
	}
	return os.WriteFile(path, version.ReplaceAll(source, []byte("${1}00\n")), 0o600)
}
