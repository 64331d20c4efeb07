package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Server is the service that peers measure against.
type Server struct {
	ulp *verbs.ULP
	log *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	memory memoryPool
	after  func(time.Duration) <-chan time.Time

	mu      sync.Mutex // guards the fields below it
	clients map[transport.Identity]int
	total   int
	closed  bool
	trust   verbs.TrustModel
}

// NewServer returns a server whose streams are charged to ulp.
func NewServer(ulp *verbs.ULP, log *slog.Logger) *Server {
	s := &Server{ulp: ulp, log: log, after: time.After, clients: make(map[transport.Identity]int)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// SetTrust sets how much clients that come from now on are trusted, at most as much as
// the ULP permits. At first none is. Each client's stream has a protection domain of its
// own in any case.
func (s *Server) SetTrust(m verbs.TrustModel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trust = m
}

func (s *Server) trustModel() verbs.TrustModel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trust
}

// Close ends all streams.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	return nil
}

// Handle answers a request that IsRequest has recognised. It does not block.
func (s *Server) Handle(cr *verbs.ConnRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := parseRequest(cr.PrivateData())
	if reason == 0 && (s.closed || s.fullForLocked(cr.Peer())) {
		reason = refusedBusy
	}
	if s.closed {
		// Nobody waits for this goroutine; Reject is bounded by itself.
		go reject(context.Background(), cr, reason)
		return
	}
	if reason != 0 {
		s.wg.Go(func() { reject(s.ctx, cr, reason) })
		return
	}
	s.total++
	s.clients[cr.Peer()]++
	s.wg.Go(func() {
		defer s.removeClient(cr.Peer())
		if err := s.serve(cr); err != nil {
			s.log.Warn("ping service", "peer", cr.Peer(), "flow", cr.Flow().String(), "error", err)
		}
	})
}

// fullForLocked reports whether a peer gets no further stream: of the second half of all each
// has one at most, so that a few peers keep no other out.
func (s *Server) fullForLocked(p transport.Identity) bool {
	most := MaxClientsPeer
	if s.total >= MaxClients/2 {
		most = 1
	}
	return s.total >= MaxClients || s.clients[p] >= most
}

func reject(ctx context.Context, cr *verbs.ConnRequest, reason uint8) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	// The peer may be gone; then nobody needs to know.
	_ = cr.Reject(ctx, appendRefusal(nil, reason))
}

func (s *Server) removeClient(p transport.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.clients[p]--; s.clients[p] == 0 {
		delete(s.clients, p)
	}
}

// serve runs one client's stream to its end.
func (s *Server) serve(cr *verbs.ConnRequest) (err error) {
	mem := s.memory.get()
	res, err := newResources(s.ulp, s.trustModel(), mem, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		reject(s.ctx, cr, refusedBusy)
		return err
	}
	defer func() {
		ferr := res.free()
		if ferr == nil { // what is still registered is nobody else's
			s.memory.put(mem)
		}
		err = errors.Join(err, ferr)
	}()
	e := &echo{msgs: res.msgs}
	cq, err := s.ulp.CreateCQ(4*window+8, e)
	if err != nil {
		reject(s.ctx, cr, refusedBusy)
		return err
	}
	defer func() { err = errors.Join(err, cq.Destroy()) }()
	ctx, cancel := context.WithTimeout(s.ctx, answerTimeout)
	defer cancel()
	o := offer{Window: window, MaxMessage: MaxMessage, STag: res.region.STag(), Length: RegionSize}
	cfg := verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 2*window + 2, MaxRecv: window + 1, IRD: depth, ORD: depth}
	qp, err := cr.Accept(ctx, res.pd, verbs.AcceptConfig{QP: cfg, PrivateData: o.Append(nil), Prepare: func(qp *verbs.QP) error {
		for slot := range window + 1 {
			if err := e.post(qp, slot); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		reject(s.ctx, cr, refusedBusy)
		return fmt.Errorf("accept the stream: %w", err)
	}
	select {
	case <-qp.Done():
	case <-s.ctx.Done():
		qp.Abort(s.ctx.Err())
	case <-s.after(maxAge):
		qp.Abort(fmt.Errorf("the stream was open for %v, which no measurement takes", maxAge))
	}
	<-qp.Done()
	return nil
}

// echo answers messages on the engine's goroutine.
type echo struct {
	msgs    *verbs.MR
	counted uint32
	ack     [ackLen]byte
}

func (e *echo) post(qp *verbs.QP, slot int) error {
	return qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{{MR: e.msgs, Off: uint32(slot * MaxMessage), Len: MaxMessage}}})
}

// Completions implements verbs.CQHandler. An answer is posted before its
// message's receive is given back, so one receive more than the window keeps the
// client's promise sufficient.
func (e *echo) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		if wc.Err != nil || wc.Op != verbs.WCRecv {
			continue
		}
		if err := e.message(wc); err != nil {
			wc.QP.Abort(err)
			return
		}
	}
	wcs[0].QP.Flush()
}

func (e *echo) message(wc *verbs.WC) error {
	slot := int(wc.ID)
	msg := e.msgs.Bytes()[slot*MaxMessage:][:wc.Len]
	wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline | verbs.More}
	switch {
	case len(msg) > 0 && msg[0] == tagEcho:
		wr.SGL = []verbs.SGE{{MR: e.msgs, Off: uint32(slot * MaxMessage), Len: wc.Len}}
	default:
		e.counted++
		if e.counted%ackEvery == 0 {
			// The message has been counted, so its memory can carry the answer.
			ack := appendAck(e.ack[:0], e.counted)
			copy(e.msgs.Bytes()[slot*MaxMessage:], ack)
			wr.SGL = []verbs.SGE{{MR: e.msgs, Off: uint32(slot * MaxMessage), Len: ackLen}}
		}
	}
	if wr.SGL != nil {
		if err := wc.QP.PostSend(&wr); err != nil {
			return fmt.Errorf("answer a message: %w", err)
		}
	}
	return e.post(wc.QP, slot)
}
