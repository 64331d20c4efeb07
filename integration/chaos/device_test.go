package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/integration/vm"
)

// vmVar names the directory with the virtual machine; make interop sets it. insideVar is
// set in the machine.
const (
	vmVar     = "IRONWARP_VM_CACHE"
	insideVar = "IRONWARP_INSIDE"
)

const deviceScript = `
set -e
cd %s
mount --make-rshared / # what is unmounted is so for the daemons, too
mkdir -p /run/udev/rules.d
cp ../../packaging/90-ironwarp.rules /run/udev/rules.d/
modprobe -a nbd ext4 loop veth bridge tun nf_tables xfrm_user esp4 xfrm4_tunnel authenc seqiv echainiv gcm ghash_clmulni_intel aesni_intel hmac sha256_generic
/lib/systemd/systemd-udevd --daemon
export %s=1 IRONWARP_BINARY=%s
exec %s -test.v -test.run '^TestBlockDevice$'
`

// TestBlockDevice attaches a disk as a block device of the kernel, in a virtual machine
// whose kernel has nbd, and has fio write and verify files on it while the daemons of both
// hosts are killed and restarted. The file system stays mounted, no I/O fails, and the other
// host's disk has all that was written.
func TestBlockDevice(t *testing.T) {
	if os.Getenv(insideVar) != "" {
		newDeviceScene(t).run(t)
		return
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop attaches a block device in a virtual machine; set %s to the directory of its own to do it here", vmVar)
	}
	t.Attr("row", "`ironwarp attach --device`: ext4 stays mounted, and fio verifies it without an error, while the attaching daemon is killed and restarted and the exporting one is away; the disk is there after a boot")
	vm.RunTest(t, cache, vm.Options{Timeout: 14 * time.Minute, Memory: 2048}, func(here, self string) string {
		return fmt.Sprintf(deviceScript, here, insideVar, program.Path(t), self)
	})
}

// deviceScene is alpha with a file system mounted that is on a disk of beta's.
type deviceScene struct {
	alpha, beta *node.Node
	image       string // on beta
	dir         string // where it is mounted
	at          api.Attachment
}

func newDeviceScene(t *testing.T) *deviceScene {
	l, binary := lab.Start(t, lab.Config{}), program.Path(t)
	s := &deviceScene{alpha: node.New(l.Host("alpha"), binary), beta: node.New(l.Host("beta"), binary), dir: t.TempDir()}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		t.Cleanup(func() {
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("the daemon of %s:\n%s", n.Name(), n.LogTail(8000))
			}
		})
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// alpha's /run is its own: udev is this machine's.
	if err := errors.Join(os.MkdirAll(filepath.Join(s.alpha.RunDir(), "udev"), 0o755), os.WriteFile(filepath.Join(s.alpha.RunDir(), "udev", "control"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.image = filepath.Join(s.beta.Dir(), "disk.img")
	s.command(t, "truncate", "-s", strconv.Itoa(diskSize), s.image)
	s.command(t, "mkfs.ext4", "-q", "-F", s.image)
	s.ironwarp(t, s.beta, "export", "add", "--allow", "alpha", "disk", s.image)
	if err := s.alpha.Query(t.Context(), &s.at, "attach", "--device", "beta/disk"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A device that still waits would keep the machine from its end.
		if err := device.Kernel().Remove(filepath.Base(s.at.DeviceLink)); err != nil {
			t.Error(err)
		}
	})
	s.command(t, "mount", s.at.DeviceLink, s.dir)
	t.Cleanup(func() { _ = exec.Command("umount", "-l", s.dir).Run() })
	return s
}

func (s *deviceScene) command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (s *deviceScene) ironwarp(t *testing.T, n *node.Node, args ...string) {
	t.Helper()
	if _, err := n.Ironwarp(t.Context(), nil, args...); err != nil {
		t.Fatal(err)
	}
}

func (s *deviceScene) start(t *testing.T, n *node.Node) {
	t.Helper()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (s *deviceScene) run(t *testing.T) {
	name := filepath.Base(s.at.DeviceLink)
	// The link is there before udev has written down that it is its own.
	s.eventually(t, "udev says that it has made the link "+s.at.DeviceLink, nil, func(context.Context) bool {
		return strings.Contains(s.command(t, "udevadm", "info", "-q", "symlink", "-n", s.at.Device), "disk/by-ironwarp/"+name)
	})
	queues, _ := filepath.Glob("/sys/block/" + filepath.Base(s.at.Device) + "/mq/*")
	t.Logf("%s is %s, with %d connections", s.at.DeviceLink, s.at.Device, len(queues))
	if _, err := s.alpha.Ironwarp(t.Context(), nil, "detach", "beta/disk"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a mounted disk is detached: %v", err)
	}
	l := s.load(t)
	for _, c := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"the attaching daemon is killed", func(t *testing.T) { s.alpha.Kill(); s.start(t, s.alpha) }},
		{"and restarted", func(t *testing.T) {
			if err := s.alpha.Stop(); err != nil {
				t.Fatal(err)
			}
			s.start(t, s.alpha)
		}},
		{"and killed while its peer is away", func(t *testing.T) { s.beta.Kill(); s.alpha.Kill(); s.start(t, s.alpha); s.start(t, s.beta) }},
		{"the exporting daemon is away for longer than the kernel waits for an answer", func(t *testing.T) {
			s.beta.Kill()
			from := len(s.alpha.LogTail(1 << 30))
			s.eventually(t, "the kernel has given a connection up", l, func(context.Context) bool {
				return strings.Contains(s.alpha.LogTail(1 << 30)[from:], "the kernel has given up a connection")
			})
			s.start(t, s.beta)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.do(t)
			back := time.Now()
			s.mustFlow(t, l)
			t.Logf("data flowed %v after the last start", time.Since(back).Round(time.Millisecond))
		})
	}
	passes := l.end(t)
	t.Attr("detail", fmt.Sprintf("%d passes of fio, %d connections", passes, len(queues)))
	if out := s.command(t, "dmesg"); strings.Contains(out, "I/O error, dev nbd") {
		t.Errorf("the kernel has failed I/O:\n%s", out)
	}
	want := s.command(t, "sh", "-c", "sync; cd "+s.dir+" && sha256sum verified*")
	s.command(t, "umount", s.dir)

	// As after a boot: the daemon begins, and there is no device.
	if err := errors.Join(s.alpha.Stop(), device.Kernel().Remove(name)); err != nil {
		t.Fatal(err)
	}
	s.start(t, s.alpha)
	s.eventually(t, "the device is back", nil, func(context.Context) bool { _, err := os.Stat(s.at.DeviceLink); return err == nil })
	s.command(t, "mount", s.at.DeviceLink, s.dir)
	if got := s.command(t, "sh", "-c", "cd "+s.dir+" && sha256sum verified*"); got != want {
		t.Errorf("after the restart the files are\n%swant\n%s", got, want)
	}
	s.command(t, "umount", s.dir)
	s.ironwarp(t, s.alpha, "detach", "beta/disk")
	s.eventually(t, "udev has removed the link", nil, func(context.Context) bool {
		_, err := os.Lstat(s.at.DeviceLink)
		return errors.Is(err, os.ErrNotExist)
	})
	s.command(t, "e2fsck", "-fn", s.image)
	s.command(t, "mount", "-o", "loop,ro", s.image, s.dir)
	if got := s.command(t, "sh", "-c", "cd "+s.dir+" && sha256sum verified*"); got != want {
		t.Errorf("beta's disk has\n%swant\n%s", got, want)
	}
	s.command(t, "umount", s.dir)
}

