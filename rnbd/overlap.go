package rnbd

import (
	"slices"
	"sync"
)

// overlaps has writes to the same bytes of a disk begin one after the other, in the
// order of their submission. An unanswered write is sent again when its path is lost,
// although the server may have carried it out: had a later one to the same bytes been
// acknowledged meanwhile, the earlier data would come back over it.
type overlaps struct {
	mu     sync.Mutex // guards the fields below it
	flying []extent
	held   []*diskIO // in order; each overlaps one that flies, or is held before it
}

// extent is what a write changes.
type extent struct {
	from, to uint64
	io       *diskIO
}

func extentOf(io *diskIO) extent { return extent{io.off, io.off + uint64(io.n), io} }

func (e extent) overlaps(o extent) bool { return e.from < o.to && o.from < e.to }

func (w *overlaps) admitLocked(io *diskIO) bool {
	e := extentOf(io)
	if slices.ContainsFunc(w.flying, e.overlaps) || slices.ContainsFunc(w.held, func(h *diskIO) bool { return e.overlaps(extentOf(h)) }) {
		w.held = append(w.held, io)
		return false
	}
	w.flying = append(w.flying, e)
	return true
}

// end notes that a write has ended, sent or not. It returns those that may be sent now,
// linked by next.
func (w *overlaps) end(io *diskIO) (ready *diskIO) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := func(e extent) bool { return e.io == io }
	if i := slices.IndexFunc(w.flying, same); i >= 0 {
		last := len(w.flying) - 1
		w.flying[i] = w.flying[last]
		w.flying[last] = extent{}
		w.flying = w.flying[:last]
	}
	held, tail := w.held, &ready
	w.held = held[:0]
	for _, h := range held {
		if w.admitLocked(h) {
			*tail, tail = h, &h.next
		}
	}
	clear(held[len(w.held):])
	return ready
}

// drop takes out the writes of a user that have not been sent.
func (w *overlaps) drop(u *diskUser) (all []*diskIO) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = slices.DeleteFunc(w.held, func(io *diskIO) bool {
		if io.permits[0].User != u {
			return false
		}
		all = append(all, io)
		return true
	})
	return all
}
