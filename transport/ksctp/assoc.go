package ksctp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Assoc is an association of the kernel. It is established from the start; its messages
// and events are delivered after Start. Its methods may be called from several
// goroutines.
type Assoc struct {
	conn        *socket.Conn
	rc          syscall.RawConn
	c           Config
	v6          bool
	out, in     int
	local, peer []netip.AddrPort
	early       []notification // received with the handshake

	max   atomic.Int64 // MaxMessage
	asked atomic.Int64 // when the kernel was last asked for max, UnixNano
	used  atomic.Int64 // when a message was last sent or received, UnixNano
	heard atomic.Int64 // when something was last received, UnixNano

	resends resends  // for Stats
	narrow  narrowed // what earlier associations found about the path; never changes

	// Receiving: see receive.go.
	rx receiving

	done chan struct{}
	wg   sync.WaitGroup // goroutines that wait for room

	mu        sync.Mutex // guards the fields below it
	tx        sending    // see send.go
	room      sync.Cond
	started   bool
	ending    bool        // ended by Abort, the kernel or a timer
	err       error       // why it ended; final when done is closed
	shutting  bool        // Shutdown was called
	peerShut  bool        // the peer is shutting it down
	errno     unix.Errno  // of the socket, when the association has failed
	deadTimer *time.Timer // of Config.DeadAfter
	stuck     stuck
	ups       int // how often a path came back up
}

var _ assoc.Association = (*Assoc)(nil)

// newAssoc takes over the socket of an established association.
func newAssoc(conn *socket.Conn, c *Config, v6 bool, out, in uint16, early []notification) (*Assoc, error) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	a := &Assoc{conn: conn, rc: rc, c: *c, v6: v6, out: int(out), in: int(in), early: early, done: make(chan struct{})}
	if a.local, a.peer, err = addrsOf(conn); err != nil {
		return nil, err
	}
	if len(a.local) == 0 || len(a.peer) == 0 {
		return nil, errors.New("the kernel gives no addresses of the association")
	}
	if err := a.tx.init(a); err != nil {
		return nil, err
	}
	a.room.L = &a.mu
	a.rx.init(a)
	now := time.Now().UnixNano()
	a.used.Store(now)
	a.heard.Store(now)
	if n := c.Narrow.of(a.peer[0].Addr()); n.mtu > 0 {
		if err := a.limitMTU(n); err != nil {
			return nil, err
		}
	}
	return a, a.refresh()
}

// LocalAddrs returns all addresses of this end. They do not change.
func (a *Assoc) LocalAddrs() []netip.AddrPort { return slices.Clone(a.local) }

// PeerAddrs returns all addresses of the peer, the primary path's first. They do not
// change.
func (a *Assoc) PeerAddrs() []netip.AddrPort { return slices.Clone(a.peer) }

// Start delivers everything to r from now on, first EventUp, last EventDown, even if the
// association has already ended. It must be called once.
func (a *Assoc) Start(r assoc.Receiver) {
	a.mu.Lock()
	if a.started {
		panic("ksctp: an association is started twice")
	}
	a.rx.recv = r
	a.started = !a.ending
	if a.started {
		a.scheduleCheckLocked()
	}
	aborted, err := a.ending, a.err
	a.mu.Unlock()
	if aborted {
		r.Event(assoc.Event{Kind: assoc.EventUp})
		r.Event(assoc.Event{Kind: assoc.EventDown, Err: err})
		return
	}
	go a.read()
}

// Streams implements assoc.Association.
func (a *Assoc) Streams() (out, in int) { return a.out, a.in }

// MaxMessage implements assoc.Association.
func (a *Assoc) MaxMessage() int { return int(a.max.Load()) }

// Done implements assoc.Association.
func (a *Assoc) Done() <-chan struct{} { return a.done }

// Err implements assoc.Association.
func (a *Assoc) Err() error {
	select {
	case <-a.done:
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.err
	default:
		return nil
	}
}

// Shutdown implements assoc.Association.
func (a *Assoc) Shutdown(ctx context.Context) error {
	a.mu.Lock()
	if !a.started {
		a.mu.Unlock()
		a.Abort("nothing was begun")
		return nil
	}
	a.shutting = true
	a.flushLocked()
	a.mu.Unlock()
	select {
	case <-a.done:
		return a.wrap("shut down", a.Err())
	case <-ctx.Done():
		a.Abort("the shutdown took too long")
		return a.wrap("shut down", ctx.Err())
	}
}

// Abort implements assoc.Association. The peer gets the cause User-Initiated Abort
// without the reason, which the kernel accepts only on one-to-many sockets; only Err at
// this end has it.
func (a *Assoc) Abort(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failLocked(&assoc.AbortError{Local: true, Cause: assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte(reason)}})
}

// Close is Abort without a reason. It is idempotent and does not wait.
func (a *Assoc) Close() error {
	a.Abort("")
	return nil
}

// failLocked is Abort with what Err will say.
func (a *Assoc) failLocked(err error) {
	if a.ending {
		return
	}
	a.endLocked(err)
	a.conn.Close() // sends an ABORT; the reader, if there is one, ends and does the rest
	if !a.started {
		close(a.done)
	}
}

// endLocked notes why the association is over.
func (a *Assoc) endLocked(err error) {
	a.ending, a.err = true, err
	if a.deadTimer != nil {
		a.deadTimer.Stop()
	}
	if a.stuck.timer != nil {
		a.stuck.timer.Stop()
	}
	a.rx.resume()
	a.room.Broadcast()
}

// finish ends the association for the reader.
func (a *Assoc) finish(err error) {
	a.mu.Lock()
	if !a.ending {
		a.endLocked(err)
		// A peer that shuts down still gets what was queued (RFC 9260 section 9.2).
		_ = control(a.conn, func(fd int) error { return abortive(fd, false) })
	}
	err = a.err
	a.mu.Unlock()
	a.conn.Close()
	a.wg.Wait()
	a.rx.recv.Event(assoc.Event{Kind: assoc.EventDown, Err: err})
	close(a.done)
}

// alive reports whether the kernel still has the association.
func (a *Assoc) alive() bool {
	_, err := a.status()
	return err == nil
}

func (a *Assoc) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &assoc.Error{Op: op, Remote: a.peer[0], Err: err}
}

// errClosedLocked is what is left to say about an association that is over.
func (a *Assoc) errClosedLocked() error { return cmp.Or(a.err, net.ErrClosed) }
