package ikematrix

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// setupError is a failure before the first byte: a refusal, perhaps.
type setupError struct{ err error }

func (e *setupError) Error() string { return e.err.Error() }
func (e *setupError) Unwrap() error { return e.err }

// peers are the hosts' settings for each other.
func (m *matrix) peers(c *Case, port uint16) (a, b pad.Peer, err error) {
	p, err := c.profile()
	if err != nil {
		return a, b, err
	}
	here, there := m.alpha.at(c), m.beta.at(c)
	idA, idB := c.identities(here.String(), there.String())
	a = pad.Peer{Name: "beta", Local: here, Remote: there, LocalID: idA, RemoteID: idB, Port: port, Profile: p, OnDemand: true}
	b = pad.Peer{Name: "alpha", Local: there, Remote: here, LocalID: idB, RemoteID: idA, Port: port, Profile: p, OnDemand: true}
	if c.Auth == psk {
		a.PSK = auth.GenerateSecret()
		b.PSK = a.PSK
		return a, b, nil
	}
	return a, b, m.install(c.Auth, &a, &b)
}

// try brings a stream up, has traffic go through, deletes the child and has
// traffic go through again.
func (m *matrix) try(ctx context.Context, row *Row, port uint16) (*Agreed, error) {
	c := &row.Case
	a, b, err := m.peers(c, port)
	if err != nil {
		return nil, err
	}
	if row.Stream {
		for _, kind := range carriers() {
			a.Links = append(a.Links, pad.Link{Protocol: kind.Protocol(), Port: port})
		}
		b.Links = a.Links
	}
	to := netip.AddrPortFrom(b.Local, port)
	srv, conn, err := m.connect(ctx, &a, &b, to)
	if srv != nil {
		defer srv.close()
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m.rows++
	if err := echo(conn, m.alpha.Canary(), 2*m.rows); err != nil {
		return nil, err
	}
	agreed, err := m.returns(ctx, c, conn, &a, &b)
	if err != nil {
		return nil, err
	}
	if err := m.hangUp(conn, port); err != nil {
		return nil, err
	}
	srv.close()
	if !row.Stream {
		return agreed, nil
	}
	for _, kind := range carriers() {
		if err := stream(ctx, m.alpha, m.beta, a.Local, to, kind); err != nil {
			return nil, fmt.Errorf("over %v: %w", kind, err)
		}
	}
	return agreed, m.drained(port)
}

// carriers are those that this kernel has.
func carriers() []transport.Kind {
	all := []transport.Kind{transport.TCP, transport.SCTPUDP}
	if lab.KernelSCTP() == nil {
		all = append(all, transport.SCTP)
	}
	return all
}

// connect gives the hosts each other as peers and makes a connection. A failure is a
// setupError, unless something went through that must not.
func (m *matrix) connect(ctx context.Context, a, b *pad.Peer, to netip.AddrPort) (srv *echoServer, conn *transport.Conn, err error) {
	errA, errB := m.alpha.m.AddPeer(ctx, *a), m.beta.m.AddPeer(ctx, *b)
	if srv, err = m.beta.serveEcho(ctx, to); err != nil {
		return nil, nil, err
	}
	if err = errors.Join(errA, errB); err == nil {
		ctx, cancel := context.WithTimeout(ctx, 2*patience)
		defer cancel()
		if conn, err = m.alpha.dial(ctx, a.Local, to); err == nil {
			return srv, conn, nil
		}
	}
	err = errors.Join(err, srv.refusal())
	// A peer that was rejected has no guard.
	if len(m.alpha.m.Peers()) > 0 {
		if open := m.blocked(ctx, to); open != nil {
			return srv, nil, errors.Join(err, open)
		}
	}
	return srv, nil, &setupError{err}
}

// returns checks the SAs at both ends, deletes the child at one of them and
// checks that the same stream goes on over another child.
func (m *matrix) returns(ctx context.Context, c *Case, conn *transport.Conn, a, b *pad.Peer) (*Agreed, error) {
	var last *Agreed
	deleted := map[string]bool{} // children, by their SPI
	look := func(returned bool) error {
		for _, e := range []struct {
			h     *host
			peer  *pad.Peer
			child string
		}{{m.alpha, a, "beta-out"}, {m.beta, b, "alpha-in"}} {
			all, err := e.h.children(ctx, e.child)
			if err != nil {
				return err
			}
			var in, out uint64
			for i := range all {
				sa, child := &all[i].sa, &all[i].child
				spi := e.h.Name() + child.SPIIn
				switch {
				case !returned:
					deleted[spi] = true
				case deleted[spi] && child.IsInstalled():
					return fmt.Errorf("%s still has the child with SPI %s, which was deleted", e.h.Name(), child.SPIIn)
				case deleted[spi]:
					continue
				}
				last = agreed(sa, child)
				if err := errors.Join(last.check(c, m.plane, returned), checkIdentities(sa, e.peer.LocalID, e.peer.RemoteID)); err != nil {
					return fmt.Errorf("%s: %w", e.h.Name(), err)
				}
				in, out = in+child.BytesIn, out+child.BytesOut
			}
			if in < payloadSize || out < payloadSize {
				return fmt.Errorf("%s's %w: %d bytes in and %d out, less than what came through", e.h.Name(), errIdle, in, out)
			}
		}
		return nil
	}
	if err := m.carries(conn, func() error { return look(false) }); err != nil {
		return nil, err
	}
	h, peer := m.alpha, "beta"
	if m.rows%2 == 0 {
		h, peer = m.beta, "alpha"
	}
	if n, err := h.m.DeleteChild(ctx, peer, ""); err != nil || n == 0 {
		return nil, fmt.Errorf("delete on %s: %d children, %w", h.Name(), n, err)
	}
	if err := echo(conn, m.alpha.Canary(), 2*m.rows+1); err != nil {
		return nil, fmt.Errorf("after the child was deleted: %w", err)
	}
	err := m.carries(conn, func() error { return look(true) })
	return last, err
}

// errIdle means that a child has not carried what came through.
var errIdle = errors.New("child has carried little")

// carries looks, and if a child has carried too little, has another payload go through
// and looks again: the Manager may have replaced a child in between that it took for
// dead, as it does on a slow machine. A child that really carries nothing goes on
// carrying nothing.
func (m *matrix) carries(conn *transport.Conn, look func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := look()
		if !errors.Is(err, errIdle) || try == tries {
			return err
		}
		if err := echo(conn, m.alpha.Canary(), 2*m.rows); err != nil {
			return err
		}
	}
}

// hangUp ends a connection in good order, and waits until nothing more of it can be
// sent: when the peer is removed its guard goes, too.
func (m *matrix) hangUp(conn *transport.Conn, port uint16) error {
	return errors.Join(conn.Close(), m.drained(port))
}

func (m *matrix) drained(port uint16) error {
	for _, h := range []*host{m.alpha, m.beta} {
		err := until("the sockets of "+h.Name()+" are done", func() bool {
			n, err := h.sockets(port)
			return err == nil && n == 0
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// knockTime is how long to try a connection that must not come up: the kernel refuses
// most at once, and some get no answer.
const knockTime = 300 * time.Millisecond

// blocked checks that without an SA no connection begins.
func (m *matrix) blocked(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, knockTime)
	defer cancel()
	c, err := m.alpha.Dial(ctx, to)
	if err != nil {
		return nil
	}
	c.Close()
	return errors.New("a clear connection to the peer was made while there was no SA")
}

// forget removes the peers.
func (m *matrix) forget(ctx context.Context) error {
	var errs []error
	for _, h := range []*host{m.alpha, m.beta} {
		for _, p := range h.m.Peers() {
			errs = append(errs, h.m.RemovePeer(ctx, p.Peer))
		}
	}
	return errors.Join(errs...)
}
