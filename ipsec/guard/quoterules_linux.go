package guard

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A kernel answers a packet that it cannot deliver by ICMP, and quotes it (RFC
// 1122 section 3.2.2, RFC 4443 section 2.4 c). A packet that ESP has carried is
// quoted in clear: the answer is none of the link's port, for which there are SAs
// and the block. So a guard has a second part, for what is sent and what is
// forwarded: no ICMP message leaves the host that quotes a packet of the link,
// and none that quotes a packet of the peer's which hides its ports. It looks at
// the quote and not at the way, and at nothing else: all other ICMP to and from
// the peer passes.
//
// It is one table of nf_tables for all guards of a network namespace. In the words
// of nft(8):
//
//	table inet ironwarp-guard {
//		set links4 { type ipv4_addr . inet_proto . inet_service; }
//		set hosts4 { type ipv4_addr; }
//		...the same for IPv6
//		chain out {
//			type filter hook postrouting priority 300; policy accept;
//			meta oiftype loopback accept
//			ip version . ip hdrlength != 0x45 jump routed4
//			rt addr . meta l4proto . th dport @links6 drop; ...
//			meta nfproto ipv4 meta l4proto icmp jump errors4
//			meta nfproto ipv6 meta l4proto icmpv6 jump errors6
//		}
//		chain errors4 { icmp type 3 goto quoted4; ... }
//		chain quoted4 { drop if the addresses, protocol and ports of the quote are in links4, ... }
//		...
//		chain forward {
//			type filter hook forward priority 0; policy accept;
//			ip saddr . meta l4proto . th dport @links4 drop; ...
//			ip saddr @hosts4 ip frag-off & 0x1fff != 0 jump carried
//		}
//		chain carried { meta secpath exists drop; iifname "ipsec*" drop; }
//	}
//
// A packet with a source route (IP options, an IPv6 routing header), which any local program
// may ask for, has the address of the next hop, by which policies and rules see it
// off. So the table also drops what a source route leads to a link in the end.
//
// The kernel sends what is for itself by loopback, so that its sockets go on
// learning the MTU. Where the kernel has no nf_tables, XFRM policies stop all of
// its ICMP errors to the peer instead (coarseTypes).
const quotesTable = "ironwarp-guard"

// Chains of the table.
const (
	chainOut       = "out"
	chainForward   = "forward"
	chainErrors4   = "errors4"
	chainErrors6   = "errors6"
	chainQuoted4   = "quoted4"
	chainQuoted6   = "quoted6"
	chainFragment6 = "fragment6"
	chainHost6     = "host6"
	chainCarried   = "carried"
	chainRouted4   = "routed4"
)

const (
	setHosts4 = "hosts4"
	setHosts6 = "hosts6"
)

// linkFamilies are the sets of links, by address family.
func linkFamilies() []blockFamily {
	f := blockFamilies()
	f[0].set, f[1].set = "links4", "links6"
	return f
}

// errors4 are the types of ICMP that quote: RFC 792, and those of RFC 1475 and
// RFC 2521, which no kernel of ours sends. All of ICMPv6 below informational6 do,
// and redirect6 does (RFC 4443 section 2.1, RFC 4861 section 4.5).
var errors4 = []byte{3, 4, 5, 11, 12, 31, 40}

const (
	informational6 = 128
	redirect6      = 137
)

// extensions6 are IPv6 headers behind which the ports may stand (RFC 7045 section
// 4), but for the fragment header. ESP's hides them itself, and AH is none of a
// link's.
var extensions6 = []byte{0, 43, 60, 135, 139, 140}

const fragment6 = 44

// Source routes: the options of IPv4 (RFC 791 section 3.1), whose last address is where the
// packet goes in the end, and IPv6's header, where that is the first one (RFC 6275
// section 6.4, RFC 8754 section 2).
var sourceRoutes4 = []byte{131, 137}

const (
	maxRoute4 = 9 // addresses for which IP options have room
	routing6  = 43
)

// exthdrIPv4 looks for an option of IPv4: NFT_EXTHDR_OP_IPV4.
const exthdrIPv4 expr.ExthdrOp = 2

// metaSecpath is 1 for a packet that the kernel's ESP has brought: NFT_META_SECPATH.
const metaSecpath expr.MetaKey = 25

// quote is where the quoted packet begins, behind the header of ICMP.
const quote = 8

// ruleBook makes the rules of a chain.
type ruleBook struct {
	table *nftables.Table
	rules []*nftables.Rule
	chain string
}

func (b *ruleBook) add(exprs ...[]expr.Any) {
	b.rules = append(b.rules, &nftables.Rule{Table: b.table, Chain: &nftables.Chain{Name: b.chain, Table: b.table}, Exprs: slices.Concat(exprs...)})
}

const (
	reg   = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00 // the first four of reg's bytes
)

func load(base expr.PayloadBase, offset, size uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: size}}
}

