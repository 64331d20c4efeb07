package rnbd

import (
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
)

// A client that goes while its write waits for an earlier one to the same bytes takes it
// along, and others that waited for that one do not wait any longer than they must.
func TestWriteThatWaitsForAnotherGoesWithItsClient(t *testing.T) {
	r := newRAM(1 << 20)
	entered, release, writes := r.holdFirstWrite()
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	stays, goes := d.NewUser(), d.NewUser()
	one := start(t, stays, block.OpWrite, filled(1), 0)
	<-entered
	two := start(t, goes, block.OpWrite, append(filled(2), filled(2)...), 0)
	three := start(t, stays, block.OpWrite, filled(3), 4096)
	goes.Abandon()
	if errno := two.wait(t); errno != syscall.ECANCELED {
		t.Errorf("the write of the client that is gone: %v", errno)
	}
	if errno := three.wait(t); errno != 0 {
		t.Errorf("a write that waited for it alone: %v", errno)
	}
	close(release)
	if errno := one.wait(t); errno != 0 {
		t.Error(errno)
	}
	if a, b, n := r.at(0), r.at(4096), writes.Load(); a != 1 || b != 3 || n != 2 {
		t.Errorf("the blocks have %d and %d after %d writes", a, b, n)
	}
}

// An I/O that comes to its end in another user's call is one of a batch: its front end
// hears of it by the end of that.
func TestEndInAnothersCallIsToldByABatch(t *testing.T) {
	r := newRAM(1 << 20)
	begun, goOn := make(chan struct{}), make(chan struct{})
	r.before = func(op block.Op, off, _ int64) syscall.Errno {
		if op == block.OpWrite && off == 0 {
			close(begun)
			<-goOn
		}
		return 0
	}
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	one, gone, other := d.NewUser(), d.NewUser(), d.NewUser()
	first := start(t, one, block.OpWrite, make([]byte, 8192), 0)
	<-begun
	second := start(t, gone, block.OpWrite, make([]byte, 8192), 4096) // waits for the first
	third := start(t, other, block.OpWrite, make([]byte, 4096), 8192) // waits for the second
	d.noteLost()
	batches := make(chan struct{}, 10)
	cancel := d.OnBatchEnd(func() { batches <- struct{}{} })
	gone.Abandon()
	if errno := second.wait(t); errno != syscall.ECANCELED {
		t.Errorf("the write of who is gone: %v", errno)
	}
	if errno := third.wait(t); errno != syscall.EIO {
		t.Errorf("the write behind it, to a disk that has failed: %v", errno)
	}
	select {
	case <-batches:
	default:
		t.Error("no batch of completions has ended: who waits for the third is not answered")
	}
	cancel()
	close(goOn)
	first.wait(t)
}
