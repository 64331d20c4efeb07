package vhost

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A counter that is replaced while its front end is told of an end by it does not end the front
// end: whoever replaces it tells the front end by the new one. Nor does it keep whoever replaces
// it, if it is full and waits.
func TestReplacedCounter(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	newOne := func() *event {
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
	e := newOne()
	e.close()
	if err := e.signal(); err != nil {
		t.Error(err)
	}
	e = newOne()
	if _, err := unix.Write(fd, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
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
