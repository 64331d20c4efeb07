package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/nsdo"
	"github.com/ironwarp/ironwarp/transport"
)

// The blocks of a network namespace are one table of nf_tables. What is dropped
// are the elements of its two sets, each of which has a time to live of its own,
// a counter, and a comment "PEER: WHY". In the words of nft(8):
//
//	table inet ironwarp-block {
//		set peers4 { type ipv4_addr . inet_proto . inet_service; counter; flags timeout; }
//		set peers6 { type ipv6_addr . inet_proto . inet_service; counter; flags timeout; }
//		chain in {
//			type filter hook input priority raw; policy accept;
//			ip saddr . meta l4proto . th dport @peers4 drop
//			ip saddr . meta l4proto . th sport @peers4 drop
//			...the same for ip6
//		}
//	}
//
// The hook sees packets of either data plane when they are decrypted: those of
// the kernel's ESP come by a second time, those of userland ESP come in by its
// tun, which is exempt from XFRM policies (guard.go) but not from this.
const (
	blockTable = "ironwarp-block"
	blockChain = "in"
)

// blockFamily is one of the two sets.
type blockFamily struct {
	set     string
	proto   byte // NFPROTO
	source  uint32
	size    uint32 // of an address
	keyType nftables.SetDatatype
}

func blockFamilies() []blockFamily {
	return []blockFamily{
		{"peers4", unix.NFPROTO_IPV4, 12, 4, nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)},
		{"peers6", unix.NFPROTO_IPV6, 8, 16, nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetProto, nftables.TypeInetService)},
	}
}

// The fields of a key fill up to four bytes each.
func (f blockFamily) keySize() int { return int(f.size) + 8 }

func (k LinkKey) bytes() []byte {
	b := k.Addr.AsSlice()
	b = append(b, byte(k.proto), 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, k.Port)
	return append(b, 0, 0)
}

func (f blockFamily) parse(b []byte) (k LinkKey, ok bool) {
	if len(b) != f.keySize() {
		return k, false
	}
	k.Addr, ok = netip.AddrFromSlice(b[:f.size])
	k.proto, k.Port = transport.Protocol(b[f.size]), binary.BigEndian.Uint16(b[f.size+4:])
	return k, ok
}

// rules are those of a set. A register of 16 bytes is four of four bytes: the
// key is gathered from the first one on.
func (f blockFamily) rules(t *nftables.Table, c *nftables.Chain) []*nftables.Rule {
	var rules []*nftables.Rule
	const reg, reg32 = unix.NFT_REG_1, unix.NFT_REG32_00
	for _, port := range []struct {
		name   string
		offset uint32
	}{{"sport", 0}, {"dport", 2}} {
		rules = append(rules, &nftables.Rule{Table: t, Chain: c, UserData: []byte(f.set + " " + port.name), Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f.proto}},
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.size},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32 + f.size/4},
			&expr.Payload{DestRegister: reg32 + f.size/4 + 1, Base: expr.PayloadBaseTransportHeader, Offset: port.offset, Len: 2},
			&expr.Lookup{SourceRegister: reg, SetName: f.set},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	}
	return rules
}

// blockTables is a connection to nf_tables in the network namespace of the
// thread.
type blockTables struct {
	*nftables.Conn
	table *nftables.Table
	chain *nftables.Chain
}

// inBlockNS calls f as askTables does.
func inBlockNS(netns string, f func(*blockTables) error) error {
	return nsdo.Do(netns, func() error {
		t := &nftables.Table{Name: blockTable, Family: nftables.TableFamilyINet}
		policy := nftables.ChainPolicyAccept
		return explainBlock(askTables(func(c *nftables.Conn) error {
			return f(&blockTables{c, t, &nftables.Chain{Name: blockChain, Table: t, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityRaw, Policy: &policy}})
		}))
	})
}

func explainBlock(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: blocks need CAP_NET_ADMIN; run as root", err)
	case withoutTables(err):
		return fmt.Errorf("%w (%w)", ErrNoBlock, err)
	}
	return err
}

func (b *blockTables) exists() (*nftables.Table, error) { return findTable(b.Conn, blockTable) }

func (b *blockTables) set(f blockFamily) *nftables.Set {
	return &nftables.Set{Table: b.table, ID: uint32(f.proto), Name: f.set, KeyType: f.keyType, Concatenation: true, HasTimeout: true, Counter: true}
}

// entries lists the elements.
func (b *blockTables) entries() ([]BlockEntry, error) {
	t, err := b.exists()
	if t == nil || err != nil {
		return nil, err
	}
	sets, err := b.GetSets(b.table)
	if err != nil {
		return nil, fmt.Errorf("list the sets of table %s: %w", blockTable, err)
	}
	now := time.Now()
	var out []BlockEntry
	for _, f := range blockFamilies() {
		for _, s := range sets {
			if s.Name != f.set {
				continue
			}
			elements, err := b.GetSetElements(s)
			if err != nil {
				return nil, fmt.Errorf("list the elements of set %s: %w", f.set, err)
			}
			for _, e := range elements {
				k, ok := f.parse(e.Key)
				if !ok {
					continue
				}
				peer, why, _ := strings.Cut(e.Comment, ": ")
				n := BlockEntry{LinkKey: k, Peer: OneLine(peer), Why: OneLine(why), Until: now.Add(e.Expires)}
				n.Since = n.Until.Add(-e.Timeout)
				if e.Counter != nil {
					n.Packets = e.Counter.Packets
				}
				out = append(out, n)
			}
		}
	}
	return out, nil
}

