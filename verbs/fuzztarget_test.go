package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// The stream fuzzers decode their input to a script: what a hostile peer sends,
// what the consumer of the stream does meanwhile, and how it ends.

// script is the rest of the fuzzer's input. At its end it gives zeros.
type script struct{ in []byte }

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

// small is mostly 0, else near it.
func (s *script) small() uint32 {
	if b := s.byte(); b >= 0xe0 {
		return uint32(int32(int8(b) + 16)) // -16 to 15
	}
	return 0
}

// fuzzTarget is the stream under attack with all it has.
type fuzzTarget struct {
	dev   *Device
	ulp   *ULP
	pds   [2]*PD
	cq    *CQ
	srq   *SRQ // nil: a receive queue of its own
	qp    *QP
	cfg   QPConfig
	mrs   []*MR
	open  *MR // window [32:64) with all rights
	ro    *MR // RemoteRead
	local *MR // receives at [8:24), results at [32:56)
	src   *MR // no rights
	alien *MR // of another protection domain
	mw    *MW // over the window of open
	old   uint32

	line   line
	far    farEnd
	posted []fuzzWR
	abuse  bool // the peer or the consumer ended or stalled the stream
}

// fuzzWR is a posted work request; its index is its ID.
type fuzzWR struct{ recv, signaled, done bool }

// line is how the peer reaches the target.
type line interface {
	send(seg []byte, s *script)
	heard() [][]byte // whole segments of the target so far
	stall(bool)
	end(hard bool)
	close() // and wait until nothing of it is left
}

// farEnd is the peer's state, so that much of what it sends is right.
type farEnd struct {
	msn      [4]uint32
	mo       uint32
	answered int // of the target's requests
}

func newFuzzTarget(shared bool) (*fuzzTarget, error) {
	p := &fuzzTarget{far: farEnd{msn: [4]uint32{1, 1, 1, 1}}}
	var errs error
	must := func(err error) { errs = errors.Join(errs, err) }
	var err error
	p.dev, err = Open(Config{})
	must(err)
	p.ulp, err = p.dev.NewULP("target", ULPConfig{Trust: ST})
	must(err)
	for i := range p.pds {
		p.pds[i], err = p.ulp.AllocPD()
		must(err)
	}
	p.cq, err = p.ulp.CreateCQ(256, nil)
	must(err)
	reg := func(pd *PD, n int, a Access) *MR {
		mr, err := pd.RegisterMR(make([]byte, n), a)
		must(err)
		p.mrs = append(p.mrs, mr)
		return mr
	}
	all := LocalWrite | RemoteRead | RemoteWrite | RemoteAtomic
	p.open, p.ro, p.local = reg(p.pds[0], 96, LocalWrite|WindowBind), reg(p.pds[0], 32, RemoteRead), reg(p.pds[0], 64, LocalWrite)
	p.src, p.alien = reg(p.pds[0], 2048, 0), reg(p.pds[1], 32, all)
	_, err = p.open.Reregister(32, 32, all)
	must(err)
	p.mw, err = p.pds[0].AllocMW()
	must(err)
	p.cfg = QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSend: 8, MaxRecv: 8, IRD: 2, ORD: 2}
	if shared {
		p.srq, err = p.pds[0].CreateSRQ(SRQConfig{MaxRecv: 8, MaxPerQP: 6})
		must(err)
		p.cfg.SRQ, p.cfg.MaxRecv = p.srq, 0
	}
	return p, errs
}

func (p *fuzzTarget) recv(s *script) {
	n := uint32(s.byte() % 17)
	sgl := []SGE{{p.local, 8, n}}
	if n > 8 {
		sgl = []SGE{{p.local, 8, 3}, {p.local, 12, 0}, {p.local, 14, n - 8}}
	}
	if n == 0 {
		sgl = nil
	}
	wr := RecvWR{ID: uint64(len(p.posted)), SGL: sgl}
	p.posted = append(p.posted, fuzzWR{recv: true})
	post := p.qp.PostRecv
	if p.srq != nil {
		post = p.srq.PostRecv
	}
	if post(wr) != nil {
		p.posted = p.posted[:len(p.posted)-1]
	}
}

