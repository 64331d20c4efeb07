package sctp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// What one address floods with leaves every other its allowance.
func TestMeterLeavesEachAddressItsAllowance(t *testing.T) {
	m := newMeter()
	loud, quiet := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	flood := func(now time.Duration) (taken int) {
		for range 100_000 {
			if m.take(loud, now) {
				taken++
			}
		}
		return taken
	}
	if n := flood(0); n != strayBurst+spareBurst {
		t.Errorf("%d packets of a flood are looked at, want %d", n, strayBurst+spareBurst)
	}
	for i := range strayBurst {
		if !m.take(quiet, 0) {
			t.Fatalf("packet %d of another address is dropped", i)
		}
	}
	if m.take(quiet, 0) {
		t.Error("it has no end")
	}
	if n := flood(time.Second); n != strayRate+spareRate {
		t.Errorf("%d packets a second, want %d", n, strayRate+spareRate)
	}
	if !m.take(quiet, time.Second) {
		t.Error("the other address gets nothing back")
	}
}

// Addresses without end take no memory without end, and one that was quiet makes
// room.
func TestMeterOfManyAddresses(t *testing.T) {
	m := newMeter()
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 3 * maxMetered {
		m.take(addr(i), 0)
	}
	if len(m.addrs) != maxMetered {
		t.Errorf("%d addresses, want %d", len(m.addrs), maxMetered)
	}
	late := time.Duration(strayBurst/strayRate+1) * time.Second
	m.take(addr(1<<20), late)
	if len(m.addrs) != 1 {
		t.Errorf("%d addresses after a while", len(m.addrs))
	}
}

// INITs are answered up to the allowance.
func TestFloodOfInitsIsDroppedUnseen(t *testing.T) {
	e := listen(t, "127.0.0.1", Config{Accept: func(*Assoc) assoc.Receiver { return assoctest.NewInbox() }})
	r := newRawPeer(t, e)
	const answered, flood = strayBurst + spareBurst, strayBurst + spareBurst + 1000
	reader := newDemux(e) // the endpoint's own waits for packets
	reader.to = e.Addr().Addr()
	for i := range flood {
		p := packet(append(appendHeader(nil, uint16(i+1), r.dst, 0), r.init()...))
		p.seal()
		reader.packet(r.addr(), p)
	}
	if s := e.Stats(); s.Inits != answered || s.Excess != flood-answered || s.Strays != flood {
		t.Errorf("%+v", s)
	}
}

// What brings nothing new is answered at once up to an allowance, and acknowledged
// late beyond it.
func TestDuplicatesWithoutEndAreAcknowledgedLate(t *testing.T) {
	s := newSim(1, netConfig{}, nil)
	a, z := &s.ends[0].t, &s.ends[1].t
	b := newBatch()
	a.tx.push(&assoc.Outgoing{Bufs: [][]byte{[]byte("once")}}, 4)
	now := time.Second
	a.transmit(now, b)
	again := packet(b.packets[0]).chunks()
	sacks := func() int {
		z.readDone()
		b := newBatch()
		before := z.stats.SacksOut
		z.transmit(now, b)
		return int(z.stats.SacksOut - before)
	}
	n := 0
	for range 5000 {
		z.input(now, again, false)
		n += sacks()
	}
	if n < replyBurst-1 || n > replyBurst+1 {
		t.Errorf("%d SACKs at once for 5,000 duplicates, want about %d", n, replyBurst)
	}
	now += assoc.SACKDelay
	z.expire(now)
	if n := sacks(); n != 1 {
		t.Errorf("%d SACKs after SACK.Delay, want 1", n)
	}
	now += time.Second
	z.input(now, again, false)
	if n := sacks(); n != 1 {
		t.Errorf("%d SACKs for a duplicate later on, want 1", n)
	}
}
