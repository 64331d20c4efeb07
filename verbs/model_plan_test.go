package verbs

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// The model test draws a whole run first, a modelPlan, then carries it out on
// two queue pairs and compares with a sequential model. A run is a sequence of
// phases. Within a phase both sides post at once, each from one or more
// goroutines ("lanes"); it ends with a zero-length Send each way, after which
// both are quiet. The last phase ends the stream in one of several ways.
//
// What two lanes or the two sides do at once has no order (RFC 5040 section 5.5
// rules 1 and 2), so they share no memory: a lane has a source, a sink and its
// own targets at the peer. Only the first lane sends messages.

const (
	modelArea  = 4096     // source and targets, bytes
	modelSink  = 16 << 10 // sink of a lane's Reads in a whole run
	modelRecvs = 48 << 10 // receive buffers of a whole run
	modelTgts  = 3        // targets of a lane; the last is for Atomics
	modelLanes = 3
)

type modelPlan struct {
	net    modelNet
	lanes  [2]int
	queue  [2]int // MaxSend
	sges   int    // elements of the longest lists
	ord    [2]int
	cqs    [2]int // see modelEnd.open
	srq    [2]bool
	phases []modelPhase
	end    modelEnding
}

// modelNet is what the run goes over.
type modelNet struct {
	mulpdu  int // of the in-memory LLP; of MPA: EMSS; of SCTP: about what its MTU leaves
	direct  bool
	window  int // of shuffled delivery, 0: in order
	seed    uint64
	mpa     bool
	crc     bool
	markers [2]bool // wanted by
	large   bool
	sctp    [2]*transport.Config // of the dialler and of the listener, nil: not over SCTP
}

type modelPhase struct {
	local [2][]modelLocal // before it, while all is quiet
	recvs [2][]modelRecv  // posted while the phase before runs
	ops   [2][][]modelOp  // of each lane
}

type modelPiece struct{ off, n int }

func pieceLen(sgl []modelPiece) (n int) {
	for _, p := range sgl {
		n += p.n
	}
	return n
}

type modelRecv struct{ sgl []modelPiece }

// modelOp is a work request. to counts from the window of the target.
type modelOp struct {
	kind  Opcode
	flags Flags
	sgl   []modelPiece // of the source or sink
	tgt   int          // the peer's target, or one of the following
	to    uint64
	inv   int  // target that a Send invalidates, or one of the following; modelNoTag: none
	via   bool // the STag is that of the target's memory window
	win   modelPiece
	own   modelSeal // what is bound, registered or invalidated, by lane
	lane  int       // of own
	grant Access    // of own
	msg   int       // number on queue 0, -1: none
	seed  uint64    // of inline data
	imm   uint64
	a     rdmap.AtomicRequest
	bad   int // not 0: rejected by PostSend, in which way
	fault *ddp.Error
	seals []modelSeal
}

const (
	modelNoTag    = -1 - iota
	modelDeadTag  // an STag that has been invalidated
	modelAlienTag // an STag of another protection domain
)

// needs reports whether the work request waits for an answer.
func (o *modelOp) needs() bool {
	return o.kind == OpRead || o.kind == OpFetchAdd || o.kind == OpCmpSwap
}

// local reports whether the work request changes the side's own targets.
func (o *modelOp) local() bool { return o.kind >= OpBind }

// modelSeal is memory of a target that has been written before a Send and that
// nothing changes until the end of the phase, so it can be looked at when the
// Send is delivered (RFC 5040 section 5.5 rule 10).
type modelSeal struct {
	tgt int
	modelPiece
}

// modelLocal is what a side does with its own memory while all is quiet.
type modelLocal struct {
	what      byte // 's' new source, 't' new contents of a target, 'r' Reregister, 'i' Invalidate
	lane, tgt int
	seed      uint64
	win       modelPiece
	access    Access
}

// modelEnding says how the stream ends.
type modelEnding struct {
	how  byte // 'c' Close, 'C' by both, 'a' Abort, 'f' a fault of side, 'F' of both, 'l' too late to tell
	side int
	at   [2]int // before which work request of the first lane
}

