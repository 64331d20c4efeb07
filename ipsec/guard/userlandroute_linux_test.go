package guard

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// TestRouteIntoTheTunGoesWithTheLastChild matters to TCP: a packet that the guard
// stops is known not to have left, one that vanishes in the tun counts as lost.
func TestRouteIntoTheTunGoesWithTheLastChild(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace and a tun device take root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no tun devices here: %v", err)
	}
	ends := map[string][2]netip.Addr{
		"IPv4": {netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.1.1.2")},
		"IPv6": {netip.MustParseAddr("fd01::1"), netip.MustParseAddr("fd01::2")},
	}
	for name, e := range ends {
		t.Run(name, func(t *testing.T) {
			err := nsdo.Fresh(func() error {
				tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "ipsec0"}, Mode: netlink.TUNTAP_MODE_TUN}
				if err := netlink.LinkAdd(tun); err != nil {
					return err
				}
				if err := netlink.AddrAdd(tun, &netlink.Addr{IPNet: hostNet(e[0]), Flags: unix.IFA_F_NODAD}); err != nil {
					return err
				}
				if err := netlink.LinkSetUp(tun); err != nil {
					return err
				}
				routes := func() int {
					list, err := netlink.RouteListFiltered(familyOf(e[1]), &netlink.Route{Table: charonTable}, netlink.RT_FILTER_TABLE)
					if err != nil {
						t.Error(err)
					}
					return len(list)
				}
				g := Spec{Remote: e[1], Port: 7471, DataPlane: esp.Userland, Tun: "ipsec0"}
				for range 2 { // again is no error
					if err := (userlandESP{}).route(g, e[0], true); err != nil {
						return err
					}
				}
				if n := routes(); n != 1 {
					t.Errorf("%d routes with a child up", n)
				}
				for range 2 {
					if err := (userlandESP{}).route(g, e[0], false); err != nil {
						return err
					}
				}
				if n := routes(); n != 0 {
					t.Errorf("%d routes with none up", n)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
