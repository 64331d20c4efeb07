package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// DialConfig says where and how Dial connects.
type DialConfig struct {
	Remote    netip.AddrPort
	Transport *transport.Config
	MPA       mpa.Config // its IRD and ORD come from the QPConfig
}

// RejectedError says that the peer refused the stream in MPA start-up (RFC 5044
// section 7.1). PrivateData is what it said.
type RejectedError struct {
	Remote      netip.AddrPort
	PrivateData []byte
	Depths      Depths // what would have done (RFC 6581 section 9.1)
	Err         error
}

// Depths are what a peer says in MPA start-up of the RDMA Reads and Atomics that
// it takes (IRD) and makes (ORD) at a time; -1: it does not say and leaves them to
// the ULPs (RFC 6581 section 9.1).
type Depths struct{ IRD, ORD int }

func depthsOf(ird, ord uint16) Depths {
	said := func(n uint16) int {
		if n == mpa.DepthULP {
			return -1
		}
		return int(n)
	}
	return Depths{IRD: said(ird), ORD: said(ord)}
}

func enhancedDepths(e *mpa.Enhanced) Depths {
	if e == nil {
		return Depths{IRD: -1, ORD: -1}
	}
	return depthsOf(e.IRD, e.ORD)
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("verbs: connect to %v: the peer refused the stream: %v", e.Remote, e.Err)
}

func (e *RejectedError) Unwrap() error { return e.Err }

// Dial connects to a listener and returns a queue pair of pd whose stream is
// up, with the private data of the peer's answer. prepare, which may be nil, is
// called with the queue pair before anything can arrive: the place to post
// receives. Against a peer that knows only MPA revision 1 a second connection
// is made with that (RFC 6581 section 10), and prepare is called again.
func (u *ULP) Dial(ctx context.Context, pd *PD, cfg QPConfig, dial DialConfig, prepare func(*QP) error) (*QP, []byte, error) {
	if pd.ulp != u {
		return nil, nil, fmt.Errorf("verbs: dial as ULP %s with a protection domain of ULP %s", u.name, pd.ulp.name)
	}
	for rev := dial.MPA.Revision; ; rev = 1 {
		dial.MPA.Revision = rev
		qp, private, err := u.dial(ctx, pd, cfg, &dial, prepare)
		var ended *endedError
		if err == nil || rev == 1 || errors.As(err, &ended) || !mpa.RetryRevision1(err) {
			return qp, private, err
		}
	}
}

