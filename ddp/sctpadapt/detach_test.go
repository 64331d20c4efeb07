package sctpadapt_test

import (
	"bytes"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
)

// A batch that the association has no room for is kept as a copy, so that the
// payloads' memory may change; the memory of the copy is used again.
func TestBatchesThatWaitAllocateNothing(t *testing.T) {
	f := newFake(t, sctpadapt.Config{}, true)
	s := f.open()
	hdr := ddp.AppendTagged(nil, true, 0x40, 1, 0)
	payload := bytes.Repeat([]byte{7}, 1000)
	sgl := [][]byte{payload}
	wait := func() {
		clear(payload[:1])
		for range 40 {
			if err := s.Append(hdr, sgl); err != nil {
				t.Fatal(err)
			}
		}
		f.full = true
		if done, err := s.TryFlush(); done || err != nil {
			t.Fatal(done, err)
		}
		s.Detach()
		s.Detach() // once is enough
		payload[0] = 9
		f.full = false
		if done, err := s.TryFlush(); !done || err != nil {
			t.Fatal(done, err)
		}
	}
	wait()
	for range 40 {
		if b := f.next().Bufs[0]; !bytes.Equal(b[2:len(hdr)+2], hdr) || b[len(hdr)+2] != 0 || b[len(hdr)+3] != 7 {
			t.Fatalf("a message that waited is %x", b[:len(hdr)+8])
		}
	}
	if raceEnabled {
		return // it makes sync.Pool forget at random
	}
	f.forget = true
	wait()
	if n := testing.AllocsPerRun(100, wait); n != 0 {
		t.Errorf("%v allocations in a batch that waits", n)
	}
}
