package verbs

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// upper is the QP as its stream sees it.
type upper QP

var _ rdmap.Upper = (*upper)(nil)

// Acquire implements rdmap.Upper.
func (u *upper) Acquire(stag uint32, to uint64, n uint32, need rdmap.Access) ([]byte, rdmap.Pin, rdmap.Fault) {
	return u.pd.ulp.dev.acquire(u.pd, (*QP)(u), stag, to, n, need)
}

// InvalidateRemote implements rdmap.Upper.
func (u *upper) InvalidateRemote(stag uint32) rdmap.Fault {
	return (*QP)(u).invalidateRemote(stag)
}

// NextRecv implements rdmap.Upper.
func (u *upper) NextRecv() *rdmap.RecvBuffer {
	if u.cfg.SRQ != nil {
		return u.nextShared()
	}
	q := &u.rq
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == q.tail {
		return nil
	}
	r := q.slots[q.next%uint64(len(q.slots))]
	if isWithdrawn(r) {
		u.share.fault = ErrWithdrawn
		return nil
	}
	q.next++
	return r
}

// Received implements rdmap.Upper.
func (u *upper) Received(r *rdmap.RecvBuffer, m rdmap.Message) {
	wc := WC{ID: r.ID, QP: (*QP)(u), Op: WCRecv, Solicited: m.Solicited(), Len: m.Len, Invalidated: m.Invalidated, Imm: m.Imm}
	if m.Op == rdmap.OpImmediate || m.Op == rdmap.OpImmediateSE {
		wc.Op = WCRecvImm
	}
	if u.cfg.SRQ != nil {
		wc.shared = true
		u.cfg.SRQ.used(u)
	} else {
		q := &u.rq
		q.mu.Lock()
		forget(r)
		q.head++
		q.mu.Unlock()
	}
	u.stats.recvOps.Add(1)
	u.stats.recvBytes.Add(uint64(m.Len))
	u.cfg.RecvCQ.push(wc)
	u.recvDirty = true
}

func release(refs []rdmap.Pin) {
	for i, r := range refs {
		if r != nil {
			r.Unpin()
			refs[i] = nil
		}
	}
}

// forget releases the memory of a finished receive: its slot may stay unused for long.
func forget(r *rdmap.RecvBuffer) {
	release(r.Ref)
	clear(r.SGL)
	r.SGL, r.Ref = r.SGL[:0], r.Ref[:0]
}

// Local implements rdmap.Upper.
func (u *upper) Local(op *rdmap.Op) error {
	if w := op.Local.(*window); w != nil {
		err := w.openReserved((*QP)(u))
		op.STag = 0 // a later operation may have reserved the same one before this is done
		return err
	}
	return (*QP)(u).invalidateLocal(op.STag)
}

// localDone is the kind of completion of an OpLocal.
func localDone(op *rdmap.Op) WCOp {
	w := op.Local.(*window)
	if w == nil {
		return WCInvalidate
	}
	if op.STag != 0 { // it was not executed
		w.unreserve(op.STag)
	}
	if w.mw {
		return WCBind
	}
	return WCRegister
}

// SendDone implements rdmap.Upper.
func (u *upper) SendDone(op *rdmap.Op, err error) {
	wc := WC{ID: op.ID, QP: (*QP)(u)}
	if op.Kind == rdmap.OpLocal {
		wc.Op = localDone(op)
	}
	release(op.Ref)
	if err == nil {
		u.stats.sendOps.Add(1)
		switch op.Kind {
		case rdmap.OpReadRequest:
			u.stats.recvBytes.Add(uint64(op.Len))
		case rdmap.OpAtomicRequest: // its operands are no payload
		default:
			u.stats.sendBytes.Add(uint64(op.Len))
		}
		if !op.Signaled {
			return
		}
	} else if own, ok := err.(*opError); ok {
		wc.Err = own
	} else {
		wc.Err = &flushError{cause: err}
	}
	switch op.Kind {
	case rdmap.OpLocal:
	case rdmap.OpWrite:
		wc.Op = WCWrite
	case rdmap.OpReadRequest:
		wc.Op, wc.Len = WCRead, op.Len
	case rdmap.OpAtomicRequest:
		wc.Op, wc.Imm = WCAtomic, op.Orig
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		wc.Op = WCImmediate
	default:
		wc.Op = WCSend
	}
	u.cfg.SendCQ.push(wc)
	u.sendDirty.Store(true)
}

