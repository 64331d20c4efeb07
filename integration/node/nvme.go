package node

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/transport"
)

// ConnectNVMe connects a host that knows nothing of IPsec, in the node's network namespace, to a subsystem at a portal, and
// adds an I/O queue. The caller closes both. It fails as nvmetest.Connect does.
func (n *Node) ConnectNVMe(ctx context.Context, portal netip.AddrPort, subsystem, host string, id block.ID) (h *nvmetest.Host, q *nvmetest.Queue, err error) {
	tr := &transport.Config{Protector: transport.Plaintext(slog.New(slog.DiscardHandler), portal.Addr())}
	err = n.Do(func() (err error) {
		if h, err = nvmetest.Connect(ctx, portal, tr, subsystem, host, id); err != nil {
			return err
		}
		if q, err = h.Queue(ctx, 1); err != nil {
			h.Admin.Close()
		}
		return err
	})
	return h, q, err
}
