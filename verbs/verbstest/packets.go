package verbstest

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// packetQueue bounds the packets that wait to be read from a socket, as its buffer does.
const packetQueue = 4096

// socket is a net.PacketConn of a Fabric: UDP without an order.
type socket struct {
	fabric *Fabric
	host   *Host
	addr   netip.AddrPort
	born   int // how many sockets the Fabric has had

	arrived sync.Cond  // on Fabric.mu
	queue   []datagram // guarded by Fabric.mu
	closed  bool       // guarded by Fabric.mu
}

// datagram is a packet under way.
type datagram struct {
	from    *socket
	to      netip.AddrPort
	host    *Host // of to
	payload []byte
	due     time.Time
}

// Packets counts what became of the packets that a host has sent and was sent.
type Packets struct {
	Sent      uint64 // by the host and to it
	Arrived   uint64 // copies of them
	Lost      uint64 // by Carry
	Swallowed uint64 // by Hold
	Refused   uint64 // by Pause, which the sender is told
	Strays    uint64 // of what was cut or refused, or to where no socket is
}

// Packets returns the counts as of now.
func (h *Host) Packets() Packets {
	h.fabric.mu.Lock()
	defer h.fabric.mu.Unlock()
	return h.packets
}

// Carry has f decide what becomes of each packet that the host sends (out) or is sent: it
// returns after how long each copy arrives that does, none if it is lost. Packets that take
// less long overtake others. nil: each arrives at once. Of two hosts that have one, each
// decides about what the other's has let through. f is called by one goroutine at a time,
// and must not use the Fabric.
func (h *Host) Carry(f func(out bool, size int) []time.Duration) {
	h.fabric.mu.Lock()
	defer h.fabric.mu.Unlock()
	h.carry = f
}

// Damage has f change the bytes of each packet that the host sends or is sent, as it likes;
// nil: none. f is called by one goroutine at a time, and must not use the Fabric.
func (h *Host) Damage(f func(packet []byte)) {
	h.fabric.mu.Lock()
	defer h.fabric.mu.Unlock()
	h.damage = f
}

// ListenPacket implements transport.Network.
func (n *network) ListenPacket(local netip.AddrPort) (net.PacketConn, error) {
	f := n.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(n.addr, local.Port())
	}
	if local.Port() == 0 {
		local = netip.AddrPortFrom(local.Addr(), f.nextPortLocked())
	}
	if local.Addr() != n.addr {
		return nil, fmt.Errorf("verbstest: take packets to %v: the address of host %s is %v: %w", local, n.name, n.addr, syscall.EADDRNOTAVAIL)
	}
	if f.sockets[local] != nil {
		return nil, fmt.Errorf("verbstest: take packets to %v: %w", local, syscall.EADDRINUSE)
	}
	f.born++
	s := &socket{fabric: f, host: (*Host)(n), addr: local, born: f.born}
	s.arrived.L = &f.mu
	f.sockets[local] = s
	return s, nil
}

// countLocked counts a packet between two hosts.
func countLocked(from, to *Host, as func(*Packets)) {
	as(&from.packets)
	as(&to.packets)
}

// passesLocked reports whether packets get through from s to another socket, and counts one
// that does not. told is what its sender is told, if it is.
func (s *socket) passesLocked(to *socket) (passes bool, told error) {
	flow := max(s.born, to.born)
	for _, x := range []*faults{&s.fabric.faults, &s.host.faults, &to.host.faults} {
		switch {
		case x.paused:
			countLocked(s.host, to.host, func(p *Packets) { p.Refused++ })
			return false, syscall.EPERM
		case x.held:
			countLocked(s.host, to.host, func(p *Packets) { p.Swallowed++ })
			return false, nil
		case flow <= x.cut, x.refused && flow > x.refusedFrom:
			countLocked(s.host, to.host, func(p *Packets) { p.Strays++ })
			return false, nil
		}
	}
	return true, nil
}

