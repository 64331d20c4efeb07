package mpa

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/internal/sockio"
)

// Conn is an MPA connection in full operation. It implements ddp.LLP, whose
// rules on concurrency it follows: one goroutine at a time sends (MULPDU,
// Append, Full, TryFlush, Flush), one receives, any may CloseWrite and Close.
//
// A responder's connection starts held: until the first FPDU has come in,
// TryFlush reports that it is not done and Flush waits. The first FPDU is
// known before the Sink sees it, so that the Sink may flush at once. A fault in
// the first FPDU ends the hold, too, so that a Terminate can be sent.
//
//	             first FPDU in
//	held ------------------------> open ---- Close, or an error ----> closed
//	(responder)                     ^ (initiator)
type Conn struct {
	nc  net.Conn
	cfg *Config
	p   params

	held     atomic.Bool
	released chan struct{} // closed when held ends or never will
	closed   chan struct{}

	closeOnce sync.Once
	closeErr  error

	tx sender
	rx receiver

	tap    *tap.Tap    // nil: the stream cannot be watched
	stream *tap.Stream // what it is shown as
}

var _ ddp.LLP = (*Conn)(nil)

// params is what the start-up agreed on.
type params struct {
	initiator            bool
	revision             uint8
	crc                  bool
	txMarkers, rxMarkers bool
	large                int // 0: FPDUs fit the EMSS
	agreed               enhanced.Agreed
	peer                 *enhanced.Data
	privateData          []byte
	request, reply       []byte // the start-up frames, as they were sent
}

func newConn(nc net.Conn, cfg *Config, p params) *Conn {
	c := &Conn{
		nc:       nc,
		cfg:      cfg,
		p:        p,
		released: make(chan struct{}),
		closed:   make(chan struct{}),
	}
	if p.initiator {
		close(c.released)
	} else {
		c.held.Store(true)
	}
	c.tx.w = sockio.NewWriter(nc)
	c.tx.limit = firstBatchBytes
	c.tx.emss = cfg.EMSS
	if c.tx.emss == nil {
		c.tx.emss = socketEMSS(nc)
	}
	c.refreshMULPDU()
	c.rx.r = sockio.NewReader(nc)
	c.rx.idle = c.awayAndUnlock // unlocked: called with the role held
	c.beginTap()
	return c
}

// socketEMSS returns a function that asks the socket of nc for its maximum
// segment size, without allocating.
func socketEMSS(nc net.Conn) func() int {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return func() int { return 0 }
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return func() int { return 0 }
	}
	var n int
	get := func(fd uintptr) {
		var err error
		if n, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil {
			n = 0
		}
	}
	return func() int {
		if rc.Control(get) != nil {
			return 0
		}
		return n
	}
}

// PrivateData is the peer's private data, as its ULP gave it.
func (c *Conn) PrivateData() []byte { return c.p.privateData }

// Revision is the MPA revision in use.
func (c *Conn) Revision() uint8 { return c.p.revision }

// Initiator reports whether this end sent the MPA request.
func (c *Conn) Initiator() bool { return c.p.initiator }

// CRC reports whether CRCs are generated and checked.
func (c *Conn) CRC() bool { return c.p.crc }

// MarkersSend reports whether markers are in what we send.
func (c *Conn) MarkersSend() bool { return c.p.txMarkers }

// MarkersRecv reports whether markers are in what we receive.
func (c *Conn) MarkersRecv() bool { return c.p.rxMarkers }

// IRD is how many RDMA Reads of the peer we must accept at a time, enhanced.DepthULP if
// the ULPs agree on it themselves. It is 1 on a responder with an IRD of 0
// whose peer can announce that it is ready only with an RDMA Read.
func (c *Conn) IRD() uint16 { return c.p.agreed.IRD }

// ORD is how many RDMA Reads we may have outstanding, enhanced.DepthULP if the ULPs
// agree on it themselves.
func (c *Conn) ORD() uint16 { return c.p.agreed.ORD }

// PeerEnhanced is the enhanced connection data that the peer sent, nil if it
// sent none.
func (c *Conn) PeerEnhanced() *enhanced.Data { return c.p.peer }

// RTR is the set of ready-to-receive indications that were agreed on. If it is
// not 0 the initiator has to send one of them before anything else and the
// responder has to expect it (RFC 6581 section 9.2).
func (c *Conn) RTR() enhanced.RTR { return c.p.agreed.RTR }

// LargeULPDU is the length of ULPDUs in bytes that was agreed on between two
// IronWarps, 0 if FPDUs fit the EMSS.
func (c *Conn) LargeULPDU() int { return c.p.large }

// NetConn is the connection below.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Outq implements ddp.Outqueuer. The error matches errors.ErrUnsupported if the
// connection below does not know.
func (c *Conn) Outq() (int, error) {
	if o, ok := c.nc.(ddp.Outqueuer); ok {
		return o.Outq()
	}
	return 0, fmt.Errorf("mpa: count what a %T has not delivered: %w", c.nc, errors.ErrUnsupported)
}

// release ends the hold of a responder.
func (c *Conn) release() {
	if c.held.CompareAndSwap(true, false) {
		close(c.released)
	}
}

// endHold ends the hold of a responder whose Receive is over with err. A peer
// that has begun to send FPDUs, if only a bad one, is in full operation and may
// get a Terminate. One that ended its direction before that will never allow us
// to send.
func (c *Conn) endHold(err error) {
	switch {
	case !c.held.Load():
	case err == io.EOF:
		close(c.released)
	default:
		c.release()
	}
}

// CloseWrite ends the sending direction. What was not flushed is lost. The
// error matches errors.ErrUnsupported if the connection below cannot do so.
func (c *Conn) CloseWrite() error {
	if cw, ok := c.nc.(interface{ CloseWrite() error }); ok {
		return c.wrapClosed(cw.CloseWrite())
	}
	return fmt.Errorf("mpa: end the sending direction of a %T: %w", c.nc, errors.ErrUnsupported)
}

// Close closes the connection below and unblocks everything. It is idempotent.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		c.closeErr = c.nc.Close()
		c.endTap()
	})
	return c.closeErr
}

// wrapClosed turns the error of the connection below after Close into
// ddp.ErrClosed.
func (c *Conn) wrapClosed(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-c.closed:
		return ddp.ErrClosed
	default:
		return err
	}
}
