package rtrs

import (
	"slices"
	"sync"
	"syscall"
)

// slot remembers the last request of a permit, whichever path it came by, so that a write
// is executed once however often it is sent. A session's slots are NFSv4.1's slot table and
// reply cache (RFC 8881 section 2.10.6.1).
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
	verdictExecute  verdict = iota
	verdictWait             // until the execution that is under way ends
	verdictAnswer           // at once
	verdictViolates         // what the client may do
)

// beginOnce decides whether a request that has arrived is executed: a new one is; a write that was sent again is
// answered with the result of its only execution; one that the client has left behind,
// which was on a slower path, is answered with ESTALE and not executed. A read is
// executed again, unless it is being executed: then it has the same answer.
func (s *slot) beginOnce(r *Request) (verdict, syscall.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := int32(r.seq - s.seq)
	switch {
	case s.state == slotFresh || age > 0:
		if s.state == slotExecuting {
			return verdictViolates, 0
		}
		s.seq, s.dir, s.state, s.running = r.seq, r.Dir, slotDone, r
		if r.Dir == Write {
			s.state = slotExecuting
		}
		return verdictExecute, 0
	case age < 0:
		return s.lateRequestLocked()
	case r.Dir != s.dir:
		return verdictViolates, 0
	case r.Dir == Write:
		return s.repeatedWriteLocked(r)
	case s.running == nil:
		s.running = r
		return verdictExecute, 0
	case len(r.Data) != len(s.running.Data):
		return verdictViolates, 0
	}
	return s.waitLocked(r)
}

func (s *slot) waitLocked(r *Request) (verdict, syscall.Errno) {
	s.running.same = append(s.running.same, r)
	return verdictWait, 0
}

// dropWaiting forgets requests that wait on a path that has gone, and returns how many.
func (s *slot) dropWaiting(p *serverPath) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		n = len(s.running.same)
		s.running.same = slices.DeleteFunc(s.running.same, func(r *Request) bool { return r.path == p })
		n -= len(s.running.same)
	}
	return n
}

// endExecution ends the execution of r. It returns the requests that get the same answer.
func (s *slot) endExecution(r *Request, errno syscall.Errno) (same []*Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == r {
		s.running, s.state, s.errno = nil, slotDone, errno
	}
	same, r.same = r.same, nil
	return same
}
