package vhost

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
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

// held is a ring in use, and an I/O whose data is being delivered, until the test says so.
type held struct {
	ring
	block.IO
	began, let chan struct{}
}

func (h *held) wait()                    { close(h.began); <-h.let }
func (h *held) pop(*chain) (bool, error) { h.wait(); return false, nil }
func (h *held) push(*chain, uint32)      { h.wait() }
func (h *held) publish() bool            { return false }
func (h *held) rearm() bool              { h.wait(); return false }
func (h *held) Buffers() [][]byte        { h.wait(); return nil }
func (h *held) Release()                 {}

// A front end is hung up on when nobody touches its memory any more, and its queues' goroutines
// are among them: once it is hung up on it shows another back end what is under way.
func TestNobodyTouchesTheMemoryWhenTheFrontEndIsHungUpOn(t *testing.T) {
	for what, use := range map[string]func(r *runner, h *held){
		"takes a request":       func(r *runner, _ *held) { _, _ = r.popRequest() },
		"asks for kicks":        func(r *runner, _ *held) { _, _ = r.rearm() },
		"delivers what is read": func(r *runner, h *held) { _, _ = r.endPiece(&piece{req: &request{r: r, op: block.OpRead}, io: h}) },
		"gives a request back":  func(r *runner, _ *held) { _, _, _ = r.pushAll(&request{r: r}) },
	} {
		t.Run(what, func(t *testing.T) {
			here, there := socketPair(t)
			f := &frontend{srv: &Server{}, nc: here, cancel: func() {}}
			h := &held{began: make(chan struct{}), let: make(chan struct{})}
			r := &runner{f: f, ring: h}
			used, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(used)
				use(r, h)
			}()
			<-h.began
			go func() {
				defer close(ended)
				f.fail(errStopped)
			}()
			for !f.gone.Load() {
				runtime.Gosched()
			}
			there.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := there.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the front end is hung up on meanwhile: %v", err)
			}
			close(h.let)
			<-used
			<-ended
			use(r, h) // touches nothing any more: that would close began twice
		})
	}
}

func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}
