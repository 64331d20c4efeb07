package rnbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rtrs"
)

// scene is something that must not happen, and the check that keeps it away. show
// returns what happened nevertheless.
type scene struct {
	name  string
	check checks.Check
	show  func(t *testing.T) error
}

func TestDisksThatAreClosedStayClosed(t *testing.T) { play(t, detachScenes) }

var detachScenes = []scene{
	{"parked write of a disk that is closed while it is opened again", checks.DetachedDisk, detachedWhileReopened},
	{"write of a closed disk that comes late", checks.FreshDevice, lateWriteOfAClosedDisk},
	{"close while a write is being carried out", checks.CloseWaits, closeDuringAWrite},
	{"open that nobody waits for any more", checks.LateOpen, abandonedOpen},
	{"open whose answer is lost, and the next is refused", checks.LateOpen, unansweredOpen},
}

// detachedWhileReopened: the path is back, the disk is being opened again, and is
// closed at this moment. Its parked write must not be carried out, on no disk.
func detachedWhileReopened(t *testing.T) error {
	a, b := newRAM(1<<20), newRAM(1<<20)
	srv := startServer(t, ramExport("a", a), ramExport("b", b))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	da := openDisk(t, c, "a")
	opening, goOn := make(chan struct{}), make(chan struct{})
	hold := func() { close(opening); <-goOn }
	l.set(false)
	eventually(t, "the path is lost", func() bool { return c.Info().State == rtrs.Reconnecting })
	written := start(t, da, block.OpWrite, bytes.Repeat([]byte{1}, 4096), 0)
	a.onOpen.Store(&hold)
	l.set(true)
	<-opening
	da.beginClose() // with which Close begins; CLOSE comes when the disk is open
	a.onOpen.Store(nil)
	close(goOn)
	if errno := written.wait(t); errno == 0 {
		return errors.New("the write of a closed disk was carried out")
	}
	if err := da.release(testContext(t)); err != nil {
		return err
	}
	c.forgetDisk(da)
	db := openDisk(t, c, "b")
	read(t, db, 512, 0)
	for name, r := range map[string]*ram{"a": a, "b": b} {
		if r.at(0) != 0 {
			return fmt.Errorf("the write of closed disk a is on disk %s", name)
		}
	}
	if n := openers(srv, "a"); n != 0 {
		return fmt.Errorf("the server has the closed disk open %d times", n)
	}
	return nil
}

// lateWriteOfAClosedDisk: a write that went into the path before its disk was closed
// comes out of it after another disk has been opened.
func lateWriteOfAClosedDisk(t *testing.T) error {
	a, b := newRAM(1<<20), newRAM(1<<20)
	srv := startServer(t, ramExport("a", a), ramExport("b", b))
	c := connect(t, srv.addr)
	da := openDisk(t, c, "a")
	m := ioMsg{Device: da.id, RW: opWrite, Size: 512}
	if err := da.Close(); err != nil {
		return err
	}
	db := openDisk(t, c, "b")
	p, err := c.rt.Get(testContext(t))
	if err != nil {
		return err
	}
	defer c.rt.Put(p)
	copy(p.Buffer(), bytes.Repeat([]byte{1}, 512))
	var hdr [ioLen]byte
	m.Put(&hdr)
	w := rtWaiter(make(chan syscall.Errno, 1))
	p.Submit(rtrs.Write, hdr[:], 512, w)
	if errno := <-w; errno != syscall.ENODEV {
		return fmt.Errorf("the write's result is %d", errno)
	}
	if read(t, db, 512, 0)[0] != 0 {
		return errors.New("the write to disk a is on disk b")
	}
	return nil
}