func inQuote(offset, size uint32) []expr.Any {
	return load(expr.PayloadBaseTransportHeader, quote+offset, size)
}

func meta(k expr.MetaKey, value ...byte) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: k, Register: reg}}, is(value...)...)
}

func is(value ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: value}}
}

func isNot(value ...byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: value}}
}

// some reports whether not all of the masked bits are 0.
func some(mask ...byte) []expr.Any {
	return append([]expr.Any{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}},
		isNot(make([]byte, len(mask))...)...)
}

func in(set string) []expr.Any { return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: set}} }

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

var (
	drop   = []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
)

// link drops what is of a link, by an address, a protocol and a port at their
// places in the packet.
func (b *ruleBook) link(f blockFamily, match []expr.Any, address, protocol, port []expr.Any) {
	at := func(exprs []expr.Any, r uint32) []expr.Any {
		var out []expr.Any
		for _, e := range exprs {
			switch e := e.(type) {
			case *expr.Payload:
				c := *e
				c.DestRegister = r
				out = append(out, &c)
			case *expr.Meta:
				c := *e
				c.Register = r
				out = append(out, &c)
			case *expr.Exthdr:
				c := *e
				c.DestRegister = r
				out = append(out, &c)
			}
		}
		return out
	}
	b.add(match, at(address, reg), at(protocol, reg32+f.size/4), at(port, reg32+f.size/4+1), in(f.set), drop)
}

// quotedLinks drops quotes of links, with the addresses, the protocol and the
// ports at the given places of the quote.
func (b *ruleBook) quotedLinks(f blockFamily, protocol, ports uint32) {
	for _, address := range []uint32{f.source, f.source + f.size} {
		for _, port := range []uint32{ports, ports + 2} {
			b.link(f, nil, inQuote(address, f.size), inQuote(protocol, 1), inQuote(port, 2))
		}
	}
}

// routed drops what goes to a link by a source route that has the address.
func (b *ruleBook) routed(f blockFamily, match []expr.Any, address *expr.Exthdr) {
	for _, port := range []uint32{0, 2} {
		b.link(f, match, []expr.Any{address}, []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO}}, load(expr.PayloadBaseTransportHeader, port, 2))
	}
}

