package ipsec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// A charon that is killed leaves its SAs in the kernel, which goes on with them:
// streams do not even notice. The next charon knows nothing of them; they would
// stay until their lifetime is over, and since it counts its reqids from one
// again, the kernel might send on a state that the peer has long forgotten. So
// they are noted when a charon comes, and removed as soon as the peer has a new
// child, or no stream that might still use them. Removing states never lets a
// packet out in clear: the policies that demand ESP stay until charon replaces
// them, and below them stands the guard.

// orphan is an ESP state of the kernel.
type orphan struct {
	src, dst netip.Addr
	spi      uint32
}

// isChildPolicy tells that charon has installed a policy for a child of the
// guard's peer: it demands ESP, for the link's port, at the priority that only
// our children have.
func isChildPolicy(p *netlink.XfrmPolicy, g GuardSpec) bool {
	if p.Priority != esp.ChildPriority || len(p.Tmpls) == 0 || p.Dir > netlink.XFRM_DIR_FWD || netlink.Proto(g.protocol()) != p.Proto {
		return false
	}
	remote := prefixOf(p.Src)
	if p.Dir == netlink.XFRM_DIR_OUT {
		remote = prefixOf(p.Dst)
	}
	return remote.IsValid() && remote.IsSingleIP() && remote.Addr() == g.Remote && (p.SrcPort == int(g.Port) || p.DstPort == int(g.Port))
}

// states lists the ESP states that policies of the peer's children lead to.
func (k *kernel) states(g GuardSpec, local netip.Addr) ([]orphan, error) {
	policies, err := k.policies()
	if err != nil {
		return nil, err
	}
	type use struct {
		reqid    int
		src, dst netip.Addr
	}
	uses := map[use]bool{}
	for i := range policies {
		if !isChildPolicy(&policies[i], g) {
			continue
		}
		for _, t := range policies[i].Tmpls {
			// Those of transport mode name no addresses.
			src, ok1 := netip.AddrFromSlice(t.Src)
			dst, ok2 := netip.AddrFromSlice(t.Dst)
			if !ok1 || !ok2 || src.Unmap().IsUnspecified() || dst.Unmap().IsUnspecified() {
				src, dst = local, g.Remote
			}
			src, dst = src.Unmap(), dst.Unmap()
			uses[use{t.Reqid, src, dst}], uses[use{t.Reqid, dst, src}] = true, true
		}
	}
	if len(uses) == 0 {
		return nil, nil
	}
	all, err := k.XfrmStateList(familyOf(g.Remote))
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
		all, err = k.XfrmStateList(familyOf(g.Remote))
	}
	if err != nil {
		return nil, fmt.Errorf("list ESP states: %w", err)
	}
	var out []orphan
	for _, s := range all {
		src, _ := netip.AddrFromSlice(s.Src)
		dst, _ := netip.AddrFromSlice(s.Dst)
		src, dst = src.Unmap(), dst.Unmap()
		if s.Proto == netlink.XFRM_PROTO_ESP && s.Spi != 0 && uses[use{s.Reqid, src, dst}] {
			out = append(out, orphan{src, dst, uint32(s.Spi)})
		}
	}
	return out, nil
}

func (k *kernel) delState(o orphan) error {
	err := k.XfrmStateDel(&netlink.XfrmState{Src: o.src.AsSlice(), Dst: o.dst.AsSlice(), Proto: netlink.XFRM_PROTO_ESP, Spi: int(o.spi)})
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("delete the ESP state from %v to %v with SPI %08x: %w", o.src, o.dst, o.spi, err)
	}
	return nil
}

// removeChildren removes what a charon that is gone has left of a peer's
// children.
func removeChildren(g GuardSpec) error {
	if err := g.validate(); err != nil {
		return err
	}
	return inGuardNS(g.NetNS, func(k *kernel) error { return k.dropChildren(g) })
}

func (k *kernel) dropChildren(g GuardSpec) error {
	policies, err := k.policies()
	if err != nil {
		return err
	}
	var errs []error
	states, err := k.states(g, netip.Addr{})
	errs = append(errs, err)
	for i := range policies {
		if p := &policies[i]; isChildPolicy(p, g) {
			errs = append(errs, k.delPolicy(p))
		}
	}
	for _, o := range states {
		errs = append(errs, k.delState(o))
	}
	return errors.Join(errs...)
}

// unlisted leaves out states that a list of SAs has.
func unlisted(states []orphan, sas []SA) []orphan {
	listed := map[uint32]bool{}
	for _, sa := range sas {
		for _, c := range sa.Children {
			for _, spi := range []string{c.SPIIn, c.SPIOut} {
				if n, err := strconv.ParseUint(spi, 16, 32); err == nil {
					listed[uint32(n)] = true
				}
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(states), func(o orphan) bool { return listed[o.spi] })
}

// noteOrphans looks for states of an earlier charon, before the present one
// makes any for this peer.
func (m *Manager) noteOrphans(ctx context.Context, p *peer) {
	st := m.DaemonStatus()
	if !st.DataPlane.Offers().HoldsSAs {
		return
	}
	specs := p.guards(st.DataPlane, st.Tun)
	var states []orphan
	// The states come first: what charon makes meanwhile is in its list only.
	err := inGuardNS(m.cfg.NetNS, func(k *kernel) error {
		for _, g := range specs {
			some, err := k.states(g, p.local)
			if err != nil {
				return err
			}
			states = append(states, some...)
		}
		return nil
	})
	if err == nil && len(states) > 0 {
		var sas []SA
		if sas, err = m.listAll(ctx); err == nil {
			states = unlisted(states, sas)
		}
	}
	if err != nil {
		m.cfg.Logger.Warn("could not look for SAs that an earlier strongSwan has left", "peer", p.name, "err", err)
		return
	}
	if len(states) > 0 {
		m.cfg.Logger.Info("an earlier strongSwan has left SAs; they go when there are new ones", "peer", p.name, "states", len(states))
		p.mu.Lock()
		p.orphans = states
		p.mu.Unlock()
	}
}

// sweepOrphans removes the noted states that are of no use any more.
func (m *Manager) sweepOrphans(ctx context.Context) {
	for _, p := range m.allPeers() {
		p.mu.Lock()
		states := p.orphans
		renewed := slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.up.Load() })
		p.mu.Unlock()
		if len(states) == 0 || !renewed && p.flowCount() > 0 {
			continue
		}
		sas, err := m.listAll(ctx)
		if err != nil {
			continue // later
		}
		states = unlisted(states, sas)
		err = inGuardNS(m.cfg.NetNS, func(k *kernel) error {
			var errs []error
			for _, o := range states {
				errs = append(errs, k.delState(o))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			m.cfg.Logger.Warn("could not remove SAs that an earlier strongSwan has left", "peer", p.name, "err", err)
			continue
		}
		p.mu.Lock()
		p.orphans = nil
		p.mu.Unlock()
		m.cfg.Logger.Info("removed SAs that an earlier strongSwan had left", "peer", p.name, "states", len(states))
	}
}
