package verbs

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/rdmap"
)

// window is memory that peers reach through one STag, of a memory region or of a memory
// window.
//
//	closed ──open──▶ open ──close──▶ closed ──▶ gone
//
// pins counts accesses by peers in progress; shut is added to it while the window is not
// open, so that pinning a closed window gives a negative count.
type window struct {
	pd       *PD
	mw       bool // of a memory window
	keyed    bool // the consumer chooses the keys of its STags
	volatile bool // of a memory region: it has LocalWrite, or Volatile
	pins     atomic.Int64
	// placing counts payloads that the target is taking; shut is added when it is diverted.
	placing atomic.Int64

	mu     sync.Mutex // guards the fields below it; never taken by a goroutine that holds a pin
	state  windowState
	next   binding // posted but not yet executed in the send queue
	extent *extent // of a memory window, where overlaps matter; nil: they do not

	// Changed only while the window is not open and not pinned.
	binding
	qp         *QP // the only queue pair that may use it; nil: all of pd
	prev, then *window
}

// binding is what a window opens.
type binding struct {
	stag   uint32 // 0: none
	mem    []byte
	rights rdmap.Access
	base   uint64 // the tagged offset of the first byte
	mr     *MR    // of a memory window: the region that it keeps
	target Target // takes what peers write; nil: mem does
}

type windowState uint8

const (
	windowClosed windowState = iota
	windowOpen
	windowGone
)

const shut = -1 << 40

func (w *window) init(pd *PD, mw bool) {
	w.pd, w.mw = pd, mw
	if mw && pd.trust.ShareStreams && !pd.trust.ShareSTags {
		w.extent = new(extent)
	}
	w.pins.Store(shut)
}

func (w *window) stags() *stagTable { return &w.pd.ulp.dev.stags }

// drop ends the use of an STag of the window's.
func (w *window) drop(stag uint32) {
	if w.keyed {
		w.stags().removeChosen(stag)
	} else {
		w.stags().remove(stag)
	}
}

// tag is the STag that the last bind or registration gave, executed or only posted.
func (w *window) tag() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next.stag != 0 {
		return w.next.stag
	}
	return w.stag
}

// openLocked opens the closed window for b, whose STag is in the table.
func (w *window) openLocked(b binding, qp *QP) {
	w.binding, w.qp = b, qp
	if b.target != nil {
		w.placing.Store(0)
	}
	if qp != nil {
		qp.bound.add(w)
	}
	w.state = windowOpen
	w.pins.Add(-shut)
}

// closeLocked ends remote access; when it returns nothing in flight reads or
// writes the memory through the old STag (RFC 5042 section 6.2.2). Pins are
// never held across a wait, so it spins only briefly.
func (w *window) closeLocked() {
	if w.state != windowOpen {
		return
	}
	w.pins.Add(shut)
	for w.isInUse() {
		runtime.Gosched()
	}
	w.drop(w.stag)
	w.concealLocked()
	w.state = windowClosed
	w.mem, w.target = nil, nil
	if w.qp != nil {
		w.qp.bound.remove(w)
		w.qp = nil
	}
	if w.mr != nil {
		w.mr.refs.Add(-oneWindow)
		w.mr = nil
	}
}

func (w *window) invalidate() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == windowGone {
		return ErrClosed
	}
	w.revokeLocked()
	return nil
}

// reserve gives b a fresh STag, or that with the chosen key, which opens nothing until the operation that is
// about to be posted is executed.
func (w *window) reserve(b binding, key uint8) (stag uint32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.state == windowGone:
		return 0, errDeregistered
	case w.next.stag != 0:
		return 0, fmt.Errorf("verbs: post a bind or registration while another of the same memory is posted: %w", ErrInUse)
	}
	if !w.keyed {
		b.stag = w.stags().insert(w)
	} else if b.stag = w.stag>>keyBits<<keyBits | uint32(key); b.stag == w.stag {
		return 0, fmt.Errorf("verbs: post a bind: the key %#02x is that of the last STag, for which the peer may still have operations: choose another one", key)
	} else {
		w.stags().insertChosen(b.stag, w)
	}
	w.next = b
	return b.stag, nil
}

// unreserve undoes reserve if the operation has not been executed.
func (w *window) unreserve(stag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next.stag == stag {
		w.drop(stag)
		w.next = binding{}
	}
}

// openReserved opens what was reserved: a memory window for qp alone, a region's for
// its PD.
func (w *window) openReserved(qp *QP) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.next
	if w.state == windowOpen && w.mw {
		w.drop(b.stag)
		w.next = binding{}
		return &opError{what: "bind a memory window that is bound, its STag has to be invalidated first", stag: w.stag, err: ErrInUse}
	}
	w.closeLocked()
	w.next = binding{}
	err := w.exposeLocked(b, qp)
	if err == nil && !b.keep() {
		w.concealLocked()
		err = &opError{what: "bind a memory window to memory that was withdrawn", stag: b.stag, err: ErrWithdrawn}
	}
	if err != nil {
		w.drop(b.stag)
		return err
	}
	if !w.mw {
		qp = nil
	}
	w.openLocked(b, qp)
	return nil
}

