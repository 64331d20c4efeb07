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

// Assoc is an association of the kernel. It is established from the first; its
// messages and events come after Start. Its methods may be called from several
// goroutines.
type Assoc struct {
	conn        *socket.Conn
	rc          syscall.RawConn
	c           Config
	v6          bool
	out, in     int
	local, peer []netip.AddrPort
	early       []notification // that came with the handshake

	max   atomic.Int64 // MaxMessage
	asked atomic.Int64 // when the kernel was asked for it, UnixNano
	used  atomic.Int64 // when a message last went or came, UnixNano
	heard atomic.Int64 // when something last came, UnixNano

	vain   vain     // what Stats has seen
	narrow narrowed // the path, as it was found to be before; it does not change

	// Receiving: see receive.go.
	rx receiving

	// Sending: see send.go. mu guards what follows, too.
	mu   sync.Mutex
	tx   sending
	room sync.Cond

	started  bool
	ending   bool        // Abort, the kernel or the clock has ended it
	err      error       // why; final when done is closed
	shutting bool        // Shutdown was called
	peerShut bool        // the peer shuts it down
	errno    unix.Errno  // of the socket, when the association has failed
	death    *time.Timer // of Config.DeadAfter
	stuck    stuck
	ups      int // how often a path has answered again

	done chan struct{}
	wg   sync.WaitGroup // goroutines that wait for room
}

var _ assoc.Association = (*Assoc)(nil)

// newAssoc takes over the socket of an association that is up.
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
		if err := a.keepTo(n); err != nil {
			return nil, err
		}
	}
	return a, a.refresh()
}

// LocalAddrs are all addresses of this end, PeerAddrs those of the peer. They do
// not change.
func (a *Assoc) LocalAddrs() []netip.AddrPort { return slices.Clone(a.local) }

// PeerAddrs are all addresses of the peer, the primary path's first.
func (a *Assoc) PeerAddrs() []netip.AddrPort { return slices.Clone(a.peer) }

// Start has everything handed to r from here on, the first of it EventUp, the last
// EventDown, also if the association is over already. It is to be called once.
func (a *Assoc) Start(r assoc.Receiver) {
	a.mu.Lock()
	if a.started {
		panic("ksctp: an association is started twice")
	}
	a.rx.recv = r
	a.started = !a.ending
	if a.started {
		a.lookAgain()
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
	a.flush()
	a.mu.Unlock()
	select {
	case <-a.done:
		return a.wrap("shut down", a.Err())
	case <-ctx.Done():
		a.Abort("the shutdown took too long")
		return a.wrap("shut down", ctx.Err())
	}
}

// Abort implements assoc.Association. The peer gets the cause User-Initiated Abort, but
// not the reason, which the kernel takes on one-to-many sockets only: it is for Err at
// this end.
func (a *Assoc) Abort(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail(&assoc.AbortError{Local: true, Cause: assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte(reason)}})
}

// Close is Abort without a reason. It is idempotent and waits for nothing.
func (a *Assoc) Close() error {
	a.Abort("")
	return nil
}

// fail is Abort with what Err will say; a.mu is held.
func (a *Assoc) fail(err error) {
	if a.ending {
		return
	}
	a.end(err)
	a.conn.Close() // with an ABORT; the reader, if there is one, ends and does the rest
	if !a.started {
		close(a.done)
	}
}

// end notes why the association is over; a.mu is held.
func (a *Assoc) end(err error) {
	a.ending, a.err = true, err
	if a.death != nil {
		a.death.Stop()
	}
	if a.stuck.timer != nil {
		a.stuck.timer.Stop()
	}
	a.rx.resume()
	a.room.Broadcast()
}

// finish is the reader's last act.
func (a *Assoc) finish(err error) {
	a.mu.Lock()
	if !a.ending {
		a.end(err)
		// If the peer shuts down, it still gets what was queued (RFC 9260 section 9.2).
		_ = control(a.conn, func(fd int) error { return abortive(fd, false) })
	}
	err = a.err
	a.mu.Unlock()
	a.conn.Close()
	a.wg.Wait()
	a.rx.recv.Event(assoc.Event{Kind: assoc.EventDown, Err: err})
	close(a.done)
}

// alive tells whether the kernel still has the association.
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

// errClosed is what is left to say about an association that is over.
func (a *Assoc) errClosed() error { return cmp.Or(a.err, net.ErrClosed) }
