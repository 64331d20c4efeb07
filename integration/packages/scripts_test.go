package packages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	const swaps = "echo %s partition 1024 0 -2 >/run/swaps; mount --bind /run/swaps /proc/swaps"
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
		{"a disk that is swapped to", disk + fmt.Sprintf(swaps, "/dev/nbd0"), true},
		{"a partition that is swapped to", disk + fmt.Sprintf(swaps, "/dev/nbd0p1"), true},
		{"another disk that is swapped to", disk + fmt.Sprintf(swaps, "/dev/nbd01"), false},
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

// TestPurgeLeavesDisks runs the script behind a purge where disks and pools are beside the daemon's state: they stay, as does what is mounted
// there, and of the state and the configuration nothing does.
func TestPurgeLeavesDisks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts something over /var/lib")
	}
	script, err := filepath.Abs(filepath.Join(top, "packaging/scripts/postrm"))
	if err != nil {
		t.Fatal(err)
	}
	const state = `mkdir -p /etc/ironwarp/secrets /var/lib/ironwarp; cd /var/lib/ironwarp; mkdir disks iscsi nvme pools volumes
touch /etc/ironwarp/ironwarp.yaml /etc/ironwarp/secrets/a.psk lock attachments.json writers.json guards.json names.json fabric.key fabric-ports.key fabric-agent.json .new-12-34 \
	disks/00.json iscsi/disks.json iscsi/0a.reservations iscsi/0a.sanitize nvme/0b.reservations pools/fast.json volumes/v1.json volumes/.new-1-2; `
	for _, c := range []struct {
		name, setup string
		left        string // of /var/lib/ironwarp; "": nothing
	}{
		{"the daemon's state", "", ""},
		{"no state", "rm -r /var/lib/ironwarp", ""},
		{"a disk", "touch docs.img", "/var/lib/ironwarp/docs.img"},
		{"a pool", "mkdir fast; touch fast/v1.img fast/pool.json", "/var/lib/ironwarp/fast/pool.json /var/lib/ironwarp/fast/v1.img"},
		{"disks in directories of the state's", "touch volumes/v1.img disks/docs.img", "/var/lib/ironwarp/disks/docs.img /var/lib/ironwarp/volumes/v1.img"},
		{"another file system", "mkdir srv; mount -t tmpfs tmpfs srv; touch srv/disk", "/var/lib/ironwarp/srv/disk"},
		{"one in a directory of the state's", "mount -t tmpfs tmpfs pools; touch pools/disk", "/var/lib/ironwarp/pools/disk"},
		{"an empty file system", "mount -t tmpfs tmpfs pools", ""},
		{"links to what is elsewhere", "touch /etc/kept; rm -r pools; ln -s /etc pools; ln -s /etc/kept x.json", "/var/lib/ironwarp/pools /var/lib/ironwarp/x.json /etc/kept"},
	} {
		// Without a PATH to deb-systemd-helper nothing of this machine's units is touched.
		cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-ec", `mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /etc; mount -t tmpfs tmpfs /var/lib; `+state+c.setup+`
cd /; PATH=$2 sh "$1" purge >/run/said; find /etc/ironwarp /var/lib/ironwarp /etc/kept ! -type d 2>/dev/null | sort | tr '\n' ' '; [ ! -e /etc/ironwarp ]; cat /run/said`, "sh", script, onlyTools(t))
		out, err := cmd.CombinedOutput()
		files, said, _ := strings.Cut(string(out), "ironwarp: ")
		got, want := strings.Fields(files), strings.Fields(c.left)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) || (said != "") != (c.left != "" || strings.Contains(c.setup, "mount")) {
			t.Errorf("%s: %v %s; left is to be %q", c.name, err, out, c.left)
		}
	}
}

// onlyTools is a PATH with what the scripts need, and nothing that changes this machine.
func onlyTools(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range []string{"sh", "rm", "find", "rmdir"} {
		at, err := exec.LookPath(tool)
		if err == nil {
			err = os.Symlink(at, filepath.Join(dir, tool))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
