package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// userlandESP is strongSwan's plugin kernel-libipsec. Clear packets go to a tun
// device to be encrypted, and come from it decrypted, so the guard has to tell
// that device from all others:
//
//	         out                                  in
//	IPv4     policies that allow the device       disable_policy of the device
//	IPv6     routing rules instead of policies:   a mark that the device's ingress
//	         the port has a way into devices of   sets, and policies that allow the
//	         the tun's group and no other         marked
//
// In IPv6 a route lookup shows no policy which device it has found, and
// disable_policy is one of addresses.
type userlandESP struct{}

func (u userlandESP) plan(k *kernel, g Spec) (plan, error) {
	p := plan{policies: g.blocks()}
	tuns, err := k.tuns(g.Tun)
	if err != nil {
		p.keep = true
		return p, err
	}
	if g.Remote.Is6() {
		p.policies = append(slices.DeleteFunc(p.policies, g.isOutbound), g.allowMarked()...)
	}
	p.steps = append(p.steps, rulesStep(k, g))
	for _, t := range tuns {
		if g.Remote.Is6() {
			p.steps = append(p.steps, adoptStep(k, g, t))
			continue
		}
		p.policies = append(p.policies, g.allows(t.Attrs().Index)...)
		p.steps = append(p.steps, exemptStep(g, t.Attrs().Name))
	}
	return p, nil
}

// exemptStep lets decrypted packets that charon writes to its tun pass the
// inbound block. It is set on that device alone: a new device starts without
// it, so that nothing else is ever exempt.
func exemptStep(g Spec, dev string) step {
	path := "/proc/sys/net/ipv4/conf/" + dev + "/disable_policy"
	isSet := func() bool {
		b, err := os.ReadFile(path)
		return err == nil && strings.TrimSpace(string(b)) == "1"
	}
	return step{
		do: func() (int, error) {
			if isSet() {
				return 0, nil
			}
			if err := os.WriteFile(path, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				return 0, fmt.Errorf("let %s pass the inbound guard: %w", dev, err)
			}
			return 0, nil
		},
		check: func() ([]Hole, error) {
			if isSet() {
				return nil, nil
			}
			return []Hole{{Spec: g, Shut: true, What: fmt.Sprintf("net.ipv4.conf.%s.disable_policy is off: what ESP has decrypted is blocked", dev),
				Fix: "restart the daemon, which sets it"}}, nil
		},
	}
}

// installed checks that the packets of the child's peer are led into the tun.
func (userlandESP) installed(g Spec, c ChildSA) error {
	return inNS(g.NetNS, func(k *kernel) error {
		tuns, err := k.tuns(g.Tun)
		if err != nil {
			return err
		}
		if len(tuns) == 0 {
			return fmt.Errorf("child %s has no tun device of strongSwan's %s", c.Name, esp.Plugin)
		}
		family := familyOf(g.Remote)
		routes, err := k.RouteListFiltered(family, &netlink.Route{Table: charonTable}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("list the routes of table %d: %w", charonTable, err)
		}
		for _, r := range routes {
			to := slices.ContainsFunc(tuns, func(t netlink.Link) bool { return t.Attrs().Index == r.LinkIndex })
			if to && r.Dst != nil && prefixOf(r.Dst).Contains(g.Remote) {
				return nil
			}
		}
		return fmt.Errorf("no route of table %d leads from %v into %s", charonTable, g.Remote, tuns[0].Attrs().Name)
	})
}

// kernel-libipsec routes by host: all children of a peer need the same route in
// charon's table, but it belongs to the child that came first and goes with
// that one, whatever children are left. So there is a second one, of this
// package, as long as any child of the peer is up. Its metric is worse and its
// protocol another than charon's, so that neither replaces nor deletes the
// other's.
const (
	routeMetric   = 2000
	routeProtocol = 74
)

// route adds the route into the tun to a peer's address, or removes it. A route
// that is as it should be is no error, and neither is a device that is gone: its
// routes have gone with it.
func (userlandESP) route(g Spec, local netip.Addr, up bool) error {
	return inNS(g.NetNS, func(k *kernel) error {
		r := &netlink.Route{Dst: hostNet(g.Remote), Table: charonTable, Protocol: routeProtocol, Priority: routeMetric}
		if !g.Remote.Is6() {
			r.Scope = unix.RT_SCOPE_LINK // without it the kernel does not find it again
		}
		if !up {
			if err := k.RouteDel(r); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("remove the route to %v: %w", g.Remote, err)
			}
			return nil
		}
		tuns, err := k.tuns(g.Tun)
		if err != nil || len(tuns) == 0 {
			return err
		}
		r.LinkIndex, r.Src = tuns[0].Attrs().Index, local.AsSlice()
		if err := k.RouteReplace(r); err != nil {
			return fmt.Errorf("add a route to %v by %s: %w", g.Remote, tuns[0].Attrs().Name, err)
		}
		return nil
	})
}
