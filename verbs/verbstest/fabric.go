// Package verbstest is a network in memory for tests of programs that use package
// verbs. It needs no sockets, no root and no strongSwan, and breaks when it is told to.
//
// A Fabric has hosts. Give the Transport of a Host to the DialConfig or ListenConfig of
// the code under test, on a verbs.Device that is real, as is everything above the
// network: a peer's identity is the name of its host. Cut, Pause, Corrupt and Refuse
// are the faults. Those of a Host, Hold and Delay besides, are of its own connections
// only, and a host that has several addresses (Host.Link) has several paths that fail one
// by one. All waiting is for channels, conditions and timers: a Fabric works under
// testing/synctest. Package nbd serves its connections, too.
package verbstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// Fabric joins hosts in memory. Its methods are safe for concurrent use.
type Fabric struct {
	mu        sync.Mutex // guards the fields below it; taken before a pipe's
	hosts     []*Host
	listeners map[netip.AddrPort]*listener
	sockets   map[netip.AddrPort]*socket
	born      int         // how many there have been
	late      []datagram  // packets under way, by when they arrive
	timer     *time.Timer // of the first
	conns     []*conn     // both ends of each, in order: a run under a fake clock may have to be repeatable
	port      uint16      // the last that was given away
	faults
}

// faults are what connections suffer from until it is taken back. They are guarded by
// Fabric.mu.
type faults struct {
	paused  bool
	held    bool
	refused bool

	// Two sockets exchange packets unless both were there at the last cut, or one of them was
	// not yet when new ones began to be refused.
	cut, refusedFrom int
}

// New makes a Fabric without hosts.
func New() *Fabric {
	return &Fabric{listeners: make(map[netip.AddrPort]*listener), sockets: make(map[netip.AddrPort]*socket), port: 32767}
}

// Host is one end of a Fabric, with an address and a name.
type Host struct {
	fabric *Fabric
	name   transport.Identity
	addr   netip.Addr
	faults // of its connections, in addition to the Fabric's

	delay   func() time.Duration                     // guarded by Fabric.mu
	carry   func(out bool, size int) []time.Duration // guarded by Fabric.mu
	damage  func(packet []byte)                      // guarded by Fabric.mu
	packets Packets                                  // guarded by Fabric.mu
}

// Host adds a host, whose name is the identity that its peers see. The addresses of
// hosts are 192.0.2.1 and so on: there may be 254. It panics beyond that.
func (f *Fabric) Host(name string) *Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.hosts) == 254 {
		panic("verbstest: a fabric has 254 hosts at most")
	}
	h := &Host{fabric: f, name: transport.Identity(name), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(len(f.hosts) + 1)})}
	f.hosts = append(f.hosts, h)
	return h
}

// Link adds another address to the host: a peer with the same name, whose connections have
// faults of their own. It panics as Fabric.Host does.
func (h *Host) Link() *Host { return h.fabric.Host(string(h.name)) }

// Addr is the host's address with a port; 0 is for a listener that takes any.
func (h *Host) Addr(port uint16) netip.AddrPort { return netip.AddrPortFrom(h.addr, port) }

// Transport is what the host's code dials and listens with.
func (h *Host) Transport() *transport.Config {
	return &transport.Config{Protector: (*protector)(h), Network: (*network)(h), Local: h.addr}
}

// Cut loses every connection that there is, as when a path is gone for good. New ones
// may be made. Sockets for packets that there are exchange no more with one another, and
// are not told.
func (f *Fabric) Cut() { f.cut(nil) }

// Cut loses every connection of the host's, at both ends.
func (h *Host) Cut() { h.fabric.cut(h) }

func (f *Fabric) cut(of *Host) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faultsLocked(of).cut = f.born
	for _, c := range f.conns {
		if c.isOf(of) {
			c.in.fail(syscall.ECONNRESET)
			c.out.fail(syscall.ECONNRESET)
		}
	}
}

// Pause holds back what is sent, until Pause(false); QP.Paused reports it. Nothing is
// lost but packets, whose sender is told (EPERM), and no connection ends by it.
func (f *Fabric) Pause(on bool) { f.change(nil, func() { f.paused = on }) }

// Pause holds back what the host sends and is sent, as Fabric.Pause does.
func (h *Host) Pause(on bool) { h.fabric.change(h, func() { h.paused = on }) }

// Hold holds back what the host sends and is sent, until Hold(false), and nobody is told,
// as when a network swallows packets: those are lost. New connections are made, and get no
// answer.
func (h *Host) Hold(on bool) { h.fabric.change(h, func() { h.held = on }) }

// change changes what the connections of a host suffer from, or with nil all.
func (f *Fabric) change(of *Host, by func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by()
	for _, c := range f.conns {
		if c.isOf(of) {
			c.in.pause(f.stoppedLocked(c.hosts[0], c.hosts[1]))
		}
	}
}

// stoppedLocked reports whether nothing passes between two hosts.
func (f *Fabric) stoppedLocked(a, b *Host) bool {
	return f.paused || a.paused || b.paused || a.held || b.held
}

