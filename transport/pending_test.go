package transport

import (
	"net/netip"
	"testing"
)

// What many addresses hold together keeps no other one out, and there is an end to
// it.
func TestPendingOfManyAddressesKeepsNoOtherOut(t *testing.T) {
	const limit = 8
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	p := newPending(limit)
	for i := range 2 {
		for n := range limit {
			if ok := p.enter(addr(i)); ok != (n < limit/pendingShare) {
				t.Errorf("connection %d of address %d: %v", n, i, ok)
			}
		}
	}
	for i := 2; p.n < limit*pendingOver; i++ {
		if !p.enter(addr(i)) {
			t.Fatalf("the first connection of an address is kept out by %d others", p.n)
		}
		if p.enter(addr(i)) {
			t.Fatalf("the second one comes in beyond the limit, as number %d", p.n)
		}
	}
	if p.enter(addr(200)) {
		t.Error("there is no end to it")
	}
	p.leave(addr(0))
	if !p.enter(addr(200)) {
		t.Error("there is room again for an address that holds none")
	}
	if p.enter(addr(0)) {
		t.Error("and for one that holds many")
	}
}