func (o *modelOp) String() string {
	var b strings.Builder
	names := [...]string{"?", "send", "write", "read", "immediate", "fetchadd", "cmpswap", "bind", "register", "invalidate"}
	fmt.Fprintf(&b, "%s %v", names[int(o.kind)%len(names)], o.sgl)
	for i, n := range [...]string{"signaled", "solicited", "fence", "more", "inline"} {
		if o.flags&(1<<i) != 0 {
			b.WriteString(" " + n)
		}
	}
	if o.local() {
		fmt.Fprintf(&b, " own %d.%v for %x, window %v", o.lane, o.own, o.grant, o.via)
	} else if o.kind != OpSend && o.kind != OpImmediate {
		fmt.Fprintf(&b, " target %d+%d", o.tgt, o.to)
	}
	if o.inv != modelNoTag {
		fmt.Fprintf(&b, " invalidate %d", o.inv)
	}
	if o.bad != 0 {
		fmt.Fprintf(&b, " bad %d", o.bad)
	}
	if o.fault != nil {
		fmt.Fprintf(&b, " FAULT %v", o.fault)
	}
	return b.String()
}

func (p *modelPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "net %+v, MaxSend %v, SGEs %d, ORD %v, CQs %v, SRQ %v, end %c by %d at %v\n", p.net, p.queue, p.sges, p.ord, p.cqs, p.srq, p.end.how, p.end.side, p.end.at)
	for i := range p.phases {
		ph := &p.phases[i]
		for s := range 2 {
			fmt.Fprintf(&b, "phase %d, side %d: local %+v, receives %v\n", i, s, ph.local[s], ph.recvs[s])
			for l := range ph.ops[s] {
				for j := range ph.ops[s][l] {
					fmt.Fprintf(&b, "  %d.%d %v\n", l, j, &ph.ops[s][l][j])
				}
			}
		}
	}
	return b.String()
}

// modelTarget is what the generator knows of a target.
type modelTarget struct {
	open   bool
	fresh  bool // it has been closed in this phase
	busy   bool // the owner changes it in this phase
	via    bool // open by a memory window
	win    modelPiece
	access Access
}

// modelGen draws a plan. It follows who may do what, not the contents.
type modelGen struct {
	t    *rapid.T
	plan modelPlan
	tgts [2][modelLanes][modelTgts]modelTarget // of the side, for the peer's lane
	sink [2][modelLanes]int                    // used so far
	buf  [2]int                                // of the receive memory, used so far
	recv [2][]int                              // lengths of all receives of the side
	msgs [2]int                                // messages that the side has sent
	read [2][modelLanes][]modelSeal            // by the side's Reads since the last Fence or phase
	seed uint64
	used [2][modelLanes][modelTgts]bool // by the peer in this phase
}

func (g *modelGen) n(lo, hi int) int {
	if hi <= lo {
		return lo
	}
	return rapid.IntRange(lo, hi).Draw(g.t, "n")
}

func (g *modelGen) pick(ns ...int) int  { return rapid.SampledFrom(ns).Draw(g.t, "pick") }
func (g *modelGen) chance(pct int) bool { return g.n(0, 99) < pct }
func (g *modelGen) next() uint64        { g.seed++; return g.seed }

// size is a length of at most most bytes, often one that is special.
func (g *modelGen) size(most int) int {
	m := g.plan.net.mulpdu
	n := g.pick(-1, -1, -1, 0, 1, 8, 257, m-20, m-14, m-13, m-18, m-17, 2*(m-14), 3*(m-18)+1)
	if n < 0 || n > most {
		n = g.n(0, most)
	}
	return n
}

// cut makes up to sges pieces of n bytes in all, somewhere in an area.
func (g *modelGen) cut(n, area int) []modelPiece {
	if n == 0 && g.chance(50) {
		return nil
	}
	k := g.pick(1, 1, 2, 3, g.plan.sges)
	sgl := make([]modelPiece, k)
	for i := range sgl {
		m := n
		if i < k-1 {
			m = g.n(0, n)
		}
		sgl[i] = modelPiece{g.n(0, area-m), m}
		n -= m
	}
	return sgl
}

// lay makes pieces of n bytes in all of memory that nobody else uses.
func (g *modelGen) lay(n int, used *int, area int) []modelPiece {
	n = min(n, area-*used)
	sgl := g.cut(n, area)
	for i := range sgl {
		*used += min(g.pick(0, 1, 5), area-*used-n)
		sgl[i].off = *used
		*used += sgl[i].n
		n -= sgl[i].n
	}
	return sgl
}

func (g *modelGen) window() modelPiece {
	off := g.n(0, modelArea-1)
	return modelPiece{off, g.n(1, modelArea-off)}
}

