package guard

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// TestProbeIsNotTakenByAnSAOfTheHosts has hosts with the addresses that probes come
// from, as README's examples have, and a policy of an SA's between them: what it takes
// is no leak. The control has a hole.
func TestProbeIsNotTakenByAnSAOfTheHosts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	for _, hosts := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"192.0.2.2", "192.0.2.1"}, {"2001:db8::1", "2001:db8::2"}, {"2001:db8::2", "2001:db8::1"}} {
		t.Run(hosts[0], func(t *testing.T) {
			own, remote := netip.MustParseAddr(hosts[0]), netip.MustParseAddr(hosts[1])
			net24 := func(a netip.Addr) *net.IPNet {
				return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen()-8, a.BitLen())}
			}
			err := nsdo.Fresh(func() error {
				// Somebody has to be there whom the kernel can ask for the SA.
				ike, err := netlinkGroup("", unix.NETLINK_XFRM, 1) // XFRMNLGRP_ACQUIRE
				if err != nil {
					return err
				}
				defer ike.Close()
				wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "end0"}
				err = errors.Join(netlink.LinkAdd(wire), netlink.AddrAdd(wire, &netlink.Addr{IPNet: net24(own), Flags: unix.IFA_F_NODAD}),
					netlink.LinkSetUp(wire), netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "end0"}}))
				if err != nil {
					return err
				}
				g := Spec{Remote: remote, Port: 7471, DataPlane: esp.Kernel}
				if err := Install(g); err != nil {
					return err
				}
				for _, local := range []bool{false, true} {
					p := g.policy(netlink.XFRM_DIR_OUT, local)
					p.Src, p.Priority = hostNet(own), esp.ChildPriority
					p.Tmpls = []netlink.XfrmPolicyTmpl{{Src: own.AsSlice(), Dst: remote.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Reqid: 1}}
					if err := netlink.XfrmPolicyAdd(&p.XfrmPolicy); err != nil {
						return err
					}
				}
				if err := Probe(g); err != nil {
					t.Errorf("a whole guard beside an SA: %v", err)
				}
				if err := TakeDown(g); err != nil {
					return err
				}
				if err := Probe(g); !errors.Is(err, ErrLeaks) {
					t.Errorf("without a guard: %v", err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
