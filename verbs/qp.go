package verbs

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// QPConfig describes a queue pair.
type QPConfig struct {
	SendCQ  *CQ
	RecvCQ  *CQ  // may be the same
	MaxSend int  // work requests posted and not yet done
	MaxRecv int  // receives posted and not yet delivered; 0 with an SRQ
	SRQ     *SRQ // where receives come from; nil: the queue pair's own queue

	MaxSendSGE int // elements of a send's SGL, up to MaxSGE; 0: DefaultSGE
	MaxRecvSGE int // and of a receive's; 0 with an SRQ

	// Partition is the name of the partition that the stream is of, "": of none. That of an accepted stream is its
	// listener's, and needs not be given. It fails with ErrPartition where Config.Partitions does not let Label use it.
	Partition string
	// Label is the security label of the queue pair; "": its ULP's.
	Label string

	IRD     int // most Reads and Atomics of the peer outstanding at once; 0: none (RFC 6581 section 9.1)
	ORD     int // most of ours at the peer, bounded by what it takes; 0: none
	Context any // the consumer's own, see QP.Context
}

// QP is a queue pair on one RDMAP Stream. It is made by Dial, by accepting a
// ConnRequest or by Adopt, or before any of these by CreateQP, and lives until its stream
// ends. All methods are safe for concurrent use and in every state.
type QP struct {
	id     uint64
	pd     *PD
	cfg    QPConfig
	conn   atomic.Pointer[Transport]
	made   bool                         // by CreateQP
	stream atomic.Pointer[rdmap.Stream] // nil until started
	done   chan struct{}
	err    error // valid when done is closed

	charge  charge
	since   time.Time // set before stream, with mu held
	private []byte    // likewise

	mu     sync.Mutex // guards the fields below it
	over   bool       // ended without ever having a stream
	taken  bool       // made, and its stream starts up or has
	cancel func()     // ends the start-up of the stream; nil: there is none
	within string     // the partition

	rq    recvQueue    // if there is no SRQ
	share share        // of the SRQ
	held  atomic.Int32 // receives of the SRQ, see RecvHeld
	bound boundList    // memory windows

	activity progress // of any data
	busy     progress // of more than the reaper lets an idle stream move
	kept     [2]kept  // in SendCQ and, if it is another one, in RecvCQ
	slow     slowPath

	pollers   pollers
	overflow  atomic.Bool // a completion was lost
	sendDirty atomic.Bool // completions were pushed and not yet announced
	recvDirty bool        // the receiving goroutine's
	stats     qpStats
}

// Transport describes the connection under a queue pair's stream.
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
	mu               sync.Mutex // guards the fields below it
	slots            []*rdmap.RecvBuffer
	max              int
	sges             int // most elements of one
	head, next, tail uint64
	closed           bool
}

// CreateQP makes a queue pair that has no stream yet, so that receives can be posted before it is
// known where it connects: see DialConfig.Made and AcceptConfig.Made. It is charged to pd's
// ULP and, from then on, to the peer. If its stream does not come up, or Close or Abort ends it before, its
// receives complete with ErrFlushed. It fails with a *QuotaError, ErrTrust, ErrPartition, ErrClosed, and if cfg is
// invalid.
func (pd *PD) CreateQP(cfg QPConfig) (*QP, error) { return newQP(pd, cfg, unconnected{}) }

// unconnected is the connection of a queue pair that has none.
type unconnected struct{}

func (unconnected) Flow() transport.Flow             { return transport.Flow{} }
func (unconnected) Protection() transport.Protection { return unprotected{} }

type unprotected struct{}

func (unprotected) Peer() transport.Identity { return "" }
func (unprotected) Paused() bool             { return false }
func (unprotected) Kind() string             { return "none" }
func (unprotected) Release()                 {}

