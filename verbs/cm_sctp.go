package verbs

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// session is one stream's use of an association, from before its DDP Stream
// Session starts (RFC 5043 section 6) until the stream is over.
type session struct {
	a     *association
	fresh bool        // the association was set up for it
	left  atomic.Bool // of a dialled association
	up    atomic.Bool // of an accepted association: the stream is charged for it

	// For a session that the peer wants to start.
	req *sctpadapt.Request
	rtr RTR // accepted
}

// Flow implements Transport.
func (s *session) Flow() transport.Flow { return s.a.assoc.Flow() }

// PathMTU is the association's.
func (s *session) PathMTU() (carries, lost int) { return s.a.assoc.PathMTU() }

// Protection implements Transport.
func (s *session) Protection() transport.Protection { return s.a.assoc.Protection() }

// leave ends the use of the association, which other streams may share. It is
// idempotent.
func (s *session) leave() {
	switch {
	case s.req == nil && !s.left.Swap(true):
		s.a.leave()
	case s.req != nil && s.up.Swap(false):
		s.a.streamDown()
	}
}

// drop ends the session at whatever stage: a peer that waits for an answer gets a Terminate.
func (s *session) drop() {
	if s.req != nil {
		s.req.Close()
	}
	s.leave()
}

// staleError means that an association could not take another session, and that the next
// attempt will use another association.
type staleError struct{ error }

func (e staleError) Unwrap() error { return e.error }

// start starts the session as the active side.
func (s *session) start(ctx context.Context, dial *DialConfig) (*started, error) {
	a := s.a
	select {
	case a.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	want := sctpadapt.Session{
		PrivateData: dial.PrivateData, IRD: uint16(dial.QP.IRD), ORD: uint16(dial.QP.ORD),
		PeerToPeer: dial.Setup.offer(), Plain: dial.Setup.Plain, Timeout: dial.Setup.Timeout,
	}
	st, err := a.mux.Initiate(ctx, want)
	if errors.Is(err, sctpadapt.ErrTerminated) && !want.Plain { // the peer does not know Enhanced Initiate
		want.Plain = true
		st, err = a.mux.Initiate(ctx, want)
	}
	<-a.starting
	var rej *sctpadapt.RejectedError
	var neg *sctpadapt.NegotiationError
	switch {
	case err == nil:
		return &started{llp: st, ird: int(st.IRD()), ord: int(st.ORD()), ready: chooseRTR(st.RTR()), private: st.PrivateData()}, nil
	case errors.As(err, &rej):
		err = &RejectedError{Remote: dial.Remote, PrivateData: rej.PrivateData, Depths: offered(rej.Enhanced), Err: err}
	case errors.As(err, &neg):
		rdmap.Refuse(neg.Stream, neg.Err)
	case errors.Is(err, sctpadapt.ErrNoStream), errors.Is(err, sctpadapt.ErrMuxClosed):
		a.dev.assocs.retire(a)
		if !s.fresh {
			err = staleError{err}
		}
	case errors.Is(err, context.DeadlineExceeded):
		// The peer may have restarted silently: the next stream uses another association.
		a.dev.assocs.retire(a)
	}
	return nil, err
}

func offered(e *enhanced.Data) Depths {
	if e == nil {
		return Depths{IRD: -1, ORD: -1}
	}
	return depthsOf(e.IRD, e.ORD)
}

func (s *session) privateData() []byte { return s.req.PrivateData }

func (s *session) depths() Depths { return offered(s.req.Enhanced) }

func (s *session) accept(_ context.Context, private []byte, ird, ord uint16) (*started, error) {
	st, err := s.req.Accept(sctpadapt.Session{PrivateData: private, IRD: ird, ORD: ord, PeerToPeer: s.rtr})
	if err != nil {
		return nil, err
	}
	s.up.Store(true)
	s.a.streamUp()
	return &started{llp: st, ird: int(st.IRD()), ord: int(st.ORD()), awaited: st.RTR() != 0, private: s.req.PrivateData}, nil
}

func (s *session) reject(_ context.Context, private []byte) error { return s.req.Reject(private) }

func (s *session) rejectDepths(_ context.Context, private []byte, ird, ord uint16) error {
	return s.req.RejectDepths(private, ird, ord)
}
