package rnbd

import (
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// failSoon has I/O fail soon after the last path has gone.
var failSoon = rtrs.NoPath{Fail: true, After: 20 * time.Millisecond}

// Without a path I/O fails with EIO, also what waits behind it, and works again when there is
// a path. A write that failed while the server was executing it never overwrites a later one.
func TestDiskFailsWithoutAPath(t *testing.T) {
	r := newRAM(1 << 20)
	entered, release, writes := r.holdFirstWrite()
	srv := startServerWith(t, rtrs.ServerConfig{Linger: time.Minute}, ramExport("r", r))
	c := connect(t, srv.addr)
	c.Session().SetNoPath(failSoon)
	d := openDisk(t, c, "r")
	user := d.NewUser()
	one := start(t, user, block.OpWrite, filled(1), 0)
	<-entered
	two := start(t, user, block.OpWrite, append(filled(2), filled(2)...), 0) // waits for it
	path := c.Session().Paths()[0]
	path.Disconnect()
	for _, w := range []*waiter{one, two} {
		if errno := w.wait(t); errno != syscall.EIO {
			t.Errorf("without a path: %v", errno)
		}
	}
	if errno := do(t, user, block.OpRead, make([]byte, 4096), 0, 0, 0); errno != syscall.EIO {
		t.Errorf("a read without a path: %v", errno)
	}
	path.Reconnect()
	eventually(t, "there is a path", func() bool { return !c.Info().Failing })
	write(t, user, filled(4), 8192) // beside what is executing still
	three := start(t, user, block.OpWrite, filled(3), 0)
	select {
	case errno := <-three.ch:
		t.Errorf("a write to the same bytes has ended (%v) before the one that failed", errno)
	case <-time.After(20 * time.Millisecond):
	}
	if n := writes.Load(); n != 2 {
		t.Errorf("%d writes have begun", n)
	}
	// What waits for a write that is not settled fails as well when the path goes again.
	path.Disconnect()
	if errno := three.wait(t); errno != syscall.EIO {
		t.Errorf("a write behind one that is not settled: %v", errno)
	}
	path.Reconnect()
	eventually(t, "there is a path", func() bool { return !c.Info().Failing })
	last := start(t, user, block.OpWrite, filled(5), 0)
	close(release)
	if errno := last.wait(t); errno != 0 {
		t.Error(errno)
	}
	if a, b := r.at(0), r.at(4096); a != 5 || b != 0 {
		t.Errorf("the blocks have %d and %d", a, b)
	}
	if info := d.Info(); info.Err != nil || info.Waits != nil {
		t.Errorf("%+v", info)
	}
}

// A disk that waits for the server to open it waits no longer than for a path.
func TestDiskThatWaitsFailsWithoutAPath(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServerWith(t, rtrs.ServerConfig{Linger: time.Minute}, ramExport("r", r))
	c := connect(t, srv.addr)
	c.Session().SetNoPath(failSoon)
	d := openDisk(t, c, "r")
	user := d.NewUser()
	if err := srv.ReplaceExport("r", "it is away"); err != nil {
		t.Fatal(err)
	}
	one := start(t, user, block.OpWrite, filled(1), 0)
	eventually(t, "the disk waits", func() bool { return d.Info().Waits != nil })
	read := make(chan syscall.Errno, 1)
	go func() { read <- do(t, user, block.OpRead, make([]byte, 4096), 0, 0, 0) }()
	c.Session().Paths()[0].Disconnect()
	if errno := one.wait(t); errno != syscall.EIO {
		t.Errorf("a write of a disk that waits: %v", errno)
	}
	if errno := <-read; errno != syscall.EIO {
		t.Errorf("a read of a disk that waits: %v", errno)
	}
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	c.Session().Paths()[0].Reconnect()
	eventually(t, "the disk is open", func() bool { i := d.Info(); return i.Waits == nil && i.Err == nil && !i.Session.Failing })
	write(t, user, filled(2), 0)
	if got := r.at(0); got != 2 {
		t.Errorf("the block has %d", got)
	}
}

// A write that failed without a path, and that the server still executes, does not overwrite
// what the disk is given when it has been closed and opened anew: that waits.
func TestWriteOfAClosedDiskIsNotExecutedAfterALaterOne(t *testing.T) {
	r := newRAM(1 << 20)
	entered, release := make(chan struct{}, 2), make(chan struct{})
	r.before = func(_ block.Op, off, _ int64) syscall.Errno {
		if off == 0 {
			entered <- struct{}{}
			<-release
		}
		return 0
	}
	srv := startServerWith(t, rtrs.ServerConfig{Linger: time.Minute}, sharedExport("r", r))
	c := connect(t, srv.addr)
	c.Session().SetNoPath(failSoon)
	d := openDisk(t, c, "r")
	one := start(t, d, block.OpWrite, filled(1), 0)
	<-entered
	path := c.Session().Paths()[0]
	path.Disconnect()
	if errno := one.wait(t); errno != syscall.EIO {
		t.Errorf("without a path: %v", errno)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	path.Reconnect()
	eventually(t, "there is a path", func() bool { return !c.Info().Failing })
	d = openDisk(t, c, "r")
	two := start(t, d, block.OpWrite, filled(2), 0)
	eventually(t, "it waits, or is executed", func() bool { return waits(d) || len(entered) > 0 })
	if !waits(d) {
		t.Error("a write to the same bytes is executed before the one that failed has ended")
	}
	c.failHeld() // of the time without a path, when that is over
	close(release)
	if errno := two.wait(t); errno != 0 {
		t.Error(errno)
	}
	if got := r.at(0); got != 2 {
		t.Errorf("the block has %d", got)
	}
}

// waits reports whether a write of a disk waits for another.
func waits(d *Disk) bool {
	d.order.mu.Lock()
	defer d.order.mu.Unlock()
	return len(d.order.held) > 0
}
