package verbs

import (
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// badSTag is an STag that does not fit its use.
type badSTag struct {
	name string
	of   func(v *target) uint32
}

// invalidSTags name no region, for one that region does name: neighbours of it,
// limits, and one that is no longer valid.
func invalidSTags(region string) []badSTag {
	return []badSTag{
		{"0", func(*target) uint32 { return 0 }},
		{"1", func(*target) uint32 { return 1 }},
		{"the largest", func(*target) uint32 { return 0xffffffff }},
		{"off by a low bit", func(v *target) uint32 { return v.stag(region) ^ 1 }},
		{"off by the high bit", func(v *target) uint32 { return v.stag(region) ^ 0x80000000 }},
		{"no longer valid", func(v *target) uint32 { return v.gone }},
	}
}

func stagOf(region string) badSTag {
	return badSTag{"of region " + region, func(v *target) uint32 { return v.stag(region) }}
}

// span is a piece of memory by offset and size.
type span struct {
	to uint64
	n  uint32
}

// Pieces of a region of regionLen bytes that are not in it, and those whose end
// is at 2^64 or beyond.
var (
	outside = []span{{regionLen, 1}, {regionLen - 1, 2}, {0, regionLen + 1}, {1, regionLen}, {regionLen + 1, 1},
		{1<<32 - 1, 1}, {1 << 32, 1}, {1<<32 + 1, regionLen}, {1<<63 - 1, 1}, {1 << 63, regionLen}, {1<<64 - 2, 1}, {1<<64 - regionLen - 1, regionLen}}
	wrapping = []span{{1<<64 - 1, 1}, {1<<64 - 1, 2}, {1<<64 - regionLen, regionLen}, {1<<64 - regionLen, regionLen + 1}, {1<<64 - 1, regionLen}}
	hugeSize = []span{{0, 1 << 31}, {0, 1<<32 - 1}, {1, 1<<32 - 1}, {regionLen - 1, 1<<32 - 1}}
)

// taggedFields are STag and TO of Writes (RFC 5041 section 7.1, RFC 5040 section
// 7.2).
func taggedFields() (all []attack) {
	add := func(name string, layer ddp.Layer, code uint8, stag badSTag, s span) {
		for _, last := range []bool{true, false} {
			all = append(all, attack{
				name: fmt.Sprintf("Write, %s, last %v", name, last), layer: layer, typ: ddp.TypeTagged, code: code,
				segs: func(v *target) [][]byte { return [][]byte{tagged(last, rdmap.OpWrite, stag.of(v), s.to, int(s.n))} },
			})
		}
	}
	for _, b := range invalidSTags("write") {
		add("STag "+b.name, ddp.LayerDDP, ddp.CodeTaggedInvalidSTag, b, span{0, 1})
	}
	add("STag of another protection domain", ddp.LayerDDP, ddp.CodeTaggedNotAssociated, stagOf("foreign"), span{0, 1})
	for _, region := range []string{"read", "atomic", "none", "recv", "sink"} {
		// Of equal value: TypeRemoteProtection and ddp.TypeTagged.
		add("STag without the right, "+region, ddp.LayerRDMA, rdmap.CodeAccess, stagOf(region), span{0, 1})
	}
	for _, s := range outside {
		add(fmt.Sprintf("%d bytes at %#x", s.n, s.to), ddp.LayerDDP, ddp.CodeTaggedBounds, stagOf("write"), s)
	}
	for _, s := range wrapping {
		add(fmt.Sprintf("%d bytes at %#x", s.n, s.to), ddp.LayerDDP, ddp.CodeTaggedTOWrap, stagOf("write"), s)
	}
	return all
}

// readFields are the fields and the length of a Read Request (RFC 5040 sections
// 4.4 and 7.2).
func readFields() (all []attack) {
	add := func(name string, code uint8, stag badSTag, s span) {
		all = append(all, attack{
			name: "Read, " + name, layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteProtection, code: code,
			segs: func(v *target) [][]byte {
				r := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 1<<64 - 1, Size: s.n, SourceSTag: stag.of(v), SourceTO: s.to}
				return [][]byte{r.Append(untagged(true, rdmap.OpReadRequest, 1, 1, 0))}
			},
		})
	}
	for _, b := range invalidSTags("read") {
		add("STag "+b.name, rdmap.CodeInvalidSTag, b, span{0, 1})
	}
	add("STag of another protection domain", rdmap.CodeNotAssociated, stagOf("foreign"), span{0, 1})
	for _, region := range []string{"write", "atomic", "none", "recv", "sink"} {
		add("STag without the right, "+region, rdmap.CodeAccess, stagOf(region), span{0, 1})
	}
	for _, s := range append(hugeSize, outside...) {
		add(fmt.Sprintf("%d bytes at %#x", s.n, s.to), rdmap.CodeBounds, stagOf("read"), s)
	}
	for _, s := range append([]span{{1<<64 - 1, 1<<32 - 1}, {1<<64 - 1<<32 + 1, 1<<32 - 1}}, wrapping...) {
		add(fmt.Sprintf("%d bytes at %#x", s.n, s.to), rdmap.CodeTOWrap, stagOf("read"), s)
	}
	for _, n := range []int{0, 1, 12, 27, 29, 52, 1400} {
		all = append(all, attack{name: fmt.Sprintf("Read Request header of %d bytes", n), segs: fixed(untagged(true, rdmap.OpReadRequest, 1, 1, 0, make([]byte, n)...)),
			layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnspecified})
	}
	return all
}

