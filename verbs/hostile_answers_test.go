package verbs

import (
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// readAnswers are Read Responses that are not, or not so, what was asked for (RFC
// 5040 sections 5.2.2 and 7.2).
func readAnswers() (all []attack) {
	add := func(name string, code uint8, written string, asks []Opcode, segs func(v *target) [][]byte) {
		all = append(all, attack{name: "Read Response, " + name, asks: asks, segs: segs, written: written,
			layer: ddp.LayerDDP, typ: ddp.TypeTagged, code: code})
	}
	response := func(v *target, i int, to uint64, n int, last bool) []byte {
		return tagged(last, rdmap.OpReadResponse, v.reqs[i].SinkSTag, v.reqs[i].SinkTO+to, n)
	}
	toSTag := func(b badSTag) func(v *target) [][]byte {
		return func(v *target) [][]byte {
			return [][]byte{tagged(true, rdmap.OpReadResponse, b.of(v), 0, regionLen)}
		}
	}
	read := []Opcode{OpRead}
	for _, n := range []int{0, 1, regionLen} {
		for name, asks := range map[string][]Opcode{"nothing": nil, "an Atomic": {OpFetchAdd}} {
			add(fmt.Sprintf("%d bytes to who asked %s", n, name), ddp.CodeTaggedInvalidSTag, "", asks, fixed(tagged(true, rdmap.OpReadResponse, 1, 0, n)))
		}
	}
	for _, b := range append(invalidSTags("sink"), stagOf("sink"), stagOf("write"), stagOf("read")) {
		add("STag "+b.name, ddp.CodeTaggedInvalidSTag, "", read, toSTag(b))
	}
	add("STag off by one", ddp.CodeTaggedInvalidSTag, "", read, toSTag(badSTag{"", func(v *target) uint32 { return v.reqs[0].SinkSTag + 1 }}))
	add("the second Read's first", ddp.CodeTaggedInvalidSTag, "", []Opcode{OpRead, OpRead}, func(v *target) [][]byte { return [][]byte{response(v, 1, 0, regionLen, true)} })
	add("to an Atomic that is behind the Read", ddp.CodeTaggedInvalidSTag, "sink", []Opcode{OpRead, OpFetchAdd}, func(v *target) [][]byte {
		return [][]byte{response(v, 0, 0, regionLen, true), tagged(true, rdmap.OpReadResponse, v.ids[0], 0, 8)}
	})
	add("twice", ddp.CodeTaggedInvalidSTag, "sink", read, func(v *target) [][]byte {
		return [][]byte{response(v, 0, 0, regionLen, true), response(v, 0, 0, regionLen, true)}
	})
	for _, s := range []struct {
		to   uint64
		n    int
		last bool
	}{{0, regionLen + 1, true}, {0, regionLen + 1, false}, {0, 1400, true}, {0, regionLen, false}, {0, regionLen - 1, true}, {0, 0, true},
		{1, regionLen - 1, true}, {1, regionLen, true}, {regionLen, 1, true}, {regionLen, 0, true}, {1 << 32, regionLen, true}, {1 << 63, 1, false}, {1<<64 - 1, 1, true}, {1<<64 - 1, regionLen, true}} {
		add(fmt.Sprintf("%d bytes at %#x, last %v", s.n, s.to, s.last), ddp.CodeTaggedBounds, "", read, func(v *target) [][]byte {
			return [][]byte{response(v, 0, s.to, s.n, s.last)}
		})
	}
	for _, s := range []span{{0, 10}, {9, regionLen - 10}, {9, regionLen - 9}, {11, regionLen - 11}, {10, regionLen - 9}, {10, 0}} {
		add(fmt.Sprintf("%d bytes at %d, the last, after 10", s.n, s.to), ddp.CodeTaggedBounds, "sink", read, func(v *target) [][]byte {
			return [][]byte{response(v, 0, 0, 10, false), response(v, 0, s.to, int(s.n), true)}
		})
	}
	return all
}

// atomicAnswers are Atomic Responses that nobody asked for, or not so (RFC 7306
// section 8.2).
func atomicAnswers() (all []attack) {
	add := func(name string, asks []Opcode, segs func(v *target) [][]byte) {
		all = append(all, attack{name: "Atomic Response, " + name, asks: asks, segs: segs,
			layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnexpectedOpcode})
	}
	response := func(msn, id uint32) []byte {
		return rdmap.AtomicResponse{ID: id, Original: 1}.Append(untagged(true, rdmap.OpAtomicResponse, 3, msn, 0))
	}
	atomic := []Opcode{OpCmpSwap}
	add("to who asked nothing", nil, fixed(response(1, 1)))
	add("to who asked a Read", []Opcode{OpRead}, func(v *target) [][]byte { return [][]byte{response(1, v.reqs[0].SinkSTag)} })
	add("identifier off by one", atomic, func(v *target) [][]byte { return [][]byte{response(1, v.ids[0]+1)} })
	add("identifier 0", atomic, func(v *target) [][]byte { return [][]byte{response(1, 0)} })
	add("the second Atomic's first", []Opcode{OpFetchAdd, OpFetchAdd}, func(v *target) [][]byte { return [][]byte{response(1, v.ids[1])} })
	add("before the Read's that was first", []Opcode{OpRead, OpFetchAdd}, func(v *target) [][]byte { return [][]byte{response(1, v.ids[0])} })
	add("twice", atomic, func(v *target) [][]byte { return [][]byte{response(1, v.ids[0]), response(2, v.ids[0])} })
	for _, n := range []int{0, 4, 11, 13, 1400} {
		add(fmt.Sprintf("of %d bytes", n), atomic, fixed(untagged(true, rdmap.OpAtomicResponse, 3, 1, 0, make([]byte, n)...)))
	}
	return all
}
