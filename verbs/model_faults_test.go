package verbs

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// drawModel draws a whole run over net.
func drawModel(t *rapid.T, net modelNet) *modelPlan {
	g := &modelGen{t: t, plan: modelPlan{net: net}}
	p := &g.plan
	p.sges = g.pick(DefaultSGE, DefaultSGE, 7, MaxSGE)
	for s := range 2 {
		p.lanes[s] = g.pick(1, 1, 2, modelLanes)
		p.queue[s] = g.pick(1, 2, 8, 64)
		p.ord[s] = g.pick(0, 1, 2, 4, 4)
		p.cqs[s] = g.n(0, 2)
		p.srq[s] = g.chance(30)
		for l := range modelLanes {
			for k := range modelTgts {
				g.tgts[s][l][k] = modelTarget{open: true, win: modelPiece{0, modelArea}, access: LocalWrite | RemoteRead | RemoteWrite | RemoteAtomic}
			}
		}
	}
	p.phases = append(p.phases, modelPhase{})
	g.quiet(&p.phases[0]) // lets a responder send (RFC 5044 section 7.1.2 rule 4)
	for range g.n(0, 3) {
		ph := g.begin()
		for s := range 2 {
			g.ops(s, ph)
		}
		g.quiet(ph)
		g.seal(ph)
		p.phases = append(p.phases, *ph)
	}
	ph := g.begin()
	p.end = modelEnding{how: byte(g.pick('c', 'c', 'C', 'a', 'f', 'f', 'f', 'F')), side: g.n(0, 1)}
	for s := range 2 {
		if g.chance(80) {
			g.ops(s, ph)
		} else {
			ph.ops[s] = make([][]modelOp, p.lanes[s])
		}
		p.end.at[s] = g.n(0, len(ph.ops[s][0]))
	}
	for s := range 2 {
		if p.end.how == 'F' || p.end.how == 'f' && s == p.end.side {
			g.fault(s, ph)
		}
	}
	g.seal(ph)
	p.phases = append(p.phases, *ph)
	return p
}

// begin starts a phase with what the sides do on their own.
func (g *modelGen) begin() *modelPhase {
	ph := &modelPhase{}
	g.used = [2][modelLanes][modelTgts]bool{}
	clear(g.read[0][:])
	clear(g.read[1][:])
	for s := range g.tgts {
		for l := range g.tgts[s] {
			for k := range g.tgts[s][l] {
				t := &g.tgts[s][l][k]
				t.fresh, t.busy = false, false
			}
		}
	}
	for s := range 2 {
		for range g.n(0, 3) {
			ph.local[s] = append(ph.local[s], g.local(s))
		}
	}
	return ph
}

func (g *modelGen) ops(s int, ph *modelPhase) {
	for l := range g.plan.lanes[s] {
		var ops []modelOp
		for range g.n(0, 8) {
			ops = append(ops, g.op(s, l, ph, false))
		}
		ph.ops[s] = append(ph.ops[s], ops)
	}
}

// quiet ends a phase with a Send each way and a few receives more.
func (g *modelGen) quiet(ph *modelPhase) {
	for s := range 2 {
		if ph.ops[s] == nil {
			ph.ops[s] = make([][]modelOp, g.plan.lanes[s])
		}
		o := modelOp{kind: OpSend, flags: Signaled, tgt: modelNoTag, inv: modelNoTag}
		o.msg, _ = g.message(s, 0, ph)
		ph.ops[s][0] = append(ph.ops[s][0], o)
	}
	for s := range 2 {
		for range g.pick(0, 0, 1, 2) {
			g.receive(s, g.size(1000), ph)
		}
	}
}

