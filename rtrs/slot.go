package rtrs

import (
	"slices"
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
	running *Request      // it, at the handler; nil once it is done
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
// executed again, unless it is being executed: then it has the same answer.
func (s *slot) begin(r *Request) (verdict, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := int32(r.seq - s.seq)
	switch {
	case s.state == slotFresh || age > 0:
		if s.state == slotExecuting {
			return violates, 0
		}
		s.seq, s.dir, s.state, s.running = r.seq, r.Dir, slotDone, r
		if r.Dir == Write {
			s.state = slotExecuting
		}
		return execute, 0
	case age < 0:
		return s.pastLocked()
	case r.Dir != s.dir:
		return violates, 0
	case r.Dir == Write:
		return s.repeatedLocked(r)
	case s.running == nil:
		s.running = r
		return execute, 0
	case len(r.Data) != len(s.running.Data):
		return violates, 0
	}
	return s.waitLocked(r)
}

func (s *slot) waitLocked(r *Request) (verdict, syscall.Errno) {
	s.running.same = append(s.running.same, r)
	return wait, 0
}

// leave forgets requests that wait on a path that has gone, and returns how many.
func (s *slot) leave(p *serverPath) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		n = len(s.running.same)
		s.running.same = slices.DeleteFunc(s.running.same, func(r *Request) bool { return r.path == p })
		n -= len(s.running.same)
	}
	return n
}

// end ends the execution of r. It returns the requests that get the same answer.
func (s *slot) end(r *Request, errno syscall.Errno) (same []*Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == r {
		s.running, s.state, s.errno = nil, slotDone, errno
	}
	same, r.same = r.same, nil
	return same
}
