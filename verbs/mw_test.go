package verbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

func (e *end) mw() *MW {
	e.t.Helper()
	mw, err := e.pd.AllocMW()
	if err != nil {
		e.t.Fatal(err)
	}
	return mw
}

// bind binds mw to n bytes at off of mr on e.qp and waits until it is done.
func (e *end) bind(mw *MW, mr *MR, off, n uint32, a Access) uint32 {
	e.t.Helper()
	e.post(SendWR{Op: OpBind, Flags: Signaled, MW: mw, SGL: []SGE{{mr, off, n}}, Access: a})
	e.wantOK(WCBind)
	return mw.STag()
}

// reach is what an access by the peer of qp meets.
func (e *end) reach(qp *QP, stag uint32, to uint64, n uint32, need rdmap.Access) rdmap.Fault {
	_, pin, fault := e.dev.acquire(e.pd, qp, stag, to, n, need)
	if fault == rdmap.FaultNone {
		pin.Unpin()
	}
	return fault
}

const everyRemote = RemoteRead | RemoteWrite | RemoteAtomic

func TestWindowOpensWhenTheBindIsReached(t *testing.T) {
	e := newEnd(t, Config{})
	qp, raw := e.rawStream()
	mr, mw := e.mr(64, LocalWrite|WindowBind), e.mw()
	if mw.STag() != 0 {
		t.Errorf("STag %#x before the first bind", mw.STag())
	}
	e.post(SendWR{ID: 1, Op: OpRead, Flags: Signaled, SGL: whole(e.mr(4, LocalWrite), 4), RemoteSTag: 1})
	e.post(SendWR{ID: 2, Op: OpBind, Flags: Signaled | Fence, MW: mw, SGL: []SGE{{mr, 8, 16}}, Access: RemoteWrite})
	stag := mw.STag()
	if stag == 0 {
		t.Fatal("the post reserved no STag")
	}
	if f := e.reach(qp, stag, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
		t.Errorf("before the bind is reached: %v", f)
	}
	for what, err := range map[string]error{
		"a second bind":     qp.PostSend(&SendWR{Op: OpBind, MW: mw, SGL: []SGE{{mr, 0, 8}}, Access: RemoteRead}),
		"Dealloc":           mw.Dealloc(),
		"MR.Deregister":     mr.Deregister(),
		"of a freed domain": e.pd.Dealloc(),
	} {
		if !errors.Is(err, ErrInUse) {
			t.Errorf("%s while a bind is posted: %v", what, err)
		}
	}
	answerRead(t, raw, []byte{1, 2, 3, 4})
	if wc := e.wantOK(WCRead); wc.ID != 1 {
		t.Errorf("completion %+v", wc)
	}
	if wc := e.wantOK(WCBind); wc.ID != 2 {
		t.Errorf("completion %+v", wc)
	}
	if mw.STag() != stag {
		t.Errorf("STag %#x, reserved %#x", mw.STag(), stag)
	}
	buf, pin, fault := e.dev.acquire(e.pd, qp, stag, 15, 1, rdmap.RemoteWrite)
	if fault != rdmap.FaultNone || &buf[0] != &mr.Bytes()[23] {
		t.Fatalf("the window's last byte: %v", fault)
	}
	pin.Unpin()
	for _, tc := range []struct {
		to   uint64
		n    uint32
		need rdmap.Access
		want rdmap.Fault
	}{
		{0, 16, rdmap.RemoteWrite, rdmap.FaultNone},
		{0, 17, rdmap.RemoteWrite, rdmap.FaultBounds},
		{15, 2, rdmap.RemoteWrite, rdmap.FaultBounds},
		{16, 1, rdmap.RemoteWrite, rdmap.FaultBounds},
		{1 << 32, 1, rdmap.RemoteWrite, rdmap.FaultBounds},
		{^uint64(0), 1, rdmap.RemoteWrite, rdmap.FaultTOWrap},
		{0, 1, rdmap.RemoteRead, rdmap.FaultAccess},
		{0, 8, rdmap.RemoteAtomic, rdmap.FaultAccess},
	} {
		if f := e.reach(qp, stag, tc.to, tc.n, tc.need); f != tc.want {
			t.Errorf("%d bytes at %d for %v: %v, want %v", tc.n, tc.to, tc.need, f, tc.want)
		}
	}
}

