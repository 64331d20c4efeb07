package rnbd

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// powerCut makes a storage as it is after its host lost power.
func powerCut(r *ram) {
	copy(r.data, r.flushed)
	r.identity.Life = block.NewID()
}

var sector = bytes.Repeat([]byte{1}, 512)

// A server that lost power has forgotten what no flush covered: no flush that comes
// later may say that it is there.
func TestFlushFailsWhereAcknowledgedWritesMayBeLost(t *testing.T) {
	for name, c := range map[string]struct {
		write func(t *testing.T, d *Disk)
		then  func(r *ram)
		lost  bool
	}{
		"a write":           {func(t *testing.T, d *Disk) { write(t, d, sector, 0) }, powerCut, true},
		"a write of zeroes": {func(t *testing.T, d *Disk) { mustDo(t, d, block.OpWriteZeroes, 0) }, powerCut, true},
		"a trim":            {func(t *testing.T, d *Disk) { mustDo(t, d, block.OpTrim, 0) }, powerCut, true},
		"a write with FUA":  {func(t *testing.T, d *Disk) { mustDo(t, d, block.OpWrite, block.FUA) }, powerCut, false},
		"a write with FUA before one without": {func(t *testing.T, d *Disk) {
			write(t, d, sector, 0)
			mustDo(t, d, block.OpWrite, block.FUA)
		}, powerCut, true},
		"a write and a flush": {func(t *testing.T, d *Disk) {
			write(t, d, sector, 0)
			mustDo(t, d, block.OpFlush, 0)
		}, powerCut, false},
		"nothing":                   {func(*testing.T, *Disk) {}, powerCut, false},
		"a write, and no power cut": {func(t *testing.T, d *Disk) { write(t, d, sector, 0) }, func(*ram) {}, false},
		"a write, and an orderly end": {func(t *testing.T, d *Disk) { write(t, d, sector, 0) }, func(r *ram) {
			copy(r.flushed, r.data)
			r.kept = append(r.kept, r.identity.Life)
			powerCut(r)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRAM(1 << 20)
			srv := startServer(t, ramExport("r", r))
			d := openDisk(t, connect(t, srv.addr), "r")
			c.write(t, d)
			srv.stop(t)
			c.then(r)
			startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", r))
			want := syscall.Errno(0)
			if c.lost {
				want = syscall.EIO
			}
			for range 2 {
				if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != want {
					t.Errorf("flush: %v, want %v", e, want)
				}
				if e := do(t, d, block.OpWrite, sector, 4096, 0, block.FUA); e != want {
					t.Errorf("write with FUA: %v, want %v", e, want)
				}
			}
			if err := d.Info().Err; errors.Is(err, ErrWritesLost) != c.lost {
				t.Errorf("state %v", err)
			}
			if !c.lost {
				return
			}
			if d.Close(); true {
				d = openDisk(t, d.c, "r")
			}
			mustDo(t, d, block.OpFlush, 0)
		})
	}
}

func mustDo(t *testing.T, d *Disk, op block.Op, fl block.Flags) {
	t.Helper()
	var p []byte
	n := uint32(512)
	switch op {
	case block.OpWrite:
		p = sector
	case block.OpFlush:
		n = 0
	}
	if e := do(t, d, op, p, 0, n, fl); e != 0 {
		t.Fatalf("%v: %v", op, e)
	}
}

// A client that restarts has its NBD clients' flushes to answer for, too.
func TestClaimOutlivesTheClient(t *testing.T) {
	for name, flushed := range map[string]bool{"with unflushed writes": false, "with nothing to flush": true} {
		t.Run(name, func(t *testing.T) {
			r := newRAM(1 << 20)
			srv := startServer(t, ramExport("r", r))
			var kept Claim
			keep := func(c Claim) error { kept = c; return nil }
			c := connect(t, srv.addr)
			d, err := c.Open(testContext(t), "r", OpenOptions{Keep: keep})
			if err != nil {
				t.Fatal(err)
			}
			write(t, d, sector, 0)
			if kept.Disk != r.identity.Disk || kept.Life != r.identity.Life || kept.Attachment.IsZero() {
				t.Fatalf("kept %+v", kept)
			}
			if flushed {
				mustDo(t, d, block.OpFlush, 0)
				kept = d.Claim()
			}
			c.Close()
			powerCut(r)
			c = connect(t, srv.addr)
			d, err = c.Open(testContext(t), "r", OpenOptions{Claim: kept, Keep: keep})
			if !flushed {
				if !errors.Is(err, ErrWritesLost) {
					t.Fatalf("opened again: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			mustDo(t, d, block.OpFlush, 0)
			if kept.Life != r.identity.Life {
				t.Error("the new life was not kept")
			}
		})
	}
}

func TestClaimThatCannotBeKeptOpensNothing(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)))
	full := errors.New("no room")
	c := connect(t, srv.addr)
	if _, err := c.Open(testContext(t), "r", OpenOptions{Keep: func(Claim) error { return full }}); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if n := len(srv.Exports()[0].Openers); n != 0 {
		t.Errorf("%d devices are left open", n)
	}
}

