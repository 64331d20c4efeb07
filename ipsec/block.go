package ipsec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

var (
	// ErrBlocked means that a peer is blocked (Manager.Block).
	ErrBlocked = errors.New("the peer is blocked")
	// ErrNotBlocked means that there is no block to end.
	ErrNotBlocked = errors.New("the peer is not blocked")
)

// blocked is a block as the Manager knows it.
type blocked struct {
	guard.Block
	keys   []guard.LinkKey
	before uint64 // packets dropped by elements that somebody took away
}

// Block drops what the peer sends for its links' ports for the time d, from
// MinBlock to MaxBlock, and refuses its flows. A block that is there already is
// replaced, be it by a shorter one. Streams that the peer has are not ended by it,
// but nothing of theirs comes in any more. why is for those who read the list. It
// is there when Block returns nil; the error wraps ErrUnknownPeer, ErrNoBlock or
// ErrClosed where that is the reason.
func (m *Manager) Block(ctx context.Context, peer string, d time.Duration, why string) error {
	p, err := m.peer(peer)
	if err != nil {
		return err
	}
	if d < guard.MinBlock || d > guard.MaxBlock {
		return fmt.Errorf("block peer %s for %v: a time from %v to %v is possible", peer, d, guard.MinBlock, guard.MaxBlock)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.blocking.Lock()
	defer m.blocking.Unlock()
	now := time.Now()
	b := blocked{Block: guard.Block{Peer: peer, Addr: p.remote, Since: now, Until: now.Add(d), Why: guard.OneLine(why)}, keys: p.blockKeys()}
	gone := b.keys
	if old, ok := m.blockOf(peer); ok {
		gone = union(gone, old.keys)
	}
	if err := m.setBlocks(m.cfg.NetNS, gone, b.entries()); err != nil {
		return fmt.Errorf("block peer %s: %w", peer, err)
	}
	if !m.keepBlock(b) {
		return fmt.Errorf("block peer %s: it is in the kernel until %s: %w", peer, b.Until.Format(time.RFC3339), ErrClosed)
	}
	m.note(Event{Kind: EventBlocked, Peer: peer, Detail: b.String()})
	return nil
}

// Unblock ends the block of a peer, also of one that is not configured any more.
// It returns ErrNotBlocked if there is none.
func (m *Manager) Unblock(ctx context.Context, peer string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.blocking.Lock()
	defer m.blocking.Unlock()
	have, err := m.listBlocks(m.cfg.NetNS)
	if err != nil {
		return fmt.Errorf("end the block of peer %s: %w", peer, err)
	}
	b, known := m.blockOf(peer)
	gone := b.keys
	for _, e := range have {
		if e.Peer == peer {
			gone = union(gone, []guard.LinkKey{e.LinkKey})
		}
	}
	if len(gone) == 0 {
		return fmt.Errorf("%w: %q", ErrNotBlocked, peer)
	}
	if err := m.setBlocks(m.cfg.NetNS, gone, nil); err != nil {
		return fmt.Errorf("end the block of peer %s: %w", peer, err)
	}
	if known {
		m.forgetBlock(peer)
	}
	m.note(Event{Kind: EventUnblocked, Peer: peer, Reason: ReasonHere})
	return nil
}

// Blocks lists the blocks that the kernel has now, by peer, whoever made them. If
// the kernel cannot be asked they are those that this Manager has made or found.
func (m *Manager) Blocks() []guard.Block {
	m.blocking.Lock()
	defer m.blocking.Unlock()
	have, err := m.listBlocks(m.cfg.NetNS)
	if err != nil {
		m.cfg.Logger.Warn("the kernel does not list its blocks", "err", err)
	}
	all := guard.BlocksOf(have)
	for i := range all {
		if b, ok := m.blockOf(all[i].Peer); ok {
			b.Packets = all[i].Packets + b.before
			all[i] = b.Block
		}
	}
	if err != nil {
		now := time.Now()
		for _, b := range m.allBlocks() {
			if b.Until.After(now) {
				all = append(all, b.Block)
			}
		}
	}
	guard.SortBlocks(all)
	return all
}

func (b *blocked) entries() []guard.BlockEntry {
	var out []guard.BlockEntry
	for _, k := range b.keys {
		out = append(out, guard.BlockEntry{LinkKey: k, Peer: b.Peer, Why: b.Why, Since: b.Since, Until: b.Until})
	}
	return out
}

// blockKeys are those of a peer's links.
func (p *peer) blockKeys() []guard.LinkKey {
	var keys []guard.LinkKey
	for _, k := range p.links {
		keys = append(keys, p.guardOf(k, esp.Auto, "").Keys()...)
	}
	return keys
}

func union(a, b []guard.LinkKey) []guard.LinkKey {
	out, have := slices.Clone(a), keySet(a)
	for _, k := range b {
		if !have[k] {
			have[k] = true
			out = append(out, k)
		}
	}
	return out
}

// keySet is for looking up keys, of which a block of ports has thousands.
func keySet(keys []guard.LinkKey) map[guard.LinkKey]bool {
	set := make(map[guard.LinkKey]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// blockOf returns the block of a peer that is not over.
func (m *Manager) blockOf(peer string) (blocked, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blocks[peer]
	return b, ok && b.Until.After(time.Now())
}

func (m *Manager) allBlocks() []blocked {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.blocks))
}

// keepBlock takes a block over, false after Close.
func (m *Manager) keepBlock(b blocked) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := keySet(b.keys)
	for name, o := range m.blocks { // of the same host by another name
		o.keys = slices.DeleteFunc(slices.Clone(o.keys), func(k guard.LinkKey) bool { return own[k] })
		m.blocks[name] = o
	}
	m.blocks[b.Peer] = b
	select {
	case m.reblocked <- struct{}{}:
	default:
	}
	return !m.closed
}

func (m *Manager) forgetBlock(peer string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blocks, peer)
}

// screenBlocked refuses a flow of a peer that is blocked.
func (m *Manager) screenBlocked(peer string, f transport.Flow) error {
	b, ok := m.blockOf(peer)
	if !ok {
		return nil
	}
	return &AdmitError{Flow: f, Peer: peer, Kind: ErrBlocked, Detail: fmt.Sprintf("until %s (%s)", b.Until.Format(time.RFC3339), cmp.Or(b.Why, "no reason given"))}
}
