package conformance

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// OverCarrier connects queue pairs of two hosts of package verbs by
// verbs.Device.Listen and verbs.PD.Dial, whatever carrier the configs are for.
// Over SCTP all streams share an association. local is the listener's address,
// with the port of SCTP where the carrier is that. Either end must be able to send
// first, as over SCTP.
func OverCarrier(t testing.TB, local netip.AddrPort, client, server *transport.Config, options ...Option) Connect {
	t.Helper()
	ha, hb := NewHost(t, options...), NewHost(t, options...)
	var ln *verbs.Listener
	if err := hb.listenIn(func() (err error) {
		ln, err = hb.Device.Listen(context.Background(), local, verbs.ListenConfig{Transport: server})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return func(t testing.TB) (a, b Endpoint) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		accepted := make(chan error, 1)
		go func() {
			r, err := ln.Accept(ctx)
			if err == nil {
				b, err = hb.Endpoint(t, 0, func(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
					return r.Accept(ctx, pd, verbs.AcceptConfig{QP: cfg})
				})
			}
			accepted <- err
		}()
		a, err := ha.Endpoint(t, 0, func(pd *verbs.PD, cfg verbs.QPConfig) (qp *verbs.QP, err error) {
			err = ha.dialIn(func() (err error) {
				qp, err = pd.Dial(ctx, verbs.DialConfig{QP: cfg, Remote: ln.Addr(), Transport: client})
				return err
			})
			return qp, err
		})
		if err := errors.Join(err, <-accepted); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
}