// Who keeps a claim writes it to storage, and may be asked for the disk's state meanwhile.
func TestDiskTellsItsStateWhileItsClaimIsKept(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	c := connect(t, srv.addr)
	asked := make(chan func() DiskInfo, 1)
	d, err := c.Open(testContext(t), "r", OpenOptions{Keep: func(Claim) error {
		select {
		case info := <-asked:
			asked <- info
			info()
		default: // the first time
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	asked <- d.Info
	srv.stop(t)
	powerCut(r)
	startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", r))
	if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != 0 {
		t.Errorf("flush in the next life: %v", e)
	}
}

func TestAnotherDiskInItsPlaceIsRefused(t *testing.T) {
	one, two := newRAM(1<<20), newRAM(1<<20)
	srv := startServer(t, ramExport("r", one))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	write(t, d, sector, 0)
	claim := d.Claim()
	srv.stop(t)
	srv = startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", two))
	for _, op := range []block.Op{block.OpRead, block.OpWrite, block.OpFlush} {
		if e := do(t, d, op, nil, 0, 512, 0); e != syscall.EIO {
			t.Errorf("%v: %v, want EIO", op, e)
		}
	}
	if err := d.Info().Err; !errors.Is(err, ErrOtherDisk) || !strings.Contains(err.Error(), "another disk") {
		t.Errorf("state %v", err)
	}
	if !bytes.Equal(two.data, make([]byte, 1<<20)) {
		t.Error("the other disk was written to")
	}
	_, err := connectAs(t, "restarted", loopback(), srv.addr).Open(testContext(t), "r", OpenOptions{Claim: claim})
	if !errors.Is(err, ErrOtherDisk) {
		t.Errorf("after a restart: %v", err)
	}
	// Its own disk is welcome.
	srv.stop(t)
	startServerAt(t, srv.addr, rtrs.ServerConfig{}, ramExport("r", one))
	eventually(t, "the disk works again", func() bool {
		d.mu.Lock()
		d.tried = d.tried.Add(-reopenInterval)
		d.mu.Unlock()
		return do(t, d, block.OpFlush, nil, 0, 0, 0) == 0
	})
}

// closeRefused is a session whose CLOSE fails.
type closeRefused struct{ rtrs.ServerHandler }

func (c closeRefused) Serve(r *rtrs.Request) {
	if msgType(r.Header) == msgClose {
		r.Complete(syscall.EIO)
		return
	}
	c.ServerHandler.Serve(r)
}

// A disk that lost writes fails although its server does not close the device.
func TestDiskThatLostWritesFailsWhateverTheServerCloses(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	write(t, d, sector, 0)
	srv.stop(t)
	powerCut(r)
	odd := NewServer(ServerConfig{})
	if err := odd.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { odd.Close() })
	startServerAt(t, srv.addr, rtrs.ServerConfig{NewSession: func(i rtrs.SessionInfo) (rtrs.ServerHandler, error) {
		h, err := odd.NewSession(i)
		return closeRefused{h}, err
	}})
	if e := do(t, d, block.OpWrite, sector, 0, 0, 0); e != syscall.EIO {
		t.Errorf("write: %v, want EIO", e)
	}
}

func TestExportHasOneWriter(t *testing.T) {
	srv := startServer(t, ramExport("r", newRAM(1<<20)), sharedExport("shared", newRAM(1<<20)))
	c, other := connect(t, srv.addr), connectAs(t, "another", loopback(), srv.addr)
	d := openDisk(t, c, "r")
	for _, who := range []*Client{c, other} {
		_, err := who.Open(testContext(t), "r", OpenOptions{})
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), string(srv.Exports()[0].Openers[0].Peer)) {
			t.Errorf("a second writer: %v", err)
		}
		if _, err := who.Open(testContext(t), "r", OpenOptions{ReadOnly: true}); err != nil {
			t.Errorf("a reader: %v", err)
		}
		openDisk(t, who, "shared")
	}
	write(t, d, sector, 0)
	// It comes back in another session before its first one is known to be lost.
	claim := d.Claim()
	again, err := other.Open(testContext(t), "r", OpenOptions{Claim: claim})
	if err != nil {
		t.Fatal(err)
	}
	write(t, again, sector, 0)
	if e := do(t, d, block.OpWrite, sector, 0, 0, 0); e != syscall.EIO {
		t.Errorf("its ghost writes: %v, want EIO", e)
	}
	if _, err := c.Open(testContext(t), "r", OpenOptions{Claim: claim}); !errors.Is(err, ErrInUse) {
		t.Errorf("its ghost takes over: %v", err)
	}
	again.Close()
	openDisk(t, c, "r")
}

func TestDamagedExportTakesNoNewWriter(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	c := connect(t, srv.addr)
	claim := openDisk(t, c, "r").Claim()
	c.Close()
	eventually(t, "the session ends", func() bool { return len(srv.Exports()[0].Openers) == 0 })
	r.fault = "fdatasync said \"input/output error\""
	c = connect(t, srv.addr)
	if _, err := c.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "fdatasync said") {
		t.Errorf("a new writer: %v", err)
	}
	if _, err := c.Open(testContext(t), "r", OpenOptions{ReadOnly: true}); err != nil {
		t.Errorf("a reader: %v", err)
	}
	claim.Life = r.identity.Life
	if _, err := c.Open(testContext(t), "r", OpenOptions{Claim: claim}); err != nil {
		t.Errorf("who has it attached: %v", err)
	}
}

