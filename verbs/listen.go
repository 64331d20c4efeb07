package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
)

// ListenConfig says how a Listener takes streams.
type ListenConfig struct {
	Transport *transport.Config
	Setup     Setup // how streams start up
	// PeerSetup, if not nil, returns the Setup for one peer, in place of Setup.
	PeerSetup func(transport.Flow, transport.Identity) Setup
	Backlog   int // requests that wait for Accept, 0 for 128
	// Streaming has Accept also return the connections over TCP whose peers begin in streaming
	// mode (RFC 5044 section 7.1): see ConnRequest.Stream.
	Streaming bool
	// Partition is the name of the partition whose streams come here, "": none. A request that the listener's label may
	// not have, or from a peer with whom this host has no link of it, gets no answer: over TCP a reset, over
	// SCTP in UDP silence.
	Partition string
	// Label, if not nil, is asked for the listener's security label at each request; "": the default one.
	Label func() string
	// Stays, if not nil, is asked about each stream that Accept makes, once QPs has it: the stream is aborted with its error. It is for
	// whoever ends the streams of a peer by QPs: first Stays says so, then QPs is looked at, so that none is missed that is being
	// accepted. It must not block.
	Stays func(transport.Flow, transport.Identity) error
	// OnFailed is called for streams that failed in start-up. It must not block.
	OnFailed func(transport.Flow, error)
}

// Listener takes streams. Slow or silent clients hold up nobody else.
type Listener struct {
	dev   *Device
	ln    carrier
	cfg   ListenConfig
	queue *backlog

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// carrier is what a Listener listens with.
type carrier interface {
	Addr() netip.AddrPort
	Close() error
}

// Listen listens on local for streams to any ULP of the device, over
// cfg.Transport.Kind. Over SCTP local's port is SCTP's, also in UDP. It fails with
// ErrClosed after the device's Close, and as transport.Listen does.
func (d *Device) Listen(ctx context.Context, local netip.AddrPort, cfg ListenConfig) (*Listener, error) {
	if cfg.Backlog <= 0 {
		cfg.Backlog = defaultBacklog
	}
	l := &Listener{dev: d, cfg: cfg, queue: newBacklog(cfg.Backlog)}
	if cfg.Partition != "" {
		if err := d.deniesRequest(l.label(), cfg.Partition); errors.Is(err, errNoPartitions) {
			return nil, err
		}
		l.cfg.Transport = l.gated(cfg.Transport)
	}
	run, err := l.listen(ctx, local)
	if err != nil {
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		l.cancel()
		l.ln.Close()
		return nil, ErrClosed
	}
	d.lns[l] = struct{}{}
	d.mu.Unlock()
	l.wg.Go(run)
	return l, nil
}

// listen begins to listen; run accepts connections.
func (l *Listener) listen(ctx context.Context, local netip.AddrPort) (run func(), err error) {
	if tc := l.cfg.Transport; tc != nil && tc.Kind != transport.TCP {
		ln, err := l.dev.below.ListenSCTP(ctx, local, tc, l.receiver)
		if err != nil {
			return nil, err
		}
		l.ln = ln
		return func() { l.runSCTP(ln) }, nil
	}
	ln, err := transport.Listen(ctx, local, l.cfg.Transport)
	if err != nil {
		return nil, err
	}
	l.ln = ln
	return func() { l.runTCP(ln) }, nil
}

// Addr is the address listened on; over SCTP its port is SCTP's, also in UDP.
func (l *Listener) Addr() netip.AddrPort { return l.ln.Addr() }

// setup is how to start up a stream on conn.
func (l *Listener) setup(conn Transport) *Setup {
	if l.cfg.PeerSetup != nil {
		s := l.cfg.PeerSetup(conn.Flow(), conn.Protection().Peer())
		return &s
	}
	return &l.cfg.Setup
}

// offer hands a request, which is charged by half, to Accept if there is room.
func (l *Listener) offer(in incoming, half *hold) {
	// It was let in by the policy as it was then.
	if err := l.dev.deniesRequest(l.label(), l.cfg.Partition); err != nil {
		r := &ConnRequest{ln: l, in: in, half: half}
		resetOnClose(in)
		r.end()
		l.failed(r.Flow(), err)
		return
	}
	if r := l.queue.put(&ConnRequest{ln: l, in: in, half: half}); r != nil {
		r.end()
		l.failed(r.Flow(), fmt.Errorf("verbs: %d streams wait to be accepted already", l.cfg.Backlog))
	}
}

func (l *Listener) failed(f transport.Flow, err error) {
	if l.cfg.OnFailed != nil && l.ctx.Err() == nil {
		l.cfg.OnFailed(f, err)
	}
}

// Accept waits for the next stream whose protection has been proved and whose request
// has been read. It fails with ErrClosed after Close, and with ctx's error.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	return l.queue.take(ctx, l.ctx.Done())
}

