package initiators

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const multipathConf = `
defaults {
	user_friendly_names yes
	find_multipaths no
	polling_interval 1
	max_polling_interval 1
	no_path_retry queue
	reservation_key 0xabc123
	path_grouping_policy failover
}
blacklist {
	devnode "^(vd|loop|nbd)"
}
`

// TestMultipath: multipath-tools takes the disk behind two portals for one, and a file system on it goes on,
// verified, while either portal cannot be reached in turn. The reservation of one registered host
// holds by both.
func TestMultipath(t *testing.T) {
	t.Attr("row", "multipath-tools: a disk at two portals is one, fio verifies a file system on it while either portal is away in turn, and `mpathpersist` registers and reserves by both")
	if os.Getenv(insideVar) == "" {
		if _, err := exec.LookPath("multipathd"); err != nil {
			t.Skipf("needs multipath-tools: %v", err)
		}
	}
	if _, ran := inMachine(t); ran {
		return
	}
	s := newScene(t, 1)
	if err := errors.Join(os.MkdirAll("/run/udev", 0o755), os.WriteFile("/etc/multipath.conf", []byte(multipathConf), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.run("modprobe", "-a", "dm_mod", "dm_multipath", "dm_round_robin", "scsi_dh_alua")
	s.run("/lib/systemd/systemd-udevd", "--daemon")
	daemon := exec.Command("multipathd", "-d")
	daemon.Stdout, daemon.Stderr = t.Output(), t.Output()
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	for _, at := range []string{portal, secondPortal} {
		s.loginAt(at, "default", "node.session.timeo.replacement_timeout=5") // after which I/O goes by the other path
	}
	s.eventually("both paths are active", func() bool { return s.paths("active") == 2 })
	out := s.run("multipath", "-ll")
	t.Log(out)
	var disk string
	s.eventually("udev has made the device", func() bool {
		all, _ := filepath.Glob("/dev/mapper/mpath*")
		if len(all) == 1 {
			disk = all[0]
		}
		return len(all) == 1
	})
	if !strings.Contains(out, "IronWarp") || !strings.Contains(out, "alua") {
		t.Errorf("multipath-tools take the disk for another, or for one without ALUA:\n%s", out)
	}
	s.run("mpathpersist", "--out", "--register", "--param-sark=abc123", disk)
	s.run("mpathpersist", "--out", "--reserve", "--param-rk=abc123", "--prout-type=5", disk)
	if keys := s.run("mpathpersist", "--in", "-k", disk); strings.Count(keys, "0xabc123") != 2 {
		t.Errorf("not both paths have registered:\n%s", keys)
	}

	dir := t.TempDir()
	s.run("mkfs.ext4", "-q", "-F", disk)
	s.run("mount", disk, dir)
	fio := exec.Command("fio", "--name=files", "--directory="+dir, "--size=8m", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=16", "--fsync=64",
		"--verify=crc32c", "--verify_fatal=1", "--loops=100000", "--verify_backlog=64")
	log, err := os.Create(filepath.Join(t.TempDir(), "fio"))
	if err != nil {
		t.Fatal(err)
	}
	fio.Stdout, fio.Stderr = log, log
	if err := fio.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fio.Wait() }()
	t.Cleanup(func() { _ = fio.Process.Kill() })
	goesOn := func(when string) {
		t.Helper()
		from := s.written(disk)
		s.eventually("data flows "+when, func() bool {
			select {
			case err := <-ended:
				b, _ := os.ReadFile(log.Name())
				t.Fatalf("fio: %v\n%s", err, b)
			default:
			}
			return s.written(disk) > from+2000
		})
	}
	goesOn("by both paths")
	for _, wire := range []string{"va0", "va1", "va0"} {
		s.run("ip", "link", "set", wire, "down")
		s.eventually("a path has failed", func() bool { return s.paths("failed") == 1 })
		goesOn("without " + wire)
		s.run("ip", "link", "set", wire, "up")
		s.eventually("both paths are back", func() bool { return s.paths("active") == 2 })
		goesOn("with " + wire + " again")
	}
	_ = fio.Process.Signal(os.Interrupt)
	if err := <-ended; err != nil {
		b, _ := os.ReadFile(log.Name())
		if strings.Contains(string(b), "verify:") || strings.Contains(string(b), "error") {
			t.Errorf("fio: %v\n%s", err, b)
		}
	}
	s.run("umount", dir)
	s.run("fsck.ext4", "-fn", disk)
	s.run("cmp", disk, s.file)
	s.run("mpathpersist", "--out", "--release", "--param-rk=abc123", "--prout-type=5", disk)
	s.run("multipath", "-f", filepath.Base(disk))
	_ = daemon.Process.Signal(os.Interrupt)
	s.run("iscsiadm", "-m", "node", "--logoutall=all")
	s.stop()
}

// paths is how many paths are in a state, as the kernel's dm-multipath has it.
func (s *scene) paths(state string) (n int) {
	out, _ := exec.Command("multipathd", "show", "paths", "format", "%d %t").Output()
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "sd") && f[1] == state {
			n++
		}
	}
	return n
}

// written is how many writes the kernel has completed on a device (Documentation/block/stat.rst).
func (s *scene) written(disk string) (n int) {
	to, err := filepath.EvalSymlinks(disk)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := os.ReadFile("/sys/block/" + filepath.Base(to) + "/stat")
	if err != nil {
		s.t.Fatal(err)
	}
	if n, err = strconv.Atoi(strings.Fields(string(b))[4]); err != nil {
		s.t.Fatal(err)
	}
	return n
}

const healTime = 3 * time.Minute

func (s *scene) eventually(what string, ok func() bool) {
	s.t.Helper()
	late := time.After(healTime)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-late:
			out, _ := exec.Command("sh", "-c", "multipath -ll; multipathd show paths; dmesg | tail -n 30; iscsiadm -m session -P 1").CombinedOutput()
			s.t.Fatalf("never: %s\n%s", what, out)
		case <-tick.C:
		}
	}
}
