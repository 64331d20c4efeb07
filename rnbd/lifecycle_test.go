package rnbd

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

func TestDisksSurviveServerRestart(t *testing.T) {
	a, b := newRAM(1<<20), newRAM(2<<20)
	srv := startServer(t, ramExport("a", a), ramExport("b", b))
	c := connect(t, srv.addr)
	da, db := openDisk(t, c, "a"), openDisk(t, c, "b")
	write(t, da, bytes.Repeat([]byte{1}, 512), 0)
	write(t, db, bytes.Repeat([]byte{2}, 512), 0)
	srv.stop(t)
	// In the new server the exports are added, and were opened, in another order.
	srv = startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("b", b), ramExport("c", newRAM(1<<20)), ramExport("a", a))
	if got := read(t, db, 512, 0); got[0] != 2 {
		t.Errorf("disk b has %d", got[0])
	}
	if got := read(t, da, 512, 0); got[0] != 1 {
		t.Errorf("disk a has %d", got[0])
	}
	if i := da.Info(); i.Err != nil || i.Session.Reconnects == 0 {
		t.Errorf("%+v", i)
	}
	for _, e := range srv.Exports() {
		if want := map[string]int{"a": 1, "b": 1, "c": 0}[e.Name]; len(e.Openers) != want {
			t.Errorf("export %s has %d openers", e.Name, len(e.Openers))
		}
	}
}

func TestShrunkDiskFailsAlone(t *testing.T) {
	a, b := newRAM(1<<20), newRAM(1<<20)
	srv := startServer(t, ramExport("a", a), ramExport("b", b))
	c := connect(t, srv.addr)
	da, db := openDisk(t, c, "a"), openDisk(t, c, "b")
	srv.stop(t)
	smaller := newRAM(1 << 19)
	smaller.identity = a.identity
	srv = startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("a", smaller), ramExport("b", b))
	write(t, db, make([]byte, 512), 0)
	if e := do(t, da, block.OpWrite, make([]byte, 512), 0, 0, 0); e != syscall.EIO {
		t.Errorf("I/O on the disk that has changed: %v, want EIO", e)
	}
	if i := da.Info(); !errors.Is(i.Err, ErrShrunk) {
		t.Errorf("state %v", i.Err)
	}
	if i := db.Info(); i.Err != nil {
		t.Errorf("the other disk's state: %v", i.Err)
	}
	srv.stop(t)
	startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("a", a), ramExport("b", b))
	write(t, db, make([]byte, 512), 0)
	if e := do(t, da, block.OpRead, make([]byte, 512), 0, 0, 0); e != 0 {
		t.Errorf("the disk has its size again and fails: %v", e)
	}
	if i := da.Info(); i.Err != nil || i.Stats.Errors != 0 {
		t.Errorf("%+v", i)
	}
}

// A disk that has grown while its path was away, or its server was restarted, is used up
// to its new end, and never shrinks again.
func TestGrownDiskIsSeenToHaveGrown(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	write(t, d, filled(1), 0)
	var heard atomic.Uint64
	defer d.OnResize(func(size uint64) { heard.Store(size) })()
	d.OnResize(func(uint64) { t.Error("a hook is called that was cancelled") })()
	srv.stop(t)
	grown := newRAM(1 << 21)
	grown.identity = r.identity
	copy(grown.data, r.data)
	srv = startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", grown))
	write(t, d, filled(2), 4096)
	if i := d.Info(); i.Err != nil || i.Size != 1<<21 || d.Geometry().Size != 1<<21 || heard.Load() != 1<<21 || grown.at(0) != 1 || grown.at(4096) != 2 {
		t.Errorf("%+v, heard of %d", i, heard.Load())
	}
	write(t, d, filled(3), 1<<21-4096)
	if e := do(t, d, block.OpRead, make([]byte, 512), 1<<21, 0, 0); e != syscall.EINVAL {
		t.Errorf("a read behind the end: %v", e)
	}
	srv.stop(t)
	startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", r))
	if e := do(t, d, block.OpRead, make([]byte, 512), 0, 0, 0); e != syscall.EIO || !errors.Is(d.Info().Err, ErrShrunk) || d.Geometry().Size != 1<<21 {
		t.Errorf("it has shrunk again: %v, %+v", e, d.Info())
	}
}

