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

// Endpoints are what the associations of one user of SCTP have in common: of the kernel's,
// which paths drop long packets, and the UDP sockets on which others are awaited. A listener that is
// closed leaves its socket to the associations that it has taken, and the next one at
// that UDP port takes it over:
//
//   - A socket of one address goes on receiving what comes to that address, also beside
//     one of all addresses: a listener at all addresses has both.
//   - A socket of all addresses serves listeners at single ones. What comes to others is
//     dropped, unless it belongs to an association. Without the socket the kernel would
//     answer by an ICMP port unreachable, which diallers do not look at either.
//
// The zero value is ready for use.
type Endpoints struct {
	narrow ksctp.Narrow

	mu  sync.Mutex
	all map[netip.AddrPort]*udpSocket
}

// udpSocket is a socket of listeners, and of the associations of earlier ones.
type udpSocket struct {
	es      *Endpoints
	at      netip.AddrPort // 0.0.0.0 for all addresses, those of IPv6 as well
	raw     syscall.RawConn
	ep      *sctp.Endpoint
	drained sync.WaitGroup

	// What follows is guarded by the mutex of Endpoints.
	listeners []*udpListener // that are open
	uses      int            // listeners that are not closed, and associations
}

// udpListener is what a listener in UDP has below itself.
type udpListener struct {
	es      *Endpoints
	at      netip.AddrPort
	cfg     func(*udpSocket) sctp.Config
	sockets []*udpSocket
}

// udpAddr makes of all addresses one: the kernel's sockets are of both families.
func udpAddr(at netip.AddrPort) netip.AddrPort {
	if at.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	}
	return at
}

// listen has the sockets at an address ask cfg, those that are there and one that
// is opened if it takes one.
func (es *Endpoints) listen(ctx context.Context, at netip.AddrPort, cfg func(*udpSocket) sctp.Config) (*udpListener, error) {
	l := &udpListener{es: es, at: udpAddr(at), cfg: cfg}
	all := udpAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()))
	es.mu.Lock()
	defer es.mu.Unlock()
	var beside []*udpSocket // with the same port
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
		s, err := es.open(ctx, at, beside, cfg)
		if err != nil {
			return nil, err
		}
		l.sockets = append(l.sockets, s)
	case own != nil:
		l.sockets = []*udpSocket{own}
	case wild != nil:
		l.sockets = []*udpSocket{wild}
	default:
		s, err := es.open(ctx, at, nil, cfg)
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
		if err := s.configure(); err != nil {
			l.leave()
			l.release()
			return nil, err
		}
	}
	return l, nil
}

// open opens a socket, which shares its port with those beside it.
func (es *Endpoints) open(ctx context.Context, at netip.AddrPort, beside []*udpSocket, cfg func(*udpSocket) sctp.Config) (*udpSocket, error) {
	s := &udpSocket{es: es, at: udpAddr(at)}
	var lc net.ListenConfig
	if len(beside) > 0 {
		lc.Control = func(_, _ string, c syscall.RawConn) error { return sharePort(c, true) }
	}
	for _, o := range beside {
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
	if s.ep, err = sctp.Listen(conn, cfg(s)); err != nil {
		return nil, err
	}
	s.drained.Go(func() {
		for {
			// They are taken as they arrive.
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

// sharePort lets other sockets of the same user have the port, too. The kernel asks
// when one is bound; in between nobody may join in.
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

// configure has the endpoint ask the listeners that there are.
func (s *udpSocket) configure() error {
	at := make(map[netip.Addr]sctp.Config, len(s.listeners))
	for _, l := range s.listeners {
		a := l.at.Addr()
		if a.IsUnspecified() || s.at == l.at {
			a = netip.Addr{} // wherever a packet has come to
		}
		at[a.WithZone("")] = l.cfg(s)
	}
	return s.ep.Reconfigure(at)
}

// use keeps the socket for an association until over is called, which may be called
// again. A listener has it meanwhile.
func (s *udpSocket) use() (over func()) {
	s.es.mu.Lock()
	defer s.es.mu.Unlock()
	s.uses++
	return sync.OnceFunc(func() {
		s.es.mu.Lock()
		defer s.es.mu.Unlock()
		s.release()
	})
}

// release ends one use. The last one closes the socket; who wants to listen there
// meanwhile waits.
func (s *udpSocket) release() {
	if s.uses--; s.uses > 0 {
		return
	}
	s.ep.Close()
	s.drained.Wait()
	delete(s.es.all, s.at)
}

// stop lets another listener have the sockets. An endpoint that has no other asks the
// one that is closed, which refuses, until somebody listens at its port again.
func (l *udpListener) stop() {
	l.es.mu.Lock()
	defer l.es.mu.Unlock()
	l.leave()
}

func (l *udpListener) leave() {
	for _, s := range l.sockets {
		s.listeners = slices.DeleteFunc(s.listeners, func(o *udpListener) bool { return o == l })
		if len(s.listeners) > 0 {
			_ = s.configure() // as it was before l came
		}
	}
}

// close gives up the sockets, which associations may still have.
func (l *udpListener) close() {
	l.es.mu.Lock()
	defer l.es.mu.Unlock()
	l.release()
}

func (l *udpListener) release() {
	for _, s := range l.sockets {
		s.release()
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
			l.stranger(f, err)
		}
		return err
	}
	b, err := es.listen(ctx, l.flow.Local, func(s *udpSocket) sctp.Config {
		c := sc
		c.Accept = func(a *sctp.Assoc) assoc.Receiver { return l.arrived(s, a) }
		return c
	})
	if err != nil {
		return err
	}
	l.below = b
	return nil
}

// arrived takes an association that a peer has set up. The goroutine that reads
// the socket calls it.
func (l *SCTPListener) arrived(s *udpSocket, a *sctp.Assoc) assoc.Receiver {
	f := Flow{Protocol: ProtoUDP, Local: unmap(a.Local()), Remote: unmap(a.Remote())}
	if err := l.begin(f); err != nil {
		a.Abort(err.Error())
		return refusedReceiver{}
	}
	g, over := newGate(a, []Flow{f}, l.cfg), s.use()
	go l.offer(f, over, func(ctx context.Context) (*Assoc, error) {
		return g.admitted(ctx, false, l.newRecv, over)
	})
	return g
}

// refusedReceiver is that of an association which is over already.
type refusedReceiver struct{}

func (refusedReceiver) Message(*assoc.Message) bool { return false }
func (refusedReceiver) Event(assoc.Event)           {}
func (refusedReceiver) BatchEnd()                   {}