func (p *fuzzTarget) post(s *script) {
	b := s.byte()
	wr := SendWR{ID: uint64(len(p.posted)), Op: Opcode(b%9) + OpSend, Flags: Flags(s.byte()), RemoteSTag: 0x1234, RemoteTO: 8}
	switch n := uint32(s.byte()); wr.Op {
	case OpSend, OpWrite:
		wr.SGL = []SGE{{p.src, 3, n * 7}, {p.src, 2000, n % 9}}
		wr.Invalidate, wr.InvalidateSTag = b&0x80 != 0, 0x777
	case OpRead:
		wr.SGL = []SGE{{p.local, 32, n % 9}, {p.local, 48, n % 3}}
	case OpFetchAdd, OpCmpSwap:
		wr.SGL = []SGE{{p.local, 40, 8}}
	case OpBind, OpRegister:
		wr.MW, wr.SGL = p.mw, []SGE{{p.open, 32, 32}}
		wr.Access = Access(n)&(RemoteRead|RemoteAtomic) | RemoteWrite
		p.old = p.open.STag()
	case OpInvalidateLocal:
		wr.InvalidateSTag = [...]uint32{p.mw.STag(), p.open.STag(), p.alien.STag(), p.old}[n%4]
	}
	p.posted = append(p.posted, fuzzWR{signaled: wr.Flags&Signaled != 0})
	if p.qp.PostSend(&wr) != nil {
		p.posted = p.posted[:len(p.posted)-1]
	}
}

// stag draws an STag that the peer might try.
func (p *fuzzTarget) stag(s *script) uint32 {
	switch b := s.byte(); {
	case b < 0x80:
		return p.open.STag()
	case b < 0xa0:
		return p.mw.STag()
	case b < 0xb0:
		return p.ro.STag()
	case b < 0xb8:
		return p.alien.STag()
	case b < 0xc0:
		return p.old
	case b < 0xc8:
		return p.local.STag()
	case b < 0xd0:
		return 0
	case b < 0xd8:
		return ^uint32(0)
	}
	return binary.BigEndian.Uint32(s.bytes(4))
}

// offset draws a tagged offset, mostly near an end of the window.
func (s *script) offset() uint64 {
	switch b := s.byte(); {
	case b < 0x80:
		return uint64(b % 40)
	case b < 0xc0:
		return uint64(b&^0xc0&^7) % 32
	case b < 0xe0:
		return -uint64(b & 31)
	}
	return binary.BigEndian.Uint64(s.bytes(8))
}

// request returns the oldest request of the target that has not been answered, as
// a Read or an Atomic.
func (p *fuzzTarget) request() (r rdmap.ReadRequest, a rdmap.AtomicRequest, ok bool) {
	n := 0
	for _, raw := range p.line.heard() {
		s, ok := iwarptest.ParseSegment(raw)
		if !ok || s.Tagged || s.QN != rdmap.QNReadRequest {
			continue
		}
		if n++; n > p.far.answered {
			r, _ = rdmap.ParseReadRequest(s.Payload)
			a, _ = rdmap.ParseAtomicRequest(s.Payload)
			return r, a, true
		}
	}
	return r, a, false
}

