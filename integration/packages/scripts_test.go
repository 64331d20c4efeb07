package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackageOfADiskInUseIsNotRemoved runs the script before a removal where /sys shows block devices of these kinds. The
// mounted one has the number of a file system that is mounted there.
func TestPackageOfADiskInUseIsNotRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts something over /sys/block")
	}
	script, err := filepath.Abs(filepath.Join(top, "packaging/scripts/prerm"))
	if err != nil {
		t.Fatal(err)
	}
	const disk = `d=/sys/block/nbd0; mkdir -p $d/holders $d/nbd0p1/holders; echo ironwarp/beta-docs >$d/backend; echo 43:999 >$d/dev; echo 43:1000 >$d/nbd0p1/dev; `
	const mounted = `$(stat -c %d /sys/block | { read n; echo $((n >> 8)):$((n & 255)); })`
	for _, c := range []struct {
		name, setup string
		refused     bool
	}{
		{"no block device", "", false},
		{"a disk that nobody uses", disk, false},
		{"a mounted disk", disk + "echo " + mounted + " >$d/dev", true},
		{"a mounted partition", disk + "echo " + mounted + " >$d/nbd0p1/dev", true},
		{"a disk under a device mapper's", disk + "mkdir $d/holders/dm-0", true},
		{"a partition under a device mapper's", disk + "mkdir $d/nbd0p1/holders/dm-0", true},
		{"another program's mounted disk", disk + "echo qemu >$d/backend; echo " + mounted + " >$d/dev", false},
		{"a mounted disk without a backend", disk + "rm $d/backend; echo " + mounted + " >$d/dev", false},
	} {
		for _, state := range []struct {
			argument string
			removes  bool
		}{{"remove", true}, {"0", true}, {"upgrade", false}, {"1", false}, {"deconfigure", false}} {
			// Without /run/systemd there is nothing to be stopped.
			cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-ec", `mount -t tmpfs tmpfs /sys/block; mount -t tmpfs tmpfs /run; `+c.setup+`
exec sh "$1" "$2"`, "sh", script, state.argument)
			out, err := cmd.CombinedOutput()
			want := c.refused && state.removes
			if (err != nil) != want || want != strings.Contains(string(out), "/dev/nbd0 is in use") {
				t.Errorf("%s, %s: %v %s; refused is to be %v", c.name, state.argument, err, out, want)
			}
		}
	}
}