// quoteRules are those of the whole table.
func quoteRules(t *nftables.Table) []*nftables.Rule {
	b := &ruleBook{table: t}
	families := linkFamilies()
	v4, v6 := families[0], families[1]
	of := func(f blockFamily) []expr.Any { return meta(expr.MetaKeyNFPROTO, f.proto) }
	upper := func(proto byte) []expr.Any { return meta(expr.MetaKeyL4PROTO, proto) }
	kind := load(expr.PayloadBaseTransportHeader, 0, 1)
	network := func(offset, size uint32) []expr.Any { return load(expr.PayloadBaseNetworkHeader, offset, size) }

	b.chain = chainOut
	b.add(meta(expr.MetaKeyOIFTYPE, binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)...), accept)
	b.add(of(v4), upper(protoICMP), jump(chainErrors4))
	b.add(of(v6), upper(protoICMP6), jump(chainErrors6))
	b.add(of(v4), network(0, 1), isNot(0x45), jump(chainRouted4)) // it has options
	b.routed(v6, of(v6), &expr.Exthdr{Type: routing6, Offset: 8, Len: v6.size, Op: expr.ExthdrOpIpv6})
	b.chain = chainRouted4
	for _, option := range sourceRoutes4 {
		for i := range uint32(maxRoute4) {
			b.routed(v4, nil, &expr.Exthdr{Type: option, Offset: 3 + i*v4.size, Len: v4.size, Op: exthdrIPv4})
		}
	}

	b.chain = chainErrors4
	for _, k := range errors4 {
		b.add(kind, is(k), goTo(chainQuoted4))
	}
	b.chain = chainQuoted4
	hosts4 := func(match ...[]expr.Any) {
		for _, address := range []uint32{v4.source, v4.source + v4.size} {
			b.add(slices.Concat(match...), inQuote(address, v4.size), in(setHosts4), drop)
		}
	}
	hosts4(inQuote(0, 1), isNot(0x45))      // IP options before the ports
	hosts4(inQuote(6, 2), some(0x1f, 0xff)) // a later fragment has no ports
	b.quotedLinks(v4, 9, 20)

	b.chain = chainErrors6
	b.add(kind, []expr.Any{&expr.Cmp{Op: expr.CmpOpLt, Register: reg, Data: []byte{informational6}}}, goTo(chainQuoted6))
	// A redirect quotes in an option, which has no fixed place. The peer can do
	// without: it is a hint of a shorter way.
	b.add(kind, is(redirect6), load(expr.PayloadBaseNetworkHeader, v6.source+v6.size, v6.size), in(setHosts6), drop)

	b.chain = chainQuoted6
	for _, e := range extensions6 {
		b.add(inQuote(6, 1), is(e), goTo(chainHost6))
	}
	b.add(inQuote(6, 1), is(fragment6), goTo(chainFragment6))
	b.quotedLinks(v6, 6, 40)
	b.chain = chainFragment6
	b.add(inQuote(40+2, 2), some(0xff, 0xf8), goTo(chainHost6))
	for _, e := range append([]byte{fragment6}, extensions6...) {
		b.add(inQuote(40, 1), is(e), goTo(chainHost6))
	}
	b.quotedLinks(v6, 40, 48)
	b.chain = chainHost6
	for _, address := range []uint32{v6.source, v6.source + v6.size} {
		b.add(inQuote(address, v6.size), in(setHosts6), drop)
	}

	// The tun of userland ESP is exempt from the block that stops what would be
	// forwarded from the peer. Later fragments of a quote have nothing to tell them.
	b.chain = chainForward
	for _, f := range families {
		for _, port := range []uint32{0, 2} {
			b.link(f, of(f), network(f.source, f.size), []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO}}, load(expr.PayloadBaseTransportHeader, port, 2))
		}
	}
	// They do not tell whose port they are of, either: what ESP has brought from a peer is
	// not forwarded in pieces.
	later4 := slices.Concat(of(v4), network(6, 2), some(0x1f, 0xff))
	later6 := slices.Concat(of(v6), []expr.Any{&expr.Exthdr{DestRegister: reg, Type: fragment6, Offset: 2, Len: 2, Op: expr.ExthdrOpIpv6}}, some(0xff, 0xf8))
	b.add(later4, upper(protoICMP), network(v4.source+v4.size, v4.size), in(setHosts4), drop)
	b.add(later6, upper(protoICMP6), network(v6.source+v6.size, v6.size), in(setHosts6), drop)
	b.add(later4, network(v4.source, v4.size), in(setHosts4), jump(chainCarried))
	b.add(later6, network(v6.source, v6.size), in(setHosts6), jump(chainCarried))

	b.chain = chainCarried
	b.add(meta(metaSecpath, 1), drop)
	b.add(meta(expr.MetaKeyIIFNAME, []byte("ipsec")...), drop) // and any number: kernel-libipsec's
	return b.rules
}