// closeDuringAWrite: a disk counts as closed when nothing is done to it any more.
func closeDuringAWrite(t *testing.T) error {
	r := newRAM(1 << 20)
	entered, release := make(chan struct{}), make(chan struct{})
	r.before = func(block.Op, int64, int64) syscall.Errno {
		close(entered)
		<-release
		return 0
	}
	srv := startServer(t, sharedExport("r", r))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	dev := srv.exports["r"].devices[0]
	written := start(t, d, block.OpWrite, bytes.Repeat([]byte{1}, 4096), 0)
	<-entered
	result, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		err := d.Close()
		if r.at(0) == 0 {
			err = errors.New("the disk is closed, and a write is still being carried out")
		}
		result <- err
	}()
	eventually(t, "the device is being closed", dev.closed.Load)
	others := openDisk(t, c, "r") // the session is not held up
	if n := openers(srv, "r"); n != 2 && checks.On(checks.CloseWaits) {
		t.Errorf("the server shows %d openers while a write is being carried out, want 2", n)
	}
	if !checks.On(checks.CloseWaits) {
		<-over
	}
	close(release)
	written.wait(t)
	err := <-result
	if err == nil && openers(srv, "r") != 1 {
		err = fmt.Errorf("%d openers", openers(srv, "r"))
	}
	return errors.Join(err, others.Close())
}

// abandonedOpen: the answer to an OPEN comes when nobody waits for it any more.
func abandonedOpen(t *testing.T) error {
	r := newRAM(1 << 20)
	opening, goOn := make(chan struct{}), make(chan struct{})
	hold := func() { close(opening); <-goOn }
	srv := startServer(t, ramExport("r", r), ramExport("other", newRAM(1<<20)))
	c := connect(t, srv.addr)
	r.onOpen.Store(&hold)
	ctx, cancel := context.WithCancel(testContext(t))
	go func() { <-opening; cancel() }()
	if d, err := c.Open(ctx, "r", OpenOptions{}); err == nil {
		return fmt.Errorf("%s was opened", d.Export())
	}
	r.onOpen.Store(nil)
	close(goOn)
	if !checks.On(checks.LateOpen) {
		openDisk(t, c, "other") // OPEN is over
		if openers(srv, "r") != 0 {
			return errors.New("the device of an abandoned OPEN stays open")
		}
		return nil
	}
	return noneIsOpen(t, c, srv)
}

// noneIsOpen waits until a client has no disk, and fails if the server has r open then.
func noneIsOpen(t *testing.T, c *Client, srv *testServer) error {
	eventually(t, "the client has no disk", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.disks) == 0
	})
	if n := openers(srv, "r"); n != 0 {
		return fmt.Errorf("the server has the disk open %d times", n)
	}
	return nil
}

// unansweredOpen: the path is lost with the answer to an OPEN. By the next path the disk
// cannot be opened any more.
func unansweredOpen(t *testing.T) error {
	r := newRAM(1 << 20)
	srv := startServerWith(t, rtrs.ServerConfig{Linger: time.Minute}, ramExport("r", r))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	lose := func() {
		l.set(false)
		r.mu.Lock()
		r.fault = "it has lost writes"
		r.mu.Unlock()
		l.set(true)
	}
	r.onOpen.Store(&lose)
	if d, err := c.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%v was opened: %w", d, err)
	}
	return noneIsOpen(t, c, srv)
}

func TestDeviceIDsAreNotGivenTwice(t *testing.T) {
	srv := startServer(t, sharedExport("r", newRAM(1<<20)))
	c := connect(t, srv.addr)
	keep := openDisk(t, c, "r")
	seen := map[uint32]bool{keep.id: true}
	for range 2 * maxDevices {
		d := openDisk(t, c, "r")
		if seen[d.id] {
			t.Fatalf("device id %d is given twice", d.id)
		}
		seen[d.id] = true
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	c.lastID = maxDeviceID - 1
	c.mu.Unlock()
	for range 4 { // across the end of the ids
		write(t, openDisk(t, c, "r"), make([]byte, 512), 0)
	}
}

func play(t *testing.T, scenes []scene) {
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			if err := s.show(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// start starts an I/O and lets go of it when it has ended.
func start(t *testing.T, d block.Device, op block.Op, p []byte, off uint64) *waiter {
	t.Helper()
	io, err := d.Get(testContext(t), op, off, uint32(len(p)), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range io.Buffers() {
		p = p[copy(b, p):]
	}
	inner, outer := newWaiter(), newWaiter()
	io.Submit(inner, false)
	go func() {
		errno := <-inner.ch
		io.Release()
		outer.Complete(errno)
	}()
	return outer
}

func openers(srv *testServer, export string) int {
	for _, e := range srv.Exports() {
		if e.Name == export {
			return len(e.Openers)
		}
	}
	return 0
}

func (r *ram) at(off int64) byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.data[off]
}
