package sctp

import (
	"net/netip"
	"time"
)

// allowance bounds how often something happens: perSecond in the long run, and burst
// at once.
type allowance struct {
	left float64
	at   time.Duration // when left was right
}

func newAllowance(now time.Duration, burst float64) allowance { return allowance{burst, now} }

// take reports whether it may happen once more.
func (a *allowance) take(now time.Duration, perSecond, burst float64) bool {
	a.fill(now, perSecond, burst)
	if a.left < 1 {
		return false
	}
	a.left--
	return true
}

func (a *allowance) fill(now time.Duration, perSecond, burst float64) {
	a.left = min(burst, a.left+max(0, now-a.at).Seconds()*perSecond)
	a.at = now
}

// meter bounds the packets of no association that are looked at: answers to them
// cost more than to send them. Each address has an allowance that nobody takes from it,
// and what is spare goes to whoever comes first.
type meter struct {
	spare allowance
	addrs map[netip.Addr]*allowance
}

func newMeter() meter {
	return meter{spare: newAllowance(0, spareBurst), addrs: make(map[netip.Addr]*allowance)}
}

// take reports whether a packet from addr is looked at.
func (m *meter) take(addr netip.Addr, now time.Duration) bool {
	a := m.addrs[addr]
	if a == nil && len(m.addrs) >= maxMetered {
		m.forget(now)
	}
	if a == nil && len(m.addrs) < maxMetered {
		n := newAllowance(now, strayBurst)
		a = &n
		m.addrs[addr] = a
	}
	return a != nil && a.take(now, strayRate, strayBurst) || m.spare.take(now, spareRate, spareBurst)
}

// forget drops the addresses that have been quiet for long.
func (m *meter) forget(now time.Duration) {
	for addr, a := range m.addrs {
		if a.fill(now, strayRate, strayBurst); a.left == strayBurst {
			delete(m.addrs, addr)
		}
	}
}