// atomicFields are the fields and the length of an Atomic Request (RFC 7306
// sections 5.2.1 and 8.2).
func atomicFields() (all []attack) {
	request := func(stag badSTag, to uint64, op rdmap.AtomicOp) func(v *target) [][]byte {
		return func(v *target) [][]byte {
			a := rdmap.AtomicRequest{Op: op, ID: 1, STag: stag.of(v), TO: to, AddSwap: 1, AddSwapMask: ^uint64(0)}
			return [][]byte{a.Append(untagged(true, rdmap.OpAtomicRequest, 1, 1, 0))}
		}
	}
	add := func(name string, typ, code uint8, segs func(v *target) [][]byte) {
		all = append(all, attack{name: "Atomic, " + name, layer: ddp.LayerRDMA, typ: typ, code: code, segs: segs})
	}
	for _, op := range []rdmap.AtomicOp{rdmap.AtomicFetchAdd, rdmap.AtomicCmpSwap} {
		at := func(name string, code uint8, stag badSTag, to uint64) {
			add(fmt.Sprintf("%s, operation %d", name, op), rdmap.TypeRemoteProtection, code, request(stag, to, op))
		}
		for _, b := range invalidSTags("atomic") {
			at("STag "+b.name, rdmap.CodeInvalidSTag, b, 0)
		}
		at("STag of another protection domain", rdmap.CodeNotAssociated, stagOf("foreign"), 0)
		for _, region := range []string{"write", "read", "none", "recv", "sink"} {
			at("STag without the right, "+region, rdmap.CodeAccess, stagOf(region), 0)
		}
		for _, to := range []uint64{regionLen - 7, regionLen - 1, regionLen, regionLen + 8, 1 << 32, 1 << 63, 1<<64 - 16} {
			at(fmt.Sprintf("at %#x", to), rdmap.CodeBounds, stagOf("atomic"), to)
		}
		for _, to := range []uint64{1<<64 - 8, 1<<64 - 7, 1<<64 - 1} {
			at(fmt.Sprintf("at %#x", to), rdmap.CodeTOWrap, stagOf("atomic"), to)
		}
		for to := uint64(1); to < 8; to++ {
			add(fmt.Sprintf("not aligned, at %d, operation %d", to, op), rdmap.TypeRemoteOperation, rdmap.CodeCatastrophicStream, request(stagOf("atomic"), to, op))
		}
	}
	for op := range rdmap.AtomicOp(16) {
		if op != rdmap.AtomicFetchAdd && op != rdmap.AtomicCmpSwap {
			add(fmt.Sprintf("operation %d", op), rdmap.TypeRemoteOperation, rdmap.CodeUnexpectedOpcode, request(stagOf("atomic"), 0, op))
		}
	}
	for _, n := range []int{0, 28, 51, 53, 1400} {
		add(fmt.Sprintf("header of %d bytes", n), rdmap.TypeRemoteOperation, rdmap.CodeUnexpectedOpcode, fixed(untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, make([]byte, n)...)))
	}
	return all
}

// sendFields are the Invalidate STag (RFC 5040 section 5.3) and Immediate Data
// (RFC 7306 section 6).
func sendFields() (all []attack) {
	invalidate := func(name string, code uint8, b badSTag) {
		for _, op := range []rdmap.Opcode{rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate} {
			all = append(all, attack{name: fmt.Sprintf("%v, STag %s", op, name), layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteProtection, code: code, written: "recv",
				segs: func(v *target) [][]byte {
					return [][]byte{append(ddp.AppendUntagged(nil, true, rdmap.Control(op), b.of(v), 0, 1, 0), 'x')}
				}})
		}
	}
	for _, b := range invalidSTags("write") {
		invalidate(b.name, rdmap.CodeInvalidSTag, b)
	}
	for _, region := range []string{"foreign", "none", "recv", "sink"} {
		invalidate("of region "+region, rdmap.CodeCannotInvalidate, stagOf(region))
	}
	for _, op := range []rdmap.Opcode{rdmap.OpImmediate, rdmap.OpImmediateSE} {
		for _, n := range []int{0, 1, 7, 9, 16, 1400} {
			all = append(all, attack{name: fmt.Sprintf("%v of %d bytes", op, n), layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnspecified,
				segs: fixed(untagged(true, op, 0, 1, 0, make([]byte, n)...))})
		}
		all = append(all, attack{name: op.String() + " in two segments", layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnspecified,
			segs: fixed(untagged(false, op, 0, 1, 0, make([]byte, 8)...))})
	}
	return all
}
