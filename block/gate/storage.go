package gate

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/fifo"
)

// Storage is a block.Storage behind a gate.
//
//	         open ---SetLimits, Hold---> guarded ---no limits, Release---> open
//
//	open:    an I/O goes on to the storage below.
//	guarded: it goes on if nothing waits before it, there are tokens for it, and it is not held;
//	         otherwise it waits in the queue of its direction, until a timer or Release lets it go on.
type Storage struct {
	block.Storage
	counts bool // what is under way, for Hold

	guarded  atomic.Bool  // whether there is anything to look at below
	changing atomic.Int64 // what changes the disk and is under way; with counts

	mu       sync.Mutex // guards the fields below it
	free     sync.Cond  // holding is false
	limiter  *limiter   // nil: no limits
	holding  bool
	hurrying int           // calls of Hurry that have not been stopped
	drained  chan struct{} // closed when nothing changes the disk any more; nil: nobody waits for that
	waiting  [directions]fifo.Queue[job]
	due      [directions]time.Time // when the first job has its tokens; zero: it has not asked for them
	timer    *time.Timer           // of the first job that has them; nil: there was none yet
	timerAt  time.Time             // when it ends; zero: it has ended
}

// job is an I/O that waits.
type job struct {
	q    *queue
	op   block.Op
	fl   block.Flags
	buf  []byte
	off  int64
	n    int64
	done block.Completion
}

// New puts a gate before a storage. Only one that counts can be held; that costs what changes the disk two atomic operations each.
func New(below block.Storage, counts bool) *Storage {
	s := &Storage{Storage: below, counts: counts}
	s.free.L = &s.mu
	return s
}

// SetLimits changes the limits, which Check has accepted, also while I/O waits: what waits goes on by the new ones.
func (s *Storage) SetLimits(l Limits) {
	s.mu.Lock()
	if was := s.limiter; was != nil && was.limits == l || was == nil && l.IsZero() {
		s.mu.Unlock()
		return
	}
	s.limiter = nil
	if !l.IsZero() {
		s.limiter = newLimiter(l)
	}
	clear(s.due[:])
	s.guardLocked()
	s.letGoAndUnlock(s.passLocked)
}

// Waiting is how many I/Os wait.
func (s *Storage) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[reads].Len() + s.waiting[writes].Len()
}

// Hurry has I/O go on beyond the limits, what waits at once, until stop is called: whoever waits for it to end need not wait for tokens.
func (s *Storage) Hurry() (stop func()) {
	s.mu.Lock()
	s.hurrying++
	s.letGoAndUnlock(s.passLocked)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hurrying--
	})
}

// guardLocked notes whether I/O has anything to look at.
func (s *Storage) guardLocked() { s.guarded.Store(s.limiter != nil || s.holding) }

// Hold holds back what changes the disk, until release is called, and waits for what is under way. One holds at a time, and calls release
// soon. It fails with ctx's error if what is under way does not end, and then holds nothing back.
func (s *Storage) Hold(ctx context.Context) (release func(), err error) {
	if !s.counts {
		return nil, fmt.Errorf("gate: the storage does not count what is under way, so that it cannot be held")
	}
	s.mu.Lock()
	if s.holding {
		s.mu.Unlock()
		return nil, fmt.Errorf("gate: the storage is being held already")
	}
	s.holding = true
	s.guardLocked()
	drained := make(chan struct{})
	s.drained = drained
	s.mu.Unlock()
	if s.changing.Load() == 0 {
		s.noteDrained()
	}
	release = sync.OnceFunc(s.release)
	select {
	case <-drained:
		return release, nil
	case <-ctx.Done():
		release()
		return nil, fmt.Errorf("gate: writes that are under way have not ended: %w", ctx.Err())
	}
}

func (s *Storage) release() {
	s.mu.Lock()
	s.holding, s.drained = false, nil
	s.guardLocked()
	s.free.Broadcast()
	s.letGoAndUnlock(s.passLocked)
}

// noteDrained tells who holds that nothing changes the disk any more.
func (s *Storage) noteDrained() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained != nil && s.changing.Load() == 0 {
		close(s.drained)
		s.drained = nil
	}
}

// end notes that something that has changed the disk has ended, or has not begun.
func (s *Storage) end() {
	if s.changing.Add(-1) == 0 && s.guarded.Load() {
		s.noteDrained()
	}
}

// passLocked takes out the jobs that may go on now, and sets the timer for the next one.
func (s *Storage) passLocked() (ready []job) {
	now := time.Now()
	for d := range directions {
		for s.waiting[d].Len() > 0 && s.mayPassLocked(d, now) {
			ready = append(ready, s.popLocked(d))
		}
	}
	return ready
}

// mayPassLocked reports whether the first job of a direction may go on. If it waits for tokens the timer is set.
func (s *Storage) mayPassLocked(d int, now time.Time) bool {
	switch {
	case d == writes && s.holding:
		return false
	case s.limiter == nil, s.hurrying > 0:
		return true
	case s.due[d].IsZero():
		s.due[d] = now.Add(s.limiter.take(now, d, len(s.waiting[d].At(0).buf)))
	}
	if !s.due[d].After(now) {
		return true
	}
	s.setTimerLocked(s.due[d], now)
	return false
}

func (s *Storage) popLocked(d int) job {
	s.due[d] = time.Time{}
	return s.waiting[d].Pop()
}

// setTimerLocked sets the timer, unless it ends earlier.
func (s *Storage) setTimerLocked(at, now time.Time) {
	switch {
	case !s.timerAt.IsZero() && !at.Before(s.timerAt):
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(at.Sub(now), s.onTimer)
	default:
		s.timer.Reset(at.Sub(now))
	}
	s.timerAt = at
}

func (s *Storage) onTimer() {
	s.mu.Lock()
	s.timerAt = time.Time{}
	s.letGoAndUnlock(s.passLocked)
}

// letGoAndUnlock hands the jobs that pick takes out of the queues on to the storage below.
func (s *Storage) letGoAndUnlock(pick func() []job) {
	ready := pick()
	for i := range ready {
		s.beginLocked(&ready[i])
	}
	s.mu.Unlock()
	for i := range ready {
		ready[i].q.begin(&ready[i])
	}
	for i := range ready {
		// Replies leave once for all jobs of a queue, whichever have been carried out by now.
		if q := ready[i].q; q.afterBatch != nil && (i == len(ready)-1 || ready[i+1].q != q) {
			q.afterBatch()
		}
	}
}

// beginLocked counts a job that is about to go on.
func (s *Storage) beginLocked(j *job) {
	if s.counts && j.op.Writes() {
		s.changing.Add(1)
		j.done = s.counted(j.done)
	}
	j.q.passing.Add(1)
}

// counted is a completion that is counted as under way until then.
type counted struct {
	s    *Storage
	done block.Completion
}

var countedPool = sync.Pool{New: func() any { return new(counted) }}

func (s *Storage) counted(done block.Completion) *counted {
	c := countedPool.Get().(*counted)
	c.s, c.done = s, done
	return c
}

// Complete implements block.Completion.
func (c *counted) Complete(errno syscall.Errno) {
	s, done := c.s, c.done
	*c = counted{}
	countedPool.Put(c)
	done.Complete(errno)
	s.end()
}
