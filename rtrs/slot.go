package rtrs

import (
	"sync"
	"syscall"
)

// slot remembers the last request of a permit, whichever path it came by, so that a write
// is executed once. It is a slot of NFSv4.1's table (RFC 8881 section 2.10.6.1).
type slot struct {
	mu      sync.Mutex // guards the fields below it
	state   slotState
	dir     Dir
	seq     uint32
	errno   syscall.Errno // once it is done
	waiting []*Request    // the same write by other paths, while it is executing
}

type slotState uint8

const (
	slotFresh     slotState = iota // no request yet
	slotExecuting                  // a write is at the handler
	slotDone
)

// verdict is what becomes of a request that has arrived.
type verdict uint8

const (
	execute  verdict = iota
	wait             // until the execution that is under way ends
	answer           // at once
	violates         // what the client may do
)

// begin decides about a request: a new one is executed; a write that was sent again is
// answered with the result of its only execution; one that the client has left behind,
// which was on a slower path, is answered with ESTALE and not executed. A read is
// executed again.
func (s *slot) begin(r *Request) (verdict, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := int32(r.seq - s.seq)
	switch {
	case s.state == slotFresh || age > 0:
		if s.state == slotExecuting {
			return violates, 0
		}
		s.seq, s.dir, s.state = r.seq, r.Dir, slotDone
		if r.Dir == Write {
			s.state = slotExecuting
		}
		return execute, 0
	case age < 0:
		return s.pastLocked()
	case r.Dir != s.dir:
		return violates, 0
	case r.Dir == Read:
		return execute, 0
	}
	return s.repeatedLocked(r)
}

// end ends the execution of r. It returns the requests that get the same answer.
func (s *slot) end(r *Request, errno syscall.Errno) (same []*Request) {
	if r.Dir == Read {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == slotExecuting && s.seq == r.seq {
		s.state, s.errno = slotDone, errno
		same, s.waiting = s.waiting, nil
	}
	return same
}