// segment makes what the peer sends next. Its sequence numbers are right unless
// the script wants otherwise.
func (p *fuzzTarget) segment(kind, flags byte, s *script) []byte {
	f := &p.far
	last := flags&2 == 0
	untagged := func(op rdmap.Opcode, qn uint32, word uint32, payload []byte) []byte {
		seg := iwarptest.Segment{Last: last, Op: op, STag: word, QN: qn, MSN: f.msn[qn], Payload: payload}
		if qn == 0 {
			seg.MO = f.mo
		}
		if flags&4 != 0 {
			seg.MSN += s.small()
			seg.MO += s.small()
			seg.QN += s.small()
		}
		if f.mo += uint32(len(payload)); last || qn != 0 {
			f.msn[qn]++
			f.mo = 0
		}
		return seg.Append(nil)
	}
	switch kind {
	case 0:
		b := s.byte()
		op := rdmap.OpSend + rdmap.Opcode(b&3)
		var word uint32
		if op == rdmap.OpSendInvalidate || op == rdmap.OpSendSEInvalidate {
			word = p.stag(s)
		}
		return untagged(op, 0, word, s.bytes(int(b>>2)%20))
	case 1:
		return untagged(rdmap.OpImmediate+rdmap.Opcode(flags>>3&1), 0, 0, s.bytes(8+int(s.small())%8))
	case 2:
		return iwarptest.Segment{Tagged: true, Last: last, Op: rdmap.OpWrite, STag: p.stag(s), TO: s.offset(), Payload: s.bytes(int(s.byte()) % 40)}.Append(nil)
	case 3:
		r := rdmap.ReadRequest{SinkSTag: 5, SinkTO: s.offset(), SourceSTag: p.stag(s), SourceTO: s.offset(), Size: uint32(s.byte()) % 40}
		if flags&4 != 0 {
			r.Size = -uint32(s.byte())
		}
		return untagged(rdmap.OpReadRequest, 1, 0, r.Append(nil))
	case 4:
		a := rdmap.AtomicRequest{Op: rdmap.AtomicOp(s.byte() % 4), ID: 9, STag: p.stag(s), TO: s.offset() &^ uint64(flags&4|2|1), AddSwap: uint64(s.byte())}
		return untagged(rdmap.OpAtomicRequest, 1, 0, a.Append(nil))
	case 5:
		r, _, ok := p.request()
		if ok && last {
			f.answered++
		}
		n := int(r.Size)
		if flags&2 != 0 {
			n = int(s.byte()) % 12
		}
		to := r.SinkTO + uint64(f.mo)
		if flags&4 != 0 {
			to, n = to+uint64(s.small()), n+int(int32(s.small()))
		}
		return iwarptest.Segment{Tagged: true, Last: last, Op: rdmap.OpReadResponse, STag: r.SinkSTag, TO: to, Payload: s.bytes(max(0, min(n, 64)))}.Append(nil)
	case 6:
		_, a, _ := p.request()
		f.answered++
		return untagged(rdmap.OpAtomicResponse, 3, 0, rdmap.AtomicResponse{ID: a.ID + s.small(), Original: 7}.Append(nil))
	case 7:
		t := rdmap.Terminate{Layer: ddp.Layer(s.byte() % 4), Type: s.byte() % 4, Code: s.byte()}
		return untagged(rdmap.OpTerminate, 2, 0, append(t.Append(nil), s.bytes(int(s.small())%8)...))
	}
	return s.bytes(int(s.byte()) % 70)
}

var errConsumerAbort = errors.New("the consumer aborts")

// step carries out one step of the script.
func (p *fuzzTarget) step(s *script) {
	b := s.byte()
	kind, flags := b&15, b>>4
	switch kind {
	case 9:
		p.recv(s)
	case 10:
		p.post(s)
	case 11:
		switch flags & 3 {
		case 0:
			p.open.Invalidate()
			p.mw.Invalidate()
		case 1:
			p.old = p.open.STag()
			p.open.Reregister(32, 32, LocalWrite|RemoteRead|RemoteWrite|RemoteAtomic)
		case 2:
			p.qp.Flush()
		case 3:
			p.qp.Stats()
			p.ro.Invalidate()
		}
	case 12:
		p.abuse = true
		p.line.stall(flags&1 == 0)
	case 13:
		p.abuse = true
		switch flags & 3 {
		case 0:
			p.qp.Close()
		case 1:
			p.qp.Abort(errConsumerAbort)
		default:
			p.line.end(flags&1 != 0)
		}
	case 14:
		for range int(flags) * 20 {
			runtime.Gosched()
		}
	case 15:
		p.poll()
	default:
		seg := p.segment(kind, flags, s)
		if flags&1 != 0 && len(seg) > 0 {
			at := int(s.byte()) % len(seg)
			seg[at] ^= s.byte()
			if cut := int(s.small()); cut > 0 {
				seg = seg[:len(seg)-min(cut, len(seg))]
			}
		}
		p.line.send(seg, s)
	}
}

// poll takes the completions that are there.
func (p *fuzzTarget) poll() (err error) {
	var wcs [16]WC
	for {
		n := p.cq.Poll(wcs[:])
		if n == 0 {
			return err
		}
		for _, wc := range wcs[:n] {
			w := &p.posted[wc.ID]
			switch {
			case w.done:
				err = fmt.Errorf("work request %d completes twice", wc.ID)
			case w.recv != (wc.Op == WCRecv || wc.Op == WCRecvImm):
				err = fmt.Errorf("work request %d completes as %v", wc.ID, wc.Op)
			case wc.Err == nil && !w.recv && !w.signaled:
				err = fmt.Errorf("work request %d is not signaled and completes", wc.ID)
			case wc.Err != nil && wc.Op >= WCBind && wc.Op <= WCInvalidate: // refused where it was reached, or flushed
			case wc.Err != nil && !errors.Is(wc.Err, ErrFlushed):
				err = fmt.Errorf("work request %d: %w", wc.ID, wc.Err)
			}
			w.done = true
		}
	}
}

