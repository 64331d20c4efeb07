package iscsi

import "testing"

// TestFence: a response waits for all that was sent before it, and those behind it for its
// acknowledgement, whichever connections end meanwhile.
func TestFence(t *testing.T) {
	var f Fence
	if !f.Open() || f.MaySend() {
		t.Fatal("a fence that nobody has raised")
	}
	f.Raise([]SentStatus{{1, 0xffffffff}, {2, 7}, {3, 9}})
	f.Acknowledge(1, 0xffffffff) // not beyond it
	f.Acknowledge(2, 9)          // well beyond it
	f.Acknowledge(4, 100)        // not awaited
	if f.Open() || f.MaySend() {
		t.Error("not all is acknowledged")
	}
	f.Acknowledge(1, 0)
	f.Lost(3)
	if f.Open() || !f.MaySend() {
		t.Fatal("all is acknowledged, or lost")
	}
	f.Send(SentStatus{2, 8})
	f.Acknowledge(2, 8)
	f.Acknowledge(1, 50)
	f.Lost(1)
	if f.Open() || f.MaySend() {
		t.Error("the response is not acknowledged")
	}
	f.Acknowledge(2, 9)
	if !f.Open() {
		t.Error("the response is acknowledged")
	}
	if f.Raise(nil); !f.MaySend() {
		t.Error("it waits for nothing")
	}
	f.Send(SentStatus{5, 1})
	if f.Lost(5); !f.Open() {
		t.Error("its connection has ended")
	}
}
