package rdmap_test

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// region is tagged memory of a fake upper.
type region struct {
	stag   uint32
	buf    []byte
	rights rdmap.Access
	pins   int
	let    func() // called when a pin is given up
}

// upper is an rdmap.Upper that owns a little memory and writes down what it is
// told, in order.
type upper struct {
	mu      sync.Mutex
	regions map[uint32]*region
	recvs   []*rdmap.RecvBuffer // posted
	taken   []*rdmap.RecvBuffer // and not delivered
	local   func(op *rdmap.Op) error
	news    []string
	errs    map[uint64]error // of operations, by ID
	change  chan struct{}    // something is new
	over    chan struct{}
	err     error // valid when over is closed
}

func newUpper() *upper {
	return &upper{regions: map[uint32]*region{}, errs: map[uint64]error{}, change: make(chan struct{}, 1), over: make(chan struct{})}
}

type pin struct {
	u *upper
	r *region
}

func (p pin) Unpin() {
	p.u.mu.Lock()
	p.r.pins--
	if p.r.let != nil {
		p.r.let()
	}
	p.u.mu.Unlock()
	if p.r.stag == probeSTag {
		p.u.note("probe")
	}
}

// Volatile implements rdmap.VolatilePin.
func (p pin) Volatile() bool { return p.r.rights&(rdmap.RemoteWrite|rdmap.RemoteAtomic) != 0 }

// probeSTag names a region of one byte; each access to it is news.
const probeSTag = 0x9999

func (u *upper) Acquire(stag uint32, to uint64, n uint32, need rdmap.Access) ([]byte, rdmap.Pin, rdmap.Fault) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.regions[stag]
	switch end := to + uint64(n); {
	case r == nil:
		return nil, nil, rdmap.FaultInvalidSTag
	case r.rights == 0:
		return nil, nil, rdmap.FaultNotAssociated
	case end < to:
		return nil, nil, rdmap.FaultTOWrap
	case end > uint64(len(r.buf)):
		return nil, nil, rdmap.FaultBounds
	case r.rights&need != need:
		return nil, nil, rdmap.FaultAccess
	}
	r.pins++
	return r.buf[to : to+uint64(n)], pin{u, r}, rdmap.FaultNone
}

func (u *upper) InvalidateRemote(stag uint32) rdmap.Fault {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.regions[stag]
	switch {
	case r == nil:
		return rdmap.FaultInvalidSTag
	case r.rights == 0:
		return rdmap.FaultCannotInvalidate
	}
	delete(u.regions, stag)
	return rdmap.FaultNone
}

func (u *upper) NextRecv() *rdmap.RecvBuffer {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.recvs) == 0 {
		return nil
	}
	r := u.recvs[0]
	u.recvs = u.recvs[1:]
	u.taken = append(u.taken, r)
	return r
}

func (u *upper) Received(r *rdmap.RecvBuffer, m rdmap.Message) {
	u.mu.Lock()
	oldest := len(u.taken) > 0 && u.taken[0] == r
	if oldest {
		u.taken = u.taken[1:]
	}
	u.mu.Unlock()
	s := fmt.Sprintf("recv %d %v %d", r.ID, m.Op, m.Len)
	switch {
	case !oldest:
		s += " out of turn"
	case m.Invalidated != 0:
		s += fmt.Sprintf(" inv %#x", m.Invalidated)
	case m.Imm != 0:
		s += fmt.Sprintf(" imm %#x", m.Imm)
	}
	u.note(s)
}

func (u *upper) Local(op *rdmap.Op) error { return u.local(op) }

func (u *upper) SendDone(op *rdmap.Op, err error) {
	u.mu.Lock()
	u.errs[op.ID] = err
	u.mu.Unlock()
	if err != nil {
		u.note(fmt.Sprintf("failed %d", op.ID))
		return
	}
	u.note(fmt.Sprintf("done %d", op.ID))
}

func (u *upper) Completions(bool) {}