// answerRead answers the Read Request that raw is sent next.
func answerRead(t *testing.T, raw *iwarptest.LLP, data []byte) {
	t.Helper()
	segs, err := raw.Recv()
	if err != nil || len(segs) == 0 {
		t.Fatalf("no Read Request: %v", err)
	}
	req, ok := rdmap.ParseReadRequest(ddp.Untagged(segs[0]).Payload())
	if !ok {
		t.Fatalf("no Read Request: %x", segs[0])
	}
	raw.Send(append(ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpReadResponse), req.SinkSTag, req.SinkTO), data...))
}

// Writes, Reads and Atomics go through a window of the stream, until the peer's
// Send with Invalidate ends it.
func TestPeerUsesAndInvalidatesAWindow(t *testing.T) {
	for _, l := range llps {
		t.Run(l.name, func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			l.pair(t, a, b)
			mr, mw := b.mr(1<<16, LocalWrite|WindowBind), b.mw()
			src := a.mr(1<<16, LocalWrite)
			fill(src.Bytes(), 3)
			old := mr.STag()
			if err := mr.Invalidate(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				stag := b.bind(mw, mr, 64, 1<<15, everyRemote)
				b.recv(RecvWR{ID: 7})
				a.post(SendWR{Op: OpWrite, SGL: whole(src, 1<<15), RemoteSTag: stag})
				a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: []SGE{{src, 1 << 15, 1 << 15}}, RemoteSTag: stag})
				a.wantOK(WCRead)
				if !bytes.Equal(mr.Bytes()[64:][:1<<15], src.Bytes()[:1<<15]) || !bytes.Equal(src.Bytes()[:1<<15], src.Bytes()[1<<15:]) {
					t.Fatal("the window does not hold what was written, or reads as something else")
				}
				a.post(SendWR{Op: OpFetchAdd, Flags: Signaled, Add: 1, RemoteSTag: stag, RemoteTO: 8})
				a.wantOK(WCAtomic)
				a.post(SendWR{Op: OpSend, Invalidate: true, InvalidateSTag: stag})
				if wc := b.wantOK(WCRecv); wc.Invalidated != stag {
					t.Fatalf("completion %+v, want that %#x is invalidated", wc, stag)
				}
				if f := b.reach(b.qp, stag, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
					t.Fatalf("after the invalidation: %v", f)
				}
			}
			if f := b.reach(b.qp, old, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
				t.Errorf("the region's own STag: %v", f)
			}
			if err := errors.Join(mr.Deregister(), mw.Dealloc(), mw.Dealloc()); err != nil {
				t.Errorf("freed after the invalidation: %v", err)
			}
		})
	}
}

