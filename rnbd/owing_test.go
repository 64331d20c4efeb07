package rnbd

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rtrs"
)

// An I/O costs what it costs, however many sessions have its disk open: those that are
// owed no response are not looked at.
func TestResponsesOfOneSessionTouchNoOther(t *testing.T) {
	const others = 20
	r := newRAM(1 << 20)
	r.before = func(block.Op, int64, int64) syscall.Errno { return 0 } // not in the caller's goroutine
	srv := NewServer(ServerConfig{})
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	var flushed [others + 1]atomic.Int32
	rt := startServerAt(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iwarptest.FreePort(t)), rtrs.ServerConfig{NewSession: func(i rtrs.SessionInfo) (rtrs.ServerHandler, error) {
		var n int
		if _, err := fmt.Sscanf(i.Name, "session %d", &n); err != nil {
			return nil, err
		}
		flush := i.Flush
		i.Flush = func() { flushed[n].Add(1); flush() }
		return srv.NewSession(i)
	}})
	var disks []*Disk
	for i := range others + 1 {
		d, err := connectAs(t, fmt.Sprintf("session %d", i), loopback(), rt.addr).Open(testContext(t), "r", OpenOptions{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		disks = append(disks, d)
	}
	for i := range flushed {
		flushed[i].Store(0)
	}
	for range 50 {
		if e := do(t, disks[0], block.OpRead, make([]byte, SectorSize), 0, 0, 0); e != 0 {
			t.Fatal(e)
		}
	}
	for i := range flushed {
		if n := flushed[i].Load(); i > 0 && n > 0 {
			t.Errorf("session %d, which reads nothing, was asked %d times to send responses", i, n)
		}
	}
}
