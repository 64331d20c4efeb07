package verbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// QPConfig describes a queue pair.
type QPConfig struct {
	SendCQ  *CQ
	RecvCQ  *CQ // may be the same
	MaxSend int // work requests posted and not yet done
	MaxRecv int
	IRD     int // Reads and Atomics that we hold for the peer at once
	ORD     int // ours at the peer
	Context any // the consumer's own, see QP.Context
}

// QP is a queue pair on one RDMAP Stream. It is made by Dial or by accepting a
// ConnRequest and lives until its stream ends.
type QP struct {
	id     uint64
	pd     *PD
	cfg    QPConfig
	charge charge
	stream *rdmap.Stream // nil until started
	conn   Transport
	since  time.Time
	done   chan struct{}
	err    error // valid when done is closed

	rq recvQueue

	overflow  atomic.Bool // a completion was lost
	sendDirty atomic.Bool // completions were pushed and not yet announced
	recvDirty bool        // the receiving goroutine's
	stats     qpStats
}

// Transport is what a queue pair knows of the connection under its stream.
type Transport interface {
	Flow() transport.Flow
	Protection() transport.Protection
}

// QPStats counts a queue pair's traffic since it was established.
type QPStats struct {
	SendOps, RecvOps     uint64 // work requests completed
	SendBytes, RecvBytes uint64 // payload sent and received: by our Sends, Writes and Reads and by the peer's
}

type qpStats struct {
	sendOps, recvOps, sendBytes, recvBytes atomic.Uint64
}

// recvQueue is the receive queue: buffers between head and tail, of which those
// before next are being filled.
type recvQueue struct {
	mu               sync.Mutex
	slots            []*rdmap.RecvBuffer
	max              int
	head, next, tail uint64
	closed           bool
}

// newQP allocates a queue pair of pd, charged to its ULP and to peer.
func newQP(pd *PD, cfg QPConfig, peer transport.Identity) (*QP, error) {
	if cfg.SendCQ == nil || cfg.RecvCQ == nil {
		return nil, errors.New("verbs: create a queue pair: SendCQ and RecvCQ are needed")
	}
	// R27, R31: objects of another ULP can't be attached.
	if cfg.SendCQ.ulp != pd.ulp || cfg.RecvCQ.ulp != pd.ulp {
		return nil, fmt.Errorf("verbs: create a queue pair of ULP %s: a completion queue belongs to another ULP", pd.ulp.name)
	}
	for _, q := range [...]struct {
		name string
		n    int
	}{{"MaxSend", cfg.MaxSend}, {"MaxRecv", cfg.MaxRecv}} {
		if q.n < 1 || q.n > maxQueueDepth {
			return nil, fmt.Errorf("verbs: create a queue pair: %s %d, 1 to %d are possible", q.name, q.n, maxQueueDepth)
		}
	}
	if cfg.IRD < 0 || cfg.IRD > maxReadDepth || cfg.ORD < 0 || cfg.ORD > maxReadDepth {
		return nil, fmt.Errorf("verbs: create a queue pair: IRD %d, ORD %d, 0 to %d are possible", cfg.IRD, cfg.ORD, maxReadDepth)
	}
	qp := &QP{id: randomID(), pd: pd, cfg: cfg, done: make(chan struct{}), charge: charge{ulp: &pd.ulp.acct, peer: peer}}
	qp.rq.max = cfg.MaxRecv
	qp.charge.n[resStreams] = 1
	qp.charge.n[resQueueEntries] = int64(cfg.MaxSend + cfg.MaxRecv)
	qp.charge.n[resIRRQEntries] = int64(cfg.IRD)
	if err := pd.enter(); err != nil {
		return nil, err
	}
	if err := cfg.SendCQ.enter(); err != nil {
		pd.leave()
		return nil, err
	}
	if err := cfg.RecvCQ.enter(); err != nil {
		cfg.SendCQ.leave()
		pd.leave()
		return nil, err
	}
	if err := pd.ulp.dev.prm.take(&qp.charge); err != nil {
		qp.detach()
		return nil, err
	}
	return qp, nil
}

func (qp *QP) detach() {
	qp.cfg.RecvCQ.leave()
	qp.cfg.SendCQ.leave()
	qp.pd.leave()
}

// discard frees a queue pair that was never started.
func (qp *QP) discard() {
	qp.flushRecvs(ErrClosed, false)
	qp.pd.ulp.dev.prm.give(&qp.charge)
	qp.detach()
}

func randomID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// start joins the queue pair to a stream and begins to receive. ird, ord and
// ready are what was negotiated.
func (qp *QP) start(llp ddp.LLP, conn Transport, ird, ord int, ready rdmap.Ready) error {
	dev := qp.pd.ulp.dev
	dev.mu.Lock()
	if dev.closed {
		dev.mu.Unlock()
		return ErrClosed
	}
	qp.conn, qp.since = conn, time.Now()
	qp.stream = rdmap.New(rdmap.Config{LLP: llp, Upper: (*upper)(qp), MaxSend: qp.cfg.MaxSend, IRD: ird, ORD: ord, Ready: ready})
	dev.qps[qp.id] = qp
	dev.wg.Add(1)
	dev.mu.Unlock()
	dev.events.emit(qp.event(EventStreamUp, nil))
	go qp.run()
	return nil
}

