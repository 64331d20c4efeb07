package verbs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ironwarp/ironwarp/rdmap"
)

// ErrForeignMemory matches the error of registering memory that another ULP has registered.
var ErrForeignMemory = errors.New("another ULP has registered it")

// memoryMap records which memory is registered, and by whom, so that no two principals
// that don't trust each other get the same bytes (RFC 5042 sections 6.3.6 and 7.3). It
// is an interval tree: a treap by address whose nodes know how far their subtrees reach.
type memoryMap struct {
	mu   sync.Mutex // guards the fields below it
	root *extent
	seed uint32
}

// extent is the memory of a region, or of a window that is open for one stream.
type extent struct {
	from, to    uintptr // to is after the last byte
	reach       uintptr // the highest to of the subtree
	prio        uint32
	writable    bool // of a window
	left, right *extent
	mr          *MR
	qp          *QP // of a window
}

// extentOf is where b is in memory. Go's collector does not move memory that is reachable
// from the heap, as a region's is.
func extentOf(b []byte) (from, to uintptr) {
	from = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return from, from + uintptr(len(b))
}

// enter records the memory of mr, unless it overlaps a region whose streams may not share
// memory with those of mr.
func (m *memoryMap) enter(mr *MR) error {
	mr.extent.mr = mr
	return m.add(&mr.extent, mr.buf)
}

func (m *memoryMap) add(e *extent, b []byte) error {
	e.from, e.to = extentOf(b)
	e.reach = e.to
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.root.conflict(e); err != nil {
		return err
	}
	m.seed = m.seed*1664525 + 1013904223
	e.prio = m.seed
	m.root = m.root.insert(e)
	return nil
}

func (m *memoryMap) leave(e *extent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.root = m.root.remove(e)
	*e = extent{}
}

// conflict fails if e overlaps a region that it may not overlap.
func (t *extent) conflict(e *extent) error {
	if t == nil || t.reach <= e.from {
		return nil
	}
	if err := t.left.conflict(e); err != nil {
		return err
	}
	if t.from >= e.to {
		return nil
	}
	if t.to > e.from {
		if err := t.clash(e); err != nil {
			return err
		}
	}
	return t.right.conflict(e)
}

func (t *extent) clash(e *extent) error {
	if e.mr != nil {
		return mayAlias(t.mr, e.mr)
	}
	if t.mayShare(e) {
		return nil
	}
	return ErrTrust
}

// exposeLocked records the memory that w is about to open for the stream of qp. Where the
// streams of a protection domain do not trust each other, memory that one peer can write is
// not open to another (RFC 5042 section 6.3.6; R18).
func (w *window) exposeLocked(b binding, qp *QP) error {
	e := w.extent
	if e == nil {
		return nil
	}
	e.qp, e.writable = qp, b.rights&(rdmap.RemoteWrite|rdmap.RemoteAtomic) != 0
	if err := w.pd.ulp.dev.exposed.add(e, b.mem); err != nil {
		*e = extent{}
		return &opError{what: fmt.Sprintf("bind a memory window to memory that is open to the peer of another stream, to one of the two for writing (%v, RFC 5042 section 6.3.6)", w.pd.model), stag: b.stag, err: err}
	}
	return nil
}

// concealLocked undoes exposeLocked.
func (w *window) concealLocked() {
	if w.extent != nil && w.extent.qp != nil {
		w.pd.ulp.dev.exposed.leave(w.extent)
	}
}

// mayAlias decides whether two regions may have memory in common: never those of
// different ULPs (R29); those of different protection domains only as long as no
// peer can be given the right to write, or where both models trust the peers (R18).
func mayAlias(a, b *MR) error {
	pa, pb := a.win.pd, b.win.pd
	switch {
	case pa.isOfOther(pb.ulp):
		return fmt.Errorf("verbs: register memory: %w", ErrForeignMemory)
	case a.mayShare(b):
		return nil
	}
	for _, pd := range []*PD{pa, pb} {
		if !pd.trust.Alias {
			return trustError(pd.model, "6.3.6", "register memory that is registered in another protection domain, one of the two with LocalWrite")
		}
	}
	return nil
}

// before orders extents by address, and those at the same address by the extents' own.
func (t *extent) before(e *extent) bool {
	if t.from != e.from {
		return t.from < e.from
	}
	return uintptr(unsafe.Pointer(t)) < uintptr(unsafe.Pointer(e))
}

func (t *extent) update() *extent {
	t.reach = t.to
	if t.left != nil {
		t.reach = max(t.reach, t.left.reach)
	}
	if t.right != nil {
		t.reach = max(t.reach, t.right.reach)
	}
	return t
}

// split divides t into the extents before e and the rest.
func (t *extent) split(e *extent) (before, after *extent) {
	if t == nil {
		return nil, nil
	}
	if t.before(e) {
		t.right, after = t.right.split(e)
		return t.update(), after
	}
	before, t.left = t.left.split(e)
	return before, t.update()
}

func (t *extent) insert(e *extent) *extent {
	switch {
	case t == nil:
		return e
	case e.prio > t.prio:
		e.left, e.right = t.split(e)
		return e.update()
	case t.before(e):
		t.right = t.right.insert(e)
	default:
		t.left = t.left.insert(e)
	}
	return t.update()
}

func (t *extent) remove(e *extent) *extent {
	switch {
	case t == e:
		return merge(t.left, t.right)
	case t.before(e):
		t.right = t.right.remove(e)
	default:
		t.left = t.left.remove(e)
	}
	return t.update()
}

// merge joins two trees, all of a before all of b.
func merge(a, b *extent) *extent {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.prio > b.prio:
		a.right = merge(a.right, b)
		return a.update()
	}
	b.left = merge(a, b.left)
	return b.update()
}
