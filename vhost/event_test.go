package vhost

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A counter that is replaced while its front end is told of an end by it does not end the front
// end: whoever replaces it tells the front end by the new one. Nor does it keep whoever replaces
// it, if it is full and waits.
func TestReplacedCounter(t *testing.T) {
	fd, newOne := counter(t)
	e := newOne()
	e.close()
	if err := e.signal(); err != nil {
		t.Error(err)
	}
	e = newOne()
	fill(t, fd)
	told := make(chan error)
	go func() { told <- e.signal() }()
	for e.refs.Load() < 2 { // it is in use
	}
	e.close()
	e.drain()
	if err := <-told; err != nil {
		t.Error(err)
	}
	if err := e.raw.Control(func(uintptr) {}); err == nil {
		t.Error("its descriptor stays")
	}
}

// A front end that is gone has its counters still, and gives the same to whoever serves it next:
// who has served it before takes neither a call nor a kick from them. A call that waits for room
// ends nevertheless.
func TestCountersOfTheNextFrontEnd(t *testing.T) {
	fd, newOne := counter(t)
	e := newOne()
	defer e.close()
	r := &runner{f: &frontend{}, kick: e}
	r.f.gone.Store(true)
	if err := r.callSignal.signal(e); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.callSignal.unblock()
	}
	if n := read(t, fd); n != 1 {
		t.Errorf("a call is counted as %d after the queue's end, not once", n)
	}
	if err := e.signal(); err != nil {
		t.Fatal(err)
	}
	if err := r.awaitKick(); err != nil {
		t.Fatal(err)
	}
	if n := read(t, fd); n != 1 {
		t.Errorf("a kick is counted as %d after the queue's end, not once", n)
	}
	fill(t, fd)
	told := make(chan error)
	go func() { told <- r.callSignal.signal(e) }()
	for r.callSignal.to.Load() == nil {
	}
	r.callSignal.unblock()
	r.callSignal.unblock()
	if err := <-told; err != nil {
		t.Error(err)
	}
}

// A front end can have a counter wait when it has come, before the guest is told by it. Whoever
// receives its messages does not wait then: there would be nobody left to see that it hangs up. The
// queue waits, until there is room or the front end is gone.
func TestNewCounterThatWaits(t *testing.T) {
	fd, newOne := counter(t)
	e := newOne()
	fill(t, fd)
	q := &queue{runner: &runner{f: &frontend{}, wake: make(chan struct{}, 1), out: 1}}
	r := q.runner
	set := make(chan struct{})
	go func() {
		defer close(set)
		q.setCall(e)
	}()
	select {
	case <-set:
	case <-time.After(10 * time.Second):
		t.Error("who receives the front end's messages waits")
		e.drain()
		<-set
		return
	}
	<-r.wake
	told := make(chan error)
	go func() { told <- r.giveBackEnded() }()
	for r.callSignal.to.Load() == nil {
	}
	for range 2 {
		r.callSignal.unblock()
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	if n := read(t, fd); n != 1 || r.out != 1 { // unlocked: it is nobody else's
		t.Errorf("the guest is told %d times, and %d have not ended", n, r.out)
	}
	q.setCall(nil)
}

func counter(t *testing.T) (fd int, newOne func() *event) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd, func() *event {
		dup, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		e, err := newEvent(dup)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

// fill has writes wait.
func fill(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// read is what a counter has, which is 0 afterwards.
func read(t *testing.T, fd int) uint64 {
	t.Helper()
	var b [8]byte
	if _, err := unix.Read(fd, b[:]); err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return le.Uint64(b[:])
}