// A window is of one stream: every way to use its STag on another stream of the
// same PD ends that stream, and the window stays (R9).
func TestWindowOfAnotherStreamIsRefused(t *testing.T) {
	req := func(stag uint32) []byte { return rdmap.ReadRequest{SinkSTag: 1, Size: 1, SourceSTag: stag}.Append(nil) }
	atomicReq := func(stag uint32) []byte {
		return rdmap.AtomicRequest{Op: rdmap.AtomicFetchAdd, STag: stag}.Append(nil)
	}
	for name, tc := range map[string]struct {
		seg  func(stag uint32) []byte
		want ddp.Error
	}{
		"write": {func(s uint32) []byte {
			return append(ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpWrite), s, 0), 1)
		}, ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedNotAssociated}},
		"read": {func(s uint32) []byte { return untagged(true, rdmap.OpReadRequest, 1, 1, 0, req(s)...) },
			ddp.Error{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteProtection, Code: rdmap.CodeNotAssociated}},
		"atomic": {func(s uint32) []byte { return untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, atomicReq(s)...) },
			ddp.Error{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteProtection, Code: rdmap.CodeNotAssociated}},
		"invalidate": {func(s uint32) []byte {
			return ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSendInvalidate), s, 0, 1, 0)
		}, ddp.Error{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteProtection, Code: rdmap.CodeCannotInvalidate}},
	} {
		e := newEnd(t, Config{})
		owner, _ := e.rawStream()
		mr, mw := e.mr(64, LocalWrite|WindowBind), e.mw()
		stag := e.bind(mw, mr, 0, 64, everyRemote)
		_, raw := e.rawStream()
		e.recv(RecvWR{})
		raw.Send(tc.seg(stag))
		if term := readTerminate(t, raw); term.Layer != tc.want.Layer || term.Type != tc.want.Type || term.Code != tc.want.Code {
			t.Errorf("%s: Terminate %v %d.%#02x", name, term.Layer, term.Type, term.Code)
		}
		raw.CloseWrite()
		if err := e.wantEnd(); !errors.Is(err, &tc.want) {
			t.Errorf("%s: ended with %v", name, err)
		}
		if f := e.reach(owner, stag, 0, 64, rdmap.RemoteWrite); f != rdmap.FaultNone {
			t.Errorf("%s: the owner's access is gone: %v", name, f)
		}
		if !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
			t.Errorf("%s: memory changed", name)
		}
		e.qp = owner
		e.post(SendWR{Op: OpInvalidateLocal, Flags: Signaled, InvalidateSTag: stag})
		for wc := e.next(); wc.QP != owner; wc = e.next() {
		}
	}
}

func TestBindsThatArePostedWrongly(t *testing.T) {
	e := newEnd(t, Config{})
	e.rawStream()
	pd, err := e.ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	foreignMW, _ := pd.AllocMW()
	foreignMR, _ := pd.RegisterMR(make([]byte, 8), LocalWrite|WindowBind)
	mr, ro, closed := e.mr(64, LocalWrite|WindowBind), e.mr(64, WindowBind), e.mr(64, LocalWrite|everyRemote)
	mw, freed := e.mw(), e.mw()
	freed.Dealloc()
	gone := e.mr(8, LocalWrite|WindowBind)
	gone.Deregister()
	live := e.dev.stags.live
	for name, wr := range map[string]SendWR{
		"no window":                    {Op: OpBind, SGL: whole(mr, 8), Access: RemoteRead},
		"no memory":                    {Op: OpBind, MW: mw, Access: RemoteRead},
		"no region":                    {Op: OpBind, MW: mw, SGL: []SGE{{Len: 8}}, Access: RemoteRead},
		"two pieces":                   {Op: OpBind, MW: mw, SGL: []SGE{{mr, 0, 4}, {mr, 4, 4}}, Access: RemoteRead},
		"0 bytes":                      {Op: OpBind, MW: mw, SGL: whole(mr, 0), Access: RemoteRead},
		"past the region's end":        {Op: OpBind, MW: mw, SGL: []SGE{{mr, 60, 5}}, Access: RemoteRead},
		"no right":                     {Op: OpBind, MW: mw, SGL: whole(mr, 8)},
		"no remote right":              {Op: OpBind, MW: mw, SGL: whole(mr, 8), Access: LocalWrite},
		"region without WindowBind":    {Op: OpBind, MW: mw, SGL: whole(closed, 8), Access: RemoteRead},
		"write to what is read-only":   {Op: OpBind, MW: mw, SGL: whole(ro, 8), Access: RemoteWrite},
		"atomics on what is read-only": {Op: OpBind, MW: mw, SGL: whole(ro, 8), Access: RemoteAtomic},
		"inline":                       {Op: OpBind, Flags: Inline, MW: mw, SGL: whole(mr, 8), Access: RemoteRead},
		"foreign window":               {Op: OpBind, MW: foreignMW, SGL: whole(mr, 8), Access: RemoteRead},
		"foreign region":               {Op: OpBind, MW: mw, SGL: whole(foreignMR, 8), Access: RemoteRead},
		"freed window":                 {Op: OpBind, MW: freed, SGL: whole(mr, 8), Access: RemoteRead},
		"deregistered region":          {Op: OpBind, MW: mw, SGL: whole(gone, 8), Access: RemoteRead},
		"register foreign region":      {Op: OpRegister, SGL: whole(foreignMR, 8), Access: RemoteRead},
		"register read-only to write":  {Op: OpRegister, SGL: whole(ro, 8), Access: RemoteWrite},
		"register nothing":             {Op: OpRegister, Access: RemoteRead},
		"register deregistered":        {Op: OpRegister, SGL: whole(gone, 8), Access: RemoteRead},
		"invalidate with memory":       {Op: OpInvalidateLocal, InvalidateSTag: 1, SGL: whole(mr, 8)},
	} {
		if err := e.qp.PostSend(&wr); err == nil {
			t.Errorf("%s: posted", name)
		}
	}
	if n := e.dev.stags.live; n != live {
		t.Errorf("%d STags are reserved for what was not posted", n-live)
	}
	e.bind(mw, ro, 0, 8, RemoteRead)
	e.qp.Abort(nil)
	e.wantEnd()
	if err := e.qp.PostSend(&SendWR{Op: OpBind, MW: mw, SGL: whole(mr, 8), Access: RemoteRead}); !errors.Is(err, ErrClosed) {
		t.Errorf("posted on an ended stream: %v", err)
	}
	if err := errors.Join(mr.Deregister(), ro.Deregister(), mw.Dealloc()); err != nil {
		t.Errorf("failed posts hold memory: %v", err)
	}
}