func (u *upper) Slow(rdmap.SlowPath) error { return nil }
func (u *upper) BatchEnd()                 {}

func (u *upper) Ended(err error) {
	u.err = err
	close(u.over)
}

func (u *upper) note(s string) {
	u.mu.Lock()
	u.news = append(u.news, s)
	u.mu.Unlock()
	select {
	case u.change <- struct{}{}:
	default:
	}
}

// peer is a stream under test and, at the other end of its LLP, whatever the
// test does there.
type peer struct {
	*upper
	t   testing.TB
	s   *rdmap.Stream
	raw *iwarptest.LLP
	got [][]byte // received by raw and not looked at
}

// open makes a stream and starts it after prepare, which may be nil.
func open(t testing.TB, cfg rdmap.Config, o iwarptest.Options, prepare func(p *peer)) *peer {
	t.Helper()
	raw, l := iwarptest.Pair(o)
	return openOn(t, cfg, raw, l, prepare)
}

// openOn is open on an LLP of the test's.
func openOn(t testing.TB, cfg rdmap.Config, raw *iwarptest.LLP, l ddp.LLP, prepare func(p *peer)) *peer {
	t.Helper()
	p := &peer{upper: newUpper(), t: t, raw: raw}
	cfg.LLP, cfg.Upper = l, p.upper
	if cfg.MaxSend == 0 {
		cfg.MaxSend, cfg.IRD, cfg.ORD = 16, 4, 4
	}
	p.s = rdmap.New(cfg)
	if prepare != nil {
		prepare(p)
	}
	go p.s.Run()
	t.Cleanup(func() {
		p.raw.Close()
		p.wantEnd()
	})
	return p
}

func start(t testing.TB) *peer {
	t.Helper()
	return open(t, rdmap.Config{}, iwarptest.Options{}, nil)
}

// post queues an operation and starts sending it.
func (p *peer) post(op rdmap.Op) {
	p.t.Helper()
	p.postMore(op, false)
}

func (p *peer) postMore(op rdmap.Op, more bool) {
	p.t.Helper()
	slot, err := p.s.Reserve()
	if err != nil {
		p.t.Fatalf("post %d: %v", op.ID, err)
	}
	slot.Kind, slot.ID, slot.Fence, slot.Volatile, slot.Local, slot.Imm = op.Kind, op.ID, op.Fence, op.Volatile, op.Local, op.Imm
	slot.SGL, slot.STag, slot.TO, slot.Atomic = append(slot.SGL, op.SGL...), op.STag, op.TO, op.Atomic
	for _, b := range op.SGL {
		slot.Len += uint32(len(b))
	}
	p.s.Commit(more)
}

// sgl fills an operation's source or sink.
func sgl(op rdmap.Op, bufs ...[]byte) rdmap.Op {
	op.SGL = bufs
	return op
}

// receive posts a receive of n bytes, none for 0, and returns its memory.
func (p *peer) receive(id uint64, n int) []byte {
	b := make([]byte, n)
	r := &rdmap.RecvBuffer{ID: id, Len: uint32(n), SGL: [][]byte{b}}
	p.mu.Lock()
	p.recvs = append(p.recvs, r)
	p.mu.Unlock()
	return b
}

// region gives the peer rights to n bytes.
func (p *peer) region(stag uint32, n int, rights rdmap.Access) []byte {
	r := &region{stag: stag, buf: make([]byte, n), rights: rights}
	p.mu.Lock()
	p.regions[stag] = r
	p.mu.Unlock()
	return r.buf
}

// want waits until the stream has told its Upper as much as is wanted, and
// compares.
func (p *peer) want(news ...string) {
	p.t.Helper()
	p.wantNews(len(news), func(got []string) bool { return slices.Equal(got, news) }, news)
}

