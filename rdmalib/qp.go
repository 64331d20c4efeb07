package rdmalib

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ironwarp/ironwarp/verbs"
)

// QPConfig is struct iw_qp_config of c/engine.h.
type QPConfig struct {
	PD, SendCQ, RecvCQ, SRQ uint32 // handles; SRQ 0: none
	MaxSend, MaxRecv        uint32
	SendSGE, RecvSGE        uint32 // most elements of a list
}

// qp is a queue pair. Its number is its handle.
type qp struct {
	e        *Engine
	num      uint32
	pd       *verbs.PD
	scq, rcq *cq
	v        *verbs.QP

	ids []atomic.Uint64 // the program's of its sends, by the number; as many as there can be before it has polled them, or more

	mu   sync.Mutex  // guards the fields below it: work requests have their numbers in the order in which they are posted
	seq  uint64      // of the last send
	list []verbs.SGE // room for the list of one that is longer than usual

	connected atomic.Bool // it has, or had, a stream
	sendFault atomic.Bool // the first error of its sends is out
	recvFault atomic.Bool // and of its receives
}

func (q *qp) id() uint64 { return q.v.ID() }

// CreateQP makes a queue pair that connects later; its handle is also its number. Each work request may become two of
// the stream's.
func (e *Engine) CreateQP(c *QPConfig) (uint32, syscall.Errno) {
	p, scq, rcq := e.pds.get(c.PD), e.cqs.get(c.SendCQ), e.cqs.get(c.RecvCQ)
	if p == nil || scq == nil || rcq == nil || c.MaxSend > MaxWR || c.MaxRecv > MaxWR || c.SendSGE > verbs.MaxSGE || c.RecvSGE > verbs.MaxSGE {
		return 0, syscall.EINVAL
	}
	q := &qp{e: e, pd: p.pd, scq: scq, rcq: rcq, ids: make([]atomic.Uint64, 1<<bits.Len32(c.MaxSend))}
	cfg := verbs.QPConfig{SendCQ: scq.cq, RecvCQ: rcq.cq, MaxSend: 2 * int(max(1, c.MaxSend)), MaxRecv: int(max(1, c.MaxRecv)),
		MaxSendSGE: sges(c.SendSGE), MaxRecvSGE: sges(c.RecvSGE), Context: q}
	if c.SRQ != 0 {
		s := e.srqs.get(c.SRQ)
		if s == nil {
			return 0, syscall.EINVAL
		}
		cfg.SRQ, cfg.MaxRecv, cfg.MaxRecvSGE = s.srq, 0, 0
	}
	v, err := p.pd.CreateQP(cfg)
	if err != nil {
		return 0, e.errnoOf("create a queue pair", err)
	}
	q.v = v
	if q.num = e.qps.add(q); q.num == 0 {
		v.Abort(nil)
		return 0, syscall.ENOMEM
	}
	return q.num, 0
}

// sges is how many elements the lists of a queue have that a program asks for n.
func sges(n uint32) int { return max(int(n), verbs.DefaultSGE) }

// DestroyQP ends a queue pair. When it returns nothing of it completes or touches memory any more.
func (e *Engine) DestroyQP(h uint32) syscall.Errno {
	q := e.qps.remove(h)
	if q == nil {
		return syscall.EINVAL
	}
	q.v.Abort(verbs.ErrClosed)
	<-q.v.Done()
	return 0
}

// FailQP moves a queue pair to the error state, in which what is posted is flushed.
func (e *Engine) FailQP(h uint32) syscall.Errno {
	q := e.qps.get(h)
	if q == nil {
		return syscall.EINVAL
	}
	q.v.Abort(verbs.ErrClosed)
	return 0
}

// Numbers of enum ibv_qp_state.
const (
	stateReset = 0
	stateRTS   = 3
	stateSQD   = 4
	stateError = 6
)

// QPState is a queue pair's state by enum ibv_qp_state; stateReset: it has not been connected, and the C library knows.
func (e *Engine) QPState(h uint32) uint32 {
	q := e.qps.get(h)
	if q == nil {
		return stateError
	}
	switch q.v.State() {
	case verbs.QPIdle:
		return stateReset
	case verbs.QPRTS:
		return stateRTS
	case verbs.QPClosing:
		return stateSQD
	}
	return stateError
}

// Kinds of a Send, of c/engine.h.
const (
	SendSend = iota + 1
	SendWrite
	SendRead
	SendImm      // RDMA Write with immediate data: a Write, and Immediate Data (RFC 7306) of its length and the 4 bytes
	SendFetchAdd // RFC 7306
	SendCmpSwap
	SendBind
	SendInvalidate // locally
)

// Flags of a Send.
const (
	FlagSignaled = 1 << iota
	FlagSolicited
	FlagFence
	FlagMore
	FlagInline
	FlagInvalidate // a Send with Invalidate of Imm
)

