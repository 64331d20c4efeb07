package transport

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport/sctp"
)

// adopted gives an association of a listening socket one of its own, at the same port and
// connected to its peer.
//
// From bind to connect the new socket gets what comes to its address from anybody, which its
// reader passes to whom it is for. It shares its port with the other associations' (SO_REUSEPORT:
// among sockets of one user), of which the kernel prefers the one that is connected to a packet's
// sender. A socket that does not ask to share cannot have the port, so nobody listens there by
// mistake.
//
// While there is no SA the guard refuses even to connect. Then it is tried again until limit has passed, as an
// admission would wait, or the association ends.
func (s *udpSocket) adopted(ctx context.Context, a *sctp.Assoc, f Flow, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := prepareAgainMin; ; pause = min(2*pause, prepareAgainMax) {
		s.es.mu.Lock()
		conn, err := s.connectLocked(ctx, f)
		s.es.mu.Unlock()
		if err == nil {
			return a.Adopt(conn)
		}
		if !errors.Is(err, syscall.EPERM) || a.Err() != nil || !wait(ctx, pause) {
			return err
		}
	}
}

func (s *udpSocket) connectLocked(ctx context.Context, f Flow) (*net.UDPConn, error) {
	for _, o := range s.es.all {
		if o.raw == nil || o.at.Port() != f.Local.Port() {
			continue
		}
		if err := sharePort(o.raw, true); err != nil {
			return nil, err
		}
		defer sharePort(o.raw, false)
	}
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(f.Local), Control: func(_, _ string, c syscall.RawConn) error { return sharePort(c, true) }}
	c, err := d.DialContext(ctx, "udp", f.Remote.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}
