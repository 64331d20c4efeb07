package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/transport/sctp"
)

// Endpoints are the UDP sockets on which associations are awaited, one for each UDP
// address. A listener that is closed leaves its socket to the associations that it
// has taken, and the next one at that address takes it over. The zero value is ready
// for use.
type Endpoints struct {
	mu  sync.Mutex
	all map[netip.AddrPort]*udpBelow
}

// LingeringError is why a UDP socket can't be opened while associations of a
// listener that is closed have one of the same port.
type LingeringError struct {
	At netip.AddrPort // that socket's address
}

func (e *LingeringError) Error() string {
	return fmt.Sprintf("streams that began when this was listened on %v still have the UDP port", e.At)
}

// udpBelow is the endpoint of a listener in UDP, and of the associations of earlier
// ones. What is not fixed is guarded by the mutex of Endpoints.
type udpBelow struct {
	es      *Endpoints
	at      netip.AddrPort
	ep      *sctp.Endpoint
	drained sync.WaitGroup

	users     int  // listeners that are open or have associations
	listening bool // one is open
}

// open opens a socket at an address, or takes that of a closed listener over.
func (es *Endpoints) open(ctx context.Context, at netip.AddrPort, sc sctp.Config) (*udpBelow, error) {
	es.mu.Lock()
	defer es.mu.Unlock()
	b := es.all[at]
	if b != nil && !b.listening {
		if err := b.ep.Reconfigure(sc); err != nil {
			return nil, err
		}
		b.users++
		b.listening = true
		return b, nil
	}
	pc, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", at.String())
	if errors.Is(err, syscall.EADDRINUSE) && b == nil {
		for other, b := range es.all {
			if !b.listening && other.Port() == at.Port() {
				return nil, &LingeringError{At: other}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	ep, err := sctp.Listen(pc.(*net.UDPConn), sc)
	if err != nil {
		return nil, err
	}
	b = &udpBelow{es: es, at: at, ep: ep, users: 1, listening: true}
	b.drained.Go(func() {
		for {
			// They are taken as they arrive.
			if _, err := ep.Accept(context.Background()); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	})
	if es.all == nil {
		es.all = make(map[netip.AddrPort]*udpBelow)
	}
	es.all[at] = b
	return b, nil
}

// stop lets another listener have the socket. Until then the endpoint asks the one
// that is closed, which refuses.
func (b *udpBelow) stop() {
	b.es.mu.Lock()
	defer b.es.mu.Unlock()
	b.listening = false
}

// close is called when a listener is closed and has no association left. The last
// one closes the socket; who wants to listen there meanwhile waits.
func (b *udpBelow) close() {
	b.es.mu.Lock()
	defer b.es.mu.Unlock()
	if b.users--; b.users > 0 {
		return
	}
	b.ep.Close()
	b.drained.Wait()
	delete(b.es.all, b.at)
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
	sc.Accept = l.arrived
	b, err := es.open(ctx, l.flow.Local, sc)
	if err != nil {
		return err
	}
	l.below = b
	return nil
}

// arrived takes an association that a peer has set up. The goroutine that reads
// the socket calls it.
func (l *SCTPListener) arrived(a *sctp.Assoc) sctp.Receiver {
	f := Flow{Protocol: ProtoUDP, Local: unmap(a.Local()), Remote: unmap(a.Remote())}
	if err := l.begin(f); err != nil {
		a.Abort(err.Error())
		return refusedReceiver{}
	}
	g := newGate(a, []Flow{f}, l.cfg)
	go l.offer(f, func(ctx context.Context, over func()) (*Assoc, error) {
		return g.admitted(ctx, false, l.newRecv, over)
	})
	return g
}

// refusedReceiver is that of an association which is over already.
type refusedReceiver struct{}

func (refusedReceiver) Message(*sctp.Message) bool { return false }
func (refusedReceiver) Event(sctp.Event)           {}
func (refusedReceiver) BatchEnd()                  {}