// Send is a send work request: struct iw_send of c/engine.h.
type Send struct {
	ID       uint64
	Op       uint32
	Flags    uint32
	NSGE     uint32
	RKey     uint32
	RAddr    uint64
	Imm      uint64
	Add      uint64 // or what to swap in
	Cmp      uint64
	MW       uint32
	Access   uint32
	SG       *SGE
	Reserved uint64
}

// PostSend posts n work requests, and returns how many. The C library keeps count: no more are posted and not polled than
// the queue pair was made for.
func (e *Engine) PostSend(h uint32, s *Send, n uint32) (done uint32, _ syscall.Errno) {
	q := e.qps.get(h)
	if q == nil {
		return 0, syscall.EINVAL
	}
	all := unsafe.Slice(s, n)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range all {
		q.seq++
		q.ids[q.seq%uint64(len(q.ids))].Store(all[i].ID)
		if errno := q.postLocked(&all[i]); errno != 0 {
			q.seq--
			q.v.Flush() // of what was posted with FlagMore
			return uint32(i), errno
		}
	}
	return n, 0
}

func (q *qp) postLocked(s *Send) syscall.Errno {
	var short [verbs.DefaultSGE]verbs.SGE
	room := short[:0]
	if s.NSGE > verbs.DefaultSGE {
		room = q.longListLocked()
	}
	wr := verbs.SendWR{ID: q.seq, Flags: flagsOf(s.Flags), RemoteSTag: s.RKey, RemoteTO: s.RAddr}
	if s.Op == SendSend || s.Op == SendInvalidate {
		wr.RemoteSTag, wr.RemoteTO = 0, 0
	}
	if s.Flags&FlagInline != 0 {
		if s.NSGE > verbs.MaxSGE {
			return syscall.EINVAL
		}
		var inline [MaxInline]byte
		n := 0
		for _, x := range unsafe.Slice(s.SG, s.NSGE) {
			if uint64(x.Len) > uint64(len(inline)-n) {
				return syscall.EINVAL
			}
			n += copy(inline[n:], unsafe.Slice((*byte)(pointerTo(x.Addr)), x.Len))
		}
		wr.Data = inline[:n]
	} else {
		var errno syscall.Errno
		if wr.SGL, errno = q.e.list(room, s.SG, s.NSGE); errno != 0 {
			return errno
		}
	}
	switch s.Op {
	case SendSend:
		wr.Op = verbs.OpSend
		if s.Flags&FlagInvalidate != 0 {
			wr.Invalidate, wr.InvalidateSTag = true, uint32(s.Imm)
		}
	case SendWrite:
		wr.Op = verbs.OpWrite
	case SendRead:
		wr.Op = verbs.OpRead
	case SendImm:
		return q.writeWithImmLocked(&wr, s)
	case SendFetchAdd:
		wr.Op, wr.Add = verbs.OpFetchAdd, s.Add
	case SendCmpSwap:
		wr.Op, wr.Add, wr.AddMask, wr.Compare, wr.CompareMask = verbs.OpCmpSwap, s.Add, ^uint64(0), s.Cmp, ^uint64(0)
	case SendBind:
		return q.bind(&wr, s)
	case SendInvalidate:
		wr.Op, wr.InvalidateSTag = verbs.OpInvalidateLocal, s.RKey
	default:
		return syscall.EINVAL
	}
	return q.posted(&wr, q.v.PostSend(&wr))
}

// longListLocked is room for a list, of the queue pair's: that of a short one is cleared each time.
func (q *qp) longListLocked() []verbs.SGE {
	if q.list == nil {
		q.list = make([]verbs.SGE, 0, verbs.MaxSGE)
	}
	return q.list
}

// pointerTo is an address of the process's memory that C has given.
func pointerTo(addr uint64) unsafe.Pointer {
	a := uintptr(addr)
	return *(*unsafe.Pointer)(unsafe.Pointer(&a))
}

// MaxInline is how many bytes a work request may have inline.
const MaxInline = 1024

func flagsOf(f uint32) (v verbs.Flags) {
	for i, x := range [...]verbs.Flags{verbs.Signaled, verbs.Solicited, verbs.Fence, verbs.More, verbs.Inline} {
		if f&(1<<i) != 0 {
			v |= x
		}
	}
	return v
}

// part is in the ID of a work request that is the first part of one of the program's: the second completes it.
const part = 1 << 63

func isPart(wc *verbs.WC) bool { return wc.Op == verbs.WCWrite && wc.ID&part != 0 }