func TestRemovedExportFailsAndRevives(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	write(t, d, bytes.Repeat([]byte{7}, 512), 0)
	if err := srv.RemoveExport("r"); err != nil {
		t.Fatal(err)
	}
	if e := do(t, d, block.OpRead, make([]byte, 512), 0, 0, 0); e != syscall.EIO {
		t.Errorf("I/O on a removed export: %v, want EIO", e)
	}
	if i := d.Info(); !errors.Is(i.Err, ErrNotFound) {
		t.Errorf("state %v", i.Err)
	}
	if _, err := d.TryGet(block.OpRead, 0, 512, 0); !errors.Is(err, block.ErrBusy) {
		t.Errorf("TryGet on a failed disk: %v", err)
	}
	if err := srv.RemoveExport("r"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.tried = d.tried.Add(-reopenInterval)
	d.mu.Unlock()
	if got := read(t, d, 512, 0); got[0] != 7 {
		t.Errorf("read %d", got[0])
	}
}

func TestReadOnly(t *testing.T) {
	ro := ramExport("ro", newRAM(1<<20))
	ro.ReadOnly = true
	srv := startServer(t, ro, ramExport("rw", newRAM(1<<20)))
	c := connect(t, srv.addr)
	asked, err := c.Open(testContext(t), "rw", OpenOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Disk{openDisk(t, c, "ro"), asked} {
		if g := d.Geometry(); !g.ReadOnly || g.CanTrim || g.CanWriteZeroes {
			t.Errorf("geometry %+v", g)
		}
		for _, op := range []block.Op{block.OpWrite, block.OpTrim, block.OpWriteZeroes} {
			if e := do(t, d, op, nil, 0, 512, 0); e != syscall.EPERM {
				t.Errorf("%v: %v, want EPERM", op, e)
			}
		}
		read(t, d, 512, 0)
		if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != 0 {
			t.Errorf("flush: %v", e)
		}
	}
	// A client that does not care meets the server's own check.
	forged := openDisk(t, c, "ro")
	forged.geometry.ReadOnly = false
	if e := do(t, forged, block.OpWrite, make([]byte, 512), 0, 0, 0); e != syscall.EROFS {
		t.Errorf("%v, want EROFS", e)
	}
	if i := forged.Info(); i.Err != nil {
		t.Error("an EROFS is not the disk's end:", i.Err)
	}
}

func TestBackendErrorsReachTheClient(t *testing.T) {
	r := newRAM(1 << 20)
	var errno syscall.Errno
	r.before = func(block.Op, int64, int64) syscall.Errno { return errno }
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	for _, want := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EDQUOT} {
		errno = want
		for _, op := range []block.Op{block.OpRead, block.OpWrite, block.OpFlush, block.OpTrim, block.OpWriteZeroes} {
			if e := do(t, d, op, nil, 0, 4096, 0); e != want {
				t.Errorf("%v: %v, want %v", op, e, want)
			}
		}
	}
	errno = 0
	write(t, d, make([]byte, 512), 0)
	if s := srv.Exports()[0].Stats; s.Errors != 15 || s.Writes != 4 {
		t.Errorf("export's stats %+v", s)
	}
}

// TestServerChecksEveryIO: requests that a Disk would not make.
func TestServerChecksEveryIO(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)))
	c := connect(t, srv.addr)
	openDisk(t, c, "r")
	p, err := c.rt.Get(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.rt.Put(p)
	send := func(dir rtrs.Dir, hdr []byte, n int) syscall.Errno {
		w := rtWaiter(make(chan syscall.Errno, 1))
		p.Submit(dir, hdr, n, w)
		return <-w
	}
	io := func(m ioMsg) []byte {
		var b [ioLen]byte
		m.Put(&b)
		return b[:]
	}
	for name, c := range map[string]struct {
		dir  rtrs.Dir
		hdr  []byte
		n    int
		want syscall.Errno
	}{
		"fine":                   {rtrs.Write, io(ioMsg{1, 0, opWrite, 512}), 512, 0},
		"device not open":        {rtrs.Write, io(ioMsg{2, 0, opWrite, 512}), 512, syscall.ENODEV},
		"device of the past":     {rtrs.Write, io(ioMsg{1 + maxDevices, 0, opWrite, 512}), 512, syscall.ENODEV},
		"write as a read":        {rtrs.Read, io(ioMsg{1, 0, opWrite, 512}), 512, syscall.EINVAL},
		"read as a write":        {rtrs.Write, io(ioMsg{1, 0, opRead, 512}), 512, syscall.EINVAL},
		"less data than said":    {rtrs.Write, io(ioMsg{1, 0, opWrite, 1024}), 512, syscall.EINVAL},
		"unaligned length":       {rtrs.Write, io(ioMsg{1, 0, opWrite, 100}), 100, syscall.EINVAL},
		"beyond the end":         {rtrs.Write, io(ioMsg{1, 2048, opWrite, 512}), 512, syscall.EINVAL},
		"far beyond the end":     {rtrs.Write, io(ioMsg{1, 1 << 60, opWrite, 512}), 512, syscall.EINVAL},
		"trim beyond the end":    {rtrs.Write, io(ioMsg{1, 2047, opDiscard, 1024}), 0, syscall.EINVAL},
		"trim with data":         {rtrs.Write, io(ioMsg{1, 0, opDiscard, 512}), 512, syscall.EINVAL},
		"secure erase":           {rtrs.Write, io(ioMsg{1, 0, 4, 512}), 0, syscall.EOPNOTSUPP},
		"unknown flag":           {rtrs.Write, io(ioMsg{1, 0, opWrite | 1<<20, 512}), 512, syscall.EOPNOTSUPP},
		"no header":              {rtrs.Read, nil, 512, syscall.EOPNOTSUPP},
		"control as a write":     {rtrs.Write, (&openMsg{Name: "r"}).Append(nil), 64, syscall.EINVAL},
		"OPEN without room":      {rtrs.Read, (&openMsg{Name: "r"}).Append(nil), 8, syscall.EINVAL},
		"LIST without room":      {rtrs.Read, (&numMsg{}).Append(nil, msgList), 8, syscall.EINVAL},
		"LIST from far behind":   {rtrs.Read, (&numMsg{N: 1 << 31}).Append(nil, msgList), 512, 0},
		"CLOSE of what is shut":  {rtrs.Read, (&numMsg{N: 77}).Append(nil, msgClose), 0, 0},
		"OPEN of a bad name":     {rtrs.Read, (&openMsg{Name: "a\n"}).Append(nil), 256, syscall.EINVAL},
		"OPEN of a missing disk": {rtrs.Read, (&openMsg{Name: "q"}).Append(nil), 256, syscall.ENOENT},
	} {
		if e := send(c.dir, c.hdr, c.n); e != c.want {
			t.Errorf("%s: %v, want %v", name, e, c.want)
		}
	}
	if c.Info().Reconnects != 0 {
		t.Error("the session was dropped")
	}
}

