package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// block is 512 ports, of which a test tries some.
const (
	blockFirst, blockMiddle, blockLast = 18432, 18500, 18943
	blockSize                          = 512
)

// inLab runs f in a network namespace of its own with a device to the guard's peer.
func inLab(t *testing.T, remote netip.Addr, f func(k *kernel) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	err := nsdo.Fresh(func() error {
		own := remote.Prev()
		wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "end0"}
		err := errors.Join(netlink.LinkAdd(wire), netlink.AddrAdd(wire, &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(own.BitLen()-8, own.BitLen())}, Flags: unix.IFA_F_NODAD}),
			netlink.LinkSetUp(wire), netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "end0"}}), netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}))
		if err != nil {
			return err
		}
		return inNS("", f)
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	remote4 = netip.MustParseAddr("198.18.7.2")
	remote6 = netip.MustParseAddr("fd00:7::2")
)

// eachRemote is both families and each data plane.
func eachRemote(t *testing.T, f func(t *testing.T, g Spec)) {
	for _, remote := range []netip.Addr{remote4, remote6} {
		for _, plane := range []esp.Plane{esp.Auto, esp.Kernel, esp.Userland} {
			t.Run(fmt.Sprintf("%v %v", remote, plane), func(t *testing.T) {
				f(t, Spec{Remote: remote, Port: blockFirst, Size: blockSize, DataPlane: plane})
			})
		}
	}
}

// leaks are the ports, of some in and beside the block, of which clear packets leave: those that dial
// and those that are dialled, and ICMP that quotes them.
func leaks(t *testing.T, k *kernel, g Spec) (out []string) {
	t.Helper()
	from, err := k.stranger(g)
	if err != nil {
		t.Fatal(err)
	}
	note := func(what string, port uint16, err error) {
		switch {
		case errors.Is(err, ErrLeaks):
			out = append(out, fmt.Sprint(what, " ", port))
		case err != nil:
			t.Errorf("%s %d: %v", what, port, err)
		}
	}
	for _, port := range []uint16{blockFirst - 1, blockFirst, blockMiddle, blockLast, blockLast + 1} {
		note("to", port, probe{proto: g.protocol(), dev: "wire0", from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(g.Remote, port)}.run(g))
		note("from", port, probe{proto: g.protocol(), dev: "wire0", from: netip.AddrPortFrom(from, port), to: netip.AddrPortFrom(g.Remote, discardPort)}.run(g))
		note("quote", port, k.probeQuote(g, "wire0", from, port))
	}
	return out
}

func TestBlockOfPortsIsStoppedAndNoPortBesideIt(t *testing.T) {
	const beside = "[to 18431 from 18431 quote 18431 to 18944 from 18944 quote 18944]"
	eachRemote(t, func(t *testing.T, g Spec) {
		for _, proto := range []transport.Protocol{transport.ProtoTCP, transport.ProtoUDP} {
			g.Protocol = proto
			inLab(t, g.Remote, func(k *kernel) error {
				if err := Install(g); err != nil {
					return err
				}
				if got := fmt.Sprint(leaks(t, k, g)); got != beside {
					t.Errorf("%v: in clear leave %s, want %s", g, got, beside)
				}
				if err := Probe(g); err != nil {
					t.Error(err)
				}
				if holes, err := Holes(g); err != nil || len(holes) != 0 {
					t.Errorf("%v, %v", holes, err)
				}
				all, err := List("")
				if err != nil {
					return err
				}
				outbound := 0
				for _, p := range all {
					if p.Size != blockSize || max(p.LocalPort, p.PeerPort) != blockFirst || !strings.Contains(p.String(), "port 18432-18943") {
						t.Errorf("listed as %v (%+v)", p, p)
					}
					if p.Direction == "out" {
						outbound++
					}
				}
				if n := len(all); n < 6 || n > 12 || outbound < 2 {
					t.Errorf("a block of ports has %d policies: %v", n, all)
				}
				if err := TakeDown(g); err != nil {
					return err
				}
				if n := len(leaks(t, k, g)); n != 15 {
					t.Errorf("without a guard %d of 15 leave: the check cannot fail", n)
				}
				if all, err := List(""); err != nil || len(all) != 0 {
					t.Errorf("left are %v, %v", all, err)
				}
				if q, err := k.quotes(); err != nil || len(q.links) != 0 {
					t.Errorf("left are %d elements, %v", len(q.links), err)
				}
				if rules, err := k.ruleList(g); err != nil || slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Dst != nil }) {
					t.Errorf("left are rules %v, %v", rules, err)
				}
				return nil
			})
		}
	})
}