func TestExportThatIsNotOpenYetSaysSo(t *testing.T) {
	srv := startServer(t)
	peer := connect(t, srv.addr)
	srv.Await("r", nil, "no such file")
	if _, err := peer.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrForbidden) {
		t.Errorf("who may not open it: %v", err)
	}
	id := srv.rt.Sessions()[0].Peer
	srv.Await("r", append(ramExport("r", nil).Allow, id), "no such file")
	if _, err := peer.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("who may: %v", err)
	}
	if err := srv.RemoveExport("r"); err != nil {
		t.Error(err)
	}
	if _, err := peer.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("after it was removed: %v", err)
	}
	if err := srv.AddExport(ramExport("r", newRAM(1<<20))); err != nil {
		t.Fatal(err)
	}
	openDisk(t, peer, "r")
}

// A writer whose session was lost comes back before another host gets its place, unless
// it stays away.
func TestWriterKeepsItsPlaceWhileItsSessionIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		grace time.Duration
		kept  bool
		end   func(srv *testServer)
	}{
		"for the grace":         {time.Hour, true, func(*testServer) {}},
		"no longer":             {time.Nanosecond, false, func(*testServer) {}},
		"not if it may not any": {time.Hour, false, func(srv *testServer) { _ = srv.SetAllow("r", []transport.Identity{"plaintext:127.0.0.2"}, false) }},
		"not if writers share":  {time.Hour, false, func(srv *testServer) { _ = srv.SetWriters("r", SharedWriters) }},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
			over := func(local netip.Addr) *transport.Config {
				return &transport.Config{Local: local, Protector: transport.Plaintext(testLogger(), first, second)}
			}
			srv := startServerOn(t, over(netip.Addr{}), anyPort, rtrs.ServerConfig{}, ramExport("r", newRAM(1<<20)))
			srv.Server.writerGrace = c.grace
			a := connectAs(t, "a", over(first), srv.addr)
			claim := openDisk(t, a, "r").Claim()
			b := connectAs(t, "b", over(second), srv.addr)
			a.Close() // without a word about the disk, as when it is cut off
			eventually(t, "the session ends", func() bool { return len(srv.rt.Sessions()) == 1 && len(srv.Exports()[0].Openers) == 0 })
			c.end(srv)
			_, err := b.Open(testContext(t), "r", OpenOptions{})
			if !c.kept {
				if err != nil {
					t.Errorf("another host: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "plaintext:127.0.0.1 (its session was lost; its place is kept until ") {
				t.Errorf("another host: %v", err)
			}
			if _, err := b.Open(testContext(t), "r", OpenOptions{ReadOnly: true}); err != nil {
				t.Errorf("a reader: %v", err)
			}
			d, err := connectAs(t, "a", over(first), srv.addr).Open(testContext(t), "r", OpenOptions{Claim: claim})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			openDisk(t, b, "r") // it was left in good order
		})
	}
}