// ReadBlocks lists what the kernel drops. It fails with the kernel's error.
func ReadBlocks(netns string) (out []BlockEntry, err error) {
	err = inBlockNS(netns, func(b *blockTables) error {
		out, err = b.entries()
		return err
	})
	if errors.Is(err, ErrNoBlock) {
		err = nil // then nothing is blocked
	}
	return out, err
}

// WriteBlocks removes elements and adds others, in one step: there is no moment without
// those that are in both. The rules are put in place if they are not. Elements to be
// removed need not be there. It fails with the kernel's error, and changes nothing
// then.
func WriteBlocks(netns string, gone []LinkKey, add []BlockEntry) error {
	return inBlockNS(netns, func(b *blockTables) error {
		var err error
		afresh := false
		for range 5 {
			err = b.write(gone, add, afresh)
			switch {
			case errors.Is(err, os.ErrNotExist): // one has ended between the list and the change
			case errors.Is(err, os.ErrExist): // the table is there, with something else in it
				afresh = true
			default:
				return err
			}
		}
		return err
	})
}

// write makes one change of the table, or a new table, to which nothing of the old
// one is taken over but its blocks.
func (b *blockTables) write(gone []LinkKey, add []BlockEntry, afresh bool) error {
	have, err := b.entries()
	if err != nil {
		return err
	}
	b.AddTable(b.table)
	if afresh {
		b.DelTable(b.table)
		b.AddTable(b.table)
		for _, e := range have {
			if !slices.Contains(gone, e.LinkKey) {
				add = append(add, e)
			}
		}
		have = nil
	}
	there := map[LinkKey]bool{}
	for _, e := range have {
		there[e.LinkKey] = true
	}
	b.AddChain(b.chain)
	b.FlushChain(b.chain)
	for _, f := range blockFamilies() {
		s := b.set(f)
		if err := b.AddSet(s, nil); err != nil {
			return err
		}
		for _, r := range f.rules(b.table, b.chain) {
			b.AddRule(r)
		}
		var del, more []nftables.SetElement
		for _, k := range gone {
			if there[k] && f.holds(k) {
				del = append(del, nftables.SetElement{Key: k.bytes()})
			}
		}
		for _, e := range add {
			if left := time.Until(e.Until).Truncate(time.Millisecond); left > 0 && f.holds(e.LinkKey) {
				more = append(more, nftables.SetElement{Key: e.bytes(), Timeout: left, Comment: e.Peer + ": " + e.Why})
			}
		}
		if err := errors.Join(setElements(b.SetDeleteElements, s, del), setElements(b.SetAddElements, s, more)); err != nil {
			return err
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("change table %s of nf_tables: %w", blockTable, err)
	}
	return nil
}

func (f blockFamily) holds(k LinkKey) bool { return k.Addr.BitLen() == int(f.size)*8 }

// faults returns what of the rules is missing.
func (b *blockTables) faults() ([]string, error) {
	t, err := b.exists()
	if err != nil {
		return nil, err
	}
	if t == nil {
		return []string{"table " + blockTable + " of nf_tables is missing"}, nil
	}
	var faults []string
	if t.Flags&dormantTable != 0 {
		faults = append(faults, "table "+blockTable+" of nf_tables is dormant")
	}
	chains, err := b.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	chain := false
	for _, c := range chains {
		chain = chain || c.Table.Name == blockTable && c.Name == blockChain && c.Hooknum != nil && *c.Hooknum == *b.chain.Hooknum
	}
	if !chain {
		return append(faults, fmt.Sprintf("chain %s of table %s is missing, or has no hook", blockChain, blockTable)), nil
	}
	rules, err := b.GetRules(b.table, b.chain)
	if err != nil {
		return nil, fmt.Errorf("list the rules of chain %s: %w", blockChain, err)
	}
	var should []*nftables.Rule
	for _, f := range blockFamilies() {
		should = append(should, f.rules(b.table, b.chain)...)
	}
	if signatures(rules) != signatures(should) {
		faults = append(faults, fmt.Sprintf("the rules of chain %s of table %s are not those of the blocks", blockChain, blockTable))
	}
	return faults, nil
}

// CheckBlocks returns what keeps the kernel's blocks from working. It fails with the
// kernel's error.
func CheckBlocks(netns string) (faults []string, err error) {
	err = inBlockNS(netns, func(b *blockTables) error {
		faults, err = b.faults()
		return err
	})
	return faults, err
}

// BlockFaults returns what keeps the blocks that a network namespace has ("": our
// own) from working; nil where there are none.
func BlockFaults(netns string) ([]string, error) {
	have, err := ReadBlocks(netns)
	if len(have) == 0 || err != nil {
		return nil, err
	}
	return CheckBlocks(netns)
}

// CanBlock tries a block in a network namespace of its own that is gone
// afterwards. It needs CAP_NET_ADMIN and CAP_SYS_ADMIN. The error wraps ErrNoBlock
// when the kernel cannot, and is another one when that could not be tried.
func CanBlock() error {
	return nsdo.Fresh(func() error {
		key := LinkKey{netip.AddrFrom4([4]byte{192, 0, 2, 1}), transport.ProtoTCP, 1}
		if err := WriteBlocks("", nil, []BlockEntry{{LinkKey: key, Peer: "probe", Until: time.Now().Add(MaxBlock)}}); err != nil {
			return err
		}
		have, err := ReadBlocks("")
		if err == nil && len(have) != 1 {
			err = fmt.Errorf("%w (a block of a probe is not there: %v)", ErrNoBlock, have)
		}
		return err
	})
}
