package daemon

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo/nsdotest"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// TestHeldGuardIsLookedAfterAndLetGo has the guard of a removed peer wait for a
// connection that could not be ended: what somebody takes away of it is put back, and
// with the connection it goes.
func TestHeldGuardIsLookedAfterAndLetGo(t *testing.T) {
	nsdotest.Connected(t, "127.0.0.1:7471", func(dialled, accepted *net.TCPConn) error {
		r := guardRecord{Peer: "beta", Address: netip.MustParseAddr("127.0.0.1"), Protocol: transport.ProtoTCP, Port: 7471}
		x := recordedGuards{log: slog.New(slog.DiscardHandler), file: guardsFile(t.TempDir()), remove: guard.Remove,
			list: []guardRecord{r}, held: map[guardRecord]string{r: "its connection could not be ended"}}
		if err := guard.Install(r.spec()); err != nil {
			return err
		}
		if holes, err := guard.Holes(r.spec()); err != nil || len(holes) > 0 {
			t.Errorf("at first: %v, %v", holes, err)
		}
		policies, err := netlink.XfrmPolicyList(netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for i := range policies {
			if err := netlink.XfrmPolicyDel(&policies[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		x.removeUnneeded(nil)
		if holes, err := guard.Holes(r.spec()); err != nil || len(holes) > 0 || len(policies) == 0 {
			t.Errorf("%d policies were taken away and not put back: %v, %v", len(policies), holes, err)
		}
		if why := x.heldReasons("beta"); len(why) != 1 || len(x.list) != 1 {
			t.Errorf("held: %q, list %v", why, x.list)
		}

		dialled.Close()
		accepted.Close()
		eventually(t, "the kernel has nothing of the link", func() bool {
			left, err := guard.LinkSockets(r.spec())
			return err == nil && len(left) == 0
		})
		x.removeUnneeded(nil)
		if left, err := guard.List(""); err != nil || len(left) > 0 || len(x.list) > 0 || len(x.heldReasons("beta")) > 0 {
			t.Errorf("at last: policies %v, %v; list %v, held %q", left, err, x.list, x.heldReasons("beta"))
		}
		return nil
	})
}
