package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
)

// modelPatience bounds each wait of the model test.
const modelPatience = 30 * time.Second

// modelTeardown is below the time after which a stream that ends cuts off a peer
// that does not follow. On a machine so slow the end proves nothing.
const modelTeardown = 1800 * time.Millisecond

// modelByte is byte i of the contents that seed stands for.
func modelByte(seed uint64, i int) byte {
	return byte((seed<<32 + uint64(i) + 1) * 0x9e3779b97f4a7c15 >> 53)
}

func modelFill(b []byte, seed uint64) {
	for i := range b {
		b[i] = modelByte(seed, i)
	}
}

// modelSent and modelGot record a work request and what became of it.
type modelSent struct {
	op       *modelOp
	rejected error
	wc       WC
	done     bool
	snap     []byte // its sink at the completion
}

type modelGot struct {
	recv  modelRecv
	wc    WC
	done  bool
	snap  []byte // its buffer at the completion
	seals [][]byte
}

// modelLane is the memory of a lane: what it sends from, and what the peer's lane
// reaches.
type modelLane struct {
	src, inl, sink *MR // inl: of inline data, overwritten after the post
	tgt            [modelTgts]*MR
	mw             [modelTgts]*MW
}

// modelEnd is one side of a run.
type modelEnd struct {
	s    int
	plan *modelPlan
	dev  *Device
	ulp  *ULP
	pds  [2]*PD // the second is nobody's
	cqs  []*CQ
	cfg  QPConfig
	qp   *QP
	srq  *SRQ // nil: the queue pair's own receive queue

	alien, dead *MR
	lanes       [modelLanes]modelLane
	recvMR      *MR
	mrs         []*MR

	mu      sync.Mutex
	sent    [modelLanes][]*modelSent // of this phase, in order of posting
	got     []*modelGot              // of the whole run, in order of posting
	order   []uint64                 // IDs of completions, in order
	problem error
	wake    chan struct{}
	stop    context.CancelFunc // of the pollers
	polling sync.WaitGroup
	seals   [][]modelSeal // of the peer's messages
}

// idOf is the ID of a work request; receives have lane -1.
func modelID(lane, i int) uint64 { return uint64(lane+1)<<32 | uint64(i) }

func (e *modelEnd) failf(format string, args ...any) {
	if e.problem == nil {
		e.problem = fmt.Errorf("side %d: "+format, append([]any{e.s}, args...)...)
	}
}