// TestHoleWithinABlockIsFound: what a foreign policy lets pass is compared with all ports of the block.
func TestHoleWithinABlockIsFound(t *testing.T) {
	g := Spec{Remote: remote4, Port: blockFirst, Size: blockSize, DataPlane: esp.Kernel}
	foreign := func(port, size uint16, local bool) *xfrmPolicy {
		h := g
		h.Port, h.Size = port, size
		p := h.policy(netlink.XFRM_DIR_OUT, local)
		p.Action, p.Priority = netlink.XFRM_POLICY_ALLOW, 100
		return p
	}
	every := foreign(1, 1, false)
	every.DstPort, every.dstMask = 0, 0
	odd := foreign(blockFirst, 1, true)
	odd.SrcPort, odd.srcMask = 0x0034, 0x00ff // every 256th port
	outside := foreign(blockFirst, 1, true)
	outside.SrcPort, outside.srcMask = 0x0100, 0xff00
	outside.DstPort, outside.dstMask = 0x4000, 0xff00
	inside := foreign(blockMiddle, 1, true)
	inside.DstPort, inside.dstMask = 0x4000, 0xff00
	inLab(t, g.Remote, func(k *kernel) error {
		if err := Install(g); err != nil {
			return err
		}
		for _, tc := range []struct {
			what string
			p    *xfrmPolicy
			hole bool
			open []string // what leaves
		}{
			{"the port in the middle", foreign(blockMiddle, 1, false), true, []string{"to 18500"}},
			{"from the last port", foreign(blockLast, 1, true), true, []string{"from 18943"}},
			{"a block within", foreign(18496, 16, false), true, []string{"to 18500"}},
			{"a block around", foreign(16384, 4096, true), true, []string{"from 18432", "from 18500", "from 18943"}},
			{"any port", every, true, []string{"to 18432", "from 18432", "to 18500", "from 18500", "to 18943", "from 18943"}},
			{"every 256th port", odd, true, nil},
			{"to the port before, from ports of the block as well", foreign(blockFirst-1, 1, false), true, nil},
			{"from the block behind, to ports of the block as well", foreign(blockLast+1, 16, true), true, nil},
			{"others at both ends", outside, false, nil},
			{"from the port in the middle, to others", inside, true, nil},
		} {
			if err := k.addPolicy(tc.p); err != nil {
				return err
			}
			holes, err := Holes(g)
			if err != nil {
				return err
			}
			if (len(holes) > 0) != tc.hole {
				t.Errorf("%s: holes %v", tc.what, holes)
			}
			got := slices.DeleteFunc(leaks(t, k, g), func(s string) bool {
				return strings.HasPrefix(s, "quote") || strings.HasSuffix(s, "18431") || strings.HasSuffix(s, "18944")
			})
			if !slices.Equal(got, tc.open) && len(got)+len(tc.open) > 0 {
				t.Errorf("%s: in clear leave %v, want %v", tc.what, got, tc.open)
			}
			if err := k.delPolicy(tc.p); err != nil {
				return err
			}
		}
		if holes, err := Holes(g); err != nil || len(holes) != 0 {
			t.Errorf("in the end: %v, %v", holes, err)
		}
		return nil
	})
}

