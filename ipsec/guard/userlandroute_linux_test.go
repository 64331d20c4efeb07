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
// stops is known not to have left, one that vanishes in the tun counts as lost. A child
// that strongSwan lists is in place while there is the route, and no longer.
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
				g := Spec{Remote: e[1], Port: 7471, DataPlane: esp.Userland}
				other := g
				other.Remote = e[1].Next()
				child := ChildSA{Name: "beta-out", Local: e[0], Remote: e[1], SPIIn: "c0ffee01", SPIOut: "c0ffee02"}
				inPlace := func(when string, is bool) {
					if err := Confirm(g, child); (err == nil) != is {
						t.Errorf("%s: the child is in place: %v", when, err)
					}
					if Confirm(other, child) == nil {
						t.Errorf("%s: another peer's child is in place", when)
					}
					g := g
					if g.DataPlane = esp.Kernel; Confirm(g, child) == nil {
						t.Errorf("%s: the kernel has a state that nobody made", when)
					}
				}
				inPlace("without a tun", false)
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
				g.Tun, other.Tun = "ipsec0", "ipsec0"
				inPlace("without a route", false)
				for range 2 { // again is no error
					if err := (userlandESP{}).route(g, e[0], true); err != nil {
						return err
					}
				}
				if n := routes(); n != 1 {
					t.Errorf("%d routes with a child up", n)
				}
				inPlace("with a child up", true)
				for range 2 {
					if err := (userlandESP{}).route(g, e[0], false); err != nil {
						return err
					}
				}
				if n := routes(); n != 0 {
					t.Errorf("%d routes with none up", n)
				}
				inPlace("with none up", false)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