// dial makes one attempt.
func (u *ULP) dial(ctx context.Context, pd *PD, cfg QPConfig, dial *DialConfig, prepare func(*QP) error) (*QP, []byte, error) {
	conn, err := transport.Dial(ctx, dial.Remote, dial.Transport)
	if err != nil {
		return nil, nil, err
	}
	qp, err := newQP(pd, cfg, conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	fail := func(err error) (*QP, []byte, error) {
		conn.Close()
		return nil, nil, qp.fail(err)
	}
	ctx, stop, err := qp.prepare(ctx, prepare)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	defer stop()
	mc := dial.MPA
	mc.IRD, mc.ORD = depth(cfg.IRD), depth(cfg.ORD)
	if mc.Pool == nil {
		mc.Pool = u.dev.pool
	}
	if mc.EMSS == nil {
		mc.EMSS = conn.RefreshEMSS
	}
	m, err := mpa.Client(ctx, conn, &mc)
	if err != nil {
		var rej *mpa.RejectedError
		var neg *mpa.NegotiationError
		switch {
		case errors.As(err, &rej):
			err = &RejectedError{Remote: dial.Remote, PrivateData: rej.PrivateData, Depths: depthsOf(rej.IRD, rej.ORD), Err: err}
		case errors.As(err, &neg):
			rdmap.Refuse(neg.Conn, neg.Err)
			fallthrough
		default:
			err = fmt.Errorf("verbs: connect to %v: %w", dial.Remote, err)
		}
		return fail(err)
	}
	if err := qp.start(m, int(m.IRD()), int(m.ORD()), readyFor(m.RTR())); err != nil {
		rdmap.Refuse(m, mpa.LocalFault(err)) // RFC 6581 section 9.3
		return fail(err)
	}
	return qp, m.PrivateData(), nil
}

// readyFor is the ready-to-receive message that an initiator sends where those
// in rtr were agreed on (RFC 6581 section 9.2): the one that costs the peer
// least.
func readyFor(rtr mpa.RTR) rdmap.Ready {
	switch {
	case rtr&mpa.RTRWrite != 0:
		return rdmap.ReadyWrite
	case rtr&mpa.RTRRead != 0:
		return rdmap.ReadyRead
	case rtr&mpa.RTRSend != 0:
		return rdmap.ReadySend
	}
	return rdmap.ReadyNone
}

// depth is an IRD or ORD as mpa.Config wants it.
func depth(n int) uint16 {
	if n == 0 {
		return mpa.DepthNone
	}
	return uint16(n)
}

// ListenConfig says how a Listener takes connections.
type ListenConfig struct {
	Transport *transport.Config
	MPA       mpa.Config // its IRD and ORD come from the QPConfig given to Accept
	// PeerMPA, if not nil, says how to start up with one peer, in place of MPA.
	PeerMPA func(transport.Flow, transport.Identity) mpa.Config
	Backlog int // requests that wait for Accept, 0 for 128
	// OnFailed is told of connections that failed in MPA start-up. It must not
	// block.
	OnFailed func(transport.Flow, error)
}

// Listener takes streams. Slow or silent clients hold up nobody else.
type Listener struct {
	dev   *Device
	ln    *transport.Listener
	cfg   ListenConfig
	ready chan *ConnRequest

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{} // one for each connection in start-up
}

// Listen listens on local for streams to any ULP of the device.
func (d *Device) Listen(ctx context.Context, local netip.AddrPort, cfg ListenConfig) (*Listener, error) {
	if cfg.Backlog <= 0 {
		cfg.Backlog = defaultBacklog
	}
	ln, err := transport.Listen(ctx, local, cfg.Transport)
	if err != nil {
		return nil, err
	}
	l := &Listener{dev: d, ln: ln, cfg: cfg, ready: make(chan *ConnRequest, cfg.Backlog), slots: make(chan struct{}, maxStarting)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		ln.Close()
		return nil, ErrClosed
	}
	d.lns[l] = struct{}{}
	d.mu.Unlock()
	l.wg.Add(1)
	go l.run()
	return l, nil
}

// Addr is the address listened on.
func (l *Listener) Addr() netip.AddrPort { return l.ln.Addr() }

func (l *Listener) run() {
	defer l.wg.Done()
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		conn, err := l.ln.Accept(l.ctx)
		if err != nil {
			return
		}
		l.wg.Add(1)
		go l.startup(conn)
	}
}

// startup reads one connection's MPA request.
func (l *Listener) startup(conn *transport.Conn) {
	defer l.wg.Done()
	defer func() { <-l.slots }()
	mc := l.cfg.MPA
	if l.cfg.PeerMPA != nil {
		mc = l.cfg.PeerMPA(conn.Flow(), conn.Protection().Peer())
	}
	if mc.Pool == nil {
		mc.Pool = l.dev.pool
	}
	if mc.EMSS == nil {
		mc.EMSS = conn.RefreshEMSS
	}
	req, err := mpa.Server(l.ctx, conn, &mc)
	if err != nil {
		conn.Close()
		l.failed(conn.Flow(), err)
		return
	}
	select {
	case l.ready <- &ConnRequest{ln: l, conn: conn, req: req}:
	default:
		conn.Close()
		l.failed(conn.Flow(), fmt.Errorf("verbs: %d streams wait to be accepted already", l.cfg.Backlog))
	}
}

