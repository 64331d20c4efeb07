package vhost

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// event is an event counter (eventfd) by which the front end and this side wake each other.
type event struct {
	f    *os.File
	raw  syscall.RawConn
	refs atomic.Int32 // its owner, and those that signal: the last closes it, so that nobody waits for another
}

// newEvent takes over a descriptor of the front end's. It fails for what is no event counter,
// and closes it then.
func newEvent(fd int) (*event, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && !strings.HasPrefix(name, "anon_inode:[eventfd]") {
		err = broken("a descriptor that is to wake a queue is %q and no event counter", name)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	e := &event{f: os.NewFile(uintptr(fd), "eventfd")}
	if e.raw, err = e.f.SyscallConn(); err != nil {
		e.f.Close()
		return nil, err
	}
	e.refs.Store(1)
	return e, nil
}

// wait waits until the counter is not zero, and makes it so. It fails after interrupt, and if
// it cannot be read.
func (e *event) wait() (err error) {
	if rerr := e.raw.Read(func(fd uintptr) bool {
		err = resetCounter(int(fd))
		return err != unix.EAGAIN
	}); rerr != nil {
		return rerr
	}
	return err
}

// resetCounter makes a counter zero. It does not wait, even if the front end has made the
// descriptor one that waits: if the counter is zero, it fails with EAGAIN.
func resetCounter(fd int) error {
	var b [8]byte
	for {
		_, err := unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
		if err != unix.EINTR {
			return err
		}
	}
}

// interrupt makes wait fail until resume.
func (e *event) interrupt() { e.f.SetReadDeadline(time.Unix(1, 0)) }
func (e *event) resume()    { e.f.SetReadDeadline(time.Time{}) }

// signal wakes the other side. A counter that is full has woken it before, and one that is
// closed has been replaced by another, which has woken it.
func (e *event) signal() error {
	if e == nil || !e.retain() {
		return nil
	}
	defer e.close()
	var b [8]byte
	b[0] = 1
	var err error
	if cerr := e.raw.Control(func(fd uintptr) { _, err = unix.Write(int(fd), b[:]) }); cerr != nil {
		return cerr
	}
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil
	}
	return err
}

// drain empties the counter, so that a write that waits for room goes on.
func (e *event) drain() {
	if e != nil {
		_ = e.raw.Control(func(fd uintptr) { _ = resetCounter(int(fd)) })
	}
}

// retain keeps the counter open until close. It reports false if it has been closed.
func (e *event) retain() bool {
	for {
		n := e.refs.Load()
		if n == 0 {
			return false
		}
		if e.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (e *event) close() {
	if e != nil && e.refs.Add(-1) == 0 {
		e.f.Close()
	}
}

// isInterrupted reports whether wait failed by interrupt or close.
func isInterrupted(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed)
}
