package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/internal/nsdo/nsdotest"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// onAWire runs f in a network namespace of its own, with a device to 192.0.2.2.
func onAWire(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	err := nsdo.Fresh(func() error {
		wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "end0"}
		own := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}, Flags: unix.IFA_F_NODAD}
		err := errors.Join(nsdotest.LoopbackUp(), netlink.LinkAdd(wire), netlink.AddrAdd(wire, own), netlink.LinkSetUp(wire),
			netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "end0"}}))
		if err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGuardOfABlockIsExaminedAsOne, of both protocols: all of its policies, and its self-test.
func TestGuardOfABlockIsExaminedAsOne(t *testing.T) {
	for name, want := range map[string]guard.Spec{
		"tcp":      {Protocol: transport.ProtoTCP, Port: 18432, Size: 64},
		"sctp-udp": {Protocol: transport.ProtoUDP, Port: 18432, Size: 64},
	} {
		t.Run(name, func(t *testing.T) {
			onAWire(t, func() error {
				want.Remote = netip.MustParseAddr("192.0.2.2")
				if err := guard.Install(want); err != nil {
					return err
				}
				found := examine(t, map[string]string{
					"ironwarp.yaml":     base + fmt.Sprintf("ulps:\n  - {name: rdma, peers: [beta], ports: [18432/64], transport: %s}\n", name),
					"peers.d/beta.yaml": "name: beta\naddress: 192.0.2.2\npsk_file: beta.psk\n",
					"beta.psk":          "0123456789abcdef",
				})["guard of beta"] // the last one, of the block
				g := found.Guard
				if g == nil || g.Link != fmt.Sprintf("%v ports 18432-18495", want.Protocol) || !g.Passed || len(g.Policies) < 6 {
					return fmt.Errorf("%+v\n%+v", found, g)
				}
				for _, p := range g.Policies {
					if p.Size != 64 || p.Protocol != want.Protocol {
						t.Errorf("%+v", p)
					}
				}
				return nil
			})
		})
	}
}

// TestSocketThatHoldsAGuardOfABlockIsNamed: it may be of any port of the block.
func TestSocketThatHoldsAGuardOfABlockIsNamed(t *testing.T) {
	onAWire(t, func() error {
		c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 77), Port: 18495})
		if err != nil {
			return err
		}
		defer c.Close()
		if err := guard.Install(guard.Spec{Remote: netip.MustParseAddr("192.0.2.77"), Protocol: transport.ProtoUDP, Port: 18432, Size: 64}); err != nil {
			return err
		}
		f := examine(t, map[string]string{"ironwarp.yaml": base})["left over guard"]
		if want := "udp from " + c.LocalAddr().String() + " to 192.0.2.77:18495"; f.Level != Warn || !strings.Contains(f.Found, want) {
			t.Errorf("%+v, want %q", f, want)
		}
		return nil
	})
}
