package sctpadapt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Config configures a Mux. The zero value is useful. It is only read.
type Config struct {
	// MaxPending bounds the peer's Initiates that are not answered, 0 for 64,
	// negative: the peer may start no sessions (RFC 5043 section 6.4).
	MaxPending int

	// Stray, if not nil, is asked before each Terminate that answers an Initiate too
	// many or a chunk that belongs to no session. False: there were too many of
	// them, and the association ends. It is called by the goroutine that delivers
	// what the association receives.
	Stray func() bool

	// Tap, if not nil, is where others may watch what the streams carry, once SetLink has said what the association is.
	Tap *tap.Tap
}

// Session configures one end of a session. The zero value is useful.
type Session struct {
	PrivateData []byte // up to 512 bytes, 508 with IRD and ORD

	// IRD is how many RDMA Reads of the peer the stream accepts at a time, ORD how many
	// of ours it wants outstanding (RFC 6581 section 9.1): 0 is none, enhanced.DepthULP
	// leaves it to the ULP.
	IRD, ORD uint16

	// PeerToPeer, if not 0, asks for the peer-to-peer model with these RTR
	// indications. For an Accept it is the indications that it takes, 0 for a Write
	// and a Read (RFC 6581 section 9.2).
	PeerToPeer enhanced.RTR

	// Plain sends the Initiate of RFC 5043, without IRD and ORD. An Accept follows
	// the Initiate.
	Plain bool

	// Timeout bounds how long Initiate waits for the answer, in addition to its
	// context, 0 for 30 seconds.
	Timeout time.Duration
}

func (o *Session) depths() enhanced.Agreed {
	return enhanced.Agreed{IRD: enhanced.Depth(o.IRD), ORD: enhanced.Depth(o.ORD)}
}

// Mux carries the DDP streams of one association. It is the association's
// assoc.Receiver.
type Mux struct {
	assoc assoc.Association
	stray func() bool
	tap   *tap.Tap
	link  atomic.Pointer[tap.Link] // nil: the association is not known yet as it is to be shown
	odd   uint16                   // 1: this end numbers its sessions 1, 3, ..., else 0, 2, ...

	requests chan *Request
	up       chan struct{} // closed when the association is established
	over     chan struct{} // closed when it is over
	emptied  chan struct{} // holds a value once the last session has ended

	mu         sync.Mutex // guards the fields below it
	ended      error      // why the association is over
	streams    map[uint16]*Stream
	used       map[uint16]bool // streams that have had a session
	last       uint16          // the stream of the last Initiate of ours
	pending    int
	maxPending int
	excess     int // bytes held beyond the streams' shares
	watching   bool
	watcher    *time.Timer // calls look

	touched []*Stream // by the current batch; of the receiving goroutine
	queues  sync.Pool // *queue
	batches sync.Pool // *batch
}

var _ assoc.Receiver = (*Mux)(nil)

// New returns the Mux of an association whose peer has given DDP's Adaptation Layer
// Indication (RFC 5043 section 11.1). Make it, as the association's Receiver,
// before the association gets its first message. dialled is whether this end set
// the association up: that end starts sessions on streams of even numbers, the
// other on those of odd ones, so that both may start one at the same time.
func New(a assoc.Association, cfg Config, dialled bool) *Mux {
	m := &Mux{
		assoc:   a,
		stray:   cfg.Stray,
		tap:     cfg.Tap,
		up:      make(chan struct{}),
		over:    make(chan struct{}),
		emptied: make(chan struct{}, 1),
		streams: make(map[uint16]*Stream),
		used:    make(map[uint16]bool),
	}
	if !dialled {
		m.odd = 1
	}
	m.last = m.odd
	m.maxPending = cfg.MaxPending
	if m.maxPending == 0 {
		m.maxPending = DefaultPending
	}
	m.requests = make(chan *Request, max(0, m.maxPending))
	m.watcher = time.AfterFunc(stallTick, m.look) // the first look finds nothing
	return m
}

// pairs is the number of pairs of streams (RFC 5043 section 8).
func (m *Mux) pairs() int {
	out, in := m.assoc.Streams()
	return min(out, in)
}

// Done is closed when the association is over.
func (m *Mux) Done() <-chan struct{} { return m.over }

// Streams is the number of sessions.
func (m *Mux) Streams() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.streams)
}

// Accept waits for the next session that the peer wants to start. After the end
// of the association the error matches ErrMuxClosed and net.ErrClosed.
func (m *Mux) Accept(ctx context.Context) (*Request, error) {
	select {
	case r := <-m.requests:
		return r, nil
	default:
	}
	select {
	case r := <-m.requests:
		return r, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.over:
		return nil, fmt.Errorf("sctpadapt: accept: %w: %w", ErrMuxClosed, net.ErrClosed)
	}
}

// Initiate starts a session on a free pair of streams and waits for the answer
// (RFC 5043 section 6.2). The error is a *RejectedError, a *NegotiationError, or
// wraps ErrTerminated, ErrNoStream, ErrMuxClosed or the context's.
func (m *Mux) Initiate(ctx context.Context, o Session) (*Stream, error) {
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fail := func(err error) (*Stream, error) { return nil, fmt.Errorf("sctpadapt: initiate a session: %w", err) }
	select {
	case <-m.up:
	case <-m.over:
		return fail(m.closed())
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	c := Control{Function: FunctionInitiate, PrivateData: o.PrivateData}
	agreed := o.depths()
	if !o.Plain {
		c.Function = FunctionEnhancedInitiate
		c.Enhanced = agreed.Ask(o.PeerToPeer)
	}
	b, err := c.Append(nil)
	if err != nil {
		return fail(err)
	}
	s, err := m.open(c.Enhanced, agreed, b)
	if errors.Is(err, ErrMuxClosed) {
		err = m.closed()
	}
	if err != nil {
		return fail(err)
	}
	if err := s.sendFirst(b); err != nil {
		s.Close()
		return fail(err)
	}
	select {
	case <-s.answered:
	case <-m.over:
		return fail(m.closed())
	case <-ctx.Done():
		s.Close()
		return fail(ctx.Err())
	}
	if s.refusal != nil {
		return nil, s.refusal
	}
	return s, nil
}

// closed is ErrMuxClosed with the reason.
func (m *Mux) closed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrMuxClosed, lost(m.ended))
}

