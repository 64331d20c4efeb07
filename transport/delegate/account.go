package delegate

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Account bounds what the programs of one user have a daemon do at a time. What they hand over stays theirs: its close takes
// as long as they like, by SO_LINGER for one, or by a file system of their own; and what needs the lock of a socket waits for
// whoever sends from memory whose pages do not come (FUSE, userfaultfd). So nobody waits for either, and an account has no
// more than so much of it. The zero value is ready.
type Account struct {
	once    sync.Once
	closes  chan struct{} // slots, each a thread that may hang
	asks    chan struct{} // likewise
	closing atomic.Int64
	calls   atomic.Int64
	late    atomic.Int64 // when the kernel was late to answer, in nanoseconds
}

const (
	maxClosing = 32
	maxAsking  = 32
	// maxTrash is how much may wait to be closed.
	maxTrash = 1024
	// askTime is how long the kernel may take to answer about a socket. Where it was late the next answers of that account
	// are waited for no longer than lateTime, for a while.
	askTime  = 250 * time.Millisecond
	lateTime = time.Millisecond
	lateFor  = 10 * time.Second
)

var errLate = errors.New("delegate: the kernel does not answer about the socket, whose program keeps it locked")

// IsFull reports whether so much is being closed that no more should be taken.
func (a *Account) IsFull() bool { return a != nil && a.closing.Load() >= maxTrash }

func (a *Account) ready() {
	a.once.Do(func() { a.closes, a.asks = make(chan struct{}, maxClosing), make(chan struct{}, maxAsking) })
}

// throw has something closed, as soon as when says so; nil: now.
func (a *Account) throw(closeIt func(), when <-chan struct{}) {
	a.ready()
	a.closing.Add(1)
	go func() {
		if when != nil {
			<-when
		}
		a.closes <- struct{}{}
		closeIt()
		<-a.closes
		a.closing.Add(-1)
	}()
}

// patience is how long an answer about a socket is waited for.
func (a *Account) patience() time.Duration {
	if time.Since(time.Unix(0, a.late.Load())) < lateFor {
		return lateTime
	}
	return askTime
}

// ask has f called, and reports whether it has ended in time; over is called when it has, or never begins.
func (a *Account) ask(limit time.Duration, f, over func()) bool {
	a.ready()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a.asks <- struct{}{}:
	case <-timer.C:
		over()
		return false
	}
	done := make(chan struct{})
	go func() {
		f()
		<-a.asks
		over()
		close(done)
	}()
	return a.await(done, timer.C)
}

// await waits for what the kernel does about a socket.
func (a *Account) await(done <-chan struct{}, late <-chan time.Time) bool {
	select {
	case <-done:
		return true
	case <-late:
		a.late.Store(time.Now().UnixNano())
		return false
	}
}

// begin counts a call. It reports false if there is no room for it.
func (a *Account) begin() bool {
	if a.calls.Add(1) > maxCalls {
		a.calls.Add(-1)
		return false
	}
	return true
}

func (a *Account) end() { a.calls.Add(-1) }
