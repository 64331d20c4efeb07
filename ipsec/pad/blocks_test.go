package pad

import (
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

func TestPortBlocksAreAlignedAndCoverTheDynamicPorts(t *testing.T) {
	for n := 2; n <= MaxChildren; n *= 2 {
		next := FirstBlockPort
		for k := range n {
			lo, hi := portBlock(k, n)
			size := int(hi) - int(lo) + 1
			if int(lo) != next || size&(size-1) != 0 || int(lo)%size != 0 {
				t.Errorf("block %d of %d is %d to %d: no port and mask expresses it, or it does not follow the one before", k, n, lo, hi)
			}
			if got := SplitOf(charon.Selector{PortFrom: lo, PortTo: hi}); got != n {
				t.Errorf("block %d of %d is taken for one of %d", k, n, got)
			}
			next = int(hi) + 1
		}
		if next != 1<<16 {
			t.Errorf("the %d blocks end at %d", n, next)
		}
	}
	if lo, hi := portBlock(0, 1); lo != 0 || hi != 65535 {
		t.Errorf("one child has ports %d to %d", lo, hi)
	}
	if n := SplitOf(charon.Selector{PortFrom: 7471, PortTo: 7471}); n != 0 {
		t.Errorf("the link's port is taken for a block of %d", n)
	}
}