func (g *modelGen) access() Access {
	return LocalWrite | Access(g.pick(0b111, 0b111, 0b111, 0b010, 0b001, 0b110, 0b101, 0))<<1
}

func (g *modelGen) flags() Flags {
	var f Flags
	for _, c := range [...]struct {
		flag Flags
		pct  int
	}{{Signaled, 70}, {Solicited, 20}, {Fence, 15}, {More, 25}} {
		if g.chance(c.pct) {
			f |= c.flag
		}
	}
	return f
}

// message takes the receive for a message of n bytes of side s, fewer if it
// has less room, and adds one to the phase if there is none yet.
func (g *modelGen) message(s, n int, ph *modelPhase) (msg, length int) {
	r := 1 - s
	if g.msgs[s] == len(g.recv[r]) {
		g.receive(r, n+g.pick(0, 0, 1, 40), ph)
	}
	msg = g.msgs[s]
	g.msgs[s]++
	return msg, min(n, g.recv[r][msg])
}

func (g *modelGen) receive(s, n int, ph *modelPhase) {
	r := modelRecv{g.lay(n, &g.buf[s], modelRecvs)}
	ph.recvs[s] = append(ph.recvs[s], r)
	g.recv[s] = append(g.recv[s], pieceLen(r.sgl))
}

// target draws a piece of a target of the peer that side s may use so,
// for n bytes at most; ok is false if there is none.
func (g *modelGen) target(s, l, n int, need Access, o *modelOp) (length int, ok bool) {
	tgts := &g.tgts[1-s][l]
	first := g.n(0, modelTgts-1)
	for i := range modelTgts {
		k := (first + i) % modelTgts
		t := tgts[k]
		// Shuffled delivery gives Writes no order towards Atomics.
		if !t.open || t.busy || t.access&need == 0 || g.plan.net.window > 0 && (need == RemoteWrite && k == modelTgts-1 || need == RemoteAtomic && k < modelTgts-1) {
			continue
		}
		o.tgt, o.win, o.via = k, t.win, t.via
		g.used[1-s][l][k] = true
		if need == RemoteAtomic {
			slots := (t.win.off+t.win.n)/8 - (t.win.off+7)/8
			if slots <= 0 {
				continue
			}
			o.to = uint64(((t.win.off+7)/8+g.n(0, min(slots-1, 3)))*8 - t.win.off)
			return 8, true
		}
		n = min(n, t.win.n)
		o.to = uint64(g.n(0, t.win.n-n))
		return n, true
	}
	o.tgt, o.to = g.pick(modelDeadTag, modelAlienTag), uint64(g.n(0, 9))
	return 0, false
}

// op draws a legal work request, or one that PostSend rejects.
func (g *modelGen) op(s, l int, ph *modelPhase, tagged bool) modelOp {
	o := modelOp{flags: g.flags(), tgt: modelNoTag, inv: modelNoTag, msg: -1, seed: g.next()}
	kinds := []int{'s', 's', 's', 's', 'i', 'v', 'w', 'w', 'w', 'w', 'r', 'r', 'r', 'a', 'c', 'x', 'b', 'b', 'R', 'I'}
	switch {
	case tagged:
		kinds = kinds[6:15]
	case l > 0:
		kinds = kinds[6:]
	}
	kind := g.pick(kinds...)
	if g.plan.ord[s] == 0 && (kind == 'r' || kind == 'a' || kind == 'c') {
		kind = 'w'
	}
	switch kind {
	case 's', 'v':
		o.kind = OpSend
		var n int
		o.msg, n = g.message(s, g.size(1500), ph)
		o.sgl = g.cut(n, modelArea)
		if kind == 'v' {
			k := g.n(0, modelTgts-1)
			if t := &g.tgts[1-s][l][k]; t.open && !t.busy && t.access&(RemoteRead|RemoteWrite|RemoteAtomic) != 0 {
				// An earlier Read may not have been answered yet.
				o.inv, o.via, t.open, t.fresh = k, t.via, false, true
				g.used[1-s][l][k] = true
				o.flags |= Fence
			}
		}
	case 'i':
		o.kind, o.imm = OpImmediate, o.seed<<32|o.seed
		o.msg, _ = g.message(s, 0, ph)
	case 'w':
		o.kind = OpWrite
		n, _ := g.target(s, l, g.size(modelArea), RemoteWrite, &o)
		o.sgl = g.cut(n, modelArea)
	case 'r':
		o.kind = OpRead
		n := min(g.size(modelArea), modelSink-g.sink[s][l])
		n, _ = g.target(s, l, n, RemoteRead, &o)
		o.sgl = g.lay(n, &g.sink[s][l], modelSink)
	case 'a', 'c':
		o.kind = OpFetchAdd
		if kind == 'c' {
			o.kind = OpCmpSwap
		}
		if _, ok := g.target(s, l, 8, RemoteAtomic, &o); !ok {
			o.kind = OpWrite
			break
		}
		g.atomic(s, l, &o)
	case 'b', 'R', 'I':
		g.own(s, kind, &o)
	case 'x':
		o.kind, o.bad = OpSend, g.n(1, 6)
	}
	if (o.kind == OpSend || o.kind == OpWrite) && g.chance(25) {
		o.flags |= Inline
	}
	g.fence(s, l, &o)
	return o
}