func (l *Listener) failed(f transport.Flow, err error) {
	if l.cfg.OnFailed != nil && l.ctx.Err() == nil {
		l.cfg.OnFailed(f, err)
	}
}

// Accept waits for the next stream whose protection has been proved and whose
// MPA request has been read. After Close it returns ErrClosed.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	select {
	case r := <-l.ready:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, ErrClosed
	}
}

// Close stops listening and drops the connections that were not accepted. Live
// streams stay. It is idempotent.
func (l *Listener) Close() error {
	l.cancel()
	l.ln.Close()
	l.wg.Wait()
	l.dev.mu.Lock()
	delete(l.dev.lns, l)
	l.dev.mu.Unlock()
	for {
		select {
		case r := <-l.ready:
			r.conn.Close()
		default:
			return nil
		}
	}
}

// ConnRequest is a peer that wants a stream. It is answered by Accept or Reject.
type ConnRequest struct {
	ln   *Listener
	conn *transport.Conn
	req  *mpa.Request
}

// PrivateData is what the peer's ULP sent with its request.
func (r *ConnRequest) PrivateData() []byte { return r.req.PrivateData }

// Depths are the depths that the peer offers.
func (r *ConnRequest) Depths() Depths { return enhancedDepths(r.req.Enhanced) }

// Peer is the identity of the peer, as the Protector proved it.
func (r *ConnRequest) Peer() transport.Identity { return r.conn.Protection().Peer() }

// Flow is the connection's flow.
func (r *ConnRequest) Flow() transport.Flow { return r.conn.Flow() }

// Protection is what guards the connection.
func (r *ConnRequest) Protection() transport.Protection { return r.conn.Protection() }

// Accept answers with private data and returns a queue pair of pd whose stream
// is up. prepare, which may be nil, is called with the queue pair before the
// answer is sent: the place to post receives. When there is no room for the
// queue pair or prepare fails the request may still be rejected; any other error
// has closed the connection.
func (r *ConnRequest) Accept(ctx context.Context, pd *PD, cfg QPConfig, private []byte, prepare func(*QP) error) (*QP, error) {
	qp, err := newQP(pd, cfg, r.conn)
	if err != nil {
		var q *QuotaError
		if errors.As(err, &q) {
			r.ln.dev.events.emit(Event{Kind: EventQuotaExceeded, Peer: r.Peer(), Flow: r.Flow(), Err: err})
		}
		return nil, err
	}
	ctx, stop, err := qp.prepare(ctx, prepare)
	if err != nil {
		return nil, err
	}
	defer stop()
	fail := func(err error) (*QP, error) {
		r.conn.Close()
		return nil, qp.fail(err)
	}
	m, err := r.req.Accept(ctx, mpa.AcceptOptions{PrivateData: private, IRD: depth(cfg.IRD), ORD: depth(cfg.ORD)})
	if err != nil {
		return fail(err)
	}
	if err := qp.start(m, int(m.IRD()), int(m.ORD()), rdmap.ReadyNone); err != nil {
		m.Close()
		return fail(err)
	}
	return qp, nil
}

// Reject refuses the stream, telling the peer private, and closes the
// connection.
func (r *ConnRequest) Reject(ctx context.Context, private []byte) error {
	return r.rejected(r.req.Reject(ctx, private))
}

// RejectDepths is Reject for a peer whose depths won't do: it is told which IRD
// and ORD of ours, 0 to 16,382 each, it would have to meet (RFC 6581 section
// 9.1).
func (r *ConnRequest) RejectDepths(ctx context.Context, private []byte, ird, ord int) error {
	if ird < 0 || ird > maxReadDepth || ord < 0 || ord > maxReadDepth {
		return fmt.Errorf("verbs: reject a stream with IRD %d, ORD %d: 0 to %d are possible", ird, ord, maxReadDepth)
	}
	return r.rejected(r.req.RejectDepths(ctx, private, depth(ird), depth(ord)))
}

func (r *ConnRequest) rejected(err error) error {
	r.conn.Close()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
