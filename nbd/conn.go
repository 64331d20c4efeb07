package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// conn is one client.
//
//	negotiate --> receive requests --> drain --> closed
//	    |                ^   |           ^
//	    |           Get, |   | DISC, end of stream, wrong magic,
//	    |         Submit +---+ context ended
//	    +--> closed
//
// A request's slot circulates:
//
//	free --> receiving goroutine --> at the device --> ready --> at the socket --> free
type conn struct {
	srv  *Server
	nc   net.Conn
	exp  *export
	geo  geometry      // Size is in size
	size atomic.Uint64 // bytes, as the device has it now
	member
	device block.Device    // the export's, for this client
	done   <-chan struct{} // closed when the server's context ends

	// The receiving goroutine's.
	features
	allocationOf *export // the client has selected base:allocation of it
	noZeroes     bool
	rd           *sockio.Reader
	buf          []byte // buf[r:w] is received but not parsed yet
	r, w         int
	vec          [][]byte
	held         bool   // the device may hold I/Os back until Kick
	stage        []byte // a write's payload, of which a slow client has sent a part
	free         *slot
	freeCount    int
	allocated    int

	// Owned by whoever set flushing.
	sock    *sockio.Writer
	sending *slot // what writeLoop starts with

	writeLoop func() // c.write, made once

	dirty atomic.Bool // ready is not empty; makes a batch end without replies cheap
	stuck atomic.Bool // the client does not read its replies: they are kept. Set with mu locked

	mu       sync.Mutex // guards the fields below it
	change   sync.Cond  // a slot was freed, a waited-for I/O completed, flushing ended, cut was set
	ready    slotList   // completed, to be sent
	freed    *slot      // free, for the receiving goroutine
	freedN   int
	flushing bool
	dead     bool // nothing can be sent any more
	cut      bool // nothing is waited for any more
	stopping bool // no request is begun any more
	idle     bool // a request is waited for; kept where clients are handed over
	stop     context.CancelFunc
	slots    []*slot
	ended    bool // the connection is over
	timer    *time.Timer
}

// slot is one request of a client from header to reply.
type slot struct {
	c         *conn
	next      *slot
	io        block.IO
	op        block.Op
	fl        block.Flags
	waited    bool // the receiving goroutine waits for it; it has no reply of its own
	done      bool
	abandoned bool // nobody waits any more
	errno     uint32
	req       request
	since     atomic.Int64 // when it began to wait for the device, 0: it does not

	large []byte // a large read's data
	kept  []byte // a copy of a read's data, whose client does not read it

	parent *slot         // of a piece: the large request
	left   atomic.Int32  // of a large request: pieces at the device, and one until all are
	failed atomic.Uint32 // and the first error

	hole  bool   // the reply says that all that was read is zeroes
	hdr   []byte // the reply's header, in store if it fits
	store [extendedReplyHdrLen + 6 + 64]byte
}

type slotList struct{ head, tail *slot }

func (l *slotList) push(s *slot) {
	s.next = nil
	if l.tail == nil {
		l.head = s
	} else {
		l.tail.next = s
	}
	l.tail = s
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		srv: s, nc: nc,
		rd: sockio.NewReader(nc), sock: sockio.NewWriter(nc),
		buf: make([]byte, receiveBuffer),
	}
	enlarge(nc)
	c.change.L = &c.mu
	c.writeLoop = c.writeReplies
	return c
}

// enlarge gives a Unix socket, whose buffer does not grow by itself, sendBuffer bytes.
func enlarge(nc net.Conn) {
	sc, ok := nc.(syscall.Conn)
	if a := nc.LocalAddr(); !ok || a == nil || a.Network() != "unix" {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return // it is closed
	}
	raw.Control(func(fd uintptr) { sockio.SetSendBuffer(int(fd), sendBuffer) })
}

var (
	errAborted    = errors.New("the client aborted the negotiation")
	errDisconnect = errors.New("the client disconnected")
	errCut        = errors.New("the server is closing")
	errGone       = errors.New("the client has hung up")
)

