package sctp

import (
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
)

// Limits on answers that cost more than what they answer.
var (
	replyLimit = rate.Limit{PerSecond: replyRate, Burst: replyBurst}
	strayLimit = rate.Limit{PerSecond: strayRate, Burst: strayBurst}
	spareLimit = rate.Limit{PerSecond: spareRate, Burst: spareBurst}
)

// clock converts the endpoint's time for package rate.
func clock(now time.Duration) time.Time { return time.Time{}.Add(now) }

// meter limits the packets outside associations that are looked at: answering them costs
// more than sending them. Each address has an allowance of its own; the spare allowance
// goes to whoever comes first.
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

// forget drops the addresses that have been quiet for long enough to have their full
// allowance.
func (m *meter) forget(now time.Duration) {
	for addr, b := range m.addrs {
		if b.Full(strayLimit, clock(now)) {
			delete(m.addrs, addr)
		}
	}
}
