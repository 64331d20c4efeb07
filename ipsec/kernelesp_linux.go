package ipsec

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// kernelESP is the kernel's ESP. What may pass is said by charon's own
// policies, which require ESP: their priority is better than the block's.
type kernelESP struct{}

func (kernelESP) offers() offer {
	return offer{transport: true, esn: true, kernel: true, priority: childPriority}
}

// plan is the blocks. Rules of userland ESP, from a time before, would lead the
// port's packets astray.
func (kernelESP) plan(k *kernel, g GuardSpec) (plan, error) {
	return plan{policies: g.blocks(), steps: []step{{
		do:    func() (int, error) { return 0, k.removeRules(g) },
		check: func() ([]Hole, error) { return nil, nil },
	}}}, nil
}

// installed checks that the kernel holds both ESP states of a child: what charon
// lists must be what the kernel does.
func (kernelESP) installed(g GuardSpec, sa *SA, c *Child) error {
	return inGuardNS(g.NetNS, func(k *kernel) error {
		for _, s := range []struct {
			dst netip.Addr
			spi string
		}{{sa.LocalHost, c.SPIIn}, {sa.RemoteHost, c.SPIOut}} {
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

func (kernelESP) route(GuardSpec, netip.Addr, bool) error { return nil }
func (kernelESP) holdsSAs() bool                          { return true }

// ErrNoKernelESP tells that this kernel cannot hold ESP states.
var ErrNoKernelESP = errors.New("this kernel has no ESP")

// KernelESP reports whether the kernel can do ESP, by adding an ESP state in a
// network namespace of its own that is gone afterwards. It needs
// CAP_NET_ADMIN and CAP_SYS_ADMIN. The error wraps ErrNoKernelESP when the
// kernel refused the state, and is another one when the probe could not run.
func KernelESP() error {
	return nsdo.Fresh(func() error {
		h, err := netlink.NewHandle(syscall.NETLINK_XFRM)
		if err != nil {
			return fmt.Errorf("probe for kernel ESP: open netlink: %w", err)
		}
		defer h.Close()
		err = h.XfrmStateAdd(&netlink.XfrmState{
			Src:   net.IPv4(192, 0, 2, 1).To4(),
			Dst:   net.IPv4(192, 0, 2, 2).To4(),
			Proto: netlink.XFRM_PROTO_ESP,
			Mode:  netlink.XFRM_MODE_TUNNEL,
			Spi:   0x1001,
			Aead:  &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: make([]byte, 20), ICVLen: 128},
		})
		if err != nil {
			return fmt.Errorf("%w: adding an ESP state: %v", ErrNoKernelESP, err)
		}
		return nil
	})
}

// blameKernel replaces the explanation of a failed attempt where the true cause
// is that nobody on this host does ESP: strongSwan only finds out when it has
// negotiated, and then hears of the peer that there is no proposal left.
func blameKernel(plane DataPlane, err error) error {
	var n *NegotiationError
	if plane != DataPlaneKernel || !errors.As(err, &n) || !errors.Is(n.Kind, ErrNoProposal) && !errors.Is(n.Kind, ErrDataPlane) && !errors.Is(n.Kind, ErrNegotiation) ||
		!errors.Is(KernelESP(), ErrNoKernelESP) {
		return err
	}
	return &NegotiationError{Peer: n.Peer, Child: n.Child, Kind: ErrNoKernelESP, Log: n.Log,
		Advice: "nor has strongSwan loaded its plugin kernel-libipsec, which does ESP in user space; load the kernel's (modprobe esp4 esp6 xfrm_user), or see `ironwarp doctor` for the plugin"}
}
