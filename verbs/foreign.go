package verbs

import (
	"sync"

	"github.com/ironwarp/ironwarp/transport"
)

// ChargeStream charges a stream that another process of this host has with peer, on an RNIC of its own: one stream of the
// device, of the ULP and of the peer. release gives it back, once. It fails with a *QuotaError, and with ErrClosed after
// Close.
func (u *ULP) ChargeStream(peer transport.Identity) (release func(), err error) {
	c := charge{ulp: &u.acct, peer: peer}
	c.n[resStreams] = 1
	m := &u.dev.prm
	if err := m.take(&c); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { m.give(&c) }), nil
}
