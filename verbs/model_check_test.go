package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// modelMem is what the model knows of a region: each byte, and what else a byte
// may be where the RFCs leave it open.
type modelMem struct {
	val     []byte
	alt     map[int][]byte
	written map[int]bool // in this phase
}

// may adds what byte i may be.
func (m *modelMem) may(i int, b byte) {
	if m.alt == nil {
		m.alt = make(map[int][]byte)
	}
	m.alt[i] = append(m.alt[i], b)
}

// put stores p. keep: or not.
func (m *modelMem) put(off int, p []byte, keep bool) {
	for k, b := range p {
		i := off + k
		if keep {
			m.may(i, m.val[i])
		} else {
			delete(m.alt, i)
		}
		m.val[i] = b
	}
}

// values is what byte i may be.
func (m *modelMem) values(i int) []byte { return append([]byte{m.val[i]}, m.alt[i]...) }

// settle compares with the memory, which is then what is known.
func (m *modelMem) settle(have []byte) error {
	for i, b := range have {
		if b != m.val[i] && !slices.Contains(m.alt[i], b) {
			n := i
			for n < len(have) && have[n] != m.val[n] {
				n++
			}
			return fmt.Errorf("bytes %d to %d differ: %x, want %x (or %x first)", i, n-1, have[i:min(n, i+16)], m.val[i:min(n, i+16)], m.alt[i])
		}
	}
	copy(m.val, have)
	m.alt, m.written = nil, nil
	return nil
}

// modelReading is a Read that later Writes may overtake (RFC 5040 section 5.5
// rule 12).
type modelReading struct {
	mem  *modelMem
	off  int
	vals [][]byte // what each byte may be
	rec  *modelSent
}

type modelRun struct {
	plan *modelPlan
	ends [2]modelEnd
	mem  map[*MR]*modelMem
	// Of each side, in quiet phases.
	ops, msgs, sent, placed [2]uint64
}

// write is a Write or Atomic of a lane that changes a target.
func (r *modelRun) write(m *modelMem, o *modelOp, off int, p []byte, keep bool, reads []*modelReading) {
	for k, b := range p {
		i := off + k
		switch {
		case r.plan.net.window == 0 || !m.written[i] || o.kind != OpWrite:
			m.put(i, p[k:k+1], keep)
		case keep: // shuffled delivery places Writes in any order (rule 3)
			m.may(i, b)
		default:
			m.put(i, p[k:k+1], true)
		}
		if m.written == nil {
			m.written = make(map[int]bool)
		}
		m.written[i] = true
		for _, rd := range reads {
			if rd.mem == m && i >= rd.off && i < rd.off+len(rd.vals) {
				rd.vals[i-rd.off] = append(rd.vals[i-rd.off], b)
			}
		}
	}
}

// modelAdd is the FetchAdd of RFC 7306 section 5.1.1, bit by bit.
func modelAdd(old, add, mask uint64) (v uint64) {
	var carry uint64
	for bit := range 64 {
		sum := carry + old>>bit&1 + add>>bit&1
		v |= sum & 1 << bit
		carry = sum >> 1 &^ (mask >> bit)
	}
	return v
}

func (o *modelOp) apply(old uint64) uint64 {
	if o.kind == OpFetchAdd {
		return modelAdd(old, o.a.AddSwap, o.a.AddSwapMask)
	}
	if (o.a.Compare^old)&o.a.CompareMask != 0 {
		return old
	}
	return old&^o.a.AddSwapMask | o.a.AddSwap&o.a.AddSwapMask
}

// content is what a Send or Write carries.
func (r *modelRun) content(e *modelEnd, lane int, o *modelOp) (b []byte) {
	for _, p := range o.sgl {
		for i := p.off; i < p.off+p.n; i++ {
			if o.flags&Inline != 0 {
				b = append(b, modelByte(o.seed, i))
			} else {
				b = append(b, r.mem[e.lanes[lane].src].val[i])
			}
		}
	}
	return b
}

