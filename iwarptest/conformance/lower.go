package conformance

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// OverLLP connects queue pairs of two hosts of package verbs over lower layers
// that pair makes. Either end must be able to send first.
func OverLLP(t testing.TB, pair func(t testing.TB) (a, b ddp.LLP), options ...Option) Connect {
	ha, hb := NewHost(t, options...), NewHost(t, options...)
	return func(t testing.TB) (a, b Endpoint) {
		t.Helper()
		la, lb := pair(t)
		adopt := func(h *Host, l ddp.LLP) Endpoint {
			e, err := h.Endpoint(t, l.MULPDU(), func(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
				return pd.Adopt(verbs.AdoptConfig{QP: cfg, LLP: l, Conn: unprotected{}, IRD: cfg.IRD, ORD: cfg.ORD})
			})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		return adopt(ha, la), adopt(hb, lb)
	}
}

// unprotected takes the place of the connection below an LLP that has none.
type unprotected struct{}

func (unprotected) Flow() transport.Flow               { return transport.Flow{} }
func (u unprotected) Protection() transport.Protection { return u }
func (unprotected) Peer() transport.Identity           { return "peer" }
func (unprotected) Paused() bool                       { return false }
func (unprotected) Kind() string                       { return "none" }
func (unprotected) Release()                           {}

// OverMPA connects queue pairs of two hosts of package verbs by MPA on TCP over
// the loopback address local.
func OverMPA(t testing.TB, local netip.Addr, client, server mpa.Config, options ...Option) Connect {
	t.Helper()
	ha, hb := NewHost(t, options...), NewHost(t, options...)
	tc := &transport.Config{Protector: transport.LoopbackOnly()}
	ln, err := transport.Listen(context.Background(), netip.AddrPortFrom(local, 0), tc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	client.IRD, client.ORD, server.IRD, server.ORD = uint16(ha.depth), uint16(ha.depth), uint16(hb.depth), uint16(hb.depth)
	return func(t testing.TB) (a, b Endpoint) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		accepted := make(chan error, 1)
		go func() {
			conn, err := ln.Accept(ctx)
			if err != nil {
				accepted <- err
				return
			}
			m, err := serve(ctx, conn, &server)
			if err == nil {
				b, err = hb.adopt(t, m, conn, false)
			}
			accepted <- err
		}()
		conn, err := transport.Dial(ctx, ln.Addr(), tc)
		if err != nil {
			t.Fatal(errors.Join(err, <-accepted))
		}
		m, err := mpa.Client(ctx, conn, &client)
		if err == nil {
			a, err = ha.adopt(t, m, conn, true)
		}
		if err := errors.Join(err, <-accepted); err != nil {
			t.Fatal(err)
		}
		if m.RTR() == 0 {
			speakFirst(t, a)
		}
		return a, b
	}
}

func serve(ctx context.Context, conn *transport.Conn, cfg *mpa.Config) (*mpa.Conn, error) {
	req, err := mpa.Server(ctx, conn, cfg)
	if err != nil {
		return nil, err
	}
	return req.Accept(ctx, mpa.AcceptOptions{IRD: cfg.IRD, ORD: cfg.ORD})
}

// adopt makes an end on a connection that has gone through MPA's start-up.
func (h *Host) adopt(t testing.TB, m *mpa.Conn, conn *transport.Conn, initiator bool) (Endpoint, error) {
	return h.Endpoint(t, m.MULPDU(), func(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
		return pd.Adopt(verbs.AdoptMPA(cfg, m, conn, initiator))
	})
}

// speakFirst sends a message that the peer's consumer does not see, so that an
// MPA responder may send.
func speakFirst(t testing.TB, e Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.PostSend(WR{Op: OpWrite, Flags: Signaled}); err != nil {
		t.Fatal(err)
	}
	if wc, err := e.Completion(ctx); err != nil || wc.Status != OK {
		t.Fatalf("the initiator's first message: %+v, %v", wc, err)
	}
}
