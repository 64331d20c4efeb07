package vhost

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Memory that a front end shares just when one of its queues has ended by itself, as by a ring
// that it has broken, is not kept for that queue, and what it shared before is given up by it
// once: requests of other queues may still have that.
func TestMemoryChangesWhenAQueueHasEnded(t *testing.T) {
	const num, user = 16, 1 << 32
	at := vringAddr{desc: user, avail: user + 1024, used: user + 2048}
	share := func() *memory {
		fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, 8192); err != nil {
			t.Fatal(err)
		}
		r, err := mapRegion(regionInfo{size: 8192, user: user}, fd)
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMemory([]*region{r})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	mem, other := share(), share()
	ring, err := newSplitRing(mem, num, at, 0, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{f: &frontend{}, wake: make(chan struct{}, 1), over: make(chan struct{}), ring: ring, mem: mem.retain(), out: 1}
	r.countEnded(1)
	r.giveBack()
	if err := r.relocate(other, at); err != nil {
		t.Error(err)
	}
	if n := mem.refs.Load(); n != 1 {
		t.Errorf("the memory that was there before is kept by %d, not by the front end alone", n)
	}
	if n := other.refs.Load(); n != 1 {
		t.Errorf("the other memory is kept by %d, not by the front end alone", n)
	}
	mem.release()
	other.release()
}