// A bind or invalidation that can't be carried out completes with its error and
// ends the stream; what follows is flushed.
func TestFailedLocalOperationEndsTheStream(t *testing.T) {
	for name, tc := range map[string]struct {
		wr   func(e *end, mw *MW, mr *MR, other uint32) SendWR
		op   WCOp
		want error
	}{
		"bind of a bound window": {func(e *end, mw *MW, mr *MR, _ uint32) SendWR {
			return SendWR{Op: OpBind, MW: mw, SGL: whole(mr, 8), Access: RemoteRead}
		}, WCBind, ErrInUse},
		"invalidate of no STag": {func(e *end, mw *MW, mr *MR, _ uint32) SendWR {
			return SendWR{Op: OpInvalidateLocal, InvalidateSTag: mw.STag() + 1}
		}, WCInvalidate, ErrInvalidSTag},
		"invalidate of STag 0": {func(*end, *MW, *MR, uint32) SendWR { return SendWR{Op: OpInvalidateLocal} }, WCInvalidate, ErrInvalidSTag},
		"invalidate of another stream's window": {func(_ *end, _ *MW, _ *MR, other uint32) SendWR {
			return SendWR{Op: OpInvalidateLocal, InvalidateSTag: other}
		}, WCInvalidate, ErrInvalidSTag},
		"invalidate of another PD's region": {func(e *end, _ *MW, _ *MR, _ uint32) SendWR {
			pd, _ := e.ulp.AllocPD()
			mr, _ := pd.RegisterMR(make([]byte, 8), RemoteRead)
			return SendWR{Op: OpInvalidateLocal, InvalidateSTag: mr.STag()}
		}, WCInvalidate, ErrInvalidSTag},
	} {
		e := newEnd(t, Config{})
		mr, mw, otherMW := e.mr(64, LocalWrite|WindowBind), e.mw(), e.mw()
		owner, _ := e.rawStream()
		other := e.bind(otherMW, mr, 0, 8, RemoteRead)
		_, raw := e.rawStream()
		e.bind(mw, mr, 0, 8, RemoteRead)
		live := e.dev.stags.live
		wr := tc.wr(e, mw, mr, other)
		wr.ID, wr.Flags = 1, More
		extra := e.dev.stags.live - live
		e.post(wr)
		e.post(SendWR{ID: 2, Op: OpWrite})
		if term := readTerminate(t, raw); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeLocalCatastrophic {
			t.Errorf("%s: Terminate %+v", name, term)
		}
		raw.CloseWrite()
		if wc := e.next(); wc.ID != 1 || wc.Op != tc.op || !errors.Is(wc.Err, tc.want) || errors.Is(wc.Err, ErrFlushed) {
			t.Errorf("%s: completion %+v", name, wc)
		}
		if wc := e.next(); wc.ID != 2 || !errors.Is(wc.Err, ErrFlushed) {
			t.Errorf("%s: completion %+v of what follows", name, wc)
		}
		var local *rdmap.LocalError
		if err := e.wantEnd(); !errors.As(err, &local) || !errors.Is(err, tc.want) {
			t.Errorf("%s: ended with %v", name, err)
		}
		if f := e.reach(owner, other, 0, 8, rdmap.RemoteRead); f != rdmap.FaultNone {
			t.Errorf("%s: the other stream's window: %v", name, f)
		}
		if n := e.dev.stags.live - extra; n != live-1 {
			t.Errorf("%s: %d STags, want %d: the failed operation's and the ended stream's are gone", name, n, live-1)
		}
	}
}

