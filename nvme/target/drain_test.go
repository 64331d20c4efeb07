package target

import (
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
)

// TestDrainWaitsForWhatWasThere: what hosts had at the storage when a drain began has to end, and nothing else: a host that reads without
// a pause, as a reservation may allow, would hold up a Preempt and Abort for ever.
func TestDrainWaitsForWhatWasThere(t *testing.T) {
	n := &Namespace{running: map[block.ID]int{}, drained: make(chan struct{})}
	begin := func(host byte) *command {
		k := &command{ctrl: &controller{host: nvme.ConnectData{HostID: block.ID{host}}}}
		if st := n.begin(k.ctrl, k, nvme.Read); st != nvme.Success {
			t.Fatal(st)
		}
		return k
	}
	drained := 0
	drain := func(hosts ...block.ID) { n.whenDrained(hosts, func() { drained++ }) }
	want := func(when string, n int) {
		t.Helper()
		if drained != n {
			t.Errorf("%s: %d drains are over, want %d", when, drained, n)
		}
	}
	one, other := block.ID{1}, block.ID{2}
	drain(one)
	want("nothing is there", 1)
	first, others := begin(1), begin(2)
	drain(one)
	want("one read is there", 1)
	second := begin(1)
	drain(one, other)
	n.end(first)
	want("it has ended, and the next is there", 2)
	n.end(others)
	want("the other host's has ended", 2)
	third := begin(1)
	n.end(second)
	want("all that was there has ended", 3)
	n.end(third)
	if len(n.waiting) != 0 || len(n.running) != 0 || drained != 3 {
		t.Errorf("left: %d, %v, %d", len(n.waiting), n.running, drained)
	}
}
