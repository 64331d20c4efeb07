package chaos

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/vm"
)

// guestScript has two jobs of fio write the disk and verify what they wrote, pass after pass, until there is a
// file stop. Then it says what the disk has.
const guestScript = `
set -e
modprobe virtio_blk
until [ -b /dev/vda ]; do sleep 0.1; done
pass=0
while [ ! -e %[1]s/stop ]; do
	pass=$((pass + 1))
	fio --name=verified --filename=/dev/vda --size=4M --offset_increment=32M --numjobs=2 --rw=randwrite --bs=16k --ioengine=libaio --iodepth=16 --direct=1 --fsync=64 \
		--verify=crc32c --verify_backlog=32 --verify_interval=512 --verify_pattern='"%[2]s"' --verify_fatal=1 --verify_state_save=0 --randseed=$pass >/tmp/fio 2>&1 || { cat /tmp/fio; exit 1; }
	echo $pass >%[1]s/passes
done
! dmesg | grep -i 'i/o error' || exit 1
dd if=/dev/vda iflag=direct bs=1M status=none | sha256sum >%[1]s/sum
`

// TestGuestOfAVhostUserDisk boots a guest of QEMU whose disk is beta's, by alpha's vhost-user
// socket, and has fio write and verify it there while the daemons of both hosts are killed and
// restarted. No I/O fails in the guest, and beta's file has what the guest reads.
func TestGuestOfAVhostUserDisk(t *testing.T) {
	require(t)
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skipf("%v: apt install qemu-system-x86", err)
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop boots a guest on a vhost-user socket; set %s to the directory of its virtual machine to do it here", vmVar)
	}
	t.Attr("row", "`ironwarp attach --vhost-user`: a guest of QEMU has the disk, and fio verifies it there without an error, while the attaching daemon is killed and restarted and the exporting one is killed")
	image, err := vm.Build(t.Context(), cache, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{}
	s.hosts(t)
	s.join(t)
	s.attach(t, "--vhost-user", "--vhost-socket", filepath.Join(t.TempDir(), "disk.sock"))

	dir := t.TempDir()
	l := s.boot(t, image, dir)
	for _, c := range []struct {
		name string
		do   func(t *testing.T) error
	}{
		{"the attaching daemon is killed", func(t *testing.T) error { s.alpha.Kill(); return s.alpha.Start(t.Context()) }},
		{"and restarted", func(t *testing.T) error {
			if err := s.alpha.Stop(); err != nil {
				return err
			}
			return s.alpha.Start(t.Context())
		}},
		{"the exporting daemon is killed", func(t *testing.T) error { s.beta.Kill(); return s.beta.Start(t.Context()) }},
		{"and the attaching one while that is away", func(t *testing.T) error {
			s.beta.Kill()
			s.alpha.Kill()
			if err := s.alpha.Start(t.Context()); err != nil {
				return err
			}
			return s.beta.Start(t.Context())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.do(t); err != nil {
				t.Fatal(err)
			}
			back := time.Now()
			s.mustFlow(t, l)
			t.Logf("data flowed %v after the last start", time.Since(back).Round(time.Millisecond))
		})
	}
	l.stop()
	<-l.ended
	if l.err != nil {
		t.Fatal(l.err)
	}
	passes, _ := os.ReadFile(filepath.Join(dir, "passes"))
	t.Attr("detail", fmt.Sprintf("passes of fio: %s", strings.TrimSpace(string(passes))))
	f, err := os.Open(s.image())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "sum")); err != nil || !strings.HasPrefix(string(got), fmt.Sprintf("%x ", sum.Sum(nil))) {
		t.Errorf("the guest reads a disk whose sum is %s, that of beta's file is %x: %v", got, sum.Sum(nil), err)
	}
}

// guestTimeout bounds the guest's boot and its load, during which daemons come back four times.
const guestTimeout = 5*healTimeout + loadTimeout

// boot starts the guest, which leaves its results in dir, and waits until data flows.
func (s *scene) boot(t *testing.T, image *vm.Image, dir string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &load{ended: make(chan struct{}), at: s.alpha, moved: s.diskMoved(s.alpha)}
	l.stop = sync.OnceFunc(func() {
		if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
			cancel()
		}
	})
	go func() {
		defer close(l.ended)
		script := fmt.Sprintf(guestScript, vm.OutDir, s.lab.Canary())
		r, err := image.Run(ctx, dir, script, vm.Options{Timeout: guestTimeout, Memory: 512, Console: t.Output(), Sockets: []string{s.disk.VhostSocket}})
		if err == nil && r.Status != 0 {
			err = fmt.Errorf("the guest's script ended with exit status %d:\n%s", r.Status, r.Output)
		}
		l.err = err
	}()
	t.Cleanup(func() { cancel(); <-l.ended })
	s.mustFlow(t, l)
	return l
}
