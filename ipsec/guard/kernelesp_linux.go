package guard

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
)

// kernelESP is the kernel's ESP. What may pass is said by charon's own
// policies, which require ESP: their priority is better than the block's.
type kernelESP struct{}

// plan is the blocks. Rules of userland ESP, from a time before, would lead the
// port's packets astray.
func (kernelESP) plan(k *kernel, g Spec) (plan, error) {
	return plan{policies: g.blocks(), steps: []step{{
		do:    func() (int, error) { return 0, k.removeRules(g) },
		check: func() ([]Hole, error) { return nil, nil },
	}}}, nil
}

// installed checks that the kernel holds both ESP states of a child: what charon
// lists must be what the kernel does.
func (kernelESP) installed(g Spec, c ChildSA) error {
	return inNS(g.NetNS, func(k *kernel) error {
		for _, s := range []struct {
			dst netip.Addr
			spi string
		}{{c.Local, c.SPIIn}, {c.Remote, c.SPIOut}} {
			spi, err := strconv.ParseUint(s.spi, 16, 32)
			if err != nil {
				return fmt.Errorf("SPI %q: %w", s.spi, err)
			}
			if _, err := k.XfrmStateGet(&netlink.XfrmState{Dst: s.dst.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Spi: int(spi)}); err != nil {
				return fmt.Errorf("the kernel has no ESP state to %v with SPI %s: %w", s.dst, s.spi, err)
			}
		}
		return nil
	})
}

func (kernelESP) route(Spec, netip.Addr, bool) error { return nil }