// writeWithImmLocked posts an RDMA Write and the Immediate Data behind it, which takes a receive of the peer's.
func (q *qp) writeWithImmLocked(wr *verbs.SendWR, s *Send) syscall.Errno {
	n := uint64(len(wr.Data))
	for _, x := range wr.SGL {
		n += uint64(x.Len)
	}
	if n > 0 {
		wr.ID, wr.Op, wr.Flags = wr.ID|part, verbs.OpWrite, wr.Flags&^(verbs.Signaled|verbs.Solicited)|verbs.More
		if errno := q.posted(wr, q.v.PostSend(wr)); errno != 0 {
			return errno
		}
	}
	imm := verbs.SendWR{ID: q.seq, Op: verbs.OpImmediate, Flags: flagsOf(s.Flags) &^ verbs.Inline, Imm: n<<32 | s.Imm&(1<<32-1)}
	return q.posted(&imm, q.v.PostSend(&imm))
}

// bind posts a bind, for which the program has chosen the STag: but for the key that of the window before.
func (q *qp) bind(wr *verbs.SendWR, s *Send) syscall.Errno {
	w := q.e.mws.get(s.MW)
	if w == nil || (s.RKey^w.mw.STag())>>8 != 0 || s.NSGE != 1 || s.Access&^(accessLocalWrite|accessRemoteWrite|accessRemoteRead|accessAtomic|accessZeroBased) != 0 {
		return syscall.EINVAL
	}
	wr.Op, wr.MW, wr.Key, wr.Access = verbs.OpBind, w.mw, uint8(s.RKey), accessOf(s.Access)
	wr.RemoteSTag, wr.RemoteTO = 0, 0
	if s.Access&accessZeroBased == 0 {
		wr.Base = s.SG.Addr
	}
	return q.posted(wr, q.v.PostSend(wr))
}

// posted is the errno of a post; on a queue pair that is over work requests complete at once, flushed.
func (q *qp) posted(wr *verbs.SendWR, err error) syscall.Errno {
	if err != nil && errors.Is(err, verbs.ErrClosed) && q.v.State() >= verbs.QPClosing {
		if wr.ID&part == 0 {
			q.scq.flush(WC{ID: q.programID(wr.ID), Seq: uint32(wr.ID), Status: statusFlush, Opcode: opcodeOfSend(wr.Op), QPNum: q.num})
		}
		return 0
	}
	return q.e.postErrno(err)
}

// PostRecv posts a receive.
func (e *Engine) PostRecv(h uint32, id uint64, sg *SGE, n uint32) syscall.Errno {
	q := e.qps.get(h)
	if q == nil {
		return syscall.EINVAL
	}
	if n > verbs.DefaultSGE {
		return q.postLongRecv(id, sg, n)
	}
	var room [verbs.DefaultSGE]verbs.SGE
	l, errno := e.list(room[:0], sg, n)
	if errno != 0 {
		return errno
	}
	return q.postRecv(id, l)
}

// postLongRecv is PostRecv of a long list: the room for a short one is cleared each time.
func (q *qp) postLongRecv(id uint64, sg *SGE, n uint32) syscall.Errno {
	var room [verbs.MaxSGE]verbs.SGE
	l, errno := q.e.list(room[:0], sg, n)
	if errno != 0 {
		return errno
	}
	return q.postRecv(id, l)
}

func (q *qp) postRecv(id uint64, l []verbs.SGE) syscall.Errno {
	err := q.v.PostRecv(verbs.RecvWR{ID: id, SGL: l})
	if err != nil && errors.Is(err, verbs.ErrClosed) {
		q.rcq.flush(WC{ID: id, Status: statusFlush, Opcode: opcodeRecv, QPNum: q.num})
		return 0
	}
	return q.e.postErrno(err)
}

// flush completes a work request that was posted to a queue pair that is over.
func (c *cq) flush(wc WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return
	}
	tail := c.ring.Tail
	if tail-atomic.LoadUint64(&c.ring.Head) > c.ring.Mask {
		return
	}
	c.wcs[tail&c.ring.Mask] = wc
	atomic.StoreUint64(&c.ring.Tail, tail+1)
	c.notifyLocked(true)
}

// programID is what the program calls a send of that number. Its place is another one's only when the program has polled it.
func (q *qp) programID(seq uint64) uint64 { return q.ids[seq%uint64(len(q.ids))].Load() }

// completion is a completion as the C library hands it out.
func (q *qp) completion(wc *verbs.WC) WC {
	w := WC{ID: wc.ID, QPNum: q.num, Len: wc.Len, Opcode: opcodeOf(wc.Op)}
	if wc.Op != verbs.WCRecv && wc.Op != verbs.WCRecvImm {
		w.ID, w.Seq = q.programID(wc.ID), uint32(wc.ID)
	}
	if wc.Err != nil {
		w.Status = q.status(wc)
		return w
	}
	switch wc.Op {
	case verbs.WCRecvImm:
		w.Imm = binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, uint32(wc.Imm)))
		w.Len, w.Flags = uint32(wc.Imm>>32), flagWithImm
	case verbs.WCAtomic:
		w.Len = 8
	}
	if wc.Invalidated != 0 {
		w.Invalidated, w.Flags = wc.Invalidated, w.Flags|flagWithInv
	}
	return w
}