// transmit serves the client's requests until it disconnects and all of them are
// answered.
func (c *conn) transmit(ctx context.Context) error {
	c.exp.stats.clients.Add(1)
	defer c.exp.stats.clients.Add(-1)
	cancel := c.exp.device.OnBatchEnd(c.batchEnd)
	defer cancel()
	if r, ok := c.exp.device.(block.Resizer); ok {
		defer r.OnResize(c.resize)()
		c.resize(r.Geometry().Size) // it may have grown before
	}
	c.device = c.exp.device
	if d, ok := c.device.(block.MultiUser); ok {
		c.device = d.NewUser()
	}
	life, end := c.lifetime(ctx)
	defer end()
	c.exp.addConn(life, c)
	defer c.exp.removeConn(c)
	err := c.receive()
	c.kick()
	if errors.Is(err, errDisconnect) || ctx.Err() != nil {
		c.exp.endConn(c) // "The server MUST handle all outstanding requests"
	} else {
		c.exp.abandonConn(c)
	}
	c.drain()
	if err == errCut && ctx.Err() != nil {
		c.handOver()
	}
	c.nc.Close()
	c.dropReplies()
	c.mu.Lock()
	for c.flushing { // the flusher finds the socket closed
		c.change.Wait()
	}
	c.mu.Unlock()
	if errors.Is(err, errDisconnect) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// resize notes that the device has grown. NBD has no message that says so: a client that
// learns of it another way may use the new end at once, others when they connect again.
func (c *conn) resize(size uint64) {
	for {
		was := c.size.Load()
		if size <= was || c.size.CompareAndSwap(was, size) {
			return
		}
	}
}

// isDone reports whether the server's context has ended. No request begins then: beginDrain
// may not have run yet.
func (c *conn) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// beginDrain is called when the server's context ends: no more requests are begun,
// and after the drain timeout nothing is waited for any more.
func (c *conn) beginDrain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	c.nc.SetReadDeadline(c.lastReadLocked())
	if c.ended {
		return
	}
	c.timer = time.AfterFunc(c.srv.cfg.DrainTimeout, func() {
		c.mu.Lock()
		c.cut = true
		c.change.Broadcast()
		stop := c.stop
		c.mu.Unlock()
		if stop != nil {
			stop()
		}
		c.nc.Close()
	})
}

// drain waits until every request was answered, or cannot be. A request's slot is free before
// the last of its reply is sent to a client that is slow to read it.
func (c *conn) drain() {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	for (c.flushing || c.freeCount+c.freedN < c.allocated) && !c.cut {
		c.change.Wait()
	}
}

// stopDrainTimer stops the timer that beginDrain has started.
func (c *conn) stopDrainTimer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// dropReplies notes that nothing can be sent any more, and frees the slots of the replies that
// are ready. Those of I/Os that complete later are freed at once.
func (c *conn) dropReplies() {
	c.mu.Lock()
	c.dead = true
	l := c.ready
	c.ready = slotList{}
	c.dirty.Store(false)
	c.mu.Unlock()
	c.freeSlots(l.head)
}

// takeSlot returns a free slot. It waits while the client has MaxInFlight requests under
// way.
func (c *conn) takeSlot() (*slot, error) {
	if c.stuck.Load() {
		if err := c.awaitReader(); err != nil {
			return nil, err
		}
	}
	if c.free == nil {
		if err := c.refillSlots(); err != nil {
			return nil, err
		}
	}
	s := c.free
	c.free = s.next
	c.freeCount--
	return s, nil
}

// setReadDeadline sets a deadline for reading, the zero time for none.
func (c *conn) setReadDeadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopping {
		c.nc.SetReadDeadline(t)
	}
}

func (c *conn) refillSlots() error {
	c.mu.Lock()
	for c.freed == nil && c.allocated == c.srv.cfg.MaxInFlight && !c.cut && !c.gone.Load() {
		c.mu.Unlock()
		c.kick()
		c.flush() // the replies that hold the slots may wait for our own batch end
		c.mu.Lock()
		if c.freed == nil && !c.cut && !c.gone.Load() {
			c.change.Wait()
		}
	}
	c.free, c.freeCount = c.freed, c.freedN
	c.freed, c.freedN = nil, 0
	cut := c.cut
	c.mu.Unlock()
	switch {
	case c.free != nil:
		return nil
	case cut:
		return errCut
	case c.gone.Load():
		return errGone
	}
	c.free, c.freeCount = &slot{c: c}, 1
	c.allocated++
	c.mu.Lock()
	c.slots = append(c.slots, c.free)
	c.mu.Unlock()
	return nil
}

// giveBack makes a slot free that takeSlot returned and that was not used.
func (c *conn) giveBack(s *slot) {
	s.io, s.waited = nil, false
	s.since.Store(0)
	s.next = c.free
	c.free = s
	c.freeCount++
}

// receiveAtLeast waits for at least n bytes in the receive buffer.
func (c *conn) receiveAtLeast(n int) error {
	if c.w-c.r >= n {
		return nil
	}
	c.w = copy(c.buf, c.buf[c.r:c.w])
	for c.r = 0; c.w < n; {
		c.vec = append(c.vec[:0], c.buf[c.w:])
		k, err := c.rd.ReadvOrWait(c.vec, nothing)
		if err == sockio.ErrWouldBlock {
			continue
		}
		c.w += k
		c.fresh = true
		if err != nil && c.w < n {
			if err == io.EOF && c.w > 0 {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read: %w", err)
		}
	}
	return nil
}

func nothing() {}

// discard reads and discards n bytes.
func (c *conn) discard(n int) error {
	for n > 0 {
		if c.r == c.w {
			c.kick()
			c.flush()
			if err := c.receiveAtLeast(1); err != nil {
				return err
			}
		}
		k := min(n, c.w-c.r)
		c.r += k
		n -= k
	}
	return nil
}
