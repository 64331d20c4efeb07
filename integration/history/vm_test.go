package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/vm"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// vmVar names the directory with the virtual machine; make interop sets it.
const vmVar = "IRONWARP_VM_CACHE"

const (
	guestPort = 7471
	vmCuts    = 2
	vmBlocks  = 16
)

// guestScript is the exporting host. Only a flush writes anything back, so that a power
// cut takes all that may be lost.
const guestScript = `
set -e
modprobe -a virtio_blk virtio_net ext4
sysctl -q -w vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=360000
until [ -b /dev/vdb ] && [ -d /sys/class/net/eth0 ]; do sleep 0.1; done
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
mkdir /disk
mount -t ext4 -o commit=300 /dev/vda /disk
sync
export %s=%s %s=%d
exec %s
`

// machine is the exporting host of a scene in a virtual machine.
type machine struct {
	*scene
	image *vm.Image
	opts  vm.Options
	out   string
	off   checks.Check

	stop context.CancelFunc
	over chan struct{}
}

func newMachine(t *testing.T, off checks.Check) *machine {
	t.Helper()
	needStorage(t)
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop cuts the power of virtual machines; set %s to the directory of theirs to do it here", vmVar)
	}
	image, err := vm.Build(t.Context(), cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	port := iwarptest.FreePort(t)
	m := &machine{image: image, out: t.TempDir(), off: off}
	// A machine that gets stuck is booted again while its clients still have patience.
	m.opts = vm.Options{Timeout: 10 * time.Minute, Boot: patience / 3, Memory: 512, Forward: map[uint16]uint16{port: guestPort}}
	s := newHosts(t, off)
	m.scene = s
	s.newAlpha(port)
	s.beta.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, addresses: [10.0.2.15]}\nstate_dir: /disk/state\nruntime_dir: /run/ironwarp\n", guestPort))
	s.beta.write("peers.d/alpha.yaml", "name: alpha\naddress: 10.0.2.2\nlocal_address: 10.0.2.15\ntransport: tcp\ninsecure_plaintext: true\n")
	// A file on ext4, and a block device.
	files := filepath.Join(s.dir, "fs.img")
	m.newImage(files)
	s.disks = append(s.disks, &disk{number: 1, name: "file", path: "/disk/disk.img"})
	device := filepath.Join(s.dir, "device.img")
	if err := os.WriteFile(device, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.disks = append(s.disks, &disk{number: 2, name: "device", path: "/dev/vdb"})
	for _, d := range s.disks {
		s.export(d, d.path)
	}
	m.opts.Disks = []string{files, device}
	m.boot()
	t.Cleanup(func() {
		m.kill()
		if b, err := os.ReadFile(filepath.Join(m.out, "console")); err == nil && t.Failed() {
			t.Logf("console:\n%s", b)
		}
	})
	s.alpha.start()
	return m
}

// newImage makes a file system with the file of a disk in it.
func (m *machine) newImage(path string) {
	m.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, imageSize)); err != nil {
		m.Fatal(err)
	}
	command(m.T, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", path)
	m.mounted(path, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, diskSize), 0o600); err != nil {
			m.Fatal(err)
		}
	})
}

// mounted calls f while an image is mounted.
func (m *machine) mounted(image string, f func(dir string)) {
	m.Helper()
	dir := m.TempDir()
	command(m.T, "mount", "-o", "loop", image, dir)
	defer command(m.T, "umount", dir)
	f(dir)
}

// boot starts the machine and does not wait.
func (m *machine) boot() {
	m.Helper()
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan struct{})
	m.stop, m.over = stop, over
	console, err := os.OpenFile(filepath.Join(m.out, "console"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.Fatal(err)
	}
	o := m.opts
	o.Console = console
	script := fmt.Sprintf(guestScript, configVar, filepath.Join(m.beta.dir, "ironwarp.yaml"), checkVar, m.off, must(os.Executable())(m.T))
	go func() {
		defer close(over)
		defer console.Close()
		_, err := m.image.Run(ctx, m.out, script, o)
		if ctx.Err() == nil {
			m.Errorf("the machine has ended by itself: %v", err)
		}
	}()
}

// kill ends QEMU with SIGKILL.
func (m *machine) kill() {
	m.stop()
	<-m.over
}

// cut kills the machine and records that in the history.
func (m *machine) cut() {
	m.rec.fault("machine killed", true)
	e := event{call: m.rec.now()}
	m.kill()
	e.ret = m.rec.now()
	for _, d := range m.disks {
		e.disk = d.number
		m.rec.happened(e)
	}
}

// realPowerCuts has clients write, flush and read while the machine with their disks is
// killed, and boots again with what had reached its disks.
func realPowerCuts(t *testing.T, off checks.Check) *scene {
	m := newMachine(t, off)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, d := range m.disks {
		m.attach(d)
	}
	for range vmCuts {
		var under []*op
		for _, d := range m.disks {
			c := m.dial(d)
			m.must(c.writeAll(vmBlocks)...)
			m.must(c.start(opFlush, 0, 0, false))
			for range 3 * vmBlocks {
				o := c.start(opWrite, rng.Uint32N(vmBlocks), 1, rng.IntN(8) == 0)
				if rng.IntN(2) == 0 {
					m.must(o)
				}
				switch rng.IntN(12) {
				case 0:
					m.must(c.start(opFlush, 0, 0, false))
				case 1, 2, 3:
					m.must(c.start(opRead, rng.Uint32N(vmBlocks), 1, false))
				}
			}
			m.must(c.writeAll(vmBlocks / 2)...) // not flushed: at risk
			under = append(under, c.writeAll(vmBlocks)...)
			under = append(under, c.start(opFlush, 0, 0, false), c.start(opWrite, 0, 1, true))
			defer c.kill()
		}
		m.cut()
		m.boot()
		m.wait(under...) // they wait for the machine; the history has whether they succeed
		for _, d := range m.disks {
			c := m.dial(d)
			m.wait(c.start(opFlush, 0, 0, false))
			m.wait(c.readAll(vmBlocks)...)
			c.kill()
		}
		m.reattach(m.disks...)
		for _, d := range m.disks {
			c := m.dial(d)
			m.must(c.readAll(vmBlocks)...)
			m.must(c.start(opFlush, 0, 0, false)) // nothing is at risk
			c.kill()
		}
	}
	m.cut()
	m.audit(m.disks[1], m.opts.Disks[1])
	m.mounted(m.opts.Disks[0], func(dir string) { m.audit(m.disks[0], filepath.Join(dir, "disk.img")) })
	if lost := m.rec.lost(); lost == 0 {
		t.Error("no power cut has taken a write that was not flushed: this shows nothing")
	} else {
		t.Logf("%d writes were acknowledged and lost with the power", lost)
	}
	return m.scene
}

func TestRealPowerCut(t *testing.T) {
	t.Attr("row", "QEMU is killed under writes to a file on ext4 and to a block device: what was flushed, or written with FUA, is there, and no flush vouches for what is not")
	prove(t, scenario{"acknowledged and flushed writes are there", checks.StoreLife, realPowerCuts})
}
