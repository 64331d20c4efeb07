package ipsec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// Multicast groups that tell of changes to policies, devices and rules; that of
// nf_tables is groupNFTables.
const (
	groupXfrmPolicy = 1 << (4 - 1)  // XFRMNLGRP_POLICY
	groupLink       = 1 << 0        // RTNLGRP_LINK
	groupRule4      = 1 << (8 - 1)  // RTNLGRP_IPV4_RULE
	groupRule6      = 1 << (19 - 1) // RTNLGRP_IPV6_RULE
)

// watchGuard puts back at once what others take away from the guards, and lets
// a new tun pass.
func (m *Manager) watchGuard(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var readers sync.WaitGroup
	defer readers.Wait()
	for _, w := range []struct {
		family int
		groups uint32
		about  string // messages with this name in them; "": all
	}{{unix.NETLINK_XFRM, groupXfrmPolicy, ""}, {unix.NETLINK_ROUTE, groupLink | groupRule4 | groupRule6, ""}, {unix.NETLINK_NETFILTER, groupNFTables, guardTable}} {
		f, err := netlinkGroup(m.cfg.NetNS, w.family, w.groups)
		if err != nil {
			m.cfg.Logger.Warn("cannot follow changes of the guard; it is checked now and then", "err", err)
			continue
		}
		stop := context.AfterFunc(ctx, func() { f.Close() })
		readers.Go(func() {
			defer stop()
			notify(f, changed, w.about)
		})
	}
	tick := time.NewTicker(guardRecheck)
	defer tick.Stop()
	for {
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		m.repairGuards(ctx)
	}
}

// notify pokes changed for every message that has the name in it, until the socket
// is closed.
func notify(f *os.File, changed chan<- struct{}, about string) {
	buf := make([]byte, 1<<16)
	for {
		// ENOBUFS says that messages were lost: there were changes.
		n, err := f.Read(buf)
		if err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return
		}
		if err == nil && !bytes.Contains(buf[:n], []byte(about)) {
			continue
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

func netlinkGroup(netns string, family int, groups uint32) (f *os.File, err error) {
	err = nsdo.Do(netns, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			unix.Close(fd)
			return fmt.Errorf("listen to netlink: %w", err)
		}
		f = os.NewFile(uintptr(fd), "netlink")
		return nil
	})
	return f, err
}

// ensureGuard puts a peer's guard in place.
func (m *Manager) ensureGuard(p *peer) error {
	m.guarding.Lock()
	defer m.guarding.Unlock()
	_, err := m.reconcile([]*peer{p})
	return err
}

// reconcile compares the guards of peers with what the kernel has, and adds what
// is missing. m.guarding is held. Of the peers whose policies somebody had removed
// it returns a list; the error is that of the first peer.
func (m *Manager) reconcile(peers []*peer) (repaired []*peer, first error) {
	status := m.DaemonStatus()
	var specs []GuardSpec
	var of []*peer
	var count []int // of specs of each
	for _, p := range peers {
		p.mu.Lock()
		if !p.noGuard {
			own := p.guards(status.DataPlane, status.Tun)
			specs, of, count = append(specs, own...), append(of, p), append(count, len(own))
		}
		p.mu.Unlock()
	}
	if len(specs) == 0 {
		return nil, nil
	}
	results, err := m.install(m.cfg.NetNS, specs)
	for i, p := range of {
		own := specs[:count[i]]
		r := summed(results[:count[i]])
		specs, results = specs[count[i]:], results[count[i]:]
		if err != nil {
			r.err = err
		}
		if r.err == nil {
			r.err = m.tryGuards(p, own)
		}
		if r.err != nil && first == nil {
			first = r.err
		}
		p.mu.Lock()
		was := p.hadGuard
		p.guarded, p.hadGuard = r.err == nil && p.tested, true
		p.ready.Store(p.guarded)
		if r.err != nil {
			p.failed(r.err)
		}
		again := was && r.blocks+r.others > 0
		if again {
			p.counters.GuardRepairs++
			if r.blocks > 0 {
				repaired = append(repaired, p)
			}
		}
		p.mu.Unlock()
		if r.err != nil {
			m.cfg.Logger.Error("the guard is not complete", "peer", p.name, "err", r.err)
		}
		if again {
			what := fmt.Sprintf("%d policies", r.blocks)
			if r.others > 0 {
				what += ", and what keeps ICMP from quoting the link"
			}
			m.cfg.Logger.Warn("somebody had removed the guard; it was put back", "peer", p.name, "what", what)
			m.board.post(Event{Kind: EventGuardRepair, Peer: p.name, Detail: what})
		}
	}
	return repaired, first
}

// repairGuards looks after all guards.
func (m *Manager) repairGuards(ctx context.Context) {
	m.guarding.Lock()
	repaired, _ := m.reconcile(m.allPeers())
	m.guarding.Unlock()
	m.sweepOrphans(ctx)
	// Who took the guard's policies has taken charon's as well, and charon does
	// not know: its children carry nothing any more.
	if !m.DaemonStatus().DataPlane.Offers().HoldsSAs {
		return
	}
	for _, p := range repaired {
		if _, err := m.DeleteChild(ctx, p.name, ""); err != nil {
			m.cfg.Logger.Warn("could not renew the SAs after the kernel's policies were removed", "peer", p.name, "err", err)
		}
	}
}

// summed is what became of the guards of one peer.
func summed(results []guardResult) (sum guardResult) {
	var errs []error
	for _, r := range results {
		sum.blocks += r.blocks
		sum.others += r.others
		errs = append(errs, nonNil(r.err)...)
	}
	if len(errs) == 1 {
		sum.err = errs[0]
	} else {
		sum.err = errors.Join(errs...)
	}
	return sum
}

// dropGuard takes a peer's guard down, when ready has ended what its links have. Those
// in keep and those for which ready has an error keep it. Other guards are looked
// after while that waits.
func (m *Manager) dropGuard(p *peer, ready func(GuardSpec) error, keep ...Link) error {
	m.guarding.Lock()
	p.mu.Lock()
	p.noGuard, p.guarded = true, false
	p.ready.Store(true)
	p.mu.Unlock()
	m.guarding.Unlock()
	var errs []error
	for _, k := range p.links {
		g := p.guardOf(k, esp.Auto, "")
		err := ready(g)
		if slices.Contains(keep, k) {
			continue // whatever that came to
		}
		if err == nil {
			m.guarding.Lock()
			err = m.uninstall(g)
			m.guarding.Unlock()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveGuard takes down the guard of a peer that stays, and keeps it down, with
// its streams as they are. It exists for demonstrations of what the guard is good
// for.
func (m *Manager) RemoveGuard(_ context.Context, name string) error {
	m.editing.Lock()
	defer m.editing.Unlock()
	p, err := m.peer(name)
	if err != nil {
		return err
	}
	m.cfg.Logger.Warn("the guard is taken down: the link's port may be used in clear", "peer", name)
	return m.dropGuard(p, func(GuardSpec) error { return nil })
}
