package esp

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// ErrNoKernel means that this kernel cannot hold ESP states.
var ErrNoKernel = errors.New("this kernel has no ESP")

// ProbeKernel reports whether the kernel can do ESP, by adding an ESP state in a
// network namespace of its own that is gone afterwards. It needs
// CAP_NET_ADMIN and CAP_SYS_ADMIN. The error wraps ErrNoKernel when the
// Kernel refused the state, and is another one when the probe could not run.
func ProbeKernel() error {
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
			return fmt.Errorf("%w: adding an ESP state: %v", ErrNoKernel, err)
		}
		return nil
	})
}
