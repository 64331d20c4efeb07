// Package sctptest has helpers for tests of SCTP in UDP: a relay that treats packets as a
// bad network does.
package sctptest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Faults are what a Relay does to packets, each with a probability of 0 to 1.
type Faults struct {
	Loss      float64
	Duplicate float64
	Corrupt   float64       // one byte is changed
	Reorder   float64       // the packet is delayed by Delay
	Delay     time.Duration // 0: 2 ms
	Latency   time.Duration // of every packet

	// Drop, if not nil, loses the packets for which it returns true. fromClient is the
	// direction. It is called by one goroutine for each direction and client.
	Drop func(fromClient bool, p []byte) bool
}

// Relay is a UDP relay: clients talk to it as if it were its target.
type Relay struct {
	conn   *net.UDPConn
	target netip.AddrPort

	mu      sync.Mutex // guards the fields below it
	faults  Faults
	rnd     *rand.Rand
	clients map[netip.AddrPort]*net.UDPConn
	late    map[*time.Timer]struct{}
	closed  bool
	counts  Counts
	wg      sync.WaitGroup
}

// Counts counts what a Relay has done.
type Counts struct{ Passed, Lost, Duplicated, Corrupted, Reordered int }

// NewRelay starts a relay on a free port of the target's address. The same seed draws the
// same faults. It fails if that address is not a loopback one, and with the kernel's
// error.
func NewRelay(target netip.AddrPort, f Faults, seed uint64) (*Relay, error) {
	if !target.Addr().IsLoopback() {
		return nil, fmt.Errorf("sctptest: relay to %v: only loopback addresses are allowed", target)
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(target.Addr(), 0)))
	if err != nil {
		return nil, fmt.Errorf("sctptest: relay to %v: %w", target, err)
	}
	c.SetReadBuffer(buffer)
	r := &Relay{
		conn: c, target: target, faults: f,
		rnd:     rand.New(rand.NewPCG(seed, 0)),
		clients: make(map[netip.AddrPort]*net.UDPConn),
		late:    make(map[*time.Timer]struct{}),
	}
	r.wg.Go(r.fromClients)
	return r, nil
}

// buffer is the size in bytes of the sockets' buffers: a relay reads packet by
// packet and must not add losses of its own.
const buffer = 4 << 20

// Addr returns the address that clients send to.
func (r *Relay) Addr() netip.AddrPort {
	a := r.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// SetFaults changes the faults from the next packet on.
func (r *Relay) SetFaults(f Faults) {
	r.mu.Lock()
	r.faults = f
	r.mu.Unlock()
}

// Rebind gives every client another UDP port towards the target, as a NAT does that has
// lost its state.
func (r *Relay) Rebind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, c := range r.clients {
		c.Close()
		delete(r.clients, a)
	}
}

// Counts returns the counts so far.
func (r *Relay) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Close ends the relay. It is idempotent.
func (r *Relay) Close() error {
	r.mu.Lock()
	r.closed = true
	for t := range r.late {
		t.Stop()
	}
	for _, c := range r.clients {
		c.Close()
	}
	r.mu.Unlock()
	err := r.conn.Close()
	r.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (r *Relay) fromClients() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		c := r.client(from)
		if c == nil {
			continue
		}
		r.pass(true, b[:n], func(p []byte) { c.Write(p) })
	}
}

// client returns the socket towards the target that stands for a client.
func (r *Relay) client(from netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[from]; c != nil || r.closed {
		return c
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.target))
	if err != nil {
		return nil
	}
	c.SetReadBuffer(buffer)
	r.clients[from] = c
	r.wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, err := c.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			r.pass(false, b[:n], func(p []byte) { r.conn.WriteToUDPAddrPort(p, from) })
		}
	})
	return c
}

// pass applies the faults to a packet.
func (r *Relay) pass(fromClient bool, p []byte, send func([]byte)) {
	r.mu.Lock()
	f := r.faults
	r.mu.Unlock()
	drop := f.Drop != nil && f.Drop(fromClient, p)
	r.mu.Lock()
	chance := func(of float64, count *int) bool {
		if of == 0 || r.rnd.Float64() >= of {
			return false
		}
		*count++
		return true
	}
	if drop {
		r.counts.Lost++
	}
	if drop || chance(f.Loss, &r.counts.Lost) {
		r.mu.Unlock()
		return
	}
	n := 1
	if chance(f.Duplicate, &r.counts.Duplicated) {
		n = 2
	}
	if chance(f.Corrupt, &r.counts.Corrupted) {
		p[r.rnd.IntN(len(p))] ^= byte(1 + r.rnd.IntN(255))
	}
	wait := f.Latency
	if chance(f.Reorder, &r.counts.Reordered) {
		if f.Delay == 0 {
			f.Delay = 2 * time.Millisecond
		}
		wait += f.Delay
	}
	r.counts.Passed++
	if wait > 0 && !r.closed {
		q := append([]byte(nil), p...)
		for range n {
			r.laterLocked(wait, func() { send(q) })
		}
		n = 0
	}
	r.mu.Unlock()
	for range n {
		send(p)
	}
}

// laterLocked calls do after d, unless the relay is closed before.
func (r *Relay) laterLocked(d time.Duration, do func()) {
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		r.mu.Lock()
		delete(r.late, t)
		closed := r.closed
		r.mu.Unlock()
		if !closed {
			do()
		}
	})
	r.late[t] = struct{}{}
}