// completions checks which work requests of side s completed, how, and in which
// order (RFC 5040 section 5.5 rule 15). over: the stream has ended.
func (r *modelRun) completions(s int, over bool) error {
	e := &r.ends[s]
	for lane := range e.sent {
		flushed := false
		for i, rec := range e.sent[lane] {
			o := rec.op
			what := fmt.Sprintf("side %d, work request %d.%d (%v)", s, lane, i, o)
			switch {
			case rec.rejected != nil && rec.done:
				return fmt.Errorf("%s was rejected and completes", what)
			case rec.rejected != nil:
			case !rec.done && (flushed || o.flags&Signaled != 0):
				return fmt.Errorf("%s has no completion", what)
			case !rec.done:
			case rec.wc.Op != [...]WCOp{0, WCSend, WCWrite, WCRead, WCImmediate, WCAtomic, WCAtomic, WCBind, WCRegister, WCInvalidate}[o.kind]:
				return fmt.Errorf("%s completes as %v", what, rec.wc.Op)
			case rec.wc.Err != nil && over && o.local():
				// It may be the one that ends the stream.
				caught := errors.Is(rec.wc.Err, ErrFlushed)
				if caught && o.fault != nil && r.plan.end.how != 'F' && r.plan.end.how != 'l' || !caught && (o.fault == nil || !errors.Is(rec.wc.Err, ErrInvalidSTag)) {
					return fmt.Errorf("%s: %w", what, rec.wc.Err)
				}
				flushed = true
			case rec.wc.Err != nil && (!over || !errors.Is(rec.wc.Err, ErrFlushed)):
				return fmt.Errorf("%s: %w", what, rec.wc.Err)
			case rec.wc.Err != nil:
				flushed = true
			case flushed:
				return fmt.Errorf("%s succeeds after one that was flushed", what)
			case o.flags&Signaled == 0:
				return fmt.Errorf("%s is not signaled and completes", what)
			case o.kind == OpRead && rec.wc.Len != uint32(pieceLen(o.sgl)):
				return fmt.Errorf("%s completes with %d bytes", what, rec.wc.Len)
			}
		}
	}
	left := 0
	for i, g := range e.got {
		if !g.done {
			left++
		}
		switch {
		case e.srq != nil && g.done && g.wc.Err != nil:
			return fmt.Errorf("side %d: receive %d of the shared queue is not given back: %w", s, i, g.wc.Err)
		case over && !g.done && e.srq == nil:
			return fmt.Errorf("side %d: receive %d has no completion", s, i)
		case g.done && g.wc.Err != nil && (!over || !errors.Is(g.wc.Err, ErrFlushed)):
			return fmt.Errorf("side %d: receive %d: %w", s, i, g.wc.Err)
		}
	}
	if over && e.srq != nil && e.srq.Len() != left {
		return fmt.Errorf("side %d: the shared queue has %d receives left, %d were not delivered", s, e.srq.Len(), left)
	}
	var next [modelLanes + 1]int
	var flushed [2]bool
	for _, id := range e.order {
		class, i, n, ok := 0, int(uint32(id)), &next[id>>32], true
		if id>>32 == 0 {
			class, ok = 1, e.got[i].wc.Err == nil
		} else {
			ok = e.sent[id>>32-1][i].wc.Err == nil
		}
		if i < *n || ok && flushed[class] {
			return fmt.Errorf("side %d: completion %#x is out of order: %#x", s, id, e.order)
		}
		*n = i + 1
		flushed[class] = flushed[class] || !ok
	}
	return nil
}

// done reports whether the peer has carried out rec for certain, by its completion
// or by the delivery of its message.
func (r *modelRun) done(s int, rec *modelSent) bool {
	if rec.rejected != nil {
		return false
	}
	if rec.op.msg >= 0 {
		g := r.ends[1-s].got[rec.op.msg]
		return g.done && g.wc.Err == nil
	}
	return rec.op.needs() && rec.done && rec.wc.Err == nil
}