// TestProbeTriesBothEndsOfABlock, in both roles: a leak at either is found.
func TestProbeTriesBothEndsOfABlock(t *testing.T) {
	for _, proto := range []transport.Protocol{transport.ProtoTCP, transport.ProtoUDP} {
		g := Spec{Remote: remote4, Port: blockFirst, Size: blockSize, Protocol: proto, DataPlane: esp.Kernel}
		inLab(t, g.Remote, func(k *kernel) error {
			if err := Install(g); err != nil {
				return err
			}
			for _, port := range []uint16{blockFirst, blockLast} {
				for _, local := range []bool{false, true} {
					open := g
					open.Port, open.Size = port, 1
					p := open.policy(netlink.XFRM_DIR_OUT, local)
					p.Action, p.Priority = netlink.XFRM_POLICY_ALLOW, 100
					if err := k.addPolicy(p); err != nil {
						return err
					}
					if err := Probe(g); !errors.Is(err, ErrLeaks) {
						t.Errorf("%v: port %d is open, local: %v; the probe finds %v", proto, port, local, err)
					}
					if err := k.delPolicy(p); err != nil {
						return err
					}
				}
			}
			return Probe(g)
		})
	}
}

// TestChildrenOfABlockAreItsOwn: the policies that a charon has of them, in both roles and every direction, and of no other
// link. They go with the guard when that charon was killed.
func TestChildrenOfABlockAreItsOwn(t *testing.T) {
	block := Spec{Remote: remote4, Port: blockFirst, Size: blockSize, Protocol: transport.ProtoUDP}
	one, half, tcp := block, block, block
	one.Size, half.Size, tcp.Protocol = 1, blockSize/2, transport.ProtoTCP
	all := []Spec{block, one, half, tcp}
	for _, of := range all {
		for _, dir := range []netlink.Dir{netlink.XFRM_DIR_OUT, netlink.XFRM_DIR_IN, netlink.XFRM_DIR_FWD} {
			for _, local := range []bool{false, true} {
				p := of.policy(dir, local)
				p.Priority, p.Tmpls = esp.ChildPriority, []netlink.XfrmPolicyTmpl{{Proto: netlink.XFRM_PROTO_ESP}}
				for _, g := range all {
					if isChildPolicy(p, g) != (g == of) {
						t.Errorf("%v, local %v, of a child of %v: one of %v is %v", dir, local, of, g, g != of)
					}
				}
			}
		}
	}
}

// TestPolicyWithAnotherMaskIsAnother: each size at one first port is a guard of its own.
func TestPolicyWithAnotherMaskIsAnother(t *testing.T) {
	eachRemote(t, func(t *testing.T, g Spec) {
		inLab(t, g.Remote, func(k *kernel) error {
			sizes := []uint16{1, 256, blockSize, 2048}
			of := func(size uint16) Spec { h := g; h.Size = size; return h }
			count := func() map[uint16]int {
				have, err := k.policies()
				if err != nil {
					t.Fatal(err)
				}
				n := map[uint16]int{}
				for i := range have {
					if _, size, _, ok := have[i].ports(); ok && isGuard(&have[i]) {
						n[size]++
					}
				}
				return n
			}
			for i, size := range sizes {
				if holes, err := Holes(of(size)); err != nil || !slices.ContainsFunc(holes, func(h Hole) bool { return !h.Shut && strings.Contains(h.What, "missing") }) {
					t.Errorf("%d guards at the same port are taken for the one of %d ports: %v, %v", i, size, holes, err)
				}
				if err := Install(of(size)); err != nil {
					return err
				}
			}
			odd := of(1).policy(netlink.XFRM_DIR_OUT, false)
			odd.dstMask, odd.Action, odd.Priority = 0xfcff, netlink.XFRM_POLICY_BLOCK, blockPriority
			if err := k.addPolicy(odd); err != nil {
				return err
			}
			full := count()
			if isGuard(odd) || len(full) != len(sizes) {
				t.Errorf("guards by size: %v", full)
			}
			for i, size := range sizes {
				if err := Install(of(size)); err != nil {
					return err
				}
				if n := count(); fmt.Sprint(n) != fmt.Sprint(full) {
					t.Errorf("again installed it is %v, and was %v", n, full)
				}
				if err := TakeDown(of(size)); err != nil {
					return err
				}
				delete(full, size)
				if n := count(); fmt.Sprint(n) != fmt.Sprint(full) {
					t.Errorf("without that of %d ports left are %v, want %v", size, n, full)
				}
				k.quoted = nil
				for _, other := range sizes[i+1:] {
					if holes, err := Holes(of(other)); err != nil || len(holes) != 0 {
						t.Errorf("without that of %d ports the one of %d has holes: %v, %v", size, other, holes, err)
					}
				}
			}
			k.quoted = nil
			if q, err := k.quotes(); err != nil || len(q.links) != 0 {
				t.Errorf("left are %d elements, %v", len(q.links), err)
			}
			have, err := k.policies()
			if err != nil || len(have) != 1 || keyOf(&have[0]) != keyOf(odd) {
				t.Errorf("left are %d policies, %v; want the foreign one", len(have), err)
			}
			return k.delPolicy(odd)
		})
	})
}