// An invalidation and a new bind in one queue follow each other.
func TestRebindInOneQueue(t *testing.T) {
	e := newEnd(t, Config{})
	qp, _ := e.rawStream()
	mr, mw := e.mr(64, LocalWrite|WindowBind), e.mw()
	stag := e.bind(mw, mr, 0, 8, RemoteRead)
	for range 20 {
		old := stag
		e.post(SendWR{Op: OpInvalidateLocal, Flags: Signaled | More, InvalidateSTag: old})
		e.post(SendWR{Op: OpBind, Flags: Signaled | More, MW: mw, SGL: []SGE{{mr, 8, 8}}, Access: RemoteRead})
		if stag = mw.STag(); stag == old {
			t.Fatal("the STag did not change")
		}
		if f := e.reach(qp, old, 0, 8, rdmap.RemoteRead); f != rdmap.FaultNone {
			t.Fatalf("the old STag before its invalidation is reached: %v", f)
		}
		qp.Flush()
		e.wantOK(WCInvalidate)
		e.wantOK(WCBind)
		if f := e.reach(qp, old, 0, 8, rdmap.RemoteRead); f != rdmap.FaultInvalidSTag {
			t.Fatalf("the old STag: %v", f)
		}
		if f := e.reach(qp, stag, 0, 8, rdmap.RemoteRead); f != rdmap.FaultNone {
			t.Fatalf("the new STag: %v", f)
		}
	}
	if err := mr.Deregister(); !errors.Is(err, ErrInUse) {
		t.Errorf("a region with a bound window is deregistered: %v", err)
	}
	if err := mw.Invalidate(); err != nil {
		t.Fatal(err)
	}
	if err := mr.Deregister(); err != nil {
		t.Errorf("deregister after the window's end: %v", err)
	}
	if err := errors.Join(mw.Dealloc(), mw.Dealloc()); err != nil {
		t.Error(err)
	}
	if err := mw.Invalidate(); !errors.Is(err, ErrClosed) {
		t.Errorf("invalidate a freed window: %v", err)
	}
}