// replay carries out what a lane of side s has posted. All before sure has been
// done for certain, the others perhaps.
func (r *modelRun) replay(s, lane, sure int) error {
	e, peer := &r.ends[s], &r.ends[1-s]
	faulted := false
	var reads, all []*modelReading
	for i, rec := range e.sent[lane] {
		o, maybe := rec.op, i >= sure
		if rec.rejected != nil || o.bad != 0 {
			continue
		}
		what := fmt.Sprintf("side %d, work request %d.%d (%v)", s, lane, i, o)
		if (faulted || o.fault != nil) && (o.needs() || o.local()) && (!rec.done || rec.wc.Err == nil) {
			return fmt.Errorf("%s was not to be answered and completes", what)
		}
		if faulted && r.plan.net.window == 0 {
			continue
		}
		if o.flags&Fence != 0 {
			reads = nil
		}
		var m *modelMem
		at := o.win.off + int(o.to)
		if o.tgt >= 0 {
			m = r.mem[peer.lanes[lane].tgt[o.tgt]]
		}
		switch {
		case o.fault != nil:
			faulted = true
			if o.kind == OpWrite && m != nil {
				r.partly(m, o, r.content(e, lane, o), reads)
			}
			if o.msg >= 0 {
				if err := r.message(what, e, peer, o, r.content(e, lane, o), false); err != nil {
					return err
				}
			}
		case o.local():
		case o.kind == OpSend || o.kind == OpImmediate:
			if err := r.message(what, e, peer, o, r.content(e, lane, o), !maybe); err != nil {
				return err
			}
		case len(o.sgl) == 0 && !o.needs() || m == nil:
		case o.kind == OpWrite:
			r.write(m, o, at, r.content(e, lane, o), maybe, reads)
		case o.kind == OpRead:
			rd := &modelReading{mem: m, off: at, rec: rec}
			for k := range pieceLen(o.sgl) {
				rd.vals = append(rd.vals, m.values(at+k))
			}
			reads, all = append(reads, rd), append(all, rd)
		default:
			old := binary.NativeEndian.Uint64(m.val[at:])
			if rec.done && rec.wc.Err == nil && rec.wc.Imm != old {
				return fmt.Errorf("%s found %#x, want %#x", what, rec.wc.Imm, old)
			}
			r.write(m, o, at, binary.NativeEndian.AppendUint64(nil, o.apply(old)), maybe, reads)
			if len(o.sgl) > 0 {
				p := binary.NativeEndian.AppendUint64(nil, old)
				if rec.snap != nil && !bytes.Equal(rec.snap, p) {
					return fmt.Errorf("%s stored %x, want %x", what, rec.snap, p)
				}
				r.mem[e.lanes[lane].sink].put(o.sgl[0].off, p, rec.done && rec.wc.Err != nil)
			}
		}
	}
	for _, rd := range all {
		if err := r.read(e, lane, rd); err != nil {
			return err
		}
	}
	return nil
}

// partly is a Write that breaks a rule with one of its segments: others may have
// been placed, and of those behind it such as came earlier.
func (r *modelRun) partly(m *modelMem, o *modelOp, p []byte, reads []*modelReading) {
	if f := o.fault; f.Layer != ddp.LayerDDP || f.Code != ddp.CodeTaggedBounds && (f.Code != ddp.CodeTaggedTOWrap || r.plan.net.window == 0) {
		return
	}
	for k := range p {
		if to := o.to + uint64(k); to < uint64(o.win.n) {
			r.write(m, o, o.win.off+int(to), p[k:k+1], true, reads)
		}
	}
}

// read checks what a Read brought and puts it into the sink.
func (r *modelRun) read(e *modelEnd, lane int, rd *modelReading) error {
	sink, k := r.mem[e.lanes[lane].sink], 0
	for _, p := range rd.rec.op.sgl {
		for i := p.off; i < p.off+p.n; i, k = i+1, k+1 {
			vals := rd.vals[k]
			if rd.rec.snap != nil {
				if !bytes.Contains(vals, rd.rec.snap[k:k+1]) {
					return fmt.Errorf("side %d, lane %d, %v: byte %d is %#x, want one of %x", e.s, lane, rd.rec.op, k, rd.rec.snap[k], vals)
				}
				vals = rd.rec.snap[k : k+1]
			}
			sink.put(i, vals[:1], rd.rec.done && rd.rec.wc.Err != nil)
			for _, v := range vals[1:] {
				sink.may(i, v)
			}
		}
	}
	return nil
}

// message checks the receive that a message of e took at the peer.
func (r *modelRun) message(what string, e, peer *modelEnd, o *modelOp, p []byte, sure bool) error {
	g := peer.got[o.msg]
	m := r.mem[peer.recvMR]
	delivered := g.done && g.wc.Err == nil
	switch {
	case sure && !delivered:
		return fmt.Errorf("%s was not delivered to receive %d: %v", what, o.msg, g.wc.Err)
	case o.fault != nil && delivered:
		return fmt.Errorf("%s was delivered", what)
	}
	rest := p
	var want []byte
	for _, piece := range g.recv.sgl {
		n := min(len(rest), piece.n)
		m.put(piece.off, rest[:n], !delivered)
		rest = rest[n:]
		want = append(want, m.val[piece.off:piece.off+piece.n]...)
	}
	if !delivered {
		return nil
	}
	wc := WC{ID: g.wc.ID, QP: peer.qp, Op: WCRecv, Len: uint32(len(p)), Imm: o.imm, Solicited: o.flags&Solicited != 0, Invalidated: e.tag(peer, 0, o.inv, o.via)}
	if o.kind == OpImmediate {
		wc.Op = WCRecvImm
	}
	if g.wc != wc {
		return fmt.Errorf("%s: receive %d is %+v, want %+v", what, o.msg, g.wc, wc)
	}
	if !bytes.Equal(g.snap, want) {
		return fmt.Errorf("%s: receive %d holds\n%x, want\n%x", what, o.msg, g.snap, want)
	}
	for i, seal := range o.seals {
		m := r.mem[peer.lanes[0].tgt[seal.tgt]]
		for k, b := range g.seals[i] {
			if !slices.Contains(m.values(seal.off+k), b) {
				return fmt.Errorf("%s: when it was delivered, byte %d of %v was %#x, want %x (RFC 5040 section 5.5 rule 10)", what, k, seal, b, m.values(seal.off+k))
			}
		}
	}
	return nil
}

