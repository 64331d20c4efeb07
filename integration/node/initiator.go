package node

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/transport"
)

// LoginISER has an iSCSI initiator, a program of the host that knows nothing of its daemon, log in at a
// portal with keys, KEY=VALUE each: in RDMA mode, or with stream by way of TCP. The caller closes the
// initiator. It fails as isertest.Initiator.Login and LoginStream do.
func (n *Node) LoginISER(ctx context.Context, portal netip.AddrPort, stream bool, keys ...string) (i *isertest.Initiator, s *isertest.Session, err error) {
	i, err = isertest.New(isertest.Options{IRD: 8, Invalidates: true, Receives: 64,
		Transport: &transport.Config{Protector: transport.Plaintext(slog.New(slog.DiscardHandler), portal.Addr())}})
	if err != nil {
		return nil, nil, err
	}
	err = n.Do(func() (err error) {
		if stream {
			s, err = i.LoginStream(ctx, portal, keys...)
		} else {
			s, err = i.Login(ctx, portal, keys...)
		}
		return err
	})
	if err != nil {
		i.Close()
		return nil, nil, err
	}
	return i, s, nil
}