// TestPoliciesAreReadAsTheyWereWritten, by this package and by package netlink, which knows no masks.
func TestPoliciesAreReadAsTheyWereWritten(t *testing.T) {
	for _, remote := range []netip.Addr{remote4, remote6, netip.MustParseAddr("2001:db8::")} {
		g := Spec{Remote: remote, Port: 7471}
		inLab(t, remote4, func(k *kernel) error {
			var want []*xfrmPolicy
			want = append(want, g.blocks()...)
			want = append(want, g.allows(1)...)
			want = append(want, g.allowMarked()...)
			g.Port, g.Size, g.Protocol = blockFirst, blockSize, transport.ProtoSCTP
			want = append(want, g.blocks()...)
			for _, p := range want {
				if err := errors.Join(k.addPolicy(p), k.addPolicy(p)); err != nil {
					return err
				}
			}
			have, err := k.inventory()
			if err != nil {
				return err
			}
			for _, p := range want {
				if have.all[keyOf(p)] == nil {
					t.Errorf("not found: %+v", keyOf(p))
				}
			}
			if len(have.all) != len(want) {
				t.Errorf("%d policies, want %d", len(have.all), len(want))
			}
			theirs, err := netlink.XfrmPolicyList(familyOf(remote))
			if err != nil {
				return err
			}
			for _, p := range have.all {
				if familyOf(prefixOf(p.Src).Addr()) != familyOf(remote) || remote.Is6() && remote != remote6 {
					continue
				}
				if !slices.ContainsFunc(theirs, func(o netlink.XfrmPolicy) bool { return o.Index == p.Index && o.String() == p.String() }) {
					t.Errorf("package netlink reads %v otherwise", p.XfrmPolicy)
				}
			}
			for _, p := range have.all {
				if err := errors.Join(k.delPolicy(p), k.delPolicy(p)); err != nil {
					return err
				}
			}
			if left, err := k.policies(); err != nil || len(left) != 0 {
				t.Errorf("left are %d, %v", len(left), err)
			}
			return nil
		})
	}
}

// TestSocketsOfABlockAreEnded, at whatever port of it, at either end.
func TestSocketsOfABlockAreEnded(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	inLab(t, remote4, func(*kernel) error {
		g := Spec{Remote: here, Port: blockFirst, Size: blockSize}
		for port, in := range map[uint16]bool{blockFirst - 1: false, blockFirst: true, blockMiddle: true, blockLast: true, blockLast + 1: false} {
			ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(here, port)))
			if err != nil {
				return err
			}
			c, err := net.DialTCP("tcp", nil, ln.Addr().(*net.TCPAddr))
			if err != nil {
				return err
			}
			s, err := ln.Accept()
			if err != nil {
				return err
			}
			have, err := LinkSockets(g)
			if err != nil || (len(have) == 2) != in || !in && len(have) != 0 {
				t.Errorf("port %d: sockets %v, %v", port, have, err)
			}
			if err := EndSockets(g); err != nil {
				t.Error(err)
			}
			wait := 100 * time.Millisecond
			if in { // it is to end, however long a busy machine takes
				wait = time.Minute
			}
			_ = c.SetReadDeadline(time.Now().Add(wait))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) == in {
				t.Errorf("port %d: %v", port, err)
			}
			_, _, _ = c.Close(), s.Close(), ln.Close()
		}
		return nil
	})
}