type rtWaiter chan syscall.Errno

func (w rtWaiter) Complete(_ *rtrs.Permit, errno syscall.Errno) { w <- errno }

func TestListAndLimits(t *testing.T) {
	srv := startServer(t)
	c := connect(t, srv.addr)
	if list, err := c.List(testContext(t)); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	for i := range 100 {
		if err := srv.AddExport(ramExport(fmt.Sprintf("%0200d", i), newRAM(SectorSize))); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.List(testContext(t))
	if err != nil || len(list) != 100 || list[99].Name != fmt.Sprintf("%0200d", 99) {
		t.Errorf("%d exports, %v", len(list), err)
	}
	if err := srv.AddExport(ramExport(list[0].Name, newRAM(SectorSize))); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if err := srv.AddExport(ramExport("tiny", newRAM(SectorSize-1))); err == nil {
		t.Error("an export without a whole sector was accepted")
	}
	for range maxDevices {
		if _, err := c.Open(testContext(t), list[0].Name, OpenOptions{ReadOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Open(testContext(t), list[0].Name, OpenOptions{ReadOnly: true}); !errors.Is(err, ErrTooManyDisks) {
		t.Error(err)
	}
	for _, d := range c.Disks()[:3] {
		d.Close()
	}
	openDisk(t, c, list[1].Name)
	if n := len(srv.Exports()[0].Openers); n != maxDevices-3 {
		t.Errorf("%d openers", n)
	}
}

func TestClosedClientFailsIO(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	io, err := d.Get(testContext(t), block.OpRead, 0, 512, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	w := newWaiter()
	io.Submit(w, false)
	if e := w.wait(t); e != syscall.ESHUTDOWN {
		t.Errorf("%v, want ESHUTDOWN", e)
	}
	io.Release()
	if e := do(t, d, block.OpRead, nil, 0, 512, 0); e != syscall.ESHUTDOWN {
		t.Errorf("%v, want ESHUTDOWN", e)
	}
	if _, err := c.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A session that is back opens its disks at once, not one after the other: with the server's
// next life each of them has something to store, which its host stores together.
func TestDisksAreReopenedAtOnce(t *testing.T) {
	const disks = 20
	var before, after []Export
	for i := range disks {
		r := newRAM(1 << 20)
		before, after = append(before, ramExport(fmt.Sprint("r", i), r)), append(after, ramExport(fmt.Sprint("r", i), nextLife(r)))
	}
	srv := startServer(t, before...)
	cl := connect(t, srv.addr)
	var storing atomic.Int32
	var wait atomic.Bool
	keep := func(Claim) error {
		storing.Add(1)
		eventually(t, "all are stored", func() bool { return !wait.Load() || storing.Load() == disks })
		return nil
	}
	var open []*Disk
	for i := range disks {
		d, err := cl.Open(testContext(t), fmt.Sprint("r", i), OpenOptions{Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, d)
	}
	storing.Store(0)
	wait.Store(true)
	srv.stop(t)
	startServerAt(t, srv.addr, rtrs.ServerConfig{}, after...)
	for _, d := range open {
		read(t, d, 512, 0)
	}
}
