package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// queuePair is a verbs.QP as an Endpoint.
type queuePair struct {
	host        *Host
	mulpdu      int
	cq          *verbs.CQ
	completions interface { // of cq
		Poll([]verbs.WC) int
		Wait(context.Context) error
	}
	srq     *verbs.SRQ // nil: none of its own
	qp      *verbs.QP
	regions []region
	windows []*verbs.MW
	over    context.Context // ends with the stream
	cancel  func()
}

// region is a verbs.MR with the memory around it.
type region struct {
	mr  *verbs.MR
	mem []byte // of the whole allocation
}

var (
	_ Endpoint = (*queuePair)(nil)
	_ Reopener = (*queuePair)(nil)
	_ Armer    = (*queuePair)(nil)
	_ Binder   = (*queuePair)(nil)
)

// Can implements Endpoint.
func (q *queuePair) Can(f Feature) bool {
	switch f {
	case FlushesReceives:
		return q.host.shared == ownQueue
	case SharedReceives:
		return q.host.shared == hostSRQ
	case Arming:
		return !q.host.called
	}
	return true
}

// Limits implements Endpoint.
func (q *queuePair) Limits() Limits {
	return Limits{MaxSend: queueDepth, MaxRecv: queueDepth, ORD: q.qp.ORD(), SGEs: verbs.MaxSGE, Inline: 1 << 16, MULPDU: q.mulpdu}
}

// Region implements Endpoint.
func (q *queuePair) Region(n int, access Access) (Region, error) {
	mem := make([]byte, n+2*Guard)
	pd := q.host.pds[0]
	if access&AccessForeign != 0 {
		pd = q.host.pds[1]
	}
	mr, err := pd.RegisterMR(mem[Guard:Guard+n], rights(access))
	if err != nil {
		return Region{}, err
	}
	q.regions = append(q.regions, region{mr: mr, mem: mem})
	return Region{ID: len(q.regions) - 1, STag: mr.STag(), Len: n}, nil
}

func rights(a Access) (v verbs.Access) {
	for _, r := range [...]struct {
		is Access
		v  verbs.Access
	}{{LocalWrite, verbs.LocalWrite}, {RemoteRead, verbs.RemoteRead}, {RemoteWrite, verbs.RemoteWrite}, {RemoteAtomic, verbs.RemoteAtomic}, {AccessBind, verbs.WindowBind}} {
		if a&r.is != 0 {
			v |= r.v
		}
	}
	return v
}

// Store implements Endpoint.
func (q *queuePair) Store(r Region, off int, p []byte) error {
	copy(q.regions[r.ID].mem[Guard+off:], p)
	return nil
}

// Load implements Endpoint.
func (q *queuePair) Load(r Region, off, n int) ([]byte, error) {
	return append([]byte(nil), q.regions[r.ID].mem[Guard+off:Guard+off+n]...), nil
}

// Invalidate implements Endpoint.
func (q *queuePair) Invalidate(r Region) error { return q.regions[r.ID].mr.Invalidate() }

// Reopen implements Reopener.
func (q *queuePair) Reopen(r Region, access Access) (Region, error) {
	var err error
	r.STag, err = q.regions[r.ID].mr.Reregister(0, r.Len, rights(access))
	return r, err
}

func (q *queuePair) sgl(sgl []SGE) []verbs.SGE {
	out := make([]verbs.SGE, len(sgl))
	for i, e := range sgl {
		out[i] = verbs.SGE{MR: q.regions[e.Region.ID].mr, Off: uint32(e.Off), Len: uint32(e.Len)}
	}
	return out
}

// PostRecv implements Endpoint.
func (q *queuePair) PostRecv(id uint64, sgl []SGE) error {
	wr := verbs.RecvWR{ID: id, SGL: q.sgl(sgl)}
	switch q.host.shared {
	case ownSRQ:
		return q.srq.PostRecv(wr)
	case hostSRQ:
		return q.host.srq.PostRecv(wr)
	}
	return q.qp.PostRecv(wr)
}

// PostSend implements Endpoint.
func (q *queuePair) PostSend(wr WR) error {
	v := q.sendWR(wr)
	return q.qp.PostSend(&v)
}

func (q *queuePair) sendWR(wr WR) verbs.SendWR {
	v := verbs.SendWR{ID: wr.ID, SGL: q.sgl(wr.SGL), RemoteSTag: wr.STag, RemoteTO: wr.TO, Imm: wr.Imm,
		Invalidate: wr.Flags&WithInvalidate != 0, InvalidateSTag: wr.Invalidate}
	for _, f := range [...]struct {
		is Flags
		v  verbs.Flags
	}{{Signaled, verbs.Signaled}, {Solicited, verbs.Solicited}, {Fenced, verbs.Fence}, {FromInline, verbs.Inline}, {More, verbs.More}} {
		if wr.Flags&f.is != 0 {
			v.Flags |= f.v
		}
	}
	v.Op = opcodes[wr.Op]
	switch wr.Op {
	case OpFetchAdd:
		v.Add, v.AddMask = wr.Add, wr.AddMask
	case OpCmpSwap:
		v.Add, v.AddMask, v.Compare, v.CompareMask = wr.Swap, wr.SwapMask, wr.Compare, wr.CompareMask
	}
	return v
}

// Window implements Binder.
func (q *queuePair) Window() (int, error) {
	mw, err := q.host.pds[0].AllocMW()
	if err != nil {
		return 0, err
	}
	q.windows = append(q.windows, mw)
	return len(q.windows) - 1, nil
}