// seal finds what of the targets can be looked at when a Send is delivered.
func (g *modelGen) seal(ph *modelPhase) {
	for s := range 2 {
		ops := ph.ops[s][0]
		for i := range ops {
			if ops[i].msg < 0 {
				continue
			}
			var written [modelTgts][modelArea]byte // 1: before, 2: later
			for j := range ops {
				o := &ops[j]
				if o.tgt < 0 || o.kind == OpRead || o.bad != 0 {
					continue
				}
				if o.fault != nil { // part of it may come early
					for k := range written[o.tgt] {
						written[o.tgt][k] = 2
					}
					continue
				}
				n, mark := pieceLen(o.sgl), byte(1)
				if o.kind != OpWrite {
					n = 8
				}
				if j > i {
					mark = 2
				}
				for k := range n {
					written[o.tgt][o.win.off+int(o.to)+k] |= mark
				}
			}
			for k := range written {
				for off := 0; off < modelArea; {
					n := 0
					for off+n < modelArea && written[k][off+n] == 1 {
						n++
					}
					if n > 0 {
						ops[i].seals = append(ops[i].seals, modelSeal{k, modelPiece{off, n}})
					}
					off += n + 1
				}
			}
		}
	}
}

// fault appends a work request that breaks a rule at the peer, and perhaps some
// that follow it.
func (g *modelGen) fault(s int, ph *modelPhase) {
	if len(ph.ops[s]) == 0 {
		ph.ops[s] = make([][]modelOp, g.plan.lanes[s])
	}
	o := modelOp{flags: g.flags(), tgt: modelNoTag, inv: modelNoTag, msg: -1, seed: g.next()}
	switch kind := g.pick('w', 'w', 'w', 'r', 'r', 'r', 'a', 'a', 'm', 'v', 'l', 'n', 'i'); {
	case kind == 'i':
		o.kind, o.inv, o.fault = OpInvalidateLocal, modelDeadTag, errModelLocal
	case kind == 'l':
		g.tooLong(s, ph, &o)
	case kind == 'n':
		g.noReceive(s, ph, &o)
	case kind == 'v':
		g.badInvalidate(s, ph, &o)
	case kind == 'w' || g.plan.ord[s] == 0:
		o.kind = OpWrite
		g.badTagged(s, &o, RemoteWrite)
		o.sgl = g.cut(pieceLen(o.sgl), modelArea)
	case kind == 'r':
		o.kind = OpRead
		g.badTagged(s, &o, RemoteRead)
		n := pieceLen(o.sgl)
		if o.sgl = g.lay(n, &g.sink[s][0], modelSink); pieceLen(o.sgl) < n { // the sink is used up
			o.kind = OpWrite
			g.badTagged(s, &o, RemoteWrite)
		}
	default:
		o.kind = OpFetchAdd
		g.badTagged(s, &o, RemoteAtomic)
		if kind == 'm' {
			g.misaligned(s, &o)
		}
		o.sgl = nil
	}
	g.fence(s, 0, &o)
	ph.ops[s][0] = append(ph.ops[s][0], o)
	for range g.n(0, 3) {
		ph.ops[s][0] = append(ph.ops[s][0], g.op(s, 0, ph, true))
	}
}

// errModelLocal is what the peer gets for a fault of our own (RFC 5040 section
// 4.8).
var errModelLocal = modelFault(ddp.LayerRDMA, rdmap.TypeLocalCatastrophic, 0)

func modelFault(layer ddp.Layer, typ, code uint8) *ddp.Error {
	return &ddp.Error{Layer: layer, Type: typ, Code: code}
}

