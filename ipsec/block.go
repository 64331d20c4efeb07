package ipsec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// Block is a network layer filter against a peer that creates streams without
// end (RFC 5042 6.4.1): the kernel drops what comes from the peer for the ports
// of its links, before a socket sees it, with ESP or without. IKE and ESP
// themselves pass, and so does all other traffic of that host.
//
// It lives in the kernel, which ends it by itself: it outlives this process, and
// is found again by the next one. It only ever drops, so its end opens nothing
// that the guard has closed.
type Block struct {
	Peer    string     `json:"peer"`
	Addr    netip.Addr `json:"addr"`
	Since   time.Time  `json:"since"`
	Until   time.Time  `json:"until"`
	Why     string     `json:"why,omitempty"`
	Packets uint64     `json:"packets"` // that were dropped
}

func (b Block) String() string {
	s := fmt.Sprintf("%s (%v) until %s", b.Peer, b.Addr, b.Until.Format(time.RFC3339))
	if b.Why != "" {
		s += ": " + b.Why
	}
	return s
}

var (
	// ErrBlocked tells that a peer is blocked (Manager.Block).
	ErrBlocked = errors.New("the peer is blocked")
	// ErrNotBlocked tells that there is no block to end.
	ErrNotBlocked = errors.New("the peer is not blocked")
	// ErrNoBlock tells that this kernel lacks what a block needs.
	ErrNoBlock = errors.New("this kernel cannot block a peer, since it lacks nf_tables: modprobe nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET)")
)

// blockKey is one thing that is dropped: packets from an address whose source or
// destination port is that of a link.
type blockKey struct {
	addr  netip.Addr
	proto transport.Protocol
	port  uint16
}

// blockEntry is an element of a block, as the kernel has it.
type blockEntry struct {
	blockKey
	peer, why    string
	since, until time.Time
	packets      uint64
}

// blocked is a block as the Manager knows it.
type blocked struct {
	Block
	keys   []blockKey
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
	if d < MinBlock || d > MaxBlock {
		return fmt.Errorf("block peer %s for %v: a time from %v to %v is possible", peer, d, MinBlock, MaxBlock)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.blocking.Lock()
	defer m.blocking.Unlock()
	now := time.Now()
	b := blocked{Block: Block{Peer: peer, Addr: p.remote, Since: now, Until: now.Add(d), Why: oneLine(why)}, keys: p.blockKeys()}
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
		if e.peer == peer {
			gone = union(gone, []blockKey{e.blockKey})
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
func (m *Manager) Blocks() []Block {
	m.blocking.Lock()
	defer m.blocking.Unlock()
	have, err := m.listBlocks(m.cfg.NetNS)
	if err != nil {
		m.cfg.Logger.Warn("the kernel does not tell of its blocks", "err", err)
	}
	all := blocksOf(have)
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
	sortBlocks(all)
	return all
}

// ListBlocks returns the blocks of a network namespace ("": our own), as the
// kernel has them.
func ListBlocks(netns string) ([]Block, error) {
	have, err := readBlocks(netns)
	all := blocksOf(have)
	sortBlocks(all)
	return all, err
}

func sortBlocks(all []Block) {
	slices.SortFunc(all, func(a, b Block) int { return cmp.Or(cmp.Compare(a.Peer, b.Peer), a.Addr.Compare(b.Addr)) })
}

// blocksOf puts the elements of each peer together.
func blocksOf(entries []blockEntry) []Block {
	var all []Block
	at := map[string]int{}
	for _, e := range entries {
		i, ok := at[e.peer]
		if !ok {
			i = len(all)
			at[e.peer] = i
			all = append(all, Block{Peer: e.peer, Addr: e.addr, Since: e.since, Until: e.until, Why: e.why})
		}
		b := &all[i]
		b.Packets += e.packets
		if e.until.After(b.Until) {
			b.Until = e.until
		}
		if e.since.Before(b.Since) {
			b.Since = e.since
		}
		if wellKnownNAT64.Contains(b.Addr) && !wellKnownNAT64.Contains(e.addr) {
			b.Addr = e.addr // the host's own, not what a translator makes of it
		}
	}
	return all
}

func (b *blocked) entries() []blockEntry {
	var out []blockEntry
	for _, k := range b.keys {
		out = append(out, blockEntry{blockKey: k, peer: b.Peer, why: b.Why, since: b.Since, until: b.Until})
	}
	return out
}

// blockKeys are those of a peer's links.
func (p *peer) blockKeys() []blockKey {
	var keys []blockKey
	for _, k := range p.links {
		g := p.guardOf(k, esp.Auto, "")
		for _, a := range g.Addresses() {
			keys = append(keys, blockKey{a, g.protocol(), g.Port})
		}
	}
	return keys
}

func union(a, b []blockKey) []blockKey {
	out := slices.Clone(a)
	for _, k := range b {
		if !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// oneLine makes of a reason what fits a line of a list, and the kernel.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == unicode.ReplacementChar:
			return '?'
		case !unicode.IsPrint(r):
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	for len(s) > maxWhy {
		s = s[:strings.LastIndexFunc(s, func(rune) bool { return true })]
	}
	return s
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
	var all []blocked
	for _, b := range m.blocks {
		all = append(all, b)
	}
	return all
}

// keepBlock takes a block over, false after Close.
func (m *Manager) keepBlock(b blocked) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, o := range m.blocks { // of the same host by another name
		o.keys = slices.DeleteFunc(slices.Clone(o.keys), func(k blockKey) bool { return slices.Contains(b.keys, k) })
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
