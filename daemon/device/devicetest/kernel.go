// Package devicetest has a kernel's nbd driver in this process, for tests of what sets up
// devices where the kernel has none: it speaks generic netlink and is the client of the
// sockets that it is given. What it sends, it repeats on another connection when one ends.
package devicetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// The numbers of linux/nbd-netlink.h.
const (
	connect, disconnect, reconfigure, list = 1, 2, 3, 5

	index, size, blockSize, timeout, flags, sockets, dead, devices, backend = 1, 2, 3, 4, 5, 7, 8, 9, 10
)

// Kernel is such a driver.
type Kernel struct {
	t   testing.TB
	dir string

	mu      sync.Mutex // guards the fields below it
	change  sync.Cond
	devices map[uint32]*Device
	mounted map[uint32]bool
	ended   map[uint32]*Device // that somebody has open
	refuse  error
	old     bool
	asked   []Command
}

// Command is one that the driver was given.
type Command struct {
	Cmd                                          uint8
	Size, BlockSize, Timeout, Flags, DeadTimeout uint64
	Sockets                                      int
}

// Device is one of the driver's.
type Device struct {
	k       *Kernel
	index   uint32
	Size    uint64
	Flags   uint64
	Backend string
	n       int               // how many connections it has, alive or not
	conns   []*nbdtest.Client // nil: dead; guarded by Kernel.mu
}

// New returns a driver without devices, which ends with the test.
func New(t testing.TB) *Kernel {
	t.Helper()
	k := &Kernel{t: t, dir: t.TempDir(), devices: map[uint32]*Device{}, mounted: map[uint32]bool{}, ended: map[uint32]*Device{}}
	k.change.L = &k.mu
	for _, dir := range []string{"sys/block", "sys/module/nbd", "dev"} {
		if err := os.MkdirAll(filepath.Join(k.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for i := range k.all() {
			k.End(i)
		}
	})
	return k
}

// Dir has the kernel's directories sys and dev.
func (k *Kernel) Dir() string { return k.dir }

// Driver is how it is reached.
func (k *Kernel) Driver() *device.Driver {
	return device.New(device.Access{Exchange: k.exchange, Claim: k.claim, Sys: filepath.Join(k.dir, "sys"), Dev: filepath.Join(k.dir, "dev"),
		UDev: filepath.Join(k.dir, "udev"), MountInfo: filepath.Join(k.dir, "mountinfo")})
}

// Refuse has the driver refuse all commands with an error, until nil.
func (k *Kernel) Refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = err
}

// Forget has devices without a backend in sysfs from now on, as kernels before 5.14 do.
func (k *Kernel) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.old = true
}

// Mount has somebody use a device for himself, or not any more.
func (k *Kernel) Mount(index uint32, mounted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mounted[index] = mounted
}

// Commands are those that it was given.
func (k *Kernel) Commands() []Command {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]Command(nil), k.asked...)
}

func (k *Kernel) all() map[uint32]*Device {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[uint32]*Device{}
	for i, d := range k.devices {
		all[i] = d
	}
	return all
}

// Device returns a device, nil if there is none of that number.
func (k *Kernel) Device(index uint32) *Device { return k.all()[index] }

func (k *Kernel) claim(path string) (io.Closer, error) {
	n, err := strconv.ParseUint(filepath.Base(path)[len("nbd"):], 10, 32)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil || k.mounted[uint32(n)] {
		return nil, unix.EBUSY
	}
	return io.NopCloser(nil), nil
}

// exchange carries out a command.
func (k *Kernel) exchange(cmd uint8, attrs []byte) ([][]byte, error) {
	a := map[uint16][]byte{}
	for t, v := range split(k.t, attrs) {
		a[t] = v[0]
	}
	k.mu.Lock()
	err := k.refuse
	k.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, item := range split(k.t, a[sockets])[1] {
		fds = append(fds, int(binary.NativeEndian.Uint32(split(k.t, item)[1][0])))
	}
	k.mu.Lock()
	k.asked = append(k.asked, Command{cmd, u64(a[size]), u64(a[blockSize]), u64(a[timeout]), u64(a[flags]), u64(a[dead]), len(fds)})
	k.mu.Unlock()
	switch cmd {
	case connect:
		return k.connect(a, fds)
	case list:
		return [][]byte{k.list()}, nil
	}
	if len(a[index]) != 4 {
		return nil, unix.EINVAL
	}
	d := k.Device(binary.NativeEndian.Uint32(a[index]))
	switch {
	case d == nil && cmd == disconnect:
		return nil, nil
	case d == nil:
		return nil, unix.EINVAL
	case cmd == disconnect:
		k.End(d.index)
		return nil, nil
	case cmd != reconfigure || text(a[backend]) != d.Backend:
		return nil, unix.EINVAL
	}
	if n := u64(a[size]); n != 0 {
		k.mu.Lock()
		d.Size = n
		k.mu.Unlock()
		k.write(d, "size", strconv.FormatUint(n/512, 10))
	}
	for _, fd := range fds {
		if !d.adopt(fd) {
			break // as the kernel, which says nothing
		}
	}
	return nil, nil
}