// badTagged draws an access that is refused. RFC 5041 section 7.2 has the codes
// of Writes, RFC 5040 section 4.8 those of requests.
func (g *modelGen) badTagged(s int, o *modelOp, need Access) {
	n := max(1, g.size(700))
	if need == RemoteAtomic {
		n = 8
	}
	o.sgl = []modelPiece{{0, n}}
	code := [...]uint8{rdmap.CodeInvalidSTag, rdmap.CodeNotAssociated, rdmap.CodeBounds, rdmap.CodeTOWrap, rdmap.CodeAccess}
	layer, typ := ddp.LayerRDMA, rdmap.TypeRemoteProtection
	if need == RemoteWrite {
		layer, typ = ddp.LayerDDP, ddp.TypeTagged
		code = [...]uint8{ddp.CodeTaggedInvalidSTag, ddp.CodeTaggedNotAssociated, ddp.CodeTaggedBounds, ddp.CodeTaggedTOWrap, rdmap.CodeAccess}
	}
	why := g.n(0, 4)
	o.tgt = -1
	for k, t := range g.tgts[1-s][0] {
		if t.busy {
			continue
		}
		if why == 0 && !t.open && (!t.fresh || g.plan.net.window == 0) {
			o.tgt, o.via, o.to = k, t.via, uint64(g.n(0, 50)) // it has been invalidated
			o.fault = modelFault(layer, typ, code[0])
			return
		}
		// Beyond the bounds the right must be there: an earlier segment would be
		// refused for want of it.
		if t.open && (why != 4 || t.access&need == 0 && t.win.n >= n) && (why != 2 || t.access&need != 0) {
			o.tgt, o.via, o.win = k, t.via, t.win
		}
	}
	switch {
	case why < 2 || o.tgt < 0:
		o.tgt, o.to = modelDeadTag, uint64(g.n(0, 50))
		if why == 1 {
			o.tgt = modelAlienTag
		} else {
			why = 0
		}
	case why == 2:
		over := g.n(1, n)
		o.to = uint64(max(0, o.win.n+over-n))
	case why == 3:
		o.to = -uint64(g.n(1, min(n, 8)))
	case why == 4:
		o.to = uint64(g.n(0, o.win.n-n))
		layer, typ = ddp.LayerRDMA, rdmap.TypeRemoteProtection
	}
	o.fault = modelFault(layer, typ, code[why])
}

// misaligned draws an Atomic that would be allowed, were it aligned (RFC 7306
// section 8.2).
func (g *modelGen) misaligned(s int, o *modelOp) {
	for k, t := range g.tgts[1-s][0] {
		if t.open && !t.busy && t.access&RemoteAtomic != 0 && t.win.n >= 24 {
			o.tgt, o.via, o.win = k, t.via, t.win
			o.to = uint64((16-t.win.off%8)%8 + g.n(1, 7))
			o.fault = modelFault(ddp.LayerRDMA, rdmap.TypeRemoteOperation, rdmap.CodeCatastrophicStream)
			return
		}
	}
}

func (g *modelGen) tooLong(s int, ph *modelPhase, o *modelOp) {
	o.kind = OpSend
	if g.msgs[s] == len(g.recv[1-s]) {
		g.receive(1-s, g.size(600), ph)
	}
	o.sgl = g.cut(g.recv[1-s][g.msgs[s]]+max(1, g.size(1500)), modelArea)
	o.msg = g.msgs[s]
	g.msgs[s]++
	o.fault = modelFault(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedTooLong)
}

func (g *modelGen) noReceive(s int, ph *modelPhase, o *modelOp) {
	for g.msgs[s] < len(g.recv[1-s]) {
		fill := modelOp{kind: OpSend, flags: g.flags(), tgt: modelNoTag, inv: modelNoTag}
		fill.msg, _ = g.message(s, 0, ph)
		ph.ops[s][0] = append(ph.ops[s][0], fill)
	}
	o.kind = OpSend
	if g.chance(30) {
		o.kind = OpImmediate
	} else {
		o.sgl = g.cut(g.size(600), modelArea)
	}
	o.fault = modelFault(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedNoBuffer)
}

func (g *modelGen) badInvalidate(s int, ph *modelPhase, o *modelOp) {
	o.kind = OpSend
	o.msg, _ = g.message(s, 0, ph)
	o.inv = modelDeadTag
	code := rdmap.CodeInvalidSTag
	switch tgt := &g.tgts[1-s][0][0]; g.n(0, 2) {
	case 1:
		o.inv, code = modelAlienTag, rdmap.CodeCannotInvalidate
	case 2:
		if tgt.open && !tgt.busy && !tgt.via && tgt.access == LocalWrite { // nothing was advertised
			o.inv, code = 0, rdmap.CodeCannotInvalidate
		}
	}
	o.fault = modelFault(ddp.LayerRDMA, rdmap.TypeRemoteProtection, code)
}

func (s modelSeal) String() string { return fmt.Sprintf("target %d %v", s.tgt, s.modelPiece) }
