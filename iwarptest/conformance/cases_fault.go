package conformance

import (
	"fmt"
	"slices"
)

// fault is an error that a provokes at b. RFC 5040 section 4.8 and RFC 5041
// section 7.2 give the codes of the Terminate; where two checks of one segment
// fail, either code is right.
type fault struct {
	name string
	rfc  string
	a, b Feature
	// recvs is how many receives b has posted beforehand.
	recvs int
	act   func(a, b *side) WR
	codes []code
}

// code is a Terminate's layer, type and code.
type code struct{ layer, typ, code uint8 }

// The codes, by the name of the layer that finds the error.
var (
	ddpSTag      = code{1, 1, 0}
	ddpBounds    = code{1, 1, 1}
	ddpForeign   = code{1, 1, 2}
	ddpWrap      = code{1, 1, 3}
	ddpNoBuffer  = code{1, 2, 2}
	ddpTooLong   = code{1, 2, 5}
	rdmaSTag     = code{0, 1, 0}
	rdmaBounds   = code{0, 1, 1}
	rdmaAccess   = code{0, 1, 2}
	rdmaForeign  = code{0, 1, 3}
	rdmaWrap     = code{0, 1, 4}
	rdmaNoInv    = code{0, 1, 9}
	rdmaNoInvOp  = code{0, 2, 9}
	rdmaStreamOp = code{0, 2, 7}
)

// notInvalidated is the fault of a Send with Invalidate that names others' memory: RFC
// 5040 has three codes that fit.
var notInvalidated = []code{rdmaForeign, rdmaNoInv, rdmaNoInvOp}

const (
	write5041    = "RFC 5041 section 7.1"
	untagged5041 = "RFC 5041 section 7.1"
	read5040     = "RFC 5040 section 7.2"
)

// writable and readable are regions of b for a to miss.
func writable(b *side) *buffer { return b.mem(4096, LocalWrite|RemoteWrite) }
func readable(b *side) *buffer { return b.mem(4096, RemoteRead) }

func writeTo(a *side, dst *buffer, off, n int) WR {
	return dst.remote(WR{Op: OpWrite, SGL: []SGE{a.mem(max(n, 1), 0).at(0, n)}}, off)
}

func readFrom(a *side, src *buffer, off, n int) WR {
	return src.remote(WR{Op: OpRead, SGL: []SGE{a.mem(max(n, 1), LocalWrite).at(0, n)}}, off)
}