// takeFor gives a queue pair that CreateQP has made to an attempt at a stream on conn.
func (qp *QP) takeFor(pd *PD, cfg *QPConfig, conn Transport) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	switch {
	case !qp.made || qp.pd.isForeign(pd):
		return errors.New("verbs: connect a queue pair: CreateQP has not made it, or not of this protection domain")
	case qp.over:
		return &closedError{what: "connect a queue pair"}
	case qp.taken:
		return fmt.Errorf("verbs: connect a queue pair that is connected already, or on its way: %w", ErrInUse)
	case qp.within != "" && qp.within != cfg.Partition:
		return &PartitionError{Op: "connect a queue pair of partition " + qp.within, Partition: cfg.Partition, Peer: conn.Protection().Peer(), Err: errOtherPartition}
	}
	if err := cfg.checkDepths(); err != nil {
		return err
	}
	to := qp.charge
	to.peer = conn.Protection().Peer()
	to.n[resIRRQEntries] = int64(cfg.IRD)
	if err := pd.ulp.dev.prm.change(&qp.charge, to); err != nil {
		return err
	}
	if qp.cfg.SRQ != nil {
		qp.cfg.SRQ.meet(qp)
	}
	qp.cfg.IRD, qp.cfg.ORD, qp.taken = cfg.IRD, cfg.ORD, true
	qp.conn.Store(&conn)
	qp.within = cfg.Partition
	return nil
}

// giveUp has an attempt at a stream fail: the queue pair is over, unless it is made. It returns why: err, unless
// something else has ended the queue pair.
func (qp *QP) giveUp(err error) error {
	if !qp.made {
		return qp.fail(err)
	}
	qp.mu.Lock()
	if qp.over {
		qp.mu.Unlock()
		return qp.fail(err)
	}
	defer qp.mu.Unlock()
	to := qp.charge
	to.peer = ""
	if e := qp.pd.ulp.dev.prm.change(&qp.charge, to); e != nil {
		return errors.Join(err, e) // it stays charged to the peer until it is over
	}
	var none Transport = unconnected{}
	qp.conn.Store(&none)
	qp.taken, qp.cancel, qp.within = false, nil, qp.cfg.Partition
	return err
}

func (c *QPConfig) checkDepths() error {
	if c.IRD < 0 || c.IRD > maxReadDepth || c.ORD < 0 || c.ORD > maxReadDepth {
		return fmt.Errorf("verbs: create a queue pair: IRD %d, ORD %d, 0 to %d are possible", c.IRD, c.ORD, maxReadDepth)
	}
	return nil
}

// queuePair is the queue pair of an attempt at a stream on conn: made, if there is one, or a new one.
func (pd *PD) queuePair(made *QP, cfg *QPConfig, conn Transport) (*QP, error) {
	if made == nil {
		return newQP(pd, *cfg, conn)
	}
	if err := made.takeFor(pd, cfg, conn); err != nil {
		return made, err
	}
	if err := pd.ulp.dev.deniesQP(made, "connect"); err != nil {
		return made, made.giveUp(err)
	}
	return made, nil
}

