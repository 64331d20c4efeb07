package rnbd

import (
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

// A writer whose session was lost comes back before another host is let in, unless
// it stays away.
func TestWriterHasAGracePeriodWhileItsSessionIsLost(t *testing.T) {
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
			srv := startServerOn(t, overFrom(netip.Addr{}), anyPort, rtrs.ServerConfig{}, ramExport("r", newRAM(1<<20)))
			srv.Server.writerGrace = c.grace
			a := connectAs(t, "a", overFrom(hostA), srv.addr)
			claim := openDisk(t, a, "r").Claim()
			b := connectAs(t, "b", overFrom(hostB), srv.addr)
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
			d, err := connectAs(t, "a", overFrom(hostA), srv.addr).Open(testContext(t), "r", OpenOptions{Claim: claim})
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