var faults = []fault{
	{name: "write to no STag", rfc: write5041, recvs: 3, codes: []code{ddpSTag}, act: func(a, b *side) WR {
		wr := writeTo(a, writable(b), 0, 8)
		wr.STag = noSTag(b)
		return wr
	}},
	{name: "write past the end", rfc: write5041, recvs: 3, codes: []code{ddpBounds}, act: func(a, b *side) WR {
		return writeTo(a, writable(b), 4095, 2)
	}},
	{name: "write behind the end", rfc: write5041, recvs: 3, codes: []code{ddpBounds}, act: func(a, b *side) WR {
		return writeTo(a, writable(b), 4096, 1)
	}},
	{name: "write before the start", rfc: write5041, recvs: 3, codes: []code{ddpBounds, ddpWrap}, act: func(a, b *side) WR {
		return writeTo(a, writable(b), -1, 2)
	}},
	{name: "write at an offset that wraps", rfc: write5041, recvs: 3, codes: []code{ddpWrap, ddpBounds}, act: func(a, b *side) WR {
		wr := writeTo(a, writable(b), 0, 9)
		wr.TO = ^uint64(0) - 3
		return wr
	}},
	{name: "write without the right", rfc: read5040, recvs: 3, codes: []code{rdmaAccess}, act: func(a, b *side) WR {
		return writeTo(a, b.mem(4096, LocalWrite|RemoteRead), 0, 8)
	}},
	{name: "write to another protection domain", rfc: write5041, b: ForeignPD, recvs: 3, codes: []code{ddpForeign}, act: func(a, b *side) WR {
		return writeTo(a, b.mem(4096, LocalWrite|RemoteWrite|AccessForeign), 0, 8)
	}},
	{name: "read of no STag", rfc: read5040, recvs: 3, codes: []code{rdmaSTag}, act: func(a, b *side) WR {
		wr := readFrom(a, readable(b), 0, 8)
		wr.STag = noSTag(b)
		return wr
	}},
	{name: "read past the end", rfc: read5040, recvs: 3, codes: []code{rdmaBounds}, act: func(a, b *side) WR {
		return readFrom(a, readable(b), 4095, 2)
	}},
	{name: "read behind the end", rfc: read5040, recvs: 3, codes: []code{rdmaBounds}, act: func(a, b *side) WR {
		return readFrom(a, readable(b), 4096, 1)
	}},
	{name: "read before the start", rfc: read5040, recvs: 3, codes: []code{rdmaBounds, rdmaWrap}, act: func(a, b *side) WR {
		return readFrom(a, readable(b), -1, 2)
	}},
	{name: "read at an offset that wraps", rfc: read5040, recvs: 3, codes: []code{rdmaWrap, rdmaBounds}, act: func(a, b *side) WR {
		wr := readFrom(a, readable(b), 0, 9)
		wr.TO = ^uint64(0) - 3
		return wr
	}},
	{name: "read without the right", rfc: "RFC 5040 section 4.8", b: ReadRights, recvs: 3, codes: []code{rdmaAccess}, act: func(a, b *side) WR {
		return readFrom(a, writable(b), 0, 8)
	}},
	{name: "read from another protection domain", rfc: read5040, b: ForeignPD, recvs: 3, codes: []code{rdmaForeign}, act: func(a, b *side) WR {
		return readFrom(a, b.mem(4096, RemoteRead|AccessForeign), 0, 8)
	}},
	{name: "write to revoked memory", rfc: write5041, recvs: 3, codes: []code{ddpSTag}, act: func(a, b *side) WR {
		dst := writable(b)
		a.post(writeTo(a, dst, 0, 0))
		b.revoke(dst)
		return writeTo(a, dst, 0, 8)
	}},
	{name: "read of revoked memory", rfc: read5040, recvs: 3, codes: []code{rdmaSTag}, act: func(a, b *side) WR {
		src := readable(b)
		b.revoke(src)
		return readFrom(a, src, 0, 8)
	}},
	{name: "write to memory that a send invalidated", rfc: "RFC 5040 section 5.3", a: SendInvalidate, b: SendInvalidate, recvs: 3, codes: []code{ddpSTag},
		act: func(a, b *side) WR {
			dst := writable(b)
			invalidate(a, b, dst)
			return writeTo(a, dst, 0, 8)
		}},
	{name: "read of memory that a send invalidated", rfc: "RFC 5040 section 5.3", a: SendInvalidate, b: SendInvalidate, recvs: 3, codes: []code{rdmaSTag},
		act: func(a, b *side) WR {
			src := readable(b)
			invalidate(a, b, src)
			return readFrom(a, src, 0, 8)
		}},
	{name: "write to the STag before the last", rfc: write5041, b: Reopen, recvs: 3, codes: []code{ddpSTag}, act: func(a, b *side) WR {
		dst := writable(b)
		wr := writeTo(a, dst, 0, 8)
		dst.reopen(LocalWrite | RemoteWrite)
		return wr
	}},
	{name: "send without a receive", rfc: untagged5041, codes: []code{ddpNoBuffer}, act: func(a, b *side) WR {
		return WR{Op: OpSend, SGL: []SGE{a.mem(8, 0).at(0, 8)}}
	}},
	{name: "send of nothing without a receive", rfc: untagged5041, codes: []code{ddpNoBuffer}, act: func(a, b *side) WR {
		return WR{Op: OpSend}
	}},
	{name: "send behind the last receive", rfc: untagged5041, recvs: 2, codes: []code{ddpNoBuffer}, act: func(a, b *side) WR {
		a.post(WR{Op: OpSend})
		a.post(WR{Op: OpSend})
		return WR{Op: OpSend}
	}},
	{name: "send longer than its receive", rfc: untagged5041, codes: []code{ddpTooLong}, act: func(a, b *side) WR {
		return sendInto(a, b, 400, 401)
	}},
	{name: "send of several segments longer than its receive", rfc: untagged5041, codes: []code{ddpTooLong}, act: func(a, b *side) WR {
		return sendInto(a, b, 100000, 100001)
	}},
	{name: "send longer than a receive of nothing", rfc: untagged5041, recvs: 3, codes: []code{ddpTooLong}, act: func(a, b *side) WR {
		return WR{Op: OpSend, SGL: []SGE{a.mem(8, 0).at(0, 8)}}
	}},
	{name: "invalidate of no STag", rfc: read5040, a: SendInvalidate, b: SendInvalidate | InvalidateChecks, recvs: 3, codes: []code{rdmaSTag}, act: func(a, b *side) WR {
		return WR{Op: OpSend, Flags: WithInvalidate, Invalidate: noSTag(b)}
	}},
	{name: "invalidate twice", rfc: read5040, a: SendInvalidate, b: SendInvalidate | InvalidateChecks, recvs: 3, codes: []code{rdmaSTag}, act: func(a, b *side) WR {
		wr := WR{Op: OpSend, Flags: WithInvalidate, Invalidate: writable(b).r.STag}
		a.post(wr)
		return wr
	}},
	{name: "invalidate in another protection domain", rfc: read5040, a: SendInvalidate, b: SendInvalidate | ForeignPD | InvalidateChecks, recvs: 3,
		codes: notInvalidated, act: func(a, b *side) WR {
			return WR{Op: OpSend, Flags: WithInvalidate, Invalidate: b.mem(8, LocalWrite|RemoteWrite|AccessForeign).r.STag}
		}},
	{name: "immediate data without a receive", rfc: "RFC 7306 section 6.3", a: Immediate, b: Immediate, codes: []code{ddpNoBuffer}, act: func(a, b *side) WR {
		return WR{Op: OpImmediate, Imm: 1}
	}},
	{name: "atomic of no STag", rfc: read5040, a: Atomics, b: Atomics, recvs: 3, codes: []code{rdmaSTag}, act: func(a, b *side) WR {
		wr := fetchAdd(word(b), 0, 1)
		wr.STag = noSTag(b)
		return wr
	}},
	{name: "atomic past the end", rfc: read5040, a: Atomics, b: Atomics, recvs: 3, codes: []code{rdmaBounds}, act: func(a, b *side) WR {
		return fetchAdd(word(b), 64, 1)
	}},
	{name: "atomic without the right", rfc: "RFC 5040 section 4.8", a: Atomics, b: Atomics, recvs: 3, codes: []code{rdmaAccess}, act: func(a, b *side) WR {
		return fetchAdd(b.mem(64, LocalWrite|RemoteRead|RemoteWrite), 0, 1)
	}},
	{name: "atomic that is not aligned", rfc: "RFC 7306 section 8.2", a: Atomics, b: Atomics, recvs: 3, codes: []code{rdmaStreamOp}, act: func(a, b *side) WR {
		return fetchAdd(word(b), 4, 1)
	}},
	{name: "compare and swap that is not aligned", rfc: "RFC 7306 section 8.2", a: Atomics, b: Atomics, recvs: 3, codes: []code{rdmaStreamOp}, act: func(a, b *side) WR {
		return word(b).remote(WR{Op: OpCmpSwap, SwapMask: ^uint64(0)}, 1)
	}},
}

