package verbs

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/rdmap"
)

// ErrInvalidSTag means that a send queue operation named an STag that it must not name.
var ErrInvalidSTag = errors.New("invalid STag")

// opError is the error of a send queue operation that failed when it was executed.
type opError struct {
	what string
	stag uint32
	err  error
}

func (e *opError) Error() string {
	return fmt.Sprintf("verbs: %s: STag %#08x: %v", e.what, e.stag, e.err)
}

func (e *opError) Unwrap() error { return e.err }

// MW is a memory window of type 2: remote access to part of a memory region, which
// OpBind opens, in send queue order, for the peer of that queue pair
// alone (the single stream scope of RFC 5042 section 2.2.5). Tagged offsets count
// from SendWR.Base at the window's start.
//
// The access ends with Invalidate, with an OpInvalidateLocal or the peer's Send
// with Invalidate on that queue pair, and with its stream. Once it has ended,
// nothing in flight reads or changes the memory through the STag.
//
// The STag of a window of AllocKeyedMW has a key, its lower 8 bits, that the consumer chooses at each bind (SendWR.Key), as
// programs of other verbs do; the upper 24 are drawn at random once, and are the window's until Dealloc. So a peer that has
// had one STag of the window can guess the next: it is told of it, and opens memory, to that very peer alone.
//
// Where the streams of the protection domain do not trust each other, binding memory
// that another stream's window opens fails with ErrTrust if either window lets
// a peer write (RFC 5042 section 6.3.6).
type MW struct {
	win    *window // a separate object, so that a work request's SGL can stay on the stack
	charge charge
}

// AllocMW allocates a memory window of pd, bound to nothing. It is charged to
// the PD's ULP. It fails with a *QuotaError, and with ErrClosed where the domain is
// freed.
func (pd *PD) AllocMW() (*MW, error) { return pd.allocMW(false) }

// AllocKeyedMW is AllocMW of a window whose keys the consumer chooses. Its STag is there at once, and opens nothing. It fails as AllocMW does.
func (pd *PD) AllocKeyedMW() (*MW, error) { return pd.allocMW(true) }

func (pd *PD) allocMW(keyed bool) (*MW, error) {
	if err := pd.enter(); err != nil {
		return nil, err
	}
	mw := &MW{win: new(window), charge: charge{ulp: &pd.ulp.acct}}
	mw.charge.n[resMWs] = 1
	if err := pd.ulp.dev.prm.take(&mw.charge); err != nil {
		pd.leave()
		return nil, err
	}
	mw.win.init(pd, true)
	if keyed {
		mw.win.keyed, mw.win.stag = true, mw.win.stags().reserve()
	}
	return mw, nil
}

// STag is the steering tag that the last posted OpBind gave the window, 0 before
// the first, or that of AllocKeyedMW. It opens memory once the bind is executed in its send queue.
func (mw *MW) STag() uint32 { return mw.win.tag() }

// Invalidate ends remote access through the window, whatever queue pair it is bound to. When
// it returns, no peer's operation reads or changes the memory any more. A bind
// that is posted but not yet executed still takes effect. It fails with ErrClosed after
// Dealloc.
func (mw *MW) Invalidate() error { return mw.win.invalidate() }

// Dealloc invalidates and frees the window. It fails with ErrInUse while a bind
// is posted but not yet executed.
func (mw *MW) Dealloc() error {
	w := mw.win
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.state == windowGone:
		return nil
	case w.next.stag != 0:
		return fmt.Errorf("verbs: free a memory window while a bind is posted: %w", ErrInUse)
	}
	w.closeLocked()
	w.state = windowGone
	if w.keyed {
		w.stags().release(w.stag)
	}
	w.pd.ulp.dev.prm.give(&mw.charge)
	w.pd.leave()
	return nil
}

// postLocal posts an operation that is executed in the send queue and never sent.
func (qp *QP) postLocal(stream *rdmap.Stream, wr *SendWR) error {
	var w *window
	stag := wr.InvalidateSTag
	if wr.Flags&Inline != 0 || len(wr.Data) > 0 {
		return errors.New("verbs: post a bind, registration or invalidation: Inline is for data that is sent")
	}
	if wr.Op == OpInvalidateLocal {
		if len(wr.SGL) > 0 {
			return errors.New("verbs: post a local invalidate: it names an STag and no memory")
		}
	} else {
		b, err := qp.bindingFor(wr, &w)
		if err != nil {
			return err
		}
		if stag, err = w.reserve(b, wr.Key); err != nil {
			return err
		}
	}
	err := qp.commitLocal(stream, wr, w, stag)
	if err != nil && w != nil {
		w.unreserve(stag)
	}
	return err
}

func (qp *QP) commitLocal(stream *rdmap.Stream, wr *SendWR, w *window, stag uint32) error {
	op, err := reserve(stream)
	if err != nil {
		return err
	}
	op.Kind, op.ID, op.STag = rdmap.OpLocal, wr.ID, stag
	op.Signaled, op.Fence = wr.Flags&Signaled != 0, wr.Flags&Fence != 0
	op.Local = w
	if op.Ref, err = claim(wr.SGL, op.Ref); err != nil {
		stream.Cancel()
		return errDeregistered
	}
	stream.Commit(wr.Flags&More != 0)
	return nil
}

// bindingFor checks an OpBind or OpRegister and returns what it will open, and the
// window.
func (qp *QP) bindingFor(wr *SendWR, w **window) (b binding, err error) {
	if len(wr.SGL) != 1 {
		return b, fmt.Errorf("verbs: post a bind or registration with %d scatter/gather elements: it takes the one piece of memory to open", len(wr.SGL))
	}
	if _, err := qp.pd.checkSGL(wr.SGL, 1, false); err != nil {
		return b, err
	}
	e := wr.SGL[0]
	if e.Len == 0 {
		return b, errors.New("verbs: post a bind or registration of 0 bytes")
	}
	if err := checkAccess(wr.Access, e.MR.local); err != nil {
		return b, err
	}
	if err := checkBase(wr.Base, int(e.Len)); err != nil {
		return b, err
	}
	b.mem, b.rights, b.base = e.MR.buf[e.Off:e.Off+e.Len], wr.Access.remote(), wr.Base
	if wr.Op == OpRegister {
		if err := qp.pd.checkRemote(wr.Access); err != nil {
			return b, err
		}
		*w = &e.MR.win
		return b, nil
	}
	switch {
	case wr.MW == nil:
		return b, errors.New("verbs: post a bind: MW names no memory window")
	case wr.MW.win.pd.isForeign(qp.pd):
		return b, errors.New("verbs: post a bind: the memory window belongs to another protection domain")
	case !e.MR.bindable:
		return b, errors.New("verbs: post a bind: the memory region has no WindowBind right")
	case b.rights == 0:
		return b, errors.New("verbs: post a bind: Access has no remote right")
	}
	b.mr = e.MR
	*w = wr.MW.win
	return b, nil
}