// deviceLoad writes and verifies files until it is ended.
type deviceLoad struct {
	stop   context.CancelFunc
	ended  chan struct{}
	passes int
	err    error
}

func (s *deviceScene) load(t *testing.T) *deviceLoad {
	stop, cancel := context.WithCancel(context.Background())
	l := &deviceLoad{stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		for stop.Err() == nil && l.err == nil {
			l.passes++
			out, err := exec.Command("fio", "--name=verified", "--directory="+s.dir, "--size=4M", "--numjobs=2", "--rw=randwrite", "--bs=4k", "--ioengine=libaio", "--iodepth=16",
				"--direct=1", "--fsync=64", "--verify=crc32c", "--verify_fatal=1", "--randseed="+strconv.Itoa(l.passes)).CombinedOutput()
			if err != nil {
				l.err = fmt.Errorf("fio: %w\n%s", err, out)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if t.Failed() { // fio may wait for I/O that nobody answers any more
			_ = device.Kernel().Remove(filepath.Base(s.at.DeviceLink))
		}
		<-l.ended
	})
	s.mustFlow(t, l)
	return l
}

func (l *deviceLoad) end(t *testing.T) int {
	t.Helper()
	l.stop()
	<-l.ended
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.passes
}

// mustFlow waits until the kernel has completed some I/O of the device's.
func (s *deviceScene) mustFlow(t *testing.T, l *deviceLoad) {
	t.Helper()
	from := s.completed(t)
	s.eventually(t, "I/O goes on", l, func(context.Context) bool { return s.completed(t) >= from+200 })
}

// completed is how many I/Os the kernel has completed (Documentation/block/stat.rst).
func (s *deviceScene) completed(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/sys/block/" + filepath.Base(s.at.Device) + "/stat")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 5 {
		t.Fatalf("%v: %q", err, b)
	}
	reads, rerr := strconv.Atoi(f[0])
	writes, werr := strconv.Atoi(f[4])
	if err := errors.Join(rerr, werr); err != nil {
		t.Fatal(err)
	}
	return reads + writes
}

func (s *deviceScene) eventually(t *testing.T, what string, l *deviceLoad, ask func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), healTimeout, &never{what})
	defer cancel()
	if err := node.Until(ctx, func() (bool, error) {
		if l != nil {
			select {
			case <-l.ended:
				return false, l.err
			default:
			}
		}
		return ask(ctx), nil
	}); err != nil {
		t.Fatal(err)
	}
}