func (qp *QP) run() {
	defer qp.pd.ulp.dev.wg.Done()
	qp.stream.Run()
}

func (qp *QP) event(k EventKind, err error) Event {
	return Event{Kind: k, QP: qp.id, Peer: qp.Peer(), Flow: qp.Flow(), Err: err}
}

// ID identifies the stream: a random number that no other stream has, so two
// equal ones are the same stream.
func (qp *QP) ID() uint64 { return qp.id }

// Context is QPConfig.Context.
func (qp *QP) Context() any { return qp.cfg.Context }

// PD is the queue pair's protection domain.
func (qp *QP) PD() *PD { return qp.pd }

// Established is when the stream came up.
func (qp *QP) Established() time.Time { return qp.since }

// Peer is the identity of the peer, as the Protector proved it.
func (qp *QP) Peer() transport.Identity { return qp.conn.Protection().Peer() }

// Protection is what guards the stream.
func (qp *QP) Protection() transport.Protection { return qp.conn.Protection() }

// Flow is the stream's transport flow.
func (qp *QP) Flow() transport.Flow { return qp.conn.Flow() }

// Paused reports that the stream waits for its security association.
func (qp *QP) Paused() bool { return qp.conn.Protection().Paused() }

// ORD is how many Reads and Atomics may be outstanding, as negotiated.
func (qp *QP) ORD() int { return qp.stream.ORD() }

// State is the state of the stream.
func (qp *QP) State() rdmap.State { return qp.stream.State() }

// Stats are the traffic counters.
func (qp *QP) Stats() QPStats {
	s := &qp.stats
	in, out := qp.stream.Moved()
	return QPStats{SendOps: s.sendOps.Load(), RecvOps: s.recvOps.Load(), SendBytes: s.sendBytes.Load() + out, RecvBytes: s.recvBytes.Load() + in}
}

// Done is closed when the stream is over and all completions are out: polled
// queues hold them, handlers have returned from them. A handler must not wait
// for it.
func (qp *QP) Done() <-chan struct{} { return qp.done }

// Err is why the stream ended, nil after a graceful close by both sides or
// while it lives.
func (qp *QP) Err() error {
	select {
	case <-qp.done:
		return qp.err
	default:
		return nil
	}
}

// Close ends the stream gracefully: what is posted is sent, then the stream is
// closed; a peer that does not follow within two seconds is cut off. It does
// not wait, see Done.
func (qp *QP) Close() { qp.stream.Close() }

// Shutdown is Close and waits for the end. When ctx ends first the stream is
// aborted.
func (qp *QP) Shutdown(ctx context.Context) error {
	qp.Close()
	select {
	case <-qp.done:
	case <-ctx.Done():
		qp.Abort(ctx.Err())
		<-qp.done
	}
	return qp.err
}

// Abort ends the stream at once; err is its reason.
func (qp *QP) Abort(err error) { qp.stream.Abort(err) }

// ErrCQOverflow is the reason of streams whose completion queue overflowed.
var ErrCQOverflow = errors.New("verbs: completion queue overflow: poll faster or create a deeper one")

// overflowed ends the stream whose completion found its queue full. Streams of
// other queues feel nothing (RFC 5042 section 6.4.6). The caller may hold the
// stream's lock; the stream is not over.
func (qp *QP) overflowed() {
	if !qp.overflow.CompareAndSwap(false, true) {
		return
	}
	dev := qp.pd.ulp.dev
	dev.wg.Add(1)
	go func() {
		defer dev.wg.Done()
		dev.events.emit(qp.event(EventCQOverflow, ErrCQOverflow))
		qp.Abort(ErrCQOverflow)
	}()
}

// upper is the QP as its stream sees it.
type upper QP

var _ rdmap.Upper = (*upper)(nil)

// Acquire implements rdmap.Upper.
func (u *upper) Acquire(stag uint32, to uint64, n uint32, need rdmap.Access) ([]byte, rdmap.Pin, rdmap.Fault) {
	return u.pd.ulp.dev.acquire(u.pd, stag, to, n, need)
}

// InvalidateRemote implements rdmap.Upper.
func (u *upper) InvalidateRemote(stag uint32) rdmap.Fault {
	return u.pd.ulp.dev.invalidateRemote(u.pd, stag)
}

// NextRecv implements rdmap.Upper.
func (u *upper) NextRecv() *rdmap.RecvBuffer {
	q := &u.rq
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == q.tail {
		return nil
	}
	r := q.slots[q.next%uint64(len(q.slots))]
	q.next++
	return r
}

