package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What completes a word may be of a peer's choice. A shell that is asked to complete it
// executes none of it, and neither does one to which it was completed.
func TestCompletionExecutesNothing(t *testing.T) {
	const script = `ironwarp() { printf 'beta/$(touch %s)\nbeta/` + "`touch %s`" + `\ngamma/disk\n' "$1" "$1"; }
name=$1
. completion.bash
complete_() {
  COMP_WORDS=(ironwarp "$name" "$1") COMP_CWORD=2
  _ironwarp
}
complete_ beta/
for word in "${COMPREPLY[@]}"; do eval ": $word"; done
complete_ gamma/
echo "${COMPREPLY[@]}"
`
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	file := filepath.Join(t.TempDir(), "executed")
	out, err := exec.Command("bash", "-c", script, "bash", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "gamma/disk" {
		t.Errorf("gamma/ is completed to %q", got)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("the name of an export was executed")
	}
}