// fence notes what Reads read. A Write may overtake the Read of the same memory,
// and the Read bring either (RFC 5040 section 5.5 rule 12); the race detector
// can't know that this is allowed.
func (g *modelGen) fence(s, l int, o *modelOp) {
	n := pieceLen(o.sgl)
	if o.kind == OpFetchAdd || o.kind == OpCmpSwap {
		n = 8
	}
	mine := modelSeal{o.tgt, modelPiece{o.win.off + int(o.to), n}}
	reads := &g.read[s][l]
	if o.kind != OpRead && o.tgt >= 0 && raceEnabled {
		for _, r := range *reads {
			if r.tgt == mine.tgt && r.off < mine.off+mine.n && mine.off < r.off+r.n {
				o.flags |= Fence
			}
		}
	}
	if o.flags&Fence != 0 {
		*reads = nil
	}
	if o.kind == OpRead && o.tgt >= 0 {
		*reads = append(*reads, mine)
	}
}

func (g *modelGen) atomic(s, l int, o *modelOp) {
	mask := func() uint64 {
		return rapid.SampledFrom([]uint64{0, 1 << 63, 1<<31 | 1<<63, ^uint64(0), 0x8080808080808080, 0xff, 0x5555555555555555}).Draw(g.t, "mask")
	}
	o.a = rdmap.AtomicRequest{AddSwap: rapid.Uint64().Draw(g.t, "add"), AddSwapMask: mask()}
	if o.kind == OpCmpSwap {
		o.a.Compare, o.a.CompareMask = rapid.Uint64().Draw(g.t, "compare"), mask()
	}
	if used := &g.sink[s][l]; g.chance(70) && modelSink-*used >= 8 {
		o.sgl = []modelPiece{{*used, 8}}
		*used += 8
	}
}

// own draws a change of a target of the side itself, by its send queue. The peer
// leaves the target alone in this phase.
func (g *modelGen) own(s, kind int, o *modelOp) {
	o.kind = OpWrite // of nothing, if there is no such target
	l, k := g.n(0, g.plan.lanes[1-s]-1), g.n(0, modelTgts-1)
	t := &g.tgts[s][l][k]
	bound := t.open && t.via
	if g.used[s][l][k] || t.busy || kind != 'I' && bound || kind == 'I' && !t.open {
		o.tgt = modelDeadTag
		return
	}
	o.lane, o.own.tgt, o.via = l, k, kind == 'b' || kind == 'I' && t.via
	t.busy = true
	if kind == 'I' {
		o.kind, t.open = OpInvalidateLocal, false
		return
	}
	o.kind, o.own.modelPiece = OpRegister, g.window()
	o.grant = g.access()
	if kind == 'b' {
		o.kind, o.grant = OpBind, o.grant|RemoteWrite
	}
	*t = modelTarget{open: true, busy: true, via: o.via, win: o.own.modelPiece, access: o.grant}
}

func (g *modelGen) local(s int) modelLocal {
	c := modelLocal{what: byte(g.pick('s', 't', 'r', 'i')), lane: g.n(0, g.plan.lanes[1-s]-1), tgt: g.n(0, modelTgts-1), seed: g.next()}
	switch t := &g.tgts[s][c.lane][c.tgt]; c.what {
	case 's':
		c.lane = g.n(0, g.plan.lanes[s]-1)
	case 'r':
		if t.via && t.open {
			c.what, t.open = 'i', false
			break
		}
		c.win, c.access = g.window(), g.access()
		*t = modelTarget{open: true, win: c.win, access: c.access}
	case 'i':
		t.open = false
	}
	return c
}
