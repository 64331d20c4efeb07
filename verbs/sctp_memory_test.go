//go:build !race

package verbs

import (
	"runtime"
	"testing"
)

// An idle stream costs no more than 20 KiB, once it has moved data: goroutines,
// queues, buffers and its part of the association. The kernel's socket buffers are
// those of the association.
func TestMemoryOfIdleStreamsOverSCTP(t *testing.T) {
	const n, budget = 500, 20 << 10
	a, b, _, accepted := sctpEnds(t, Config{})
	target := b.mr(64<<10, LocalWrite|RemoteWrite|RemoteRead)
	src := a.mr(64<<10, LocalWrite)
	open := func() {
		qp, err := a.dial(sctpLocal)
		if err != nil {
			t.Fatal(err)
		}
		e := a.on(qp)
		e.post(SendWR{Op: OpWrite, SGL: whole(src, 64<<10), RemoteSTag: target.STag()})
		e.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(src, 64<<10), RemoteSTag: target.STag()})
		e.wantOK(WCRead)
		<-accepted
	}
	open() // what the association costs
	before := inUse()
	for range n {
		open()
	}
	if each := (inUse() - before) / n / 2; each > budget {
		t.Errorf("an end of an idle stream costs %d bytes, %d are allowed", each, budget)
	} else {
		t.Logf("an end of an idle stream costs %d bytes", each)
	}
}

// inUse is the memory of objects and stacks in bytes, without what waits to be
// collected.
func inUse() int {
	runtime.GC()
	runtime.GC() // pools keep things for one more
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}
