package sctp

import (
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
)

// How often what costs more to answer than to send is answered.
var (
	vainLimit  = rate.Limit{PerSecond: vainRate, Burst: vainBurst}
	strayLimit = rate.Limit{PerSecond: strayRate, Burst: strayBurst}
	spareLimit = rate.Limit{PerSecond: spareRate, Burst: spareBurst}
)

// clock is a moment of an endpoint's time.
func clock(now time.Duration) time.Time { return time.Time{}.Add(now) }

// meter bounds the packets of no association that are looked at: answers to them
// cost more than to send them. Each address has an allowance that nobody takes from it,
// and what is spare goes to whoever comes first.
type meter struct {
	spare rate.Bucket
	addrs map[netip.Addr]*rate.Bucket
}

func newMeter() meter { return meter{addrs: make(map[netip.Addr]*rate.Bucket)} }

// take reports whether a packet from addr is looked at.
func (m *meter) take(addr netip.Addr, now time.Duration) bool {
	b := m.addrs[addr]
	if b == nil && len(m.addrs) >= maxMetered {
		m.forget(now)
	}
	if b == nil && len(m.addrs) < maxMetered {
		b = &rate.Bucket{}
		m.addrs[addr] = b
	}
	return b != nil && b.Take(strayLimit, clock(now)) || m.spare.Take(spareLimit, clock(now))
}

// forget drops the addresses that have been quiet for long.
func (m *meter) forget(now time.Duration) {
	for addr, b := range m.addrs {
		if b.Full(strayLimit, clock(now)) {
			delete(m.addrs, addr)
		}
	}
}
