package verbs

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// attack is something that no conforming peer sends, and what it is answered with.
type attack struct {
	name    string
	asks    []Opcode // what the target has outstanding at the peer
	segs    func(v *target) [][]byte
	layer   ddp.Layer
	typ     uint8
	code    uint8
	written string // the region that may change, by what is right of the attack
}

// Each attack ends its own stream with the Terminate that the RFC names, is an
// event, flushes the local work with the same fault, changes no memory, and a
// second stream of the device goes on.
func TestHostileSegments(t *testing.T) {
	var all []attack
	for _, make := range []func() []attack{versionsAndOpcodes, sequenceFields, truncations, taggedFields, readFields, atomicFields, sendFields, readAnswers, atomicAnswers} {
		all = append(all, make()...)
	}
	for _, l := range attackLLPs {
		t.Run(l.name, func(t *testing.T) {
			v := newTarget(t)
			for _, a := range all {
				t.Run(a.name, func(t *testing.T) { v.suffer(t, l.open, a) })
			}
		})
	}
}

// hostileSeeds are the attacks whose bytes do not depend on the target.
func hostileSeeds() (all [][][]byte) {
	for _, make := range []func() []attack{versionsAndOpcodes, sequenceFields, truncations} {
		for _, a := range make() {
			all = append(all, a.segs(nil))
		}
	}
	return all
}

func (v *target) suffer(t *testing.T, open func(t *testing.T) (rawPeer, ddp.LLP), a attack) {
	v.arm(t, open)
	for _, op := range a.asks {
		v.asks(op)
	}
	if err := v.raw.Send(a.segs(v)...); err != nil {
		t.Fatal(err)
	}
	term := readTerminate(t, v.raw)
	if term.Layer != a.layer || term.Type != a.typ || term.Code != a.code {
		t.Errorf("Terminate %v %d.%#02x, want %v %d.%#02x", term.Layer, term.Type, term.Code, a.layer, a.typ, a.code)
	}
	v.raw.CloseWrite()
	v.wantWound(isFault(a.layer, a.typ, a.code), a.written, EventPeerFault)
}

// fixed is an attack whose bytes do not depend on the target.
func fixed(segs ...[]byte) func(*target) [][]byte {
	return func(*target) [][]byte { return segs }
}

func tagged(last bool, op rdmap.Opcode, stag uint32, to uint64, n int) []byte {
	return append(ddp.AppendTagged(nil, last, rdmap.Control(op), stag, to), make([]byte, n)...)
}

// octet returns seg with an octet changed.
func octet(seg []byte, at int, mask, value byte) []byte {
	seg[at] = seg[at]&^mask | value
	return seg
}

// versionsAndOpcodes are the first two octets of a segment at each value that is
// not right (RFC 5041 sections 4.1 and 7.1, RFC 5040 sections 4.1 and 7.2).
func versionsAndOpcodes() (all []attack) {
	send := func() []byte { return untagged(true, rdmap.OpSend, 0, 1, 0, 1) }
	write := func() []byte { return tagged(true, rdmap.OpWrite, 1, 0, 1) }
	for _, v := range []byte{0, 2, 3} {
		all = append(all,
			attack{name: fmt.Sprintf("DDP version %d, tagged", v), segs: fixed(octet(write(), 0, 3, v)), layer: ddp.LayerDDP, typ: ddp.TypeTagged, code: ddp.CodeTaggedInvalidVersion},
			attack{name: fmt.Sprintf("DDP version %d, untagged", v), segs: fixed(octet(send(), 0, 3, v)), layer: ddp.LayerDDP, typ: ddp.TypeUntagged, code: ddp.CodeUntaggedInvalidVersion},
			attack{name: fmt.Sprintf("RDMAP version %d, tagged", v), segs: fixed(octet(write(), 1, 0xc0, v<<6)), layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeInvalidVersion},
			attack{name: fmt.Sprintf("RDMAP version %d, untagged", v), segs: fixed(octet(send(), 1, 0xc0, v<<6)), layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeInvalidVersion})
	}
	// By queue, what belongs there (RFC 5040 section 4.1, RFC 7306 section 4.1).
	right := map[[2]int]bool{{3, 0}: true, {4, 0}: true, {5, 0}: true, {6, 0}: true, {8, 0}: true, {9, 0}: true, {1, 1}: true, {10, 1}: true, {7, 2}: true, {11, 3}: true}
	for op := range 16 {
		if op != int(rdmap.OpWrite) && op != int(rdmap.OpReadResponse) {
			all = append(all, attack{name: fmt.Sprintf("opcode %d, tagged", op), segs: fixed(tagged(true, rdmap.Opcode(op), 1, 0, 1)),
				layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnexpectedOpcode})
		}
		for qn := range 4 {
			if !right[[2]int{op, qn}] {
				all = append(all, attack{name: fmt.Sprintf("opcode %d on queue %d", op, qn), segs: fixed(untagged(true, rdmap.Opcode(op), uint32(qn), 1, 0, make([]byte, 28)...)),
					layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnexpectedOpcode})
			}
		}
	}
	return all
}