func TestImpossibleBlocksAreRefused(t *testing.T) {
	for _, g := range []Spec{{Port: 18432, Size: 500}, {Port: 18440, Size: 16}, {Port: 0, Size: 16}, {Port: 1, Size: 2}} {
		g.Remote = remote4
		if err := g.validate(); err == nil {
			t.Errorf("%d/%d is taken", g.Port, g.Size)
		}
	}
	for _, g := range []Spec{{Port: 18432}, {Port: 18432, Size: 1}, {Port: 18433, Size: 1}, {Port: 18432, Size: 512}, {Port: 32768, Size: 32768}} {
		g.Remote = remote4
		if err := g.validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestLargestBlocksAreGuarded, some of them at once.
func TestLargestBlocksAreGuarded(t *testing.T) {
	for remote, plane := range map[netip.Addr]esp.Plane{remote4: esp.Kernel, remote6: esp.Userland} {
		inLab(t, remote, func(k *kernel) error {
			var specs []Spec
			for first := uint16(4096); first < 18432; first += 4096 {
				specs = append(specs, Spec{Remote: remote, Port: first, Size: 4096, DataPlane: plane})
			}
			began := time.Now()
			results, err := Reconcile("", specs)
			for _, r := range results {
				err = errors.Join(err, r.Err)
			}
			if err != nil {
				return err
			}
			t.Logf("%d ports: %v", 4096*len(specs), time.Since(began))
			if holes, err := Holes(specs...); err != nil || len(holes) != 0 {
				t.Errorf("%v, %v", holes, err)
			}
			began = time.Now()
			if err := TakeDown(specs[0]); err != nil {
				return err
			}
			t.Logf("one taken down: %v", time.Since(began))
			if holes, err := Holes(specs[1:]...); err != nil || len(holes) != 0 {
				t.Errorf("%v, %v", holes, err)
			}
			return nil
		})
	}
}

// TestPeerWithTheLargestBlocksCanBeBlocked, by one batch of nf_tables, of more than eight megabytes.
func TestPeerWithTheLargestBlocksCanBeBlocked(t *testing.T) {
	inLab(t, remote4, func(*kernel) error {
		var entries []BlockEntry
		var keys []LinkKey
		for first := uint16(4096); first < 18432; first += 4096 {
			for _, k := range (Spec{Remote: remote4, Port: first, Size: 4096}).Keys() {
				keys = append(keys, k)
				entries = append(entries, BlockEntry{LinkKey: k, Peer: strings.Repeat("p", 32), Why: strings.Repeat("w", maxWhy), Until: time.Now().Add(time.Hour)})
			}
		}
		began := time.Now()
		if err := WriteBlocks("", nil, entries); err != nil {
			return err
		}
		have, err := ReadBlocks("")
		if err != nil || len(have) != len(entries) {
			t.Errorf("%d of %d elements, %v", len(have), len(entries), err)
		}
		if err := WriteBlocks("", keys, nil); err != nil {
			return err
		}
		t.Logf("%d elements: %v", len(entries), time.Since(began))
		return nil
	})
}

// TestSocketsThatAnotherGuardStopsStay: a block gives way to another one that has some of its ports.
func TestSocketsThatAnotherGuardStopsStay(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	inLab(t, remote4, func(*kernel) error {
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(here, blockMiddle)))
		if err != nil {
			return err
		}
		defer ln.Close()
		c, err := net.DialTCP("tcp", nil, ln.Addr().(*net.TCPAddr))
		if err != nil {
			return err
		}
		defer c.Close()
		g := Spec{Remote: here, Port: blockFirst, Size: blockSize}
		smaller, beside := g, g
		smaller.Size = 256
		beside.Port, beside.Size = 18688, 256
		for _, o := range []Spec{g, beside, smaller} {
			have, err := LinkSockets(g)
			if err != nil || len(have) != 2 {
				t.Errorf("beside %v: sockets %v, %v", o, have, err)
			}
			if err := Install(o); err != nil {
				return err
			}
		}
		if have, err := LinkSockets(g); err != nil || len(have) != 0 {
			t.Errorf("sockets %v, %v, which another guard stops", have, err)
		}
		if err := Remove(g); err != nil {
			return err
		}
		if have, err := LinkSockets(smaller); err != nil || len(have) != 2 {
			t.Errorf("the other guard has %v, %v", have, err)
		}
		return errors.Join(Remove(smaller), Remove(beside))
	})
}