// The end of a stream ends its windows, reached or not, and no others.
func TestStreamsEndEndsItsWindows(t *testing.T) {
	e := newEnd(t, Config{})
	mr := e.mr(64, LocalWrite|WindowBind)
	other, _ := e.rawStream()
	stays := e.mw()
	kept := e.bind(stays, mr, 0, 8, RemoteRead)
	live := e.dev.stags.live
	qp, raw := e.rawStream()
	var mws []*MW
	for range 5 {
		mw := e.mw()
		mws = append(mws, mw)
		e.bind(mw, mr, 0, 8, everyRemote)
	}
	mws[2].Invalidate()
	unreached := e.mw()
	e.post(SendWR{Op: OpRead, RemoteSTag: 1, SGL: whole(e.mr(4, LocalWrite), 4)})
	e.post(SendWR{Op: OpBind, Flags: Fence, MW: unreached, SGL: whole(mr, 8), Access: RemoteRead})
	raw.Close()
	e.wantEnd()
	for i, mw := range append(mws, unreached) {
		if f := e.reach(qp, mw.STag(), 0, 1, rdmap.RemoteRead); f != rdmap.FaultInvalidSTag {
			t.Errorf("window %d after the end: %v", i, f)
		}
		if err := mw.Dealloc(); err != nil {
			t.Errorf("window %d: %v", i, err)
		}
	}
	if n := e.dev.stags.live; n != live+1 { // the Read's sink
		t.Errorf("%d STags are left, want %d", n, live+1)
	}
	if f := e.reach(other, kept, 0, 8, rdmap.RemoteRead); f != rdmap.FaultNone {
		t.Errorf("another stream's window: %v", f)
	}
	if n := e.dev.Usage().MWs; n != 1 {
		t.Errorf("%d windows are charged, want 1", n)
	}
}

// OpRegister re-registers in its turn, for every stream of the PD.
func TestRegisterInTheQueue(t *testing.T) {
	e := newEnd(t, Config{})
	other, _ := e.rawStream()
	qp, raw := e.rawStream()
	mr := e.mr(64, LocalWrite|RemoteRead)
	old := mr.STag()
	e.post(SendWR{Op: OpRead, RemoteSTag: 1, SGL: whole(e.mr(4, LocalWrite), 4)})
	e.post(SendWR{Op: OpRegister, Flags: Signaled | Fence, SGL: []SGE{{mr, 8, 16}}, Access: RemoteWrite})
	stag := mr.STag()
	if f := e.reach(qp, old, 0, 64, rdmap.RemoteRead); stag == old || f != rdmap.FaultNone {
		t.Errorf("the old STag before the registration is reached: %v", f)
	}
	if f := e.reach(qp, stag, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
		t.Errorf("the new STag before the registration is reached: %v", f)
	}
	if _, err := mr.Reregister(0, 8, RemoteRead); !errors.Is(err, ErrInUse) {
		t.Errorf("a registration beside one that is posted: %v", err)
	}
	answerRead(t, raw, make([]byte, 4))
	e.wantOK(WCRegister)
	for _, qp := range []*QP{qp, other} {
		if f := e.reach(qp, old, 0, 1, rdmap.RemoteRead); f != rdmap.FaultInvalidSTag {
			t.Errorf("the old STag: %v", f)
		}
		if f := e.reach(qp, stag, 15, 1, rdmap.RemoteWrite); f != rdmap.FaultNone {
			t.Errorf("the new STag: %v", f)
		}
	}
	e.post(SendWR{Op: OpInvalidateLocal, Flags: Signaled, InvalidateSTag: stag})
	e.wantOK(WCInvalidate)
	if f := e.reach(qp, stag, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
		t.Errorf("after the local invalidate: %v", f)
	}
	e.post(SendWR{Op: OpRegister, Flags: Signaled, SGL: whole(mr, 8), Access: RemoteRead})
	e.wantOK(WCRegister)
	raw.Close()
	e.wantEnd()
	if f := e.reach(other, mr.STag(), 0, 8, rdmap.RemoteRead); f != rdmap.FaultNone {
		t.Errorf("the region's STag ended with a stream: %v", f)
	}
	if err := mr.Deregister(); err != nil {
		t.Error(err)
	}
}