// newQP allocates a queue pair of pd for a stream on conn, charged to its ULP and
// to conn's peer.
func newQP(pd *PD, cfg QPConfig, conn Transport) (*QP, error) {
	if cfg.SendCQ == nil || cfg.RecvCQ == nil {
		return nil, errors.New("verbs: create a queue pair: SendCQ and RecvCQ are needed")
	}
	if cfg.SendCQ.isForeign(pd.ulp) || cfg.RecvCQ.isForeign(pd.ulp) {
		return nil, fmt.Errorf("verbs: create a queue pair of ULP %s: a completion queue belongs to another ULP", pd.ulp.name)
	}
	for _, q := range [...]struct {
		name string
		n    int
	}{{"MaxSend", cfg.MaxSend}, {"MaxRecv", cfg.MaxRecv}} {
		if q.name == "MaxRecv" && cfg.SRQ != nil {
			continue
		}
		if q.n < 1 || q.n > maxQueueDepth {
			return nil, fmt.Errorf("verbs: create a queue pair: %s %d, 1 to %d are possible", q.name, q.n, maxQueueDepth)
		}
	}
	if cfg.SRQ != nil {
		if cfg.SRQ.pd.isForeign(pd) {
			return nil, errors.New("verbs: create a queue pair: the shared receive queue belongs to another protection domain")
		}
		if cfg.MaxRecv != 0 || cfg.MaxRecvSGE != 0 {
			return nil, fmt.Errorf("verbs: create a queue pair with a shared receive queue: MaxRecv %d, MaxRecvSGE %d, it has no receives of its own", cfg.MaxRecv, cfg.MaxRecvSGE)
		}
	}
	if err := errors.Join(cfg.checkDepths(), checkSGEs("MaxSendSGE", &cfg.MaxSendSGE), checkSGEs("MaxRecvSGE", &cfg.MaxRecvSGE)); err != nil {
		return nil, err
	}
	_, made := conn.(unconnected)
	qp := &QP{id: randomID(), pd: pd, cfg: cfg, made: made, done: make(chan struct{}), charge: charge{ulp: &pd.ulp.acct, peer: conn.Protection().Peer()}}
	qp.within = cfg.Partition // unlocked: nobody else has it yet
	qp.conn.Store(&conn)
	qp.rq.max, qp.rq.sges = cfg.MaxRecv, cfg.MaxRecvSGE
	qp.charge.n[resStreams] = 1
	qp.charge.n[resQueueEntries] = entries(cfg.MaxSend, cfg.MaxSendSGE) + entries(cfg.MaxRecv, cfg.MaxRecvSGE)
	qp.charge.n[resIRRQEntries] = int64(cfg.IRD)
	if err := qp.attach(); err != nil {
		return nil, err
	}
	dev := pd.ulp.dev
	if err := dev.prm.take(&qp.charge); err != nil {
		qp.detach()
		return nil, err
	}
	dev.reaper.poke()
	dev.mu.Lock()
	closed := dev.closed
	if !closed {
		dev.qps[qp.id] = qp
	}
	dev.mu.Unlock()
	if closed {
		qp.discard(ErrClosed)
		return nil, ErrClosed
	}
	// Behind the insertion: whoever changes the policy publishes it before looking at the queue pairs.
	if err := dev.deniesQP(qp, "create"); err != nil {
		return nil, qp.fail(err)
	}
	return qp, nil
}

// checkSGEs checks how many elements the lists of a queue may have, and sets the default.
func checkSGEs(what string, n *int) error {
	*n = cmp.Or(*n, DefaultSGE)
	if *n < 1 || *n > MaxSGE {
		return fmt.Errorf("verbs: create a queue: %s %d, 1 to %d are possible", what, *n, MaxSGE)
	}
	return nil
}

// entries is what a queue of n work requests with lists of sges elements is charged: one with a long list takes as much
// memory as several.
func entries(n, sges int) int64 { return int64(n) * int64((sges+DefaultSGE-1)/DefaultSGE) }

// attach claims the objects that the queue pair uses, all or none.
func (qp *QP) attach() error {
	if err := qp.pd.enterStream(); err != nil {
		return err
	}
	if err := qp.cfg.SendCQ.enter(qp); err != nil {
		qp.pd.leaveStream()
		return err
	}
	if err := qp.cfg.RecvCQ.enter(qp); err != nil {
		qp.cfg.SendCQ.leave(qp)
		qp.pd.leaveStream()
		return err
	}
	if qp.cfg.SRQ != nil {
		if err := qp.cfg.SRQ.enter(qp); err != nil {
			qp.cfg.RecvCQ.leave(qp)
			qp.cfg.SendCQ.leave(qp)
			qp.pd.leaveStream()
			return err
		}
	}
	return nil
}

// detach releases them.
func (qp *QP) detach() {
	if qp.cfg.SRQ != nil {
		qp.cfg.SRQ.leave()
	}
	qp.cfg.RecvCQ.leave(qp)
	qp.cfg.SendCQ.leave(qp)
	qp.pd.leaveStream()
}

// free releases everything that the queue pair holds of the device.
func (qp *QP) free() {
	dev := qp.pd.ulp.dev
	dev.mu.Lock()
	delete(dev.qps, qp.id)
	dev.mu.Unlock()
	dev.prm.give(&qp.charge)
	qp.detach()
}