// Received implements rdmap.Upper.
func (u *upper) Received(r *rdmap.RecvBuffer, m rdmap.Message) {
	wc := WC{ID: r.ID, QP: (*QP)(u), Op: WCRecv, Solicited: m.Solicited(), Len: m.Len, Invalidated: m.Invalidated, Imm: m.Imm}
	if m.Op == rdmap.OpImmediate || m.Op == rdmap.OpImmediateSE {
		wc.Op = WCRecvImm
	}
	release(r.Ref[:r.N])
	q := &u.rq
	q.mu.Lock()
	q.head++
	q.mu.Unlock()
	u.stats.recvOps.Add(1)
	u.stats.recvBytes.Add(uint64(m.Len))
	u.cfg.RecvCQ.push(wc)
	u.recvDirty = true
}

func release(refs []rdmap.Pin) {
	for i, r := range refs {
		if r != nil {
			r.Unpin()
			refs[i] = nil
		}
	}
}

// Local implements rdmap.Upper.
func (u *upper) Local(op *rdmap.Op) error {
	return fmt.Errorf("verbs: unknown local operation %v", op.Local)
}

// SendDone implements rdmap.Upper.
func (u *upper) SendDone(op *rdmap.Op, err error) {
	release(op.Ref[:op.N])
	if err == nil {
		u.stats.sendOps.Add(1)
		if op.Kind == rdmap.OpReadRequest {
			u.stats.recvBytes.Add(uint64(op.Len))
		} else {
			u.stats.sendBytes.Add(uint64(op.Len))
		}
		if !op.Signaled {
			return
		}
	} else {
		err = &flushError{cause: err}
	}
	wc := WC{ID: op.ID, QP: (*QP)(u), Err: err}
	switch op.Kind {
	case rdmap.OpWrite:
		wc.Op = WCWrite
	case rdmap.OpReadRequest:
		wc.Op, wc.Len = WCRead, op.Len
	case rdmap.OpAtomicRequest:
		wc.Op, wc.Imm = WCAtomic, op.Orig
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		wc.Op = WCImmediate
	default:
		wc.Op = WCSend
	}
	u.cfg.SendCQ.push(wc)
	u.sendDirty.Store(true)
}

// flushError is the error of a work request that the stream's end caught.
type flushError struct{ cause error }

func (e *flushError) Error() string        { return "verbs: flushed: " + e.cause.Error() }
func (e *flushError) Unwrap() error        { return e.cause }
func (e *flushError) Is(target error) bool { return target == ErrFlushed }

// Completions implements rdmap.Upper.
func (u *upper) Completions(engine bool) {
	if u.sendDirty.Load() && u.sendDirty.Swap(false) {
		u.cfg.SendCQ.notify(engine)
	}
}

// BatchEnd implements rdmap.Upper.
func (u *upper) BatchEnd() {
	if u.recvDirty {
		u.recvDirty = false
		u.cfg.RecvCQ.notify(true)
	}
}

// Ended implements rdmap.Upper.
func (u *upper) Ended(err error) {
	qp := (*QP)(u)
	dev := qp.pd.ulp.dev
	qp.err = err
	qp.flushRecvs(flushCause(err), true)
	qp.cfg.SendCQ.settle()
	qp.cfg.RecvCQ.settle()
	var fault *ddp.Error
	var term *rdmap.TerminateError
	switch {
	case errors.As(err, &fault) && !(fault.Layer == ddp.LayerLLP && fault.Code == mpa.CodeConnectionLost):
		dev.events.emit(qp.event(EventPeerFault, err))
	case errors.As(err, &term):
		dev.events.emit(qp.event(EventTerminated, err))
	}
	dev.events.emit(qp.event(EventStreamDown, err))
	dev.mu.Lock()
	delete(dev.qps, qp.id)
	dev.mu.Unlock()
	qp.conn.Protection().Release()
	dev.prm.give(&qp.charge)
	qp.detach()
	close(qp.done)
}

func flushCause(err error) error {
	if err == nil {
		return ErrClosed
	}
	return err
}

// flushRecvs ends every posted receive, with a completion if announce is set.
func (qp *QP) flushRecvs(cause error, announce bool) {
	q := &qp.rq
	q.mu.Lock()
	q.closed = true
	var wcs []WC
	for ; q.head < q.tail; q.head++ {
		r := q.slots[q.head%uint64(len(q.slots))]
		release(r.Ref[:r.N])
		wcs = append(wcs, WC{ID: r.ID, QP: qp, Op: WCRecv, Err: &flushError{cause: cause}})
	}
	q.mu.Unlock()
	if !announce {
		return
	}
	for _, wc := range wcs {
		qp.cfg.RecvCQ.push(wc)
	}
	qp.cfg.RecvCQ.notify(true)
	if qp.cfg.SendCQ != qp.cfg.RecvCQ {
		qp.cfg.SendCQ.notify(true)
	}
}