func (p *peer) wantNews(n int, ok func(got []string) bool, want []string) {
	p.t.Helper()
	for over := false; ; {
		p.mu.Lock()
		got := slices.Clone(p.news)
		if len(got) >= n {
			p.news = nil
		}
		p.mu.Unlock()
		switch {
		case len(got) >= n && ok(got):
			return
		case len(got) >= n || over:
			p.t.Fatalf("the upper has heard %q, want %q; stream: %v", got, want, p.s.State())
		}
		select {
		case <-p.change:
		case <-p.over:
			over = true
		case <-time.After(2 * time.Minute):
			p.t.Fatalf("the upper has heard %q, want %q; stream: %v", got, want, p.s.State())
		}
	}
}

// wantOnce waits for as many news as words are given, which are their first
// words in any order.
func (p *peer) wantOnce(words ...string) {
	p.t.Helper()
	p.wantNews(len(words), func(got []string) bool {
		var first []string
		for _, s := range got {
			word, _, _ := strings.Cut(s, " ")
			first = append(first, word)
		}
		slices.Sort(first)
		slices.Sort(words)
		return slices.Equal(first, words)
	}, words)
}

// wantState waits until the stream is in state.
func (p *peer) wantState(state rdmap.State) {
	p.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); p.s.State() != state; runtime.Gosched() {
		if time.Now().After(deadline) {
			p.t.Fatalf("the stream is %v, want %v", p.s.State(), state)
		}
	}
}

// wantEnd waits for the stream's end and returns its reason.
func (p *peer) wantEnd() error {
	p.t.Helper()
	select {
	case <-p.over:
		return p.err
	case <-time.After(2 * time.Minute):
		p.t.Fatal("the stream does not end")
		return nil
	}
}

// next is the next segment that the stream has sent; nil after its end.
func (p *peer) next() []byte {
	p.t.Helper()
	for len(p.got) == 0 {
		segs, err := p.raw.Recv()
		if err != nil {
			return nil
		}
		p.got = segs
	}
	seg := p.got[0]
	p.got = p.got[1:]
	return seg
}

// wantFin checks that the stream sends nothing more and ends its direction
// gracefully.
func (p *peer) wantFin() {
	p.t.Helper()
	if len(p.got) > 0 {
		p.t.Fatalf("sent %x", p.got)
	}
	if segs, err := p.raw.Recv(); err != io.EOF {
		p.t.Fatalf("sent %x, %v; want a graceful end", segs, err)
	}
}

// wantOps takes as many segments as ops are named and checks their opcodes.
func (p *peer) wantOps(ops ...rdmap.Opcode) (segs [][]byte) {
	p.t.Helper()
	for i, want := range ops {
		seg := p.next()
		if seg == nil {
			p.t.Fatalf("segment %d of %v: the stream has ended", i, ops)
		}
		if _, op := rdmap.ParseControl(seg[1]); op != want {
			p.t.Fatalf("segment %d: %v, want %v", i, op, ops)
		}
		segs = append(segs, seg)
	}
	return segs
}

// wantTerminate takes what the stream sends up to its Terminate.
func (p *peer) wantTerminate() rdmap.Terminate {
	p.t.Helper()
	for {
		seg := p.next()
		if seg == nil {
			p.t.Fatal("no Terminate")
		}
		if ddp.IsTagged(seg) || ddp.Untagged(seg).QN() != rdmap.QNTerminate {
			continue
		}
		term, ok := rdmap.ParseTerminate(ddp.Untagged(seg).Payload())
		if !ok {
			p.t.Fatalf("Terminate %x does not parse", seg)
		}
		return term
	}
}

func untagged(last bool, op rdmap.Opcode, qn, msn, mo uint32, payload ...byte) []byte {
	return append(ddp.AppendUntagged(nil, last, rdmap.Control(op), 0, qn, msn, mo), payload...)
}

func tagged(last bool, op rdmap.Opcode, stag uint32, to uint64, payload ...byte) []byte {
	return append(ddp.AppendTagged(nil, last, rdmap.Control(op), stag, to), payload...)
}
