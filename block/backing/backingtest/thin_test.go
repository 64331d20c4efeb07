package backingtest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// A journal that has no room on a full disk ends the file system before its files' writes do.
func TestFileSystemsOwnBlocksHaveRoom(t *testing.T) {
	if _, err := exec.LookPath("debugfs"); err != nil {
		t.Skip("debugfs is missing: apt install e2fsprogs")
	}
	for _, size := range []int64{22 << 20, 60 << 20, 90 << 20} {
		image := sparse(t, filepath.Join(t.TempDir(), "image"), size, ext4...)
		out, err := exec.Command("debugfs", "-R", "blocks <8>", image).Output() // of the journal
		if err != nil {
			t.Fatal(err)
		}
		all := regexp.MustCompile(`\d+`).FindAllString(string(out), -1)
		if len(all) == 0 {
			t.Fatalf("the journal of %d bytes has no blocks: %s", size, out)
		}
		for _, s := range all {
			if block, _ := strconv.ParseInt(s, 10, 64); (block+1)<<10 > ext4Own { // blocks of 1 KiB
				t.Fatalf("of %d bytes, block %d of the journal is behind the first %d bytes", size, block, ext4Own)
			}
		}
	}
}