func randomID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// start joins the queue pair to a stream that has completed start-up and begins to
// receive.
func (qp *QP) start(st *started) error {
	dev := qp.pd.ulp.dev
	dev.mu.Lock()
	err := error(ErrClosed) // Close waits for those that have begun before it
	if !dev.closed {
		err = qp.join(st)
	}
	if err != nil {
		dev.mu.Unlock()
		return err
	}
	dev.wg.Add(1)
	dev.mu.Unlock()
	qp.enliven()
	dev.events.emit(qp.event(EventStreamUp, nil))
	go qp.run()
	return nil
}

// join gives the queue pair its stream, unless it is over. The negotiated IRD
// exceeds the configured one by the entry that a ready-to-receive Read takes, if
// at all (RFC 6581 section 9.2); it is charged like the others.
func (qp *QP) join(st *started) error {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.over {
		return ErrClosed
	}
	if extra := st.ird - qp.cfg.IRD; extra > 0 {
		more := charge{ulp: qp.charge.ulp, peer: qp.charge.peer}
		more.n[resIRRQEntries] = int64(extra)
		if err := qp.pd.ulp.dev.prm.take(&more); err != nil {
			return err
		}
		qp.charge.n[resIRRQEntries] += int64(extra)
	}
	qp.since = time.Now()
	qp.slow.ready = st.awaited
	qp.private = st.private
	qp.stream.Store(rdmap.New(rdmap.Config{LLP: st.llp, Upper: (*upper)(qp), MaxSend: qp.cfg.MaxSend, MaxSGE: qp.cfg.MaxSendSGE, IRD: st.ird, ORD: st.ord, Ready: st.ready, Stage: &qp.pd.ulp.dev.stage}))
	return nil
}

func (qp *QP) run() {
	defer qp.pd.ulp.dev.wg.Done()
	qp.stream.Load().Run()
}

func (qp *QP) event(k EventKind, err error) Event {
	return Event{Kind: k, QP: qp.id, Peer: qp.Peer(), Flow: qp.Flow(), Err: err}
}

// ID identifies the stream: a random number that no other stream has, so two
// equal ones are the same stream.
func (qp *QP) ID() uint64 { return qp.id }

// Context is QPConfig.Context.
func (qp *QP) Context() any { return qp.cfg.Context }

// PrivateData is what the peer's ULP sent in start-up: with its request if the
// stream was accepted, with its answer if it was dialled. It is nil in QPIdle and
// after Adopt.
func (qp *QP) PrivateData() []byte {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	return qp.private
}

// PD is the queue pair's protection domain.
func (qp *QP) PD() *PD { return qp.pd }

// link is the connection under the stream.
func (qp *QP) link() Transport { return *qp.conn.Load() }

// Peer is the identity of the peer, as the Protector proved it; "" before there is one.
func (qp *QP) Peer() transport.Identity { return qp.link().Protection().Peer() }

// Protection is what guards the stream.
func (qp *QP) Protection() transport.Protection { return qp.link().Protection() }

// Flow is the stream's transport flow.
func (qp *QP) Flow() transport.Flow { return qp.link().Flow() }

// PathMTU is the maximum length of the stream's IP packets, and a length that is lost on
// the path although the route allows it; 0 is not known.
func (qp *QP) PathMTU() (carries, lost int) {
	if c, ok := qp.link().(interface{ PathMTU() (carries, lost int) }); ok {
		return c.PathMTU()
	}
	return 0, 0
}

// Paused reports whether the stream waits for its security association.
func (qp *QP) Paused() bool { return qp.link().Protection().Paused() }

// ErrCQOverflow is the reason of streams whose completion queue overflowed.
var ErrCQOverflow = errors.New("verbs: completion queue overflow: poll faster or create a deeper one")

// overflowed ends the stream whose completion found its queue full. Streams of
// other queues are unaffected (RFC 5042 section 6.4.6). The caller may hold the
// stream's lock; the stream is not over.
func (qp *QP) overflowed(cq *CQ) {
	if !qp.overflow.CompareAndSwap(false, true) {
		return
	}
	dev := qp.pd.ulp.dev
	dev.wg.Go(func() {
		e := qp.event(EventCQOverflow, ErrCQOverflow)
		e.CQ = cq
		dev.events.emit(e)
		qp.abortOverflowed()
	})
}
