package backing

import (
	"sync"
	"syscall"
)

// The kernel tells an error of writeback to those who have the file open then, or to the
// next who opens it if nobody was told. A call of a daemon that is killed meanwhile takes
// the error along: Linux lets it end, and counts its error as told. So the hint says
// untold while a call is under way that may be told, until its error is written down, and a
// Store that finds it so cannot vouch for the life before. The hint is in the kernel's
// memory: it costs no I/O, and outlives the process, as the page cache does.

// hearing are the calls under way that the kernel may tell of an error of writeback.
type hearing struct {
	mu    sync.Mutex // guards the fields below it
	calls int
	stays bool // the hint says so while there are none
}

// hear begins a call that may be told, which heard ends. It fails if a Store after this one
// could not know that.
func (s *Store) hear() syscall.Errno {
	h := &s.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isUnsaidLocked() {
		if errno := pin(int(s.fd), untold); errno != 0 {
			// Somebody has given the file to another owner. The life shall not go on.
			s.recMu.Lock()
			s.rec.Cache = ""
			r := s.rec
			s.recMu.Unlock()
			if s.keeper.save(&r) != nil {
				return errno
			}
			h.stays = false
		}
	}
	h.calls++
	return 0
}

// heard ends a call. What it was told has been written down.
func (s *Store) heard() {
	h := &s.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls--; h.calls == 0 && h.stays {
		h.stays = pin(int(s.fd), inodeStays) == 0
	}
}

// unsure has the next Store begin another life.
func (s *Store) unsure() {
	h := &s.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = pin(int(s.fd), untold)
	h.stays = false
}
