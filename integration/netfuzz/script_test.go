package netfuzz

import (
	"runtime"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// script is the rest of the fuzzer's input. At its end it gives zeros.
type script struct {
	in     []byte
	waited int // number of waits in which no answer came
}

func (s *script) byte() (b byte) {
	if len(s.in) > 0 {
		b, s.in = s.in[0], s.in[1:]
	}
	return b
}

func (s *script) bytes(n int) []byte {
	b := make([]byte, n)
	s.in = s.in[copy(b, s.in):]
	return b
}

func (s *script) u32() uint32 { return be.Uint32(s.bytes(4)) }

// small is mostly 0, else near it.
func (s *script) small() uint32 {
	if b := s.byte(); b >= 0xe0 {
		return uint32(int32(int8(b) + 16)) // -16 to 15
	}
	return 0
}

// alter damages some of b if the script says so.
func (s *script) alter(b []byte) []byte {
	n := int(s.byte())
	if n < 0xc0 || len(b) == 0 {
		return b
	}
	switch n & 3 {
	case 0:
		b = b[:int(s.byte())%len(b)]
	case 1:
		b = append(b, s.bytes(int(s.byte()))...)
	default:
		for range n>>2&7 + 1 {
			at := int(s.byte()) % len(b)
			b[at] = s.byte()
		}
	}
	return b
}

// line carries an attacker's stream after its start-up.
type line interface {
	// sendSegment sends a DDP segment, altered by the script.
	sendSegment(seg []byte, s *script)
	// raw does something below segments: bytes, packets, chunks.
	raw(s *script)
	// receive returns the next segment that the target has sent; with wait it waits for
	// one for a while. false if there is none.
	receive(wait bool) (seg []byte, ok bool)
	// stall stops reading, or goes on.
	stall(on bool)
	// end ends the attacker's direction, or all.
	end(how byte)
	close()
}

// stream is one stream of the attacker.
type stream struct {
	line
	s       *script
	msn     [4]uint32
	regions []raw.Region // of the ping service, or the chunks of a session
	offBits int          // of the offset in the immediate of a request
	next    int          // chunk
	msg     []byte       // of a Send of the target that comes in segments
	msgs    [][]byte
	answers int // to requests
}

const (
	maxSteps = 200
	// maxWaits is how often to wait for answers that do not come. go test takes an input
	// of 10 s for a hang.
	maxWaits = 5
)

// play carries out the script. more opens another stream.
func play(f *stream, more func() *stream) {
	streams := []*stream{f}
	for n := 0; len(f.s.in) > 0 && n < maxSteps; n++ {
		f.learn(false)
		op := f.s.byte()
		if op == 0xff && len(streams) < 4 {
			if next := more(); next != nil {
				streams = append(streams, next)
			}
			continue
		}
		if op >= 0xf0 {
			f = streams[int(op)%len(streams)]
			continue
		}
		f.step(op&15, op>>4)
	}
	for _, f := range streams {
		f.line.close()
	}
}

func (f *stream) step(op, how byte) {
	s := f.s
	switch op {
	case 0: // a Send of any kind
		seg := f.untagged(rdmap.OpSend, rdmap.QNSend)
		if how&1 != 0 {
			seg.Op, seg.STag = rdmap.OpSendInvalidate, f.region().STag
		}
		if how&2 != 0 {
			seg.Op += rdmap.OpSendSE - rdmap.OpSend
		}
		if how&4 != 0 {
			seg.Last = false
			f.msn[seg.QN]--
		}
		seg.Payload = s.bytes(int(s.byte()) << (how & 8))
		f.segment(seg)
	case 1: // the ping service's messages
		seg := f.untagged(rdmap.OpSend, rdmap.QNSend)
		seg.Payload = append([]byte{"ESA"[how%3]}, make([]byte, int(s.byte())*4)...)
		f.segment(seg)
	case 2, 14: // a Write, or a false answer to a Read
		r := f.region()
		seg := iwarptest.Segment{Tagged: true, Last: how&1 == 0, Op: rdmap.OpWrite, STag: r.STag + s.small(), TO: r.TO + f.offset(r), Payload: s.bytes(int(s.byte()))}
		if op == 14 {
			seg.Op = rdmap.OpReadResponse
		}
		f.segment(seg)
	case 3:
		r := f.region()
		seg := f.untagged(rdmap.OpReadRequest, rdmap.QNReadRequest)
		size := uint32(s.byte()) << (how & 7 * 3)
		seg.Payload = rdmap.ReadRequest{SinkSTag: 0x100, Size: size, SourceSTag: r.STag + s.small(), SourceTO: r.TO + f.offset(r)}.Append(nil)
		f.segment(seg)
	case 4:
		r := f.region()
		seg := f.untagged(rdmap.OpAtomicRequest, rdmap.QNReadRequest)
		seg.Payload = rdmap.AtomicRequest{Op: rdmap.AtomicOp(how), ID: s.small(), STag: r.STag + s.small(), TO: r.TO + f.offset(r), AddSwap: 1}.Append(nil)
		f.segment(seg)
	case 5:
		imm := uint64(s.u32())
		if how&1 != 0 {
			imm = uint64(how)<<28 | uint64(s.byte())<<(how&14)
		}
		f.immediate(imm)
	case 6:
		seg := f.untagged(rdmap.OpTerminate, rdmap.QNTerminate)
		seg.Payload = rdmap.Terminate{Layer: ddp.Layer(how & 3), Type: s.byte() & 15, Code: s.byte()}.Append(nil)
		f.segment(seg)
	case 7:
		f.raw(s)
	case 8: // any untagged segment
		seg := iwarptest.Segment{Last: how&1 == 0, Op: rdmap.Opcode(s.byte()), QN: uint32(s.byte() % 5), MO: s.small(), STag: s.small(), DDP: how >> 1 & 1, RDMAP: how >> 2 & 1}
		seg.MSN = f.msn[seg.QN&3] + s.small()
		seg.Payload = s.bytes(int(s.byte()))
		f.segment(seg)
	case 9:
		f.request(how)
	case 10:
		f.info(how)
	case 11: // gives the target time, or waits for its answer
		if how&1 == 0 {
			runtime.Gosched()
		} else {
			f.learn(true)
		}
	case 12:
		f.end(how)
	case 13:
		f.stall(how&1 == 0)
	case 15: // a segment that is only bytes
		f.sendSegment(s.bytes(int(s.byte())), s)
	}
}

// untagged is a segment that is a message, with its number.
func (f *stream) untagged(op rdmap.Opcode, qn uint32) iwarptest.Segment {
	f.msn[qn]++
	return iwarptest.Segment{Last: true, Op: op, QN: qn, MSN: f.msn[qn] + f.s.small()}
}

func (f *stream) segment(seg iwarptest.Segment) { f.sendSegment(f.s.alter(seg.Append(nil)), f.s) }

func (f *stream) immediate(v uint64) {
	seg := f.untagged(rdmap.OpImmediate, rdmap.QNSend)
	seg.Payload = be.AppendUint64(nil, v)
	f.segment(seg)
}

// region is one that the attacker knows, or has learnt of.
func (f *stream) region() raw.Region {
	if b := int(f.s.byte()); b < 0xf0 && len(f.regions) > 0 {
		return f.regions[b%len(f.regions)]
	}
	return raw.Region{STag: f.s.u32()}
}

// offset is near either end of a region.
func (f *stream) offset(r raw.Region) uint64 {
	switch b := f.s.byte(); {
	case b < 0x80:
		return uint64(b)
	case b < 0xf0:
		return uint64(r.Len) - uint64(b-0x80)
	default:
		return uint64(f.s.u32()) << (b & 15 * 4)
	}
}

// learn takes new STags and messages from what the target has sent.
func (f *stream) learn(wait bool) bool {
	heard := false
	for {
		raw, ok := f.receive(wait && !heard && f.s.waited < maxWaits)
		if !ok {
			if wait && !heard {
				f.s.waited++
			}
			return heard
		}
		heard = true
		seg, ok := iwarptest.ParseSegment(raw)
		if !ok || seg.Tagged || seg.QN != rdmap.QNSend {
			continue
		}
		switch seg.Op {
		case rdmap.OpImmediate, rdmap.OpImmediateSE:
			f.answered(seg.Payload)
		default:
			f.msg = append(f.msg, seg.Payload...)
			if seg.Last {
				f.msgs = append(f.msgs, f.msg)
				f.msg = nil
			}
		}
	}
}