func (k *Kernel) connect(a map[uint16][]byte, fds []int) ([][]byte, error) {
	if len(fds) == 0 || u64(a[size]) == 0 || len(fds) > 1 && u64(a[flags])&(1<<8) == 0 {
		return nil, unix.EINVAL
	}
	d := &Device{k: k, Size: u64(a[size]), Flags: u64(a[flags]), Backend: text(a[backend]), n: len(fds), conns: make([]*nbdtest.Client, len(fds))}
	k.mu.Lock()
	for k.devices[d.index] != nil || k.ended[d.index] != nil {
		d.index++
	}
	k.devices[d.index] = d
	old := k.old
	k.mu.Unlock()
	for i, fd := range fds {
		k.write(d, filepath.Join("mq", strconv.Itoa(i), "cpu_list"), "0")
		d.adopt(fd)
	}
	k.write(d, "pid", "1")
	k.write(d, "size", strconv.FormatUint(d.Size/512, 10))
	if !old {
		k.write(d, "backend", d.Backend)
	}
	return [][]byte{attribute([]byte{connect, 1, 0, 0}, index, binary.NativeEndian.AppendUint32(nil, d.index))}, nil
}

func (k *Kernel) list() []byte {
	var items []byte
	for i := range k.all() {
		item := attribute(nil, 1, binary.NativeEndian.AppendUint32(nil, i))
		items = attribute(items, 1, attribute(item, 2, []byte{1}))
	}
	return attribute([]byte{list, 1, 0, 0}, devices, items)
}

// write writes an attribute of a device in sysfs.
func (k *Kernel) write(d *Device, name, value string) {
	path := filepath.Join(k.dir, "sys/block", d.name(), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"), 0o644)); err != nil {
		k.t.Error(err)
	}
}

func (d *Device) name() string { return fmt.Sprint("nbd", d.index) }

// End ends a device, as another program may, too. It stays in sysfs while somebody uses it.
func (k *Kernel) End(index uint32) {
	k.mu.Lock()
	d := k.devices[index]
	delete(k.devices, index)
	open := k.mounted[index]
	if d != nil && open {
		k.ended[index] = d
	}
	k.change.Broadcast()
	k.mu.Unlock()
	if d == nil {
		return
	}
	if !open {
		if err := os.RemoveAll(filepath.Join(k.dir, "sys/block", d.name())); err != nil {
			k.t.Error(err)
		}
	}
	for i := range d.n {
		d.Cut(i)
	}
}

// adopt takes a socket in place of a dead one. Without one it drops it.
func (d *Device) adopt(fd int) bool {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		d.k.t.Error(err)
		return false
	}
	f := os.NewFile(uintptr(own), "kernel")
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		d.k.t.Error(err)
		return false
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	for i, c := range d.conns {
		if c != nil && !hungUp(c) {
			continue
		}
		if c != nil {
			c.Close()
		}
		d.conns[i] = &nbdtest.Client{Conn: nc}
		d.k.change.Broadcast()
		return true
	}
	nc.Close()
	return false
}

// hungUp reports that a connection's other end is closed.
func hungUp(c *nbdtest.Client) (gone bool) {
	raw, err := c.Conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, _ := unix.Poll(p, 0)
		gone = n > 0
	})
	return gone || err != nil
}

// Alive is how many connections a device has whose other end is open.
func (d *Device) Alive() (n int) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	for _, c := range d.conns {
		if c != nil && !hungUp(c) {
			n++
		}
	}
	return n
}

// Cut ends a connection, as the kernel does when an answer takes too long.
func (d *Device) Cut(i int) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	if c := d.conns[i]; c != nil {
		c.Close()
		d.conns[i] = nil
	}
}

// ErrEnded: a device has ended, and its I/O fails.
var ErrEnded = errors.New("the device has ended")

// Do has the device carry out a request; it waits for a connection, and repeats the
// request on another when one ends. One request may be under way. It fails with ErrEnded,
// and with the server's error number.
func (d *Device) Do(cmd uint16, off uint64, n uint32, payload []byte) ([]byte, error) {
	for {
		i, c := d.next()
		if c == nil {
			return nil, ErrEnded
		}
		r, err := c.Do(0, cmd, off, n, payload)
		if err != nil {
			d.Cut(i)
			continue
		}
		if r.Error != 0 {
			return nil, unix.Errno(r.Error)
		}
		return r.Data, nil
	}
}

// next waits for a connection.
func (d *Device) next() (int, *nbdtest.Client) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	for d.k.devices[d.index] == d {
		for i, c := range d.conns {
			if c != nil {
				return i, c
			}
		}
		d.k.change.Wait()
	}
	return 0, nil
}

// split returns the values of attributes by their types.
func split(t testing.TB, b []byte) map[uint16][][]byte {
	all := map[uint16][][]byte{}
	for len(b) > 0 {
		if len(b) < 4 || int(binary.NativeEndian.Uint16(b)) < 4 || int(binary.NativeEndian.Uint16(b)) > len(b) {
			t.Errorf("no attributes: % x", b)
			return all
		}
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		all[typ] = append(all[typ], b[4:n])
		b = b[(n+3)&^3:]
	}
	return all
}

func attribute(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func u64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.NativeEndian.Uint64(b)
}

// text is a string's, which may end in a NUL.
func text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}
