package verbs

import (
	"errors"
	"net"

	"github.com/ironwarp/ironwarp/transport"
)

// hold is the charge of a half-open stream to its peer: a connection in start-up, a
// request that waits for an answer, or an SCTP association without a stream (RFC 5042
// section 6.4.1). There is no ULP yet to charge.
type hold struct {
	dev    *Device
	charge charge
}

// halfOpen charges peer for one half-open stream.
func (d *Device) halfOpen(peer transport.Identity) (*hold, error) {
	h := &hold{dev: d, charge: halfOpenOf(peer)}
	h.charge.n[resHalfOpen] = 1
	if err := d.prm.take(&h.charge); err != nil {
		return nil, err
	}
	return h, nil
}

// release gives the charge back, once.
func (h *hold) release() {
	m := &h.dev.prm
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.charge.n != (amounts{}) {
		book(&h.charge, m.accountsLocked(&h.charge), -1)
		h.charge.n = amounts{}
	}
	m.forgetLocked(h.charge.peer)
}

// refuse reports a peer's connection, association or session for which there are no
// resources.
func (l *Listener) refuse(conn Transport, err error) {
	var q *QuotaError
	if errors.As(err, &q) {
		l.dev.events.emit(Event{Kind: EventQuotaExceeded, Peer: conn.Protection().Peer(), Flow: conn.Flow(), Err: err})
	}
	l.failed(conn.Flow(), err)
}

// reset ends a connection on which nothing was exchanged, so that it leaves no state
// behind.
func reset(c *transport.Conn) {
	if tcp, ok := c.NetConn().(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