// Close stops listening and drops the streams that were not accepted. Live streams
// stay. It is idempotent, and returns nil.
func (l *Listener) Close() error {
	l.cancel()
	l.ln.Close()
	l.wg.Wait()
	l.dev.mu.Lock()
	delete(l.dev.lns, l)
	l.dev.mu.Unlock()
	for _, r := range l.queue.close() {
		r.end()
	}
	return nil
}

// incoming is a stream whose request has been read.
type incoming interface {
	Transport
	privateData() []byte
	depths() Depths
	accept(ctx context.Context, private []byte, ird, ord uint16) (*started, error)
	reject(ctx context.Context, private []byte) error
	rejectDepths(ctx context.Context, private []byte, ird, ord uint16) error
	drop()
}

// ConnRequest is a peer that wants a stream. It is answered by Accept or Reject.
type ConnRequest struct {
	ln   *Listener
	in   incoming
	half *hold // until it is answered
}

// end drops the stream.
func (r *ConnRequest) end() {
	r.in.drop()
	r.half.release()
}

// PrivateData is what the peer's ULP sent with its request.
func (r *ConnRequest) PrivateData() []byte { return r.in.privateData() }

// Depths are the depths that the peer offers.
func (r *ConnRequest) Depths() Depths { return r.in.depths() }

// Peer is the identity of the peer, as the Protector proved it.
func (r *ConnRequest) Peer() transport.Identity { return r.in.Protection().Peer() }

// Flow is the stream's flow.
func (r *ConnRequest) Flow() transport.Flow { return r.in.Flow() }

// Partition is the name of the partition that the stream is of, "": of none.
func (r *ConnRequest) Partition() string { return r.ln.cfg.Partition }

// Protection is what guards the stream.
func (r *ConnRequest) Protection() transport.Protection { return r.in.Protection() }

// AcceptConfig says what ConnRequest.Accept makes, and answers.
type AcceptConfig struct {
	QP QPConfig

	// Made is as in DialConfig; it stays usable if it could not be given the stream, or there is no room.
	Made *QP

	// Prepare, if not nil, is called with the queue pair before the answer is sent: the
	// place to post receives. Accept returns its error.
	Prepare func(*QP) error

	// PrivateData goes to the peer with the answer, see QP.PrivateData. Its length is
	// bounded as in DialConfig.
	PrivateData []byte
}

// Accept answers the request and returns a queue pair of pd whose stream is up, charged
// to the PD's ULP and to the peer. When there is no room for the queue pair (a
// *QuotaError), its label may not use the partition (ErrPartition), cfg.QP is invalid or Prepare fails, the request may still be
// rejected; any other error has ended the stream: ctx's, ErrClosed, or the network's.
func (r *ConnRequest) Accept(ctx context.Context, pd *PD, cfg AcceptConfig) (*QP, error) {
	cfg.QP.Partition = r.Partition()
	qp, err := pd.queuePair(cfg.Made, &cfg.QP, r.in)
	if err != nil {
		var q *QuotaError
		if errors.As(err, &q) {
			r.ln.dev.events.emit(Event{Kind: EventQuotaExceeded, Peer: r.Peer(), Flow: r.Flow(), Err: err})
		}
		return nil, err
	}
	ctx, stop, err := qp.prepare(ctx, cfg.Prepare)
	if err != nil {
		return nil, err
	}
	defer stop()
	s, err := r.in.accept(ctx, cfg.PrivateData, uint16(cfg.QP.IRD), uint16(cfg.QP.ORD))
	if err != nil {
		r.end()
		return nil, qp.fail(err)
	}
	if err := qp.start(s); err != nil {
		s.llp.Close()
		r.end()
		return nil, qp.fail(err)
	}
	r.half.release()
	if stays := r.ln.cfg.Stays; stays != nil {
		if err := stays(r.Flow(), r.Peer()); err != nil {
			qp.Abort(err)
		}
	}
	return qp, nil
}

// Reject refuses the stream and sends private to the peer. It fails when the answer can't
// be sent.
func (r *ConnRequest) Reject(ctx context.Context, private []byte) error {
	return r.rejected(r.in.reject(ctx, private))
}

// RejectDepths is Reject for a peer whose depths are unacceptable: it is sent our IRD
// and ORD, 0 to 16,382 each, which it would have to meet (RFC 6581 section 9.1). It fails when the answer can't be sent.
func (r *ConnRequest) RejectDepths(ctx context.Context, private []byte, ird, ord int) error {
	if ird < 0 || ird > maxReadDepth || ord < 0 || ord > maxReadDepth {
		return fmt.Errorf("verbs: reject a stream with IRD %d, ORD %d: 0 to %d are possible", ird, ord, maxReadDepth)
	}
	return r.rejected(r.in.rejectDepths(ctx, private, uint16(ird), uint16(ord)))
}

func (r *ConnRequest) rejected(err error) error {
	r.end()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