// play runs the script to its end and checks what must hold whatever the peer
// did. The line is up.
func (p *fuzzTarget) play(t *testing.T, s *script) {
	var first error
	for steps := 0; len(s.in) > 0 && steps < 200; steps++ {
		p.step(s)
		if err := p.poll(); first == nil {
			first = err
		}
	}
	p.line.stall(false)
	p.line.end(false)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	select {
	case <-p.qp.Done():
	case <-ctx.Done():
		buf := make([]byte, 1<<20)
		t.Fatalf("the stream does not end\n%s", buf[:runtime.Stack(buf, true)])
	}
	if err := errors.Join(first, p.poll(), p.check()); err != nil {
		t.Fatal(err)
	}
}

// check looks at what is left after the end.
func (p *fuzzTarget) check() (err error) {
	for id, w := range p.posted {
		if !w.done && (w.signaled || w.recv && p.srq == nil) {
			err = errors.Join(err, fmt.Errorf("work request %d never completes", id))
		}
	}
	for _, g := range []struct {
		name   string
		mr     *MR
		lo, hi int
	}{{"around the window", p.open, 32, 64}, {"read-only", p.ro, 0, 0}, {"of another domain", p.alien, 0, 0}, {"source", p.src, 0, 0}, {"before the receives", p.local, 8, 64}} {
		for i, b := range g.mr.Bytes() {
			if b != 0 && (i < g.lo || i >= g.hi) {
				err = errors.Join(err, fmt.Errorf("memory %s: byte %d was changed", g.name, i))
				break
			}
		}
	}
	for i, b := range p.local.Bytes() {
		if b != 0 && (i >= 24 && i < 32 || i >= 56) {
			err = errors.Join(err, fmt.Errorf("local memory: byte %d was changed", i))
		}
	}
	return errors.Join(err, p.reason())
}

// reason checks that the end has a typed reason, and that a peer at fault was
// told.
func (p *fuzzTarget) reason() error {
	reason := p.qp.Err()
	var fault *ddp.Error
	var term *rdmap.TerminateError
	var order *ddp.SequenceError
	switch {
	case reason == nil, errors.Is(reason, io.EOF), errors.Is(reason, io.ErrUnexpectedEOF), errors.Is(reason, errConsumerAbort), errors.Is(reason, ddp.ErrClosed), errors.Is(reason, ErrClosed), errors.Is(reason, rdmap.ErrClosed), errors.Is(reason, mpa.ErrNoFPDU):
	case errors.As(reason, &term), errors.As(reason, &order), errors.Is(reason, ErrInvalidSTag), errors.Is(reason, ErrInUse):
	case errors.As(reason, &fault):
		if p.abuse || fault.Layer == ddp.LayerLLP {
			break
		}
		p.line.close()
		heard := p.line.heard()
		for _, raw := range heard {
			if s, ok := iwarptest.ParseSegment(raw); ok && !s.Tagged && s.QN == rdmap.QNTerminate {
				if t, ok := rdmap.ParseTerminate(s.Payload); !ok || t.Layer != fault.Layer || t.Type != fault.Type || t.Code != fault.Code {
					return fmt.Errorf("the peer was told %+v, not %w", t, fault)
				}
				return nil
			}
		}
		return fmt.Errorf("after %d segments the peer was not told of: %w", len(heard), fault)
	default:
		return fmt.Errorf("the stream ended with an error of type %T: %w", reason, reason)
	}
	return nil
}

// free gives everything back and finds nothing in use.
func (p *fuzzTarget) free() (err error) {
	p.line.close()
	err = p.mw.Dealloc()
	for _, mr := range p.mrs {
		if p.srq != nil && mr == p.local {
			continue // receives that nobody took name it
		}
		err = errors.Join(err, mr.Deregister())
	}
	if p.srq != nil {
		err = errors.Join(err, p.srq.Destroy(), p.local.Deregister())
	}
	err = errors.Join(err, p.cq.Destroy(), p.pds[0].Dealloc(), p.pds[1].Dealloc())
	if u := p.dev.Usage(); u != (Limits{}) {
		err = errors.Join(err, fmt.Errorf("in use after the end: %+v", u))
	}
	return errors.Join(err, p.dev.Close())
}