// open finds a pair of streams for a session of ours that the Initiate b is to begin. What b asks
// for is known from the start: the peer may answer before it is asked.
func (m *Mux) open(asked *enhanced.Data, agreed enhanced.Agreed, b []byte) (*Stream, error) {
	n := m.pairs()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return nil, ErrMuxClosed
	}
	for range (n + 1) / 2 {
		id := m.last
		if m.last += 2; int(m.last) >= n {
			m.last = m.odd
		}
		if int(id) >= n || m.streams[id] != nil || m.used[id] && m.assoc.Outstanding(id) > 0 {
			continue
		}
		s := m.addLocked(id, stateInitiated)
		s.asked, s.agreed = asked, agreed
		s.tap.SetRequest(b)
		return s, nil
	}
	return nil, ErrNoStream
}

// addLocked makes a session.
func (m *Mux) addLocked(id uint16, st state) *Stream {
	s := newStream(m, id, st)
	m.streams[id] = s
	m.used[id] = true
	return s
}

// removeLocked forgets a session that is over on both sides, or with which the peer
// is done.
func (m *Mux) removeLocked(s *Stream) {
	if m.streams[s.id] != s {
		return
	}
	delete(m.streams, s.id)
	if len(m.streams) == 0 {
		select {
		case m.emptied <- struct{}{}:
		default:
		}
	}
}

// Refuse lets the peer start no more sessions; its Initiates, those that wait
// included, are answered by a Terminate (RFC 5043 section 6.4).
func (m *Mux) Refuse() {
	m.mu.Lock()
	m.maxPending = -1
	m.mu.Unlock()
	for {
		select {
		case r := <-m.requests:
			r.Close()
		default:
			return
		}
	}
}

// Quiet waits until no session exchanges chunks any more. One goroutine at a time may wait. It fails with ctx's error.
func (m *Mux) Quiet(ctx context.Context) error {
	for m.Streams() > 0 {
		select {
		case <-m.emptied:
		case <-m.over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Event implements assoc.Receiver.
func (m *Mux) Event(e assoc.Event) {
	switch e.Kind {
	case assoc.EventUp:
		close(m.up)
	case assoc.EventDown:
		err := e.Err
		if err == nil {
			err = assoc.ErrShutdown
		}
		m.mu.Lock()
		m.ended = err
		all := slices.Collect(maps.Values(m.streams))
		clear(m.streams)
		m.watcher.Stop()
		m.mu.Unlock()
		for _, s := range all {
			s.end(lost(err))
		}
		close(m.over)
	}
}

// BatchEnd implements assoc.Receiver.
func (m *Mux) BatchEnd() {
	for i, s := range m.touched {
		s.touched = false
		s.wake()
		m.touched[i] = nil
	}
	m.touched = m.touched[:0]
}

// Message implements assoc.Receiver.
func (m *Mux) Message(msg *assoc.Message) (held bool) {
	m.mu.Lock()
	s := m.streams[msg.Stream]
	m.mu.Unlock()
	if s != nil && m.tap.On() {
		s.showReceived(msg)
	}
	switch {
	case msg.Flags&assoc.Unordered == 0: // RFC 5043 section 10
		return m.illegal(s, msg, "an ordered chunk")
	case !msg.Flags.Whole(): // RFC 5043 section 9
		return m.illegal(s, msg, "a fragment")
	case msg.PPID == PPIDControl:
		return m.control(s, msg)
	case msg.PPID != PPIDSegment: // RFC 5043 section 5.1
		return m.illegal(s, msg, fmt.Sprintf("a chunk with payload protocol identifier %d", msg.PPID))
	case len(msg.Payload) < ssnLen:
		return m.illegal(s, msg, "a chunk too short for its number")
	case s == nil:
		return m.illegal(s, msg, "a segment outside of a session")
	}
	return s.segment(msg)
}

// illegal ends the session of a chunk that conforms to no legal sequence (RFC 5043
// section 6.1), and nothing more.
func (m *Mux) illegal(s *Stream, msg *assoc.Message, what string) (held bool) {
	if s == nil {
		// There is no session here. If the peer believes that there is one, the
		// answer ends it there.
		m.turnAway(msg.Stream)
		return false
	}
	s.fail(&SessionError{Stream: s.id, Text: "the peer has sent " + what})
	return false
}

// turnAway answers a chunk that belongs to no session.
func (m *Mux) turnAway(stream uint16) {
	if m.stray != nil && !m.stray() {
		m.assoc.Abort("too much belongs to no DDP Stream Session")
		return
	}
	m.terminate(stream, 0)
}

// terminate sends a Terminate. If not even that can be queued, the peer takes nothing
// and asks for more, so the association ends.
func (m *Mux) terminate(stream, ssn uint16) {
	out, _ := m.assoc.Streams()
	if int(stream) >= out { // the peer has more streams than we may send on
		return
	}
	c := Control{SSN: ssn, Function: FunctionTerminate}
	b, _ := c.Append(nil)
	if err := m.assoc.SendNow(assoc.Outgoing{Stream: stream, PPID: PPIDControl, Bufs: [][]byte{b}}); err != nil {
		m.assoc.Abort("a DDP Stream Session Terminate could not be sent")
	}
}