func (e *modelEnd) open(p *modelPlan, s int) (err error) {
	e.s, e.plan, e.wake = s, p, make(chan struct{}, 1)
	must := func(e error) {
		if err == nil {
			err = e
		}
	}
	e.dev, err = Open(Config{})
	if err != nil {
		return err
	}
	e.ulp, err = e.dev.NewULP("model", ULPConfig{Trust: ST})
	must(err)
	for i := range e.pds {
		e.pds[i], err = e.ulp.AllocPD()
		must(err)
	}
	reg := func(pd *PD, n int, seed uint64, a Access) *MR {
		b := make([]byte, n)
		modelFill(b, seed)
		mr, err := pd.RegisterMR(b, a)
		must(err)
		e.mrs = append(e.mrs, mr)
		return mr
	}
	all := LocalWrite | RemoteRead | RemoteWrite | RemoteAtomic
	e.alien, e.dead = reg(e.pds[1], 64, 1, all), reg(e.pds[0], 64, 2, all)
	must(e.dead.Invalidate())
	e.recvMR = reg(e.pds[0], modelRecvs, 3, LocalWrite)
	for l := range e.lanes {
		ln := &e.lanes[l]
		if l < p.lanes[s] {
			ln.src, ln.inl, ln.sink = reg(e.pds[0], modelArea, 4, 0), reg(e.pds[0], modelArea, 5, 0), reg(e.pds[0], modelSink, 6, LocalWrite)
		}
		for k := range ln.tgt {
			if l < p.lanes[1-s] {
				ln.tgt[k] = reg(e.pds[0], modelArea, 7, all|WindowBind)
				alloc := e.pds[0].AllocMW
				if k == 1 {
					alloc = e.pds[0].AllocKeyedMW
				}
				ln.mw[k], err = alloc()
				must(err)
			}
		}
	}
	var handler CQHandler
	if p.cqs[s] == 2 {
		handler = modelHandler{e}
	}
	for range 1 + p.cqs[s]%2 {
		cq, err := e.ulp.CreateCQ(1024, handler)
		must(err)
		e.cqs = append(e.cqs, cq)
	}
	ird := p.ord[1-s]
	e.cfg = QPConfig{SendCQ: e.cqs[0], RecvCQ: e.cqs[len(e.cqs)-1], MaxSend: p.queue[s], MaxRecv: 256, MaxSendSGE: p.sges, MaxRecvSGE: p.sges, IRD: ird, ORD: p.ord[s]}
	if p.srq[s] {
		e.srq, err = e.pds[0].CreateSRQ(SRQConfig{MaxRecv: 256, MaxSGE: p.sges})
		must(err)
		e.cfg.SRQ, e.cfg.MaxRecv, e.cfg.MaxRecvSGE = e.srq, 0, 0
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	if handler == nil {
		for _, cq := range e.cqs {
			e.polling.Go(func() { e.poll(ctx, cq) })
		}
	}
	return err
}

type modelHandler struct{ e *modelEnd }

func (h modelHandler) Completions(_ *CQ, wcs []WC) { h.e.take(wcs) }

func (e *modelEnd) poll(ctx context.Context, cq *CQ) {
	var wcs [5]WC
	for over := false; ; {
		n := cq.Poll(wcs[:])
		e.take(wcs[:n])
		switch {
		case n == 0 && over:
			return
		case n == 0:
			over = cq.Wait(ctx) != nil
		}
	}
}

// take records completions. What is read here has been delivered and must not
// change any more.
func (e *modelEnd) take(wcs []WC) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, wc := range wcs {
		lane, i := int(wc.ID>>32)-1, int(uint32(wc.ID))
		e.order = append(e.order, wc.ID)
		if wc.QP != e.qp && e.qp != nil {
			e.failf("completion %#x names another queue pair", wc.ID)
		}
		switch {
		case lane < 0 && i < len(e.got):
			r := e.got[i]
			if r.done {
				e.failf("receive %d completes twice", i)
			}
			if r.wc, r.done = wc, true; wc.Err == nil {
				r.snap = modelGather(e.recvMR, r.recv.sgl)
				if i < len(e.seals) {
					for _, s := range e.seals[i] {
						r.seals = append(r.seals, modelGather(e.lanes[0].tgt[s.tgt], []modelPiece{s.modelPiece}))
					}
				}
			}
		case lane >= 0 && lane < modelLanes && i < len(e.sent[lane]):
			r := e.sent[lane][i]
			if r.done {
				e.failf("work request %d.%d completes twice", lane, i)
			}
			if r.wc, r.done = wc, true; wc.Err == nil && r.op.needs() {
				r.snap = modelGather(e.lanes[lane].sink, r.op.sgl)
			}
		default:
			e.failf("completion with ID %#x that was not posted", wc.ID)
		}
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func modelGather(mr *MR, sgl []modelPiece) (b []byte) {
	for _, p := range sgl {
		b = append(b, mr.Bytes()[p.off:p.off+p.n]...)
	}
	return b
}

func modelSGL(mr *MR, sgl []modelPiece) (l []SGE) {
	for _, p := range sgl {
		l = append(l, SGE{mr, uint32(p.off), uint32(p.n)})
	}
	return l
}

// await waits until what says so, which it asks with the lock held.
func (e *modelEnd) await(what string, ok func() bool) error {
	limit := time.NewTimer(modelPatience)
	defer limit.Stop()
	for {
		e.mu.Lock()
		done := ok()
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-e.wake:
		case <-e.qp.Done():
			e.mu.Lock()
			defer e.mu.Unlock()
			if ok() {
				return nil
			}
			return fmt.Errorf("side %d: the stream ended before %s: %w", e.s, what, e.qp.Err())
		case <-limit.C:
			return fmt.Errorf("side %d: waited %v for %s", e.s, modelPatience, what)
		}
	}
}

// receive posts the receives of a phase.
func (e *modelEnd) receive(rs []modelRecv) {
	for _, r := range rs {
		e.mu.Lock()
		i := len(e.got)
		e.got = append(e.got, &modelGot{recv: r})
		e.mu.Unlock()
		post := e.qp.PostRecv
		if e.srq != nil {
			post = e.srq.PostRecv
		}
		if err := post(RecvWR{ID: modelID(-1, i), SGL: modelSGL(e.recvMR, r.sgl)}); err != nil {
			e.mu.Lock()
			e.failf("receive %d is refused: %v", i, err)
			e.mu.Unlock()
		}
	}
}

// tag is the STag of a target of the peer, via its memory window or not.
func (e *modelEnd) tag(peer *modelEnd, lane, tgt int, via bool) uint32 {
	switch tgt {
	case modelNoTag:
		return 0
	case modelDeadTag:
		return peer.dead.STag()
	case modelAlienTag:
		return peer.alien.STag()
	}
	if via {
		return peer.lanes[lane].mw[tgt].STag()
	}
	return peer.lanes[lane].tgt[tgt].STag()
}

// run posts the work requests of a lane from the first on.
func (e *modelEnd) run(peer *modelEnd, lane, first int, ops []modelOp, end *modelEnding) {
	ln := &e.lanes[lane]
	for i := first; i < len(ops); i++ {
		o := &ops[i]
		if end != nil && lane == 0 && i == end.at[e.s] {
			e.finish(end)
		}
		mr := ln.src
		switch {
		case o.needs():
			mr = ln.sink
		case o.flags&Inline != 0:
			mr = ln.inl
			modelFill(mr.Bytes(), o.seed)
		}
		wr := SendWR{ID: modelID(lane, i), Op: o.kind, Flags: o.flags, SGL: modelSGL(mr, o.sgl), RemoteSTag: e.tag(peer, lane, o.tgt, o.via), RemoteTO: o.to,
			Invalidate: o.inv != modelNoTag, InvalidateSTag: e.tag(peer, lane, o.inv, o.via), Imm: o.imm,
			Add: o.a.AddSwap, AddMask: o.a.AddSwapMask, Compare: o.a.Compare, CompareMask: o.a.CompareMask}
		if o.local() {
			e.change(&wr, o)
		}
		e.spoil(&wr, o.bad, ln.src)
		e.mu.Lock()
		r := &modelSent{op: o}
		e.sent[lane] = append(e.sent[lane], r)
		e.mu.Unlock()
		err := e.post(&wr)
		if o.flags&Inline != 0 {
			clear(ln.inl.Bytes())
		}
		e.mu.Lock()
		r.rejected = err
		if (err != nil) != (o.bad != 0) && (end == nil || err == nil) {
			e.failf("post %d.%d (%v): %v", lane, i, o, err)
		}
		e.mu.Unlock()
	}
	if end != nil && lane == 0 && len(ops) == end.at[e.s] {
		e.finish(end)
	}
	e.qp.Flush()
}

// spoil makes wr what PostSend rejects.
func (e *modelEnd) spoil(wr *SendWR, how int, src *MR) {
	switch how {
	case 1:
		wr.SGL = []SGE{{src, modelArea - 1, 2}}
	case 2:
		wr.SGL = slices.Repeat(whole(src, 1), e.cfg.MaxSendSGE+1)
	case 3:
		wr.SGL = []SGE{{e.alien, 0, 1}}
	case 4:
		wr.Op, wr.SGL = OpRead, []SGE{{src, 0, 1}} // not LocalWrite, or an ORD of 0
	case 5:
		wr.Op, wr.SGL = OpFetchAdd, []SGE{{e.recvMR, 0, 7}}
	case 6:
		wr.Op, wr.SGL = OpImmediate, []SGE{{src, 0, 1}}
	}
}

// post waits while the queue is full.
func (e *modelEnd) post(wr *SendWR) error {
	for start := time.Now(); ; runtime.Gosched() {
		err := e.qp.PostSend(wr)
		if !errors.Is(err, ErrQueueFull) {
			return err
		}
		if e.qp.Flush(); time.Since(start) > modelPatience {
			return fmt.Errorf("for %v: %w", modelPatience, err)
		}
	}
}

var errModelAbort = errors.New("the model aborts")

func (e *modelEnd) finish(end *modelEnding) {
	switch {
	case end.how == 'C' || end.how == 'c' && end.side == e.s:
		e.qp.Close()
	case end.how == 'a' && end.side == e.s:
		e.qp.Abort(errModelAbort)
	}
}

// change makes wr what o does with the side's own targets.
func (e *modelEnd) change(wr *SendWR, o *modelOp) {
	ln := &e.lanes[o.lane]
	switch {
	case o.kind != OpInvalidateLocal:
		wr.SGL, wr.MW, wr.Access = modelSGL(ln.tgt[o.own.tgt], []modelPiece{o.own.modelPiece}), ln.mw[o.own.tgt], o.grant
		if wr.MW != nil {
			wr.Key = uint8(wr.MW.STag()) + 1
		}
	case o.fault != nil:
		wr.InvalidateSTag = e.dead.STag()
	default:
		wr.InvalidateSTag = e.tag(e, o.lane, o.own.tgt, o.via)
	}
}

// quietly does what a side does with its own memory.
func (e *modelEnd) quietly(c modelLocal) error {
	ln := &e.lanes[c.lane]
	switch c.what {
	case 's':
		modelFill(ln.src.Bytes(), c.seed)
	case 't':
		modelFill(ln.tgt[c.tgt].Bytes(), c.seed)
	case 'r':
		_, err := ln.tgt[c.tgt].Reregister(c.win.off, c.win.n, c.access)
		return err
	case 'i':
		return errors.Join(ln.tgt[c.tgt].Invalidate(), ln.mw[c.tgt].Invalidate())
	}
	return nil
}

// connectModel joins both ends over the net of the plan.
func connectModel(p *modelPlan, ends *[2]modelEnd) error {
	a, b := &ends[0], &ends[1]
	prepare := func(e *modelEnd) func(*QP) error {
		return func(qp *QP) error {
			e.mu.Lock()
			e.qp = qp
			e.mu.Unlock()
			e.receive(p.phases[0].recvs[e.s])
			return nil
		}
	}
	if !p.net.mpa && p.net.sctp[0] == nil {
		var llps [2]ddp.LLP
		llps[0], llps[1] = modelMemory(p.net)
		for s := range 2 {
			e := &ends[s]
			conn := fakeConn{peer: transport.Identity(fmt.Sprint("side ", 1-s))}
			if _, err := e.pds[0].Adopt(AdoptConfig{QP: e.cfg, Prepare: prepare(e), LLP: llps[s], Conn: conn, IRD: e.cfg.IRD, ORD: e.cfg.ORD}); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelPatience)
	defer cancel()
	tc, local := p.net.sctp, sctpLocal
	if p.net.mpa {
		tc, local = [2]*transport.Config{tcp, tcp}, netip.AddrPortFrom(sctpLocal.Addr(), 0)
	}
	var mc [2]Setup
	for s := range mc {
		mc[s] = Setup{Markers: p.net.markers[s], EMSS: func() int { return p.net.mulpdu }}
		if !p.net.crc {
			mc[s].NoCRC = true
		}
		if p.net.large {
			mc[s].LargeFPDU = 8192
		}
	}
	ln, err := b.dev.Listen(ctx, local, ListenConfig{Transport: tc[1], Setup: mc[1]})
	if err != nil {
		return err
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() {
		cr, err := ln.Accept(ctx)
		if err == nil {
			_, err = cr.Accept(ctx, b.pds[0], AcceptConfig{QP: b.cfg, Prepare: prepare(b)})
		}
		accepted <- err
	}()
	_, err = a.pds[0].Dial(ctx, DialConfig{QP: a.cfg, Prepare: prepare(a), Remote: ln.Addr(), Transport: tc[0], Setup: mc[0]})
	return errors.Join(err, <-accepted)
}

func modelMemory(n modelNet) (a, b ddp.LLP) {
	return iwarptest.Pair(iwarptest.Options{MULPDU: n.mulpdu, Direct: n.direct, Window: n.window, Shuffle: n.window > 0, Seed: n.seed})
}
