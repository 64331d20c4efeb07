package rnbd

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// A disk that grows while it is attached is used to its new end, without a new session, and
// does not shrink with one.
func TestDiskGrowsWhileItIsAttached(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r), ramExport("other", newRAM(1<<20)))
	l := startLink(t, srv.addr.String())
	c := connectOne(t, l)
	d, other := openDisk(t, c, "r"), openDisk(t, c, "other")
	var heard atomic.Uint64
	defer d.OnResize(func(size uint64) { heard.Store(size) })()
	r.grow(2 << 20)
	if err := srv.Grown("r"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c.askSizes(testContext(t))
	}
	if d.Geometry().Size != 2<<20 || d.Info().Size != 2<<20 || heard.Load() != 2<<20 || other.Geometry().Size != 1<<20 {
		t.Errorf("%d bytes, heard of %d; the other disk has %d", d.Geometry().Size, heard.Load(), other.Geometry().Size)
	}
	write(t, d, filled(7), 2<<20-4096)
	if r.at(2<<20-4096) != 7 {
		t.Error("what was written behind the old end is not there")
	}
	if e := do(t, d, block.OpRead, make([]byte, 512), 2<<20, 0, 0); e != syscall.EINVAL {
		t.Errorf("a read behind the new end: %v", e)
	}
	l.set(false)
	eventually(t, "the path is lost", func() bool { return c.Info().State == rtrs.Reconnecting })
	l.set(true)
	if got := read(t, d, 512, 2<<20-4096); got[0] != 7 || d.Geometry().Size != 2<<20 {
		t.Errorf("in the next session it has %d bytes", d.Geometry().Size)
	}
	if err := srv.Grown("none"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// A quiet session does not ask what has grown until it has had I/O: its security associations
// are given up when nothing moves.
func TestQuietSessionAsksNothingWithoutIO(t *testing.T) {
	r := newRAM(1 << 20)
	c := connectOne(t, startLink(t, startServer(t, ramExport("r", r)).addr.String()))
	d := openDisk(t, c, "r")
	c.askSizes(testContext(t))
	asked := c.rt.Stats()
	if !c.asksAfter(asked) {
		t.Error("a session asks although nothing moves, unless it is quiet")
	}
	c.SetQuiet(true)
	if c.asksAfter(asked) {
		t.Error("a quiet session asks although nothing moves")
	}
	write(t, d, filled(7), 0)
	eventually(t, "it asks after I/O, which is counted a moment after its end", func() bool { return c.asksAfter(asked) })
}

// Many disks that have grown come in several answers.
func TestManyDisksGrow(t *testing.T) {
	const disks = 300
	var rams []*ram
	var exports []Export
	for i := range disks {
		rams = append(rams, newRAM(4096))
		exports = append(exports, ramExport(fmt.Sprint("r", i), rams[i]))
	}
	srv := startServer(t, exports...)
	c := connect(t, srv.addr)
	var all []*Disk
	for i, r := range rams {
		all = append(all, openDisk(t, c, exports[i].Name))
		r.grow(8192)
		if err := srv.Grown(exports[i].Name); err != nil {
			t.Fatal(err)
		}
	}
	c.askSizes(testContext(t))
	for _, d := range all {
		if d.Geometry().Size != 8192 {
			t.Fatalf("%s has %d bytes", d.Export(), d.Geometry().Size)
		}
	}
}

// Only a disk that nobody has open is made smaller.
func TestShrinkIsRefusedWhileTheDiskIsOpen(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	if err := srv.Shrink("r", 1<<19); !errors.Is(err, ErrInUse) || srv.Exports()[0].Size != 1<<20 {
		t.Error(err)
	}
	d.Close()
	if err := srv.Shrink("r", 1<<19); err != nil {
		t.Error(err)
	}
	if got := openDisk(t, c, "r").Geometry().Size; got != 1<<19 {
		t.Errorf("%d bytes", got)
	}
	if err := srv.Shrink("none", 1<<19); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// What a hostile server answers does no harm.
func TestMalformedListOfGrownDevices(t *testing.T) {
	good, _ := (&grownRsp{Devices: []grownDevice{{1, 8}}}).Append(nil, 4096)
	for name, spoil := range map[string]func(b []byte) []byte{
		"cut off":          func(b []byte) []byte { return b[:len(b)-1] },
		"no header":        func(b []byte) []byte { return b[:8] },
		"too many entries": func(b []byte) []byte { le.PutUint32(b[4:], 1<<31); return b },
		"an endless disk":  func(b []byte) []byte { le.PutUint64(b[20:], 1<<60); return b },
		"another message":  func(b []byte) []byte { b[0] = msgListRsp; return b },
	} {
		var m grownRsp
		if err := m.Parse(spoil(append([]byte(nil), good...))); !errors.Is(err, ErrWire) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is being opened while the disk is made smaller gets to know of no more than is left.
func TestDiskShrinksWhileItIsBeingOpened(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)))
	d := newDevice(srv.Server.exports["r"], &session{srv: srv.Server}, block.NewID(), false)
	if err := srv.Shrink("r", 1<<19); err != nil {
		t.Fatal(err)
	}
	if refused, err := srv.Server.admitDevice(d, false); refused != nil || err != nil {
		t.Fatalf("%+v, %v", refused, err)
	}
	if d.sectors*SectorSize != 1<<19 {
		t.Errorf("it is told of %d sectors", d.sectors)
	}
	d.close()
}
