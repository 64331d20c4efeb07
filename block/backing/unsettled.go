package backing

import (
	"sync"
	"syscall"
)

// The kernel reports an error of writeback to those who have the file open, or, if nobody
// has, to the next who opens it. If a daemon is killed in a call, the error may be lost with
// it: Linux lets the call end, and counts its error as reported. So the file has
// hintUnsettled while a sync is under way, that is a call that may get such an error, and
// until the error is recorded. A Store that finds that hint cannot vouch for the life before.
// The hint is in the kernel's memory: it costs no I/O, and outlives the process, as the page
// cache does.

// syncing counts the syncs under way.
type syncing struct {
	mu      sync.Mutex // guards the fields below it
	calls   int
	settles bool // the file has hintSettled while there are none
}

// beginSync marks the file before a sync, which endSync ends. It fails if the next Store
// could not know of it.
func (s *Store) beginSync() syscall.Errno {
	h := &s.syncing
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mustUnsettleLocked() {
		if errno := setHint(int(s.fd), hintUnsettled); errno != 0 {
			// Somebody has given the file to another owner. The life must not go on.
			s.recMu.Lock()
			s.rec.Cache = ""
			r := s.rec
			s.recMu.Unlock()
			if s.keeper.save(&r) != nil {
				return errno
			}
			h.settles = false
		}
	}
	h.calls++
	return 0
}

// endSync ends a sync, whose error has been recorded.
func (s *Store) endSync() {
	h := &s.syncing
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls--; h.calls == 0 && h.settles {
		h.settles = setHint(int(s.fd), hintSettled) == 0
	}
}

// breakLife makes the next Store begin another life.
func (s *Store) breakLife() {
	h := &s.syncing
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = setHint(int(s.fd), hintUnsettled)
	h.settles = false
}