// flushError is the error of a work request that was outstanding when its stream ended.
type flushError struct{ cause error }

func (e *flushError) Error() string        { return "verbs: flushed: " + e.cause.Error() }
func (e *flushError) Unwrap() error        { return e.cause }
func (e *flushError) Is(target error) bool { return target == ErrFlushed }

// Completions implements rdmap.Upper.
func (u *upper) Completions(engine bool) {
	if u.sendDirty.Load() && u.sendDirty.Swap(false) {
		u.cfg.SendCQ.notify(engine)
	}
}

// BatchEnd implements rdmap.Upper.
func (u *upper) BatchEnd() {
	if u.recvDirty {
		u.recvDirty = false
		u.Completions(true) // of the sends to which these may be the answers
		u.cfg.RecvCQ.notify(true)
	}
}

// Ended implements rdmap.Upper.
func (u *upper) Ended(err error) {
	qp := (*QP)(u)
	dev := qp.pd.ulp.dev
	if u.share.fault != nil && errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeUntagged, Code: ddp.CodeUntaggedNoBuffer}) {
		err = fmt.Errorf("%w: %w", u.share.fault, err)
	}
	if u.slow.over && errors.Is(err, &ddp.Error{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteOperation, Code: rdmap.CodeCatastrophicStream}) {
		err = fmt.Errorf("%w: %w", ErrSlowPath, err)
	}
	if s, ok := qp.link().(*session); ok && err != nil && s.a.strays.over.Load() {
		err = fmt.Errorf("%w: %w", ErrSlowPath, err)
	}
	qp.err = err
	u.giveBack()
	qp.unbind()
	qp.flushRecvs(flushCause(err), true)
	qp.cfg.SendCQ.settle()
	qp.cfg.RecvCQ.settle()
	var fault *ddp.Error
	var term *rdmap.TerminateError
	var illegal *sctpadapt.SessionError
	switch {
	case errors.Is(err, ErrSlowPath):
		dev.events.emit(qp.event(EventSlowPath, err))
	case errors.As(err, &term): // first: a faulty Terminate is a peer's fault, but is not answered by one
		dev.events.emit(qp.event(EventTerminated, err))
	case errors.As(err, &illegal), errors.As(err, &fault) && !(fault.Layer == ddp.LayerLLP && fault.Code == mpa.CodeConnectionLost):
		qp.reportFault(err)
	}
	dev.events.emit(qp.event(EventStreamDown, err))
	if s, ok := qp.link().(*session); ok {
		s.a.streamEnded(err)
		s.leave() // the Protection is the association's
	} else {
		qp.link().Protection().Release()
	}
	qp.free()
	close(qp.done)
}

func flushCause(err error) error {
	if err == nil {
		return ErrClosed
	}
	return err
}

// flushRecvs ends every posted receive, with a completion if announce is set.
func (qp *QP) flushRecvs(cause error, announce bool) {
	q := &qp.rq
	q.mu.Lock()
	q.closed = true
	var wcs []WC
	for ; q.head < q.tail; q.head++ {
		r := q.slots[q.head%uint64(len(q.slots))]
		forget(r)
		wcs = append(wcs, WC{ID: r.ID, QP: qp, Op: WCRecv, Err: &flushError{cause: cause}})
	}
	q.mu.Unlock()
	if !announce {
		return
	}
	for _, wc := range wcs {
		qp.cfg.RecvCQ.push(wc)
	}
	qp.cfg.RecvCQ.notify(true)
	if qp.cfg.SendCQ != qp.cfg.RecvCQ {
		qp.cfg.SendCQ.notify(true)
	}
}
