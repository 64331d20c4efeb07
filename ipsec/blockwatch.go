package ipsec

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// watchBlocks takes over the blocks that the kernel has from an earlier life,
// puts back at once what others take away from any, and reports when one is over.
func (m *Manager) watchBlocks(ctx context.Context) {
	changed, stop, err := guard.BlockChanges(ctx, m.cfg.NetNS)
	defer stop()
	if err != nil {
		m.cfg.Logger.Warn("cannot follow changes of nf_tables; blocks are checked now and then", "err", err)
	}
	tick := time.NewTicker(guardRecheck)
	defer tick.Stop()
	for {
		m.repairBlocks()
		next := time.NewTimer(m.nextBlockEnd())
		select {
		case <-changed:
		case <-m.reblocked:
		case <-tick.C:
		case <-next.C:
		case <-ctx.Done():
		}
		next.Stop()
		if !sleep(ctx, blockPause) {
			return
		}
	}
}

// nextBlockEnd is how long it is until a block is over.
func (m *Manager) nextBlockEnd() time.Duration {
	wait := guard.MaxBlock
	for _, b := range m.allBlocks() {
		wait = min(wait, time.Until(b.Until))
	}
	return max(wait, 0)
}

// repairBlocks compares the kernel's blocks with those that should be there. A
// peer that was changed meanwhile has its new address and links blocked as well.
func (m *Manager) repairBlocks() {
	m.blocking.Lock()
	defer m.blocking.Unlock()
	now := time.Now()
	have, err := m.listBlocks(m.cfg.NetNS)
	var faults []string
	if err == nil && len(have)+len(m.allBlocks()) > 0 {
		faults, err = m.checkBlocks(m.cfg.NetNS)
	}
	if err != nil {
		if !m.blocksUnknown {
			m.cfg.Logger.Warn("the kernel's blocks are not known; they are looked at again", "err", err)
		}
		m.blocksUnknown = true
		return
	}
	m.blocksUnknown = false
	m.adoptBlocksLocked(have)
	there := make(map[guard.LinkKey]bool, len(have))
	for _, h := range have {
		there[h.LinkKey] = true
	}
	var lost []guard.BlockEntry
	var names []string
	blocks := m.allBlocks()
	for _, b := range blocks {
		if !b.Until.After(now) {
			m.forgetBlock(b.Peer)
			m.note(Event{Kind: EventUnblocked, Peer: b.Peer, Reason: ReasonExpired})
			continue
		}
		if p, err := m.peer(b.Peer); err == nil {
			b.Addr, b.keys = p.remote, union(b.keys, p.blockKeys())
		}
		missing := slices.DeleteFunc(b.entries(), func(e guard.BlockEntry) bool {
			// The kernel's clock may be a little ahead.
			return time.Until(e.Until) < blockSlack || there[e.LinkKey]
		})
		if len(missing) > 0 {
			lost, names = append(lost, missing...), append(names, b.Peer)
			if len(missing) == len(b.keys) {
				b.before = b.Packets
			}
		} else {
			b.Packets = b.before + packetsOf(have, b.Peer)
		}
		m.keepQuietly(b)
	}
	if len(lost) == 0 && (len(faults) == 0 || len(names) == 0 && len(have) == 0) {
		return
	}
	if err := m.setBlocks(m.cfg.NetNS, nil, lost); err != nil {
		m.note(Event{Kind: EventFailed, Detail: fmt.Sprintf("a block that somebody has taken away could not be put back: %v", err)})
		return
	}
	detail := "its drop rule"
	if len(faults) > 0 {
		detail = faults[0]
	}
	if len(names) == 0 {
		for _, b := range blocks {
			names = append(names, b.Peer)
		}
	}
	for _, n := range names {
		m.note(Event{Kind: EventBlockRepair, Peer: n, Detail: detail})
	}
}

func packetsOf(have []guard.BlockEntry, peer string) (n uint64) {
	for _, e := range have {
		if e.Peer == peer {
			n += e.Packets
		}
	}
	return n
}

// adoptBlocksLocked takes over what the kernel has and this Manager does not know.
func (m *Manager) adoptBlocksLocked(have []guard.BlockEntry) {
	m.blocksRead = true
	for _, b := range guard.BlocksOf(have) {
		if _, known := m.blockOf(b.Peer); known || !b.Until.After(time.Now()) {
			continue
		}
		n := blocked{Block: b}
		for _, e := range have {
			if e.Peer == b.Peer {
				n.keys = append(n.keys, e.LinkKey)
			}
		}
		m.keepQuietly(n)
		m.note(Event{Kind: EventBlocked, Peer: b.Peer, Detail: "found in the kernel: " + b.String()})
	}
}

func (m *Manager) keepQuietly(b blocked) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks[b.Peer] = b
}

// extendBlock blocks a peer that was added or changed while it is blocked.
func (m *Manager) extendBlock(p *peer) error {
	m.blocking.Lock()
	defer m.blocking.Unlock()
	if !m.blocksRead { // repairBlocks reports what fails here
		if have, err := m.listBlocks(m.cfg.NetNS); err == nil {
			m.adoptBlocksLocked(have)
		}
	}
	b, ok := m.blockOf(p.name)
	if !ok {
		return nil
	}
	had := keySet(b.keys)
	b.Addr, b.keys = p.remote, union(b.keys, p.blockKeys())
	if len(b.keys) == len(had) {
		return nil
	}
	if err := m.setBlocks(m.cfg.NetNS, nil, slices.DeleteFunc(b.entries(), func(e guard.BlockEntry) bool { return had[e.LinkKey] })); err != nil {
		return fmt.Errorf("peer %s is blocked until %s (%s): %w", p.name, b.Until.Format(time.RFC3339), cmp.Or(b.Why, "no reason given"), err)
	}
	m.keepQuietly(b)
	return nil
}