// sendInto has b post a receive of room bytes, whose content is open from then
// on (RFC 5040 section 5.5 rule 4), and a message of n bytes for it.
func sendInto(a, b *side, room, n int) WR {
	dst := b.mem(room, LocalWrite)
	dst.open(0, room)
	b.recv(dst.at(0, room))
	return WR{Op: OpSend, SGL: []SGE{a.mem(n, 0).at(0, n)}}
}

// invalidate has a invalidate the STag of m and waits until that is done: before
// that, a Write behind the Send may be placed ahead of it (RFC 5040 section 5.5
// rule 3).
func invalidate(a, b *side, m *buffer) {
	a.post(WR{Op: OpSend, Flags: WithInvalidate, Invalidate: m.r.STag})
	b.message(0)
}

func (s *side) revoke(b *buffer) {
	s.t.Helper()
	s.check("invalidate", s.Invalidate(b.r))
}

func faultCases() []Case {
	var cases []Case
	for _, f := range slices.Concat(faults, windowFaults) {
		cases = append(cases, Case{Name: "fault/" + f.name, RFC: f.rfc, A: f.a, B: f.b, connect: f.run})
	}
	return cases
}

// run provokes the error with work outstanding on both ends, and checks what the
// ends report. A second stream of the same RNICs goes on.
func (f *fault) run(k *connector) {
	a, b := k.pair()
	a2, b2 := k.pair()
	ping(a2, b2)
	a.recvNothing(3)
	b.recvNothing(f.recvs)
	wr := f.act(a, b)
	wr.Flags |= Signaled
	id := a.post(wr)
	for range 3 {
		a.tryPost(WR{Op: OpRead, Flags: Signaled})
	}
	a.wantTerminate(GotTerminate, f.codes, b.Can(Terminates))
	b.wantTerminate(SentTerminate, f.codes, b.Can(Terminates))
	if wr.Op != OpWrite && wr.Op != OpSend && wr.Op != OpImmediate && a.status(id) == OK {
		a.t.Errorf("end %s: the %v that was refused succeeds", a.name, wr.Op)
	}
	ping(a2, b2)
	ping(b2, a2)
}

// wantTerminate waits for an end by a Terminate with one of codes, or, if not exact,
// for any end that is not graceful.
func (s *side) wantTerminate(how How, codes []code, exact bool) {
	s.t.Helper()
	got := s.ending()
	if !s.Can(ReportsEnd) {
		return
	}
	if !exact && got.How != Graceful {
		return
	}
	for _, c := range codes {
		if got == (End{How: how, Layer: c.layer, Type: c.typ, Code: c.code}) {
			return
		}
	}
	s.t.Errorf("end %s: the stream ended %v, want: %v, one of %v", s.name, got, how, codes)
}

func (c code) String() string { return fmt.Sprintf("%d/%d/%#02x", c.layer, c.typ, c.code) }
