package vhost

import (
	"testing"
	"unsafe"
)

// A ring that runs stays where it is when the front end shares other memory in which a part of
// it is missing: until the front end has been ended for that, the guest's requests are still
// given back, and that must not touch what is mapped no more.
func TestRingStaysWhereOtherMemoryLacksPartOfIt(t *testing.T) {
	const num, user = 16, 1 << 32
	at := vringAddr{desc: user, avail: user + 1024, used: user + 2048}
	share := func(size uint64) *memory {
		whole := make([]byte, size+64)
		from := -int(uintptr(unsafe.Pointer(&whole[0]))) & 63
		r := &region{regionInfo: regionInfo{size: size, user: user}, mem: whole[from:][:size:size]}
		r.refs.Store(1)
		m, err := newMemory([]*region{r})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, packed := range []bool{false, true} {
		mem := share(8192)
		var ring ring
		var err error
		if packed {
			ring, err = newPackedRing(mem, num, at, 1<<15, true, nil)
		} else {
			ring, err = newSplitRing(mem, num, at, 0, true, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []uint64{128, 1025, 2049} {
			other := share(size)
			before := string(other.regions[0].mem)
			if err := ring.relocate(other, at); err == nil {
				t.Fatalf("packed %v: a ring in a memory of %d bytes", packed, size)
			}
			if err := guarded(func() error {
				ring.rearm()
				ring.push(&chain{slots: 1}, 1)
				ring.publish()
				return nil
			}); err != nil {
				t.Errorf("packed %v: %v", packed, err)
			}
			if string(other.regions[0].mem) != before {
				t.Errorf("packed %v: memory of %d bytes that the ring is not in is written to", packed, size)
			}
		}
	}
}
