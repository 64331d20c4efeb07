package rnbd

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

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

func TestExportThatIsNotOpenYetSaysSo(t *testing.T) {
	srv := startServer(t)
	peer := connect(t, srv.addr)
	srv.Await("r", "", nil, "no such file")
	if _, err := peer.Open(testContext(t), "r", OpenOptions{}); !errors.Is(err, ErrForbidden) {
		t.Errorf("who may not open it: %v", err)
	}
	id := srv.rt.Sessions()[0].Peer
	srv.Await("r", "", append(ramExport("r", nil).Allow, id), "no such file")
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
