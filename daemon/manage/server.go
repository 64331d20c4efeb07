package manage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Handler carries out a request of a peer, and returns the answer, of MaxAnswer bytes at most. Its context ends when the peer goes away.
type Handler func(ctx context.Context, peer transport.Identity, request []byte) []byte

// Server carries out requests of peers.
type Server struct {
	ulp    *verbs.ULP
	log    *slog.Logger
	handle Handler

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below it
	peers  map[transport.Identity]int
	total  int
	closed bool
}

// NewServer returns a server whose streams are charged to ulp.
func NewServer(ulp *verbs.ULP, log *slog.Logger, handle Handler) *Server {
	s := &Server{ulp: ulp, log: log, handle: handle, peers: map[transport.Identity]int{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends all streams, and waits for what is being carried out.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	return nil
}

// Handle answers a peer's request for a stream. A peer that may manage nothing is refused. It does not block.
func (s *Server) Handle(cr *verbs.ConnRequest, mayManage bool) {
	reason := byte(0)
	switch {
	case !isHello(cr.PrivateData()):
		reason = refusedVersion
	case !mayManage:
		reason = refusedPeer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reason == 0 && (s.closed || isFull(s.peers[cr.Peer()], s.total)) {
		reason = refusedBusy
	}
	if s.closed {
		// Nobody waits for this goroutine; Reject is bounded by itself.
		go reject(context.Background(), cr, reason)
		return
	}
	if reason != 0 {
		s.log.Warn("a request for the management of volumes is refused", "peer", cr.Peer(), "flow", cr.Flow().String(), "error", refusalText(appendRefusal(nil, reason)))
		s.wg.Go(func() { reject(s.ctx, cr, reason) })
		return
	}
	s.total++
	s.peers[cr.Peer()]++
	s.wg.Go(func() {
		defer s.remove(cr.Peer())
		if err := s.serve(cr); err != nil {
			s.log.Warn("management of volumes", "peer", cr.Peer(), "flow", cr.Flow().String(), "error", err)
		}
	})
}

func reject(ctx context.Context, cr *verbs.ConnRequest, reason byte) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	_ = cr.Reject(ctx, appendRefusal(nil, reason)) // the peer may be gone
}

func (s *Server) remove(p transport.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.peers[p]--; s.peers[p] == 0 {
		delete(s.peers, p)
	}
}

// serve carries out one request.
func (s *Server) serve(cr *verbs.ConnRequest) (err error) {
	st, err := newStream(s.ulp)
	if err != nil {
		reject(s.ctx, cr, refusedBusy)
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	ctx, cancel := context.WithTimeout(s.ctx, startTime)
	defer cancel()
	_, err = cr.Accept(ctx, st.pd, verbs.AcceptConfig{QP: st.config(), PrivateData: appendHello(nil), Prepare: st.prepare})
	if err != nil {
		st.qp = nil
		reject(s.ctx, cr, refusedBusy)
		return fmt.Errorf("accept the stream: %w", err)
	}
	start, stop := st.untilEnd(ctx)
	defer stop()
	request, err := st.receiveAll(start, kindRequest, MaxRequest)
	if err != nil {
		return fmt.Errorf("its request: %w", err)
	}
	ctx, cancelHandling := context.WithTimeout(s.ctx, handleTime)
	defer cancelHandling()
	ctx, end := st.untilEnd(ctx)
	defer end()
	if err := st.sendAll(ctx, kindAnswer, s.handle(ctx, cr.Peer(), request)); err != nil {
		return fmt.Errorf("its answer: %w", err)
	}
	return nil
}