// keep has a memory window keep its region. It returns false if that was withdrawn since the bind was posted.
func (b *binding) keep() bool {
	if b.mr == nil {
		return true
	}
	if b.mr.refs.Add(oneWindow) > 0 {
		return true
	}
	b.mr.refs.Add(-oneWindow)
	return false
}

// boundList holds the windows that are bound to a queue pair.
type boundList struct {
	mu   sync.Mutex // guards the fields below it; innermost
	head *window
}

func (l *boundList) add(w *window) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.then = l.head; w.then != nil {
		w.then.prev = w
	}
	l.head = w
}

func (l *boundList) remove(w *window) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.prev != nil {
		w.prev.then = w.then
	} else {
		l.head = w.then
	}
	if w.then != nil {
		w.then.prev = w.prev
	}
	w.prev, w.then = nil, nil
}

func (l *boundList) first() *window {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// unbind closes the windows bound to the queue pair, whose stream is over.
func (qp *QP) unbind() {
	for w := qp.bound.first(); w != nil; w = qp.bound.first() {
		w.mu.Lock()
		if w.state == windowOpen && w.qp == qp {
			w.closeLocked()
		}
		w.mu.Unlock()
	}
}

// acquire is the one place where a peer's access to memory is decided (RFC
// 5042 sections 6.1.1 and 6.2.1, RFC 5040 section 7.2): qp, whose
// PD is pd, accesses n bytes at tagged offset to of stag. n is not 0.
func (d *Device) acquire(pd *PD, qp *QP, stag uint32, to uint64, n uint32, need rdmap.Access) ([]byte, rdmap.Pin, rdmap.Fault) {
	w := d.stags.find(stag)
	if w == nil {
		return nil, nil, rdmap.FaultInvalidSTag
	}
	if w.pins.Add(1) <= 0 || w.stag != stag {
		w.pins.Add(-1)
		return nil, nil, rdmap.FaultInvalidSTag
	}
	fault := rdmap.FaultNone
	off := to - w.base // wraps below the base, so that it is far outside
	switch end := off + uint64(n); {
	case !w.allows(pd, qp):
		fault = rdmap.FaultNotAssociated
	case wraps(to, to+uint64(n)):
		fault = rdmap.FaultTOWrap
	case wraps(off, end), w.isOutside(end):
		fault = rdmap.FaultBounds
	case w.lacks(need):
		fault = rdmap.FaultAccess
	default:
		return w.mem[off:end:end], (*pin)(w), rdmap.FaultNone
	}
	w.pins.Add(-1)
	return nil, nil, fault
}

// pin is a held access.
type pin window

func (p *pin) Unpin() { p.pins.Add(-1) }

// Volatile implements rdmap.VolatilePin: the region has LocalWrite, so peers may
// change it by Writes, Atomics or Sends, even through another STag, or its owner may.
func (p *pin) Volatile() bool { return p.volatile || p.mr != nil && p.mr.win.volatile }

var _ rdmap.TargetPin = (*pin)(nil)

// HasTarget implements rdmap.TargetPin.
func (p *pin) HasTarget() bool { return p.target != nil }

// Place implements rdmap.TargetPin.
func (p *pin) Place(to uint64, b []byte) bool {
	ok := p.placing.Add(1) > 0 && p.target.Place(to-p.base, b)
	p.placing.Add(-1)
	return ok
}

// divertLocked takes the target away from the open window; when it returns, the target
// takes nothing any more. Like a pin it is not held across a wait.
func (w *window) divertLocked() {
	if w.state != windowOpen || w.target == nil || w.placing.Load() < 0 {
		return
	}
	w.placing.Add(shut)
	for w.isPlacing() {
		runtime.Gosched()
	}
}

// lockOpen finds the open window of stag and locks it; nil if there is none.
func (d *Device) lockOpen(stag uint32) *window {
	w := d.stags.find(stag)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	if w.state != windowOpen || w.stag != stag {
		w.mu.Unlock()
		return nil
	}
	return w
}

// invalidateRemote executes a Send with Invalidate from the peer of qp (RFC 5040 section
// 5.3).
func (qp *QP) invalidateRemote(stag uint32) rdmap.Fault {
	w := qp.pd.ulp.dev.lockOpen(stag)
	if w == nil {
		return rdmap.FaultInvalidSTag
	}
	defer w.mu.Unlock()
	if !w.allows(qp.pd, qp) || w.rights == 0 {
		return rdmap.FaultCannotInvalidate
	}
	w.closeLocked()
	return rdmap.FaultNone
}

// invalidateLocal executes an OpInvalidateLocal.
func (qp *QP) invalidateLocal(stag uint32) error {
	w := qp.pd.ulp.dev.lockOpen(stag)
	if w == nil {
		return &opError{what: "invalidate an STag that opens nothing", stag: stag, err: ErrInvalidSTag}
	}
	defer w.mu.Unlock()
	if !w.allows(qp.pd, qp) {
		return &opError{what: "invalidate an STag of another queue pair or protection domain", stag: stag, err: ErrInvalidSTag}
	}
	w.closeLocked()
	return nil
}
