package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

// Endpoints is what the SCTP associations of one user share: the knowledge which paths
// drop long packets, for the kernel's, and the listening UDP sockets, for the others. A
// closed listener leaves its socket to its associations, and the next listener at that
// UDP port takes it over:
//
//   - A socket of one address still receives what comes to that address when there is
//     also one of all addresses: a listener at all addresses has both.
//   - A socket of all addresses serves listeners at single ones. Packets to other
//     addresses are dropped unless they belong to an association. Without the socket the
//     kernel would answer with an ICMP port unreachable, which diallers ignore as well.
//
// The zero value is ready for use.
type Endpoints struct {
	narrow ksctp.Narrow

	mu  sync.Mutex // guards the fields below it
	all map[netip.AddrPort]*udpSocket
}

// udpSocket is a socket of listeners and of the associations of earlier ones.
type udpSocket struct {
	es      *Endpoints
	at      netip.AddrPort  // 0.0.0.0 for all addresses, including IPv6
	raw     syscall.RawConn // nil for a Network's
	ep      *sctp.Endpoint
	drained sync.WaitGroup

	listeners []*udpListener // open listeners; guarded by Endpoints.mu
	uses      int            // not yet closed listeners, and associations; guarded by Endpoints.mu
}

// udpListener is the listenSocket of a listener in UDP.
type udpListener struct {
	es      *Endpoints
	at      netip.AddrPort
	cfg     func(*udpSocket) sctp.Config
	sockets []*udpSocket
}

// udpAddr maps the unspecified address of either family to one: the kernel's sockets are
// of both families.
func udpAddr(at netip.AddrPort) netip.AddrPort {
	if at.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	}
	return at
}

// listen makes the sockets at an address use cfg: existing ones, and a new one, of the
// Network if there is one, if one is needed.
func (es *Endpoints) listen(ctx context.Context, n Network, at netip.AddrPort, cfg func(*udpSocket) sctp.Config) (*udpListener, error) {
	l := &udpListener{es: es, at: udpAddr(at), cfg: cfg}
	all := udpAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()))
	es.mu.Lock()
	defer es.mu.Unlock()
	var beside []*udpSocket // sockets with the same port
	for _, s := range es.all {
		if s.at.Port() != at.Port() {
			continue
		}
		beside = append(beside, s)
		for _, o := range s.listeners {
			if o.at == l.at || o.at == all || l.at == all {
				return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(at), Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
			}
		}
	}
	switch own, wild := es.all[l.at], es.all[all]; {
	case l.at == all:
		l.sockets = slices.Clone(beside)
		if wild != nil {
			break
		}
		s, err := es.openLocked(ctx, n, at, beside, cfg)
		if err != nil {
			return nil, err
		}
		l.sockets = append(l.sockets, s)
	case own != nil:
		l.sockets = []*udpSocket{own}
	case wild != nil:
		l.sockets = []*udpSocket{wild}
	default:
		s, err := es.openLocked(ctx, n, at, nil, cfg)
		if err != nil {
			return nil, err
		}
		l.sockets = []*udpSocket{s}
	}
	for _, s := range l.sockets {
		s.uses++
		s.listeners = append(s.listeners, l)
	}
	for _, s := range beside {
		if err := s.configureLocked(); err != nil {
			l.leaveLocked()
			l.releaseLocked()
			return nil, err
		}
	}
	return l, nil
}

// openLocked opens a socket that shares its port with those in beside.
func (es *Endpoints) openLocked(ctx context.Context, n Network, at netip.AddrPort, beside []*udpSocket, cfg func(*udpSocket) sctp.Config) (*udpSocket, error) {
	s := &udpSocket{es: es, at: udpAddr(at)}
	var conn net.PacketConn
	var err error
	if n != nil {
		conn, err = n.ListenPacket(at)
	} else {
		conn, err = s.bindLocked(ctx, at, beside)
	}
	if err != nil {
		return nil, err
	}
	if s.ep, err = sctp.Listen(conn, cfg(s)); err != nil {
		return nil, err
	}
	s.drained.Go(func() {
		for {
			// arrived has taken them.
			if _, err := s.ep.Accept(context.Background()); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	})
	if es.all == nil {
		es.all = make(map[netip.AddrPort]*udpSocket)
	}
	es.all[s.at] = s
	return s, nil
}

// bindLocked binds the socket to a port of the host's UDP.
func (s *udpSocket) bindLocked(ctx context.Context, at netip.AddrPort, beside []*udpSocket) (*net.UDPConn, error) {
	var lc net.ListenConfig
	if len(beside) > 0 {
		lc.Control = func(_, _ string, c syscall.RawConn) error { return sharePort(c, true) }
	}
	for _, o := range beside {
		if o.raw == nil {
			continue
		}
		if err := sharePort(o.raw, true); err != nil {
			return nil, err
		}
		defer sharePort(o.raw, false)
	}
	pc, err := lc.ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return nil, err
	}
	conn := pc.(*net.UDPConn)
	if s.raw, err = conn.SyscallConn(); err == nil {
		err = sharePort(s.raw, false)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// sharePort lets other sockets of the same user bind to the port. The kernel checks this
// at bind; at other times nobody may join.
func sharePort(c syscall.RawConn, on bool) (err error) {
	value := 0
	if on {
		value = 1
	}
	cerr := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value))
	})
	return errors.Join(cerr, err)
}

