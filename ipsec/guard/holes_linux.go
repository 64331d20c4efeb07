package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/transport"
)

// Holes checks guards that should be in place, and returns what is missing and what
// other settings of the host open a way around them. The guards are of one network
// namespace. It fails with the kernel's error.
func Holes(specs ...Spec) ([]Hole, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	var holes []Hole
	err := inNS(specs[0].NetNS, func(k *kernel) error {
		have, err := k.policies()
		if err != nil {
			return err
		}
		inv := inventoryOf(have)
		for _, g := range specs {
			if err := g.validate(); err != nil {
				return err
			}
			faults, err := k.faults(g, inv)
			if err != nil {
				return err
			}
			holes = append(holes, faults...)
			holes = append(holes, k.bypasses(g, have)...)
			holes = append(holes, g.decapsulated(inv)...)
		}
		open, err := exemptDevices()
		for _, h := range open {
			h.Spec = specs[0]
			holes = append(holes, h.Hole)
		}
		return err
	})
	return holes, err
}

// faults compares what the kernel has with the plan.
func (k *kernel) faults(g Spec, have inventory) ([]Hole, error) {
	var holes []Hole
	plan, err := k.plan(g, have)
	if err != nil {
		return nil, err
	}
	for _, w := range plan.policies {
		if have.all[keyOf(w)] != nil {
			continue
		}
		h := Hole{Spec: g, What: fmt.Sprintf("the policy %q is missing", k.describe(w)),
			Fix: "restart the daemon, and find out who removed it (ip xfrm policy flush, ipsec start)"}
		if isAllow(w) {
			h.Shut = true
			h.What += ": the link's own packets are blocked"
		}
		holes = append(holes, h)
	}
	for _, s := range plan.steps {
		some, err := s.check()
		if err != nil {
			return holes, err
		}
		holes = append(holes, some...)
	}
	return holes, nil
}

// bypasses finds policies that let clear packets of the guard's port pass and
// win over the block. Those that demand a transformation are no hole.
func (k *kernel) bypasses(g Spec, have []xfrmPolicy) []Hole {
	var holes []Hole
	for i := range have {
		p := &have[i]
		if p.Action != netlink.XFRM_POLICY_ALLOW || p.Priority > blockPriority || p.Dir > netlink.XFRM_DIR_FWD || !overlaps(p, g) {
			continue
		}
		if slices.ContainsFunc(p.Tmpls, func(t netlink.XfrmPolicyTmpl) bool { return t.Optional == 0 }) {
			continue
		}
		if isAllow(p) && p.Mark != nil {
			continue // the mark is that of the tun
		}
		if isAllow(p) {
			l, err := k.LinkByIndex(p.Ifindex)
			if err != nil || l.Type() == "tuntap" && libipsecTun.MatchString(l.Attrs().Name) {
				continue
			}
		}
		holes = append(holes, Hole{Spec: g, What: fmt.Sprintf("an XFRM policy of priority %d lets clear packets of %v pass (%v)", p.Priority, g, p.Dir),
			Fix: fmt.Sprintf("remove it: ip xfrm policy delete index %d %v", p.Index, p.Dir)})
	}
	return holes
}

// decapsulated finds the setting by which the kernel takes SCTP out of UDP (RFC
// 6951): to the policies such a packet is one of UDP.
func (g Spec) decapsulated(have inventory) []Hole {
	if g.protocol() != transport.ProtoSCTP {
		return nil
	}
	b, err := os.ReadFile("/proc/sys/net/sctp/udp_port")
	if err != nil {
		return nil // the kernel has no SCTP, or not this
	}
	port, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 16)
	if err != nil || port == 0 {
		return nil
	}
	udp := g
	udp.Protocol, udp.Port, udp.Size = transport.ProtoUDP, uint16(port), 0
	for _, p := range udp.blocks() {
		if p.Dir == netlink.XFRM_DIR_IN && have.all[keyOf(p)] == nil {
			return []Hole{{Spec: g, What: fmt.Sprintf("net.sctp.udp_port is %d: the kernel takes in clear packets of %v that are encapsulated in UDP", port, g),
				Fix: "sysctl net.sctp.udp_port=0"}}
		}
	}
	return nil
}

func overlaps(p *xfrmPolicy, g Spec) bool {
	remote, local := prefixOf(p.Dst), prefixOf(p.Src)
	if p.Dir != netlink.XFRM_DIR_OUT {
		remote, local = local, remote
	}
	mine := func(a netip.Addr) bool {
		return (!remote.IsValid() || remote.Addr().BitLen() == a.BitLen() && remote.Contains(a)) && (!local.IsValid() || local.Addr().BitLen() == a.BitLen())
	}
	if !slices.ContainsFunc(g.Addresses(), mine) {
		return false
	}
	if p.Proto != 0 && transport.Protocol(p.Proto) != g.protocol() {
		return false
	}
	return g.meets(p.SrcPort, p.srcMask) || g.meets(p.DstPort, p.dstMask)
}

// meets reports whether some port of a selector is the guard's.
func (g Spec) meets(port int, mask uint16) bool {
	return (uint16(port)^g.Port)&mask&portMask(g.Size) == 0
}

// exemption is a device whose packets pass without a look at the policies.
type exemption struct {
	Hole
	dev string // "all" and "default" as well
	out bool   // those that it sends
}

// exemptDevices finds such devices.
func exemptDevices() ([]exemption, error) {
	var holes []exemption
	for _, setting := range []string{"ipv4/conf/*/disable_policy", "ipv4/conf/*/disable_xfrm", "ipv6/conf/*/disable_policy"} {
		paths, err := filepath.Glob("/proc/sys/net/" + setting)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			dev, name := filepath.Base(filepath.Dir(path)), filepath.Base(path)
			family := strings.Split(setting, "/")[0]
			b, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				continue // the device went away
			}
			if err != nil {
				return holes, fmt.Errorf("look for holes in the guard: %w", err)
			}
			tun := family == "ipv4" && name == "disable_policy" && libipsecTun.MatchString(dev)
			if strings.TrimSpace(string(b)) == "0" || dev == "lo" || tun {
				continue
			}
			what := "packets of device " + dev + " pass"
			switch dev {
			case "all":
				what = "all packets pass"
			case "default":
				what = "packets of every new device pass"
			}
			holes = append(holes, exemption{dev: dev, out: name == "disable_xfrm", Hole: Hole{
				What: fmt.Sprintf("net.%s.conf.%s.%s is on: %s without a look at the IPsec policies", family, dev, name, what),
				Fix:  fmt.Sprintf("sysctl net.%s.conf.%s.%s=0", family, dev, name)}})
		}
	}
	return holes, nil
}