// Delay has f decide how long each piece takes that is written on the connections which
// the host makes from now on, in either direction; nothing overtakes what was written
// before it on the same connection. nil: no time. f is called by many goroutines.
func (h *Host) Delay(f func() time.Duration) {
	h.fabric.mu.Lock()
	defer h.fabric.mu.Unlock()
	h.delay = f
}

// Corrupt flips a bit of what each connection sends next to the host, as a bad network
// card does. MPA finds it by its CRC, and the stream ends with mpa.ErrCRC.
func (f *Fabric) Corrupt(to *Host) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		if c.hosts[0] == to {
			c.in.corrupt()
		}
	}
}

// Refuse has new connections refused, until Refuse(false). Of the packets of sockets that are
// opened meanwhile none arrives.
func (f *Fabric) Refuse(on bool) { f.refuse(nil, on) }

// Refuse has new connections from the host and to it refused, as Fabric.Refuse does.
func (h *Host) Refuse(on bool) { h.fabric.refuse(h, on) }

func (f *Fabric) refuse(of *Host, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.faultsLocked(of)
	if on && !x.refused {
		x.refusedFrom = f.born
	}
	x.refused = on
}

// faultsLocked returns the faults of a host, or with nil the Fabric's.
func (f *Fabric) faultsLocked(of *Host) *faults {
	if of == nil {
		return &f.faults
	}
	return &of.faults
}

// network is a Host as transport sees it.
type network Host

// Dial implements transport.Network.
func (n *network) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (net.Conn, error) {
	f := n.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	l, from := f.listeners[remote], f.hostLocked(local)
	if l == nil || from == nil || f.refused || from.refused || l.host.refused || ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: "verbstest", Addr: tcpAddr(remote), Err: errors.Join(ctx.Err(), syscall.ECONNREFUSED)}
	}
	at, stopped := from.Addr(f.nextPortLocked()), f.stoppedLocked(from, l.host)
	there, back := newPipe(stopped, from.delay), newPipe(stopped, from.delay)
	a := &conn{fabric: f, hosts: [2]*Host{from, l.host}, local: at, remote: remote, in: back, out: there}
	b := &conn{fabric: f, hosts: [2]*Host{l.host, from}, local: remote, remote: at, in: there, out: back}
	select {
	case l.queue <- b:
	default:
		return nil, &net.OpError{Op: "dial", Net: "verbstest", Addr: tcpAddr(remote), Err: syscall.ECONNREFUSED}
	}
	f.conns = append(f.conns, a, b)
	return a, nil
}

// Listen implements transport.Network.
func (n *network) Listen(local netip.AddrPort) (net.Listener, error) {
	f := n.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if local.Port() == 0 {
		local = netip.AddrPortFrom(local.Addr(), f.nextPortLocked())
	}
	if local.Addr() != n.addr {
		return nil, fmt.Errorf("verbstest: listen on %v: the address of host %s is %v: %w", local, n.name, n.addr, syscall.EADDRNOTAVAIL)
	}
	if f.listeners[local] != nil {
		return nil, fmt.Errorf("verbstest: listen on %v: %w", local, syscall.EADDRINUSE)
	}
	l := &listener{fabric: f, host: (*Host)(n), addr: local, queue: make(chan *conn, 128), closed: make(chan struct{})}
	f.listeners[local] = l
	return l, nil
}

// nextPortLocked gives a port away.
func (f *Fabric) nextPortLocked() uint16 {
	f.port = max(f.port+1, 32768)
	return f.port
}

// listener is a net.Listener of a Fabric.
type listener struct {
	fabric *Fabric
	host   *Host
	addr   netip.AddrPort
	queue  chan *conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Addr() net.Addr { return tcpAddr(l.addr) }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close resets the connections that were not accepted.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.fabric.mu.Lock()
		delete(l.fabric.listeners, l.addr)
		l.fabric.mu.Unlock()
		close(l.closed)
		for {
			select {
			case c := <-l.queue:
				c.out.fail(syscall.ECONNRESET)
				c.Close()
			default: // Accept may have taken the last one
				return
			}
		}
	})
	return nil
}

// protector is a Host as the guard of its connections: the peer is who has the
// address.
type protector Host

// Prepare implements transport.Protector.
func (*protector) Prepare(context.Context, transport.Flow) error { return nil }

// Admit implements transport.Protector.
func (p *protector) Admit(_ context.Context, f transport.Flow, _ bool, _ transport.Monitored) (transport.Protection, error) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	peer := p.fabric.hostLocked(f.Remote.Addr())
	if peer == nil {
		return nil, fmt.Errorf("verbstest: no host has the address %v: %w", f.Remote.Addr(), transport.ErrNotProtected)
	}
	return protection{(*Host)(p), peer}, nil
}

// hostLocked returns the host that has an address, nil if none has.
func (f *Fabric) hostLocked(a netip.Addr) *Host {
	i := slices.IndexFunc(f.hosts, func(h *Host) bool { return h.addr == a })
	if i < 0 {
		return nil
	}
	return f.hosts[i]
}

// protection is that of a connection with a peer.
type protection struct{ host, peer *Host }

func (p protection) Peer() transport.Identity { return p.peer.name }

func (p protection) Paused() bool {
	f := p.peer.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paused || p.host.paused || p.peer.paused
}

func (protection) Kind() string { return "memory" }
func (protection) Release()     {}
