package rnbd

import (
	"slices"
	"sync"
)

// writeOrder makes overlapping writes of an export begin one after the other, in the order of
// submission, whichever Disk of the session they are submitted to. An unanswered write is
// resent when its path is lost, although the server may have carried it out: if a later
// overlapping write had been acknowledged meanwhile, the earlier data would overwrite it.
// One that failed without an answer may still be executed, until it is settled.
type writeOrder struct {
	mu     sync.Mutex // guards the fields below it
	flying []extent
	held   []*diskIO // in order; each overlaps a flying write or an earlier held one
}

// extent is the range that a write changes.
type extent struct {
	from, to uint64
	io       *diskIO
}

func extentOf(io *diskIO) extent { return extent{io.off, io.off + uint64(io.n), io} }

func (e extent) overlaps(o extent) bool { return e.from < o.to && o.from < e.to }

func (w *writeOrder) beginWriteLocked(io *diskIO) bool {
	e := extentOf(io)
	if slices.ContainsFunc(w.flying, e.overlaps) || slices.ContainsFunc(w.held, func(h *diskIO) bool { return e.overlaps(extentOf(h)) }) {
		w.held = append(w.held, io)
		return false
	}
	w.flying = append(w.flying, e)
	return true
}

// endWrite records that a write has ended, sent or not. It returns those that may be sent now,
// linked by next.
func (w *writeOrder) endWrite(io *diskIO) (ready *diskIO) {
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
		if w.beginWriteLocked(h) {
			*tail, tail = h, &h.next
		}
	}
	clear(held[len(w.held):])
	return ready
}

// substitute has another write stand for one that was sent.
func (w *writeOrder) substitute(io, by *diskIO) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.flying {
		if w.flying[i].io == io {
			w.flying[i].io = by
		}
	}
}

// dropHeld removes writes that have not been sent.
func (w *writeOrder) dropHeld(which func(*diskIO) bool) (all []*diskIO) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = slices.DeleteFunc(w.held, func(io *diskIO) bool {
		if !which(io) {
			return false
		}
		all = append(all, io)
		return true
	})
	return all
}