// memory compares all of both sides.
func (r *modelRun) memory() error {
	for s := range r.ends {
		e := &r.ends[s]
		name := func(mr *MR) string {
			for l, ln := range e.lanes {
				if k := slices.Index(ln.tgt[:], mr); k >= 0 {
					return fmt.Sprintf("target %d.%d", l, k)
				}
				if mr == ln.sink {
					return fmt.Sprintf("sink %d", l)
				}
			}
			return "another region"
		}
		for _, mr := range e.mrs {
			if slices.ContainsFunc(e.lanes[:], func(l modelLane) bool { return l.inl == mr }) {
				continue // the test's own scratch
			}
			what := name(mr)
			if mr == e.recvMR {
				what = "receive memory"
			}
			if err := r.mem[mr].settle(mr.Bytes()); err != nil {
				return fmt.Errorf("side %d: %s: %w", s, what, err)
			}
		}
	}
	return nil
}

// counters checks the traffic counters of both sides after a quiet phase.
func (r *modelRun) counters() error {
	for s := range r.ends {
		for _, recs := range r.ends[s].sent {
			for _, rec := range recs {
				n := uint64(pieceLen(rec.op.sgl))
				if rec.rejected != nil {
					continue
				}
				r.ops[s]++
				if rec.op.msg >= 0 {
					r.msgs[1-s]++
				}
				switch rec.op.kind {
				case OpSend, OpWrite:
					r.sent[s] += n
					r.placed[1-s] += n
				case OpRead:
					r.sent[1-s] += n
					r.placed[s] += n
				}
			}
		}
	}
	for s := range r.ends {
		want := QPStats{SendOps: r.ops[s], RecvOps: r.msgs[s], SendBytes: r.sent[s], RecvBytes: r.placed[s]}
		if have := r.ends[s].qp.Stats(); have != want {
			return fmt.Errorf("side %d counts %+v, want %+v", s, have, want)
		}
	}
	return nil
}

// ending checks why the stream ended for each side.
func (r *modelRun) ending() error {
	end := r.plan.end
	var fault [2]*ddp.Error // of side
	for s := range r.ends {
		for _, rec := range r.ends[s].sent[0] {
			if rec.op.fault != nil {
				fault[s] = rec.op.fault
			}
		}
	}
	is := func(err error, f *ddp.Error) (found, reported bool) {
		var t *rdmap.TerminateError
		if f == nil {
			return false, false
		}
		reported = errors.As(err, &t) && t.Terminate.Layer == f.Layer && t.Terminate.Type == f.Type && t.Terminate.Code == f.Code
		return errors.Is(err, f), reported
	}
	for s := range r.ends {
		err := r.ends[s].qp.Err()
		found, _ := is(err, fault[1-s])
		_, reported := is(err, fault[s])
		ok := end.how == 'l'
		switch end.how {
		case 'f':
			ok = found && s != end.side || reported && s == end.side
			if f := fault[end.side]; f == errModelLocal {
				_, reported = is(err, f)
				ok = reported && s != end.side || errors.Is(err, ErrInvalidSTag) && s == end.side
			}
		case 'F':
			ok = found || reported || errors.Is(err, ErrInvalidSTag) && fault[s] == errModelLocal
			_, reported = is(err, fault[1-s])
			ok = ok || reported && fault[1-s] == errModelLocal
		case 'a':
			ok = errors.Is(err, errModelAbort) && s == end.side || err != nil && s != end.side
		case 'c':
			ok = err == nil && s == end.side || errors.Is(err, rdmap.ErrPeerClosed) && s != end.side
		case 'C':
			ok = err == nil || errors.Is(err, rdmap.ErrPeerClosed)
		}
		if !ok {
			return fmt.Errorf("side %d ended with: %v", s, err)
		}
	}
	return nil
}