// PostBind implements Binder.
func (q *queuePair) PostBind(wr WR, window int, memory SGE, access Access) (Region, error) {
	mw := q.windows[window]
	err := q.postLocal(wr, mw, memory, access)
	return Region{ID: memory.Region.ID, STag: mw.STag(), Len: memory.Len}, err
}

// PostRegister implements Binder.
func (q *queuePair) PostRegister(wr WR, memory SGE, access Access) (Region, error) {
	err := q.postLocal(wr, nil, memory, access)
	return Region{ID: memory.Region.ID, STag: q.regions[memory.Region.ID].mr.STag(), Len: memory.Len}, err
}

func (q *queuePair) postLocal(wr WR, mw *verbs.MW, memory SGE, access Access) error {
	v := q.sendWR(wr)
	v.MW, v.SGL, v.Access = mw, q.sgl([]SGE{memory}), rights(access)
	return q.qp.PostSend(&v)
}

// Completion implements Endpoint.
func (q *queuePair) Completion(ctx context.Context) (WC, error) {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.over, cancel)()
	var wcs [1]verbs.WC
	for {
		over := q.over.Err() != nil // looked at before the queue
		if q.completions.Poll(wcs[:]) == 1 {
			return q.completion(wcs[0]), nil
		}
		switch {
		case over:
			return WC{}, io.EOF
		case ctx.Err() != nil:
			return WC{}, ctx.Err()
		}
		q.completions.Wait(wait)
	}
}

// opcodes are the operations in terms of package verbs, kinds its completions in
// terms of the suite.
var (
	opcodes = [...]verbs.Opcode{OpSend: verbs.OpSend, OpWrite: verbs.OpWrite, OpRead: verbs.OpRead, OpImmediate: verbs.OpImmediate,
		OpFetchAdd: verbs.OpFetchAdd, OpCmpSwap: verbs.OpCmpSwap, OpBind: verbs.OpBind, OpRegister: verbs.OpRegister, OpInvalidate: verbs.OpInvalidateLocal}
	kinds = [...]Op{verbs.WCSend: OpSend, verbs.WCWrite: OpWrite, verbs.WCRead: OpRead, verbs.WCAtomic: OpAtomic, verbs.WCImmediate: OpImmediate,
		verbs.WCRecv: OpRecv, verbs.WCRecvImm: OpRecvImmediate, verbs.WCBind: OpBind, verbs.WCRegister: OpRegister, verbs.WCInvalidate: OpInvalidate}
)

func (q *queuePair) completion(v verbs.WC) WC {
	wc := WC{ID: v.ID, Op: kinds[v.Op], Len: int(v.Len), Solicited: v.Solicited, Invalidated: v.Invalidated, Imm: v.Imm}
	switch {
	case errors.Is(v.Err, verbs.ErrFlushed):
		wc.Status = Flushed
	case v.Err != nil:
		wc.Status = Failed
	}
	return wc
}

// Close implements Endpoint.
func (q *queuePair) Close() error {
	q.qp.Close()
	return nil
}

// Arm implements Armer.
func (q *queuePair) Arm(solicitedOnly bool) error {
	q.cq.Arm(solicitedOnly)
	return nil
}

// Wait implements Armer.
func (q *queuePair) Wait(ctx context.Context) error { return q.cq.Wait(ctx) }

var errAbort = errors.New("aborted by the suite")

// Abort implements Endpoint.
func (q *queuePair) Abort() error {
	q.qp.Abort(errAbort)
	return nil
}

// End implements Endpoint.
func (q *queuePair) End(ctx context.Context) (End, error) {
	select {
	case <-ctx.Done():
		return End{}, fmt.Errorf("the stream, %v, does not end: %w", q.qp.State(), ctx.Err())
	case <-q.qp.Done():
	}
	err := q.qp.Err()
	var fault *ddp.Error
	var term *rdmap.TerminateError
	var local *rdmap.LocalError
	switch {
	case err == nil:
		return End{How: Graceful}, nil
	case errors.Is(err, rdmap.ErrPeerClosed):
		return End{How: PeerClosed}, nil
	case errors.Is(err, errAbort):
		return End{How: Aborted}, nil
	case errors.As(err, &term):
		t := term.Terminate
		return End{How: GotTerminate, Layer: uint8(t.Layer), Type: t.Type, Code: t.Code}, nil
	case errors.As(err, &local):
		return End{How: LocalFault}, nil
	case errors.As(err, &fault) && !(fault.Layer == ddp.LayerLLP && fault.Code == mpa.CodeConnectionLost):
		return End{How: SentTerminate, Layer: uint8(fault.Layer), Type: fault.Type, Code: fault.Code}, nil
	}
	return End{How: ConnectionLost}, nil
}

// release ends the stream and frees what belongs to it.
func (q *queuePair) release() error {
	if q.qp != nil {
		q.qp.Abort(errAbort)
		<-q.qp.Done()
	}
	var errs []error
	if q.srq != nil {
		errs = append(errs, q.srq.Destroy()) // with what is posted there
	}
	for _, mw := range q.windows {
		errs = append(errs, mw.Dealloc())
	}
	for _, r := range q.regions {
		errs = append(errs, r.mr.Deregister())
	}
	if q.cq != nil {
		errs = append(errs, q.cq.Destroy())
	}
	return errors.Join(errs...)
}
