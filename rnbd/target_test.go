package rnbd

import (
	"bytes"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// sheet is a block.Target.
type sheet struct {
	mu  sync.Mutex // guards the fields below it
	mem []byte
	got int
}

func (s *sheet) Place(at uint64, b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got += copy(s.mem[at:], b)
	return true
}

// A read that needs several permits has each part placed where it belongs, and the same I/O
// submitted again without a target has the data in its buffers.
func TestReadIntoATarget(t *testing.T) {
	const n, off = 5*4096 + 512, 3 * 512
	r := newRAM(1 << 20)
	srv := startServerAt(t, anyPort, rtrs.ServerConfig{QueueDepth: 64, MaxIO: 4096}, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i*7+i>>8) | 1
	}
	write(t, d, want, off)
	io, err := d.Get(testContext(t), block.OpRead, off, n, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer io.Release()
	for _, b := range io.Buffers() {
		clear(b)
	}
	s, w := &sheet{mem: make([]byte, n)}, newWaiter()
	io.(block.TargetIO).SubmitTo(s, w, false)
	if errno := w.wait(t); errno != 0 {
		t.Fatal(errno)
	}
	if !bytes.Equal(s.mem, want) || s.got != n {
		t.Errorf("%d of %d bytes were placed, or others", s.got, n)
	}
	if got := bytes.Join(io.Buffers(), nil); len(got) != n || !bytes.Equal(got, make([]byte, n)) {
		t.Error("the buffers have data")
	}
	io.Submit(w, false)
	if errno := w.wait(t); errno != 0 {
		t.Fatal(errno)
	}
	if !bytes.Equal(bytes.Join(io.Buffers(), nil), want) || s.got != n {
		t.Error("the buffers have other data, or the target has got some again")
	}
}
