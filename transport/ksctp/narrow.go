package ksctp

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// A path that silently drops long packets (RFC 8899 section 4.3) blocks an association of
// the kernel for good: long messages that are already queued are never cut. The kernel's
// own search for the path's MTU (SCTP_PLPMTUD_PROBE_INTERVAL) does not help: it takes
// half a minute and ignores routers meanwhile. So the association is ended, and the next
// ones with that peer begin with shorter packets.

// Narrow remembers which peers' paths have dropped long packets. The zero value is ready
// for use.
type Narrow struct {
	mu    sync.Mutex // guards the fields below it; innermost
	peers map[netip.Addr]narrowed
}

// narrowed is a path that does not carry packets of its route's MTU.
type narrowed struct {
	mtu, lost int // in bytes: the MTU to try, and the size that was lost
	until     time.Time
}

// of returns what is known about the path to a peer, zero if nothing.
func (w *Narrow) of(peer netip.Addr) narrowed {
	if w == nil {
		return narrowed{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.peers[peer]
	if time.Now().After(n.until) {
		delete(w.peers, peer)
		return narrowed{}
	}
	return n
}

// note remembers a path with the least MTU found.
func (w *Narrow) note(peer netip.Addr, n narrowed) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for p, o := range w.peers {
		if now.After(o.until) || len(w.peers) >= maxNarrow {
			delete(w.peers, p)
		}
	}
	if w.peers == nil {
		w.peers = make(map[netip.Addr]narrowed)
	}
	if o, ok := w.peers[peer]; ok && o.mtu < n.mtu { // an older association's
		n.mtu = o.mtu
	}
	n.until = now.Add(narrowFor)
	w.peers[peer] = n
}

// shorter returns the MTU to try on a path that does not carry mtu bytes, 0 if none is
// left.
func shorter(mtu int) int {
	for _, n := range narrowSteps {
		if n < mtu {
			return n
		}
	}
	return 0
}

// limitMTU limits packets to the MTU to try on a path known to be narrow, unless the
// route's MTU is below what was lost by now.
func (a *Assoc) limitMTU(n narrowed) error {
	st, err := a.status()
	if err != nil || int(native.Uint32(st[28+sockaddrStorage+16:])) < n.lost {
		return err
	}
	b := make([]byte, paddrparamsLen)
	v := b[paddrparamsAfter:]
	native.PutUint32(v[6:], uint32(n.mtu))
	native.PutUint32(v[14:], sppNoDiscovery)
	if err := control(a.conn, func(fd int) error { return setOption(fd, optPathParams, b) }); err != nil {
		return fmt.Errorf("set the path's MTU to %d: %w", n.mtu, err)
	}
	a.narrow = n
	return nil
}

// stuck counts checks of an association since something was last acknowledged.
type stuck struct {
	timer    *time.Timer
	acked    uint64 // bytes of messages
	checks   int
	answered int // checks before which a HEARTBEAT was answered
	ups      int
}

// scheduleCheckLocked schedules the next check.
func (a *Assoc) scheduleCheckLocked() {
	if a.ending {
		return
	}
	if a.stuck.timer == nil {
		a.stuck.timer = time.AfterFunc(checkEvery, a.checkPath)
		return
	}
	a.stuck.timer.Reset(checkEvery)
}

// checkPath ends the association if the path drops long packets: nothing is acknowledged
// for some time, although the peer has room and answers HEARTBEATs.
func (a *Assoc) checkPath() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return
	}
	defer a.scheduleCheckLocked()
	s, t := &a.stuck, &a.tx
	t.log.trim(t.used)
	out := t.log.bytes()
	acked := t.bytes - uint64(out)
	if out == 0 || acked != s.acked {
		s.acked, s.checks, s.answered, s.ups = acked, 0, 0, a.ups
		return
	}
	st, err := a.status()
	if err != nil {
		return
	}
	s.checks++
	p := st[28+sockaddrStorage:]
	if a.ups != s.ups || PathState(native.Uint32(p)) == PathUp {
		s.ups = a.ups
		s.answered++
	}
	mtu, window := int(native.Uint32(p[16:])), int(native.Uint32(st[8:]))
	next := shorter(mtu)
	if s.checks < stuckChecks || s.answered < 2 || window < mtu || next == 0 {
		a.Kick()
		return
	}
	primary, err := sockaddr(st[28 : 28+sockaddrStorage])
	if err != nil {
		return
	}
	n := narrowed{mtu: next, lost: mtu}
	if a.narrow.lost > 0 {
		n.lost = a.narrow.lost // the size that the route allows
	}
	a.c.Narrow.note(primary.Addr(), n)
	a.failLocked(fmt.Errorf("messages in packets of up to %d bytes do not get through, while the peer answers short ones: the path has become narrower. The next association tries %d", mtu, next))
}