// configureLocked gives the endpoint the configurations of its listeners.
func (s *udpSocket) configureLocked() error {
	at := make(map[netip.Addr]sctp.Config, len(s.listeners))
	for _, l := range s.listeners {
		a := l.at.Addr()
		if a.IsUnspecified() || s.at == l.at {
			a = netip.Addr{} // any local address
		}
		at[a.WithZone("")] = l.cfg(s)
	}
	return s.ep.Reconfigure(at)
}

// use keeps the socket open for an association until over is called, which may be called
// again. The caller's listener has it meanwhile.
func (s *udpSocket) use() (over func()) {
	s.es.mu.Lock()
	defer s.es.mu.Unlock()
	s.uses++
	return sync.OnceFunc(func() {
		s.es.mu.Lock()
		defer s.es.mu.Unlock()
		s.releaseLocked()
	})
}

// releaseLocked ends one use. The last one closes the socket; a new listener there waits for
// that.
func (s *udpSocket) releaseLocked() {
	if s.uses--; s.uses > 0 {
		return
	}
	s.ep.Close()
	s.drained.Wait()
	delete(s.es.all, s.at)
}

// stop frees the sockets for another listener. An endpoint that has no other keeps the
// closed listener's configuration, which refuses, until there is a new listener at its
// port.
func (l *udpListener) stop() {
	l.es.mu.Lock()
	defer l.es.mu.Unlock()
	l.leaveLocked()
}

func (l *udpListener) leaveLocked() {
	for _, s := range l.sockets {
		s.listeners = slices.DeleteFunc(s.listeners, func(o *udpListener) bool { return o == l })
		if len(s.listeners) > 0 {
			_ = s.configureLocked() // as it was before l came
		}
	}
}

// close releases the sockets, which associations may still use.
func (l *udpListener) close() {
	l.es.mu.Lock()
	defer l.es.mu.Unlock()
	l.releaseLocked()
}

func (l *udpListener) releaseLocked() {
	for _, s := range l.sockets {
		s.releaseLocked()
	}
}

// listenUDP opens the UDP socket of a listener.
func (l *SCTPListener) listenUDP(ctx context.Context, es *Endpoints) error {
	if len(l.cfg.MoreLocal) > 0 {
		return errOneAddress
	}
	if l.addr.Port() == 0 {
		l.addr = netip.AddrPortFrom(l.addr.Addr(), sctp.DefaultPort)
	}
	l.flow.Local = netip.AddrPortFrom(l.addr.Addr(), l.cfg.udpPort())
	sc := l.cfg.sctpConfig()
	sc.Port = l.addr.Port()
	sc.Admit = func(at, from netip.AddrPort, _ bool) error {
		f := Flow{Protocol: ProtoUDP, Local: unmap(at), Remote: unmap(from)}
		err := screen(l.cfg.Protector, f)
		if err != nil {
			l.refusedUnknown(f, err)
		}
		return err
	}
	b, err := es.listen(ctx, l.cfg.Network, l.flow.Local, func(s *udpSocket) sctp.Config {
		c := sc
		c.Accept = func(a *sctp.Assoc) assoc.Receiver { return l.arrived(s, a) }
		return c
	})
	if err != nil {
		return err
	}
	l.socket = b
	return nil
}

// arrived takes an association that a peer has set up. It is called by the goroutine that
// reads the socket.
func (l *SCTPListener) arrived(s *udpSocket, a *sctp.Assoc) assoc.Receiver {
	f := Flow{Protocol: ProtoUDP, Local: unmap(a.Local()), Remote: unmap(a.Remote())}
	if err := l.begin(f); err != nil {
		a.Abort(err.Error())
		return refusedReceiver{}
	}
	g, over := newGate(a, []Flow{f}, l.cfg), s.use()
	go l.offer(f, over, func(ctx context.Context) (*Assoc, error) {
		if l.cfg.OwnSockets && s.raw != nil {
			if err := s.adopted(ctx, a, f, l.cfg.admitTimeout()); err != nil {
				a.Abort("no socket is left for it")
				g.cancel()
				return nil, flowError("accept", f, err)
			}
		}
		return g.admitted(ctx, false, l.newRecv, over)
	})
	return g
}

// refusedReceiver is the Receiver of an association that was aborted at once.
type refusedReceiver struct{}

func (refusedReceiver) Message(*assoc.Message) bool { return false }
func (refusedReceiver) Event(assoc.Event)           {}
func (refusedReceiver) BatchEnd()                   {}
