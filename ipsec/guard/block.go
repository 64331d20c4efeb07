package guard

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ironwarp/ironwarp/transport"
)

const (
	// MinBlock and MaxBlock bound the time of a Block: one without an end is a
	// peer to be removed.
	MinBlock = time.Second
	MaxBlock = 30 * 24 * time.Hour // see MinBlock
	// maxWhy is the longest reason of a block in bytes, which the kernel keeps beside
	// the peer's name in 256.
	maxWhy = 160
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

// ErrNoBlock means that this kernel lacks what a block needs.
var ErrNoBlock = errors.New("this kernel cannot block a peer, since it lacks nf_tables: modprobe nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET)")

// LinkKey is one thing that is dropped: packets from an address whose source or
// destination port is that of a link.
type LinkKey struct {
	Addr  netip.Addr
	proto transport.Protocol
	Port  uint16
}

// BlockEntry is an element of a block, as the kernel has it.
type BlockEntry struct {
	LinkKey
	Peer, Why    string
	Since, Until time.Time
	Packets      uint64
}

// ListBlocks returns the blocks of a network namespace ("": our own), as the kernel has
// them. It fails as ReadBlocks does.
func ListBlocks(netns string) ([]Block, error) {
	have, err := ReadBlocks(netns)
	all := BlocksOf(have)
	SortBlocks(all)
	return all, err
}

// SortBlocks sorts by peer and address.
func SortBlocks(all []Block) {
	slices.SortFunc(all, func(a, b Block) int { return cmp.Or(cmp.Compare(a.Peer, b.Peer), a.Addr.Compare(b.Addr)) })
}

// BlocksOf puts the elements of each peer together.
func BlocksOf(entries []BlockEntry) []Block {
	var all []Block
	at := map[string]int{}
	for _, e := range entries {
		i, ok := at[e.Peer]
		if !ok {
			i = len(all)
			at[e.Peer] = i
			all = append(all, Block{Peer: e.Peer, Addr: e.Addr, Since: e.Since, Until: e.Until, Why: e.Why})
		}
		b := &all[i]
		b.Packets += e.Packets
		if e.Until.After(b.Until) {
			b.Until = e.Until
		}
		if e.Since.Before(b.Since) {
			b.Since = e.Since
		}
		if wellKnownNAT64.Contains(b.Addr) && !wellKnownNAT64.Contains(e.Addr) {
			b.Addr = e.Addr // the host's own, not what a translator makes of it
		}
	}
	return all
}

// OneLine makes of a reason what fits a line of a list, and the kernel.
func OneLine(s string) string {
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