// sequenceFields are QN, MSN and MO at their limits (RFC 5041 section 7.1).
func sequenceFields() (all []attack) {
	add := func(name string, code uint8, written string, segs ...[]byte) {
		all = append(all, attack{name: name, segs: fixed(segs...), layer: ddp.LayerDDP, typ: ddp.TypeUntagged, code: code, written: written})
	}
	for _, qn := range []uint32{4, 5, 0x7fffffff, 0x80000000, 0xffffffff} {
		add(fmt.Sprintf("queue number %d", qn), ddp.CodeUntaggedInvalidQN, "", untagged(true, rdmap.OpSend, qn, 1, 0, 1))
	}
	for qn, op := range []rdmap.Opcode{0: rdmap.OpSend, 1: rdmap.OpReadRequest, 3: rdmap.OpAtomicResponse} {
		if qn == rdmap.QNTerminate {
			continue // a Terminate is never answered, see TestTerminateIsNotAnswered
		}
		payload := make([]byte, map[int]int{0: 1, 1: 28, 3: 12}[qn])
		for _, msn := range []uint32{0, 2, 3, 0x7fffffff, 0x80000000, 0xffffffff} {
			add(fmt.Sprintf("message number %d of queue %d", msn, qn), ddp.CodeUntaggedMSNRange, "", untagged(true, op, uint32(qn), msn, 0, payload...))
		}
		for _, mo := range []uint32{1, regionLen - 1, regionLen, regionLen + 1, 0x7fffffff, 0x80000000, 0xfffffffc, 0xffffffff} {
			add(fmt.Sprintf("offset %d of queue %d", mo, qn), ddp.CodeUntaggedInvalidMO, "", untagged(true, op, uint32(qn), 1, mo, payload...))
		}
		if qn != rdmap.QNSend {
			add(fmt.Sprintf("a message of queue %d in two segments", qn), ddp.CodeUntaggedTooLong, "", untagged(false, op, uint32(qn), 1, 0, payload...))
		}
	}
	begun := untagged(false, rdmap.OpSend, 0, 1, 0, make([]byte, 10)...)
	for _, mo := range []uint32{0, 9, 11, regionLen, 0x80000000, 0xfffffff6, 0xffffffff} {
		add(fmt.Sprintf("offset %d after 10 bytes", mo), ddp.CodeUntaggedInvalidMO, "recv", begun, untagged(true, rdmap.OpSend, 0, 1, mo, make([]byte, 20)...))
	}
	add("the next message within a message", ddp.CodeUntaggedMSNRange, "recv", begun, untagged(true, rdmap.OpSend, 0, 2, 10, 1))
	add("the message before again", ddp.CodeUntaggedMSNRange, "recv", untagged(true, rdmap.OpSend, 0, 1, 0, 1), untagged(true, rdmap.OpSend, 0, 1, 0, 1))
	add("no receive for a third message", ddp.CodeUntaggedNoBuffer, "recv",
		untagged(true, rdmap.OpSend, 0, 1, 0, 1), untagged(true, rdmap.OpSend, 0, 2, 0), untagged(true, rdmap.OpSend, 0, 3, 0))
	add("Immediate Data without a receive", ddp.CodeUntaggedNoBuffer, "recv",
		untagged(true, rdmap.OpSend, 0, 1, 0, 1), untagged(true, rdmap.OpSend, 0, 2, 0), untagged(true, rdmap.OpImmediate, 0, 3, 0, make([]byte, 8)...))
	add("a byte for a receive without room", ddp.CodeUntaggedTooLong, "recv", untagged(true, rdmap.OpSend, 0, 1, 0, 1), untagged(true, rdmap.OpSend, 0, 2, 0, 1))
	add("a byte too many", ddp.CodeUntaggedTooLong, "", untagged(true, rdmap.OpSend, 0, 1, 0, make([]byte, regionLen+1)...))
	add("many bytes too many", ddp.CodeUntaggedTooLong, "", untagged(true, rdmap.OpSend, 0, 1, 0, make([]byte, 1400)...))
	add("a byte too many in a second segment", ddp.CodeUntaggedTooLong, "recv",
		untagged(false, rdmap.OpSend, 0, 1, 0, make([]byte, regionLen)...), untagged(true, rdmap.OpSend, 0, 1, regionLen, 1))
	return all
}

// truncations are all segments that end within a header.
func truncations() (all []attack) {
	for name, seg := range map[string][]byte{
		"tagged": tagged(true, rdmap.OpWrite, 1, 0, 0), "untagged": untagged(true, rdmap.OpSend, 0, 1, 0),
	} {
		for n := range seg {
			all = append(all, attack{name: fmt.Sprintf("%d bytes of a header, %s", n, name), segs: fixed(seg[:n]),
				layer: ddp.LayerRDMA, typ: rdmap.TypeRemoteOperation, code: rdmap.CodeUnspecified})
		}
	}
	return all
}