// WriteTo implements net.PacketConn. It fails with EPERM in a pause, as where a guard lets
// nothing pass.
func (s *socket) WriteTo(b []byte, addr net.Addr) (int, error) {
	f := s.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	a, ok := addr.(*net.UDPAddr)
	if !ok || s.closed {
		return 0, net.ErrClosed
	}
	to := netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	h := f.hostLocked(to.Addr())
	if h == nil {
		return 0, syscall.EHOSTUNREACH
	}
	countLocked(s.host, h, func(p *Packets) { p.Sent++ })
	if x := f.sockets[to]; x != nil { // else there may be one when the packet arrives
		if ok, told := s.passesLocked(x); !ok {
			return len(b), told
		}
	}
	delays := []time.Duration{0}
	if s.host.carry != nil {
		delays = s.host.carry(true, len(b))
	}
	if h.carry != nil {
		var all []time.Duration
		for _, d := range delays {
			for _, more := range h.carry(false, len(b)) {
				all = append(all, d+more)
			}
		}
		delays = all
	}
	if len(delays) == 0 {
		countLocked(s.host, h, func(p *Packets) { p.Lost++ })
	}
	for _, d := range delays {
		payload := bytes.Clone(b)
		for _, x := range []*Host{s.host, h} {
			if x.damage != nil {
				x.damage(payload)
			}
		}
		f.sendLocked(d, datagram{from: s, to: to, host: h, payload: payload})
	}
	return len(b), nil
}

// sendLocked has a packet arrive, now or later. Of those that are due at once the first one
// that was sent comes first.
func (f *Fabric) sendLocked(after time.Duration, p datagram) {
	if after <= 0 {
		f.arriveLocked(p)
		return
	}
	p.due = time.Now().Add(after)
	i, _ := slices.BinarySearchFunc(f.late, p.due, func(o datagram, due time.Time) int {
		if o.due.After(due) {
			return 1
		}
		return -1
	})
	f.late = slices.Insert(f.late, i, p)
	switch {
	case f.timer == nil:
		f.timer = time.AfterFunc(after, f.arrive)
	case i == 0:
		f.timer.Reset(after)
	}
}

// arrive has the packets arrive that are due.
func (f *Fabric) arrive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, n := time.Now(), 0
	for ; n < len(f.late) && !f.late[n].due.After(now); n++ {
		f.arriveLocked(f.late[n])
	}
	f.late = slices.Delete(f.late, 0, n)
	if len(f.late) > 0 {
		f.timer.Reset(f.late[0].due.Sub(now))
	}
}

// arriveLocked has a packet arrive, if the network lets it through still.
func (f *Fabric) arriveLocked(p datagram) {
	to := f.sockets[p.to]
	if to == nil || len(to.queue) == packetQueue {
		countLocked(p.from.host, p.host, func(p *Packets) { p.Strays++ })
		return
	}
	if ok, _ := p.from.passesLocked(to); ok {
		countLocked(p.from.host, p.host, func(p *Packets) { p.Arrived++ })
		to.queue = append(to.queue, p)
		to.arrived.Signal()
	}
}

// ReadFrom implements net.PacketConn.
func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	s.fabric.mu.Lock()
	defer s.fabric.mu.Unlock()
	for len(s.queue) == 0 && !s.closed {
		s.arrived.Wait()
	}
	if s.closed {
		return 0, nil, net.ErrClosed
	}
	p := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	return copy(b, p.payload), net.UDPAddrFromAddrPort(p.from.addr), nil
}

// Close implements net.PacketConn. What has been sent arrives all the same.
func (s *socket) Close() error {
	s.fabric.mu.Lock()
	defer s.fabric.mu.Unlock()
	if !s.closed {
		s.closed = true
		delete(s.fabric.sockets, s.addr)
		s.arrived.Broadcast()
	}
	return nil
}

func (s *socket) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(s.addr) }

// SetDeadline implements net.PacketConn. There are none, and it fails.
func (s *socket) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline fails as SetDeadline does.
func (s *socket) SetReadDeadline(t time.Time) error { return s.SetDeadline(t) }

// SetWriteDeadline fails as SetDeadline does.
func (s *socket) SetWriteDeadline(t time.Time) error { return s.SetDeadline(t) }
