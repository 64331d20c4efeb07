package rdmalib

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Progress receives, in the calling thread, what has come on streams of a completion queue, and returns on how many. The C
// library calls it for a program that polls, when it sees that something has come: the program need not wait for a thread of
// the engine's then, for which there may be no processor.
func (e *Engine) Progress(h uint32) int {
	c := e.cqs.get(h)
	if c == nil {
		return 0
	}
	if !c.watched.Swap(true) {
		go c.watch()
	}
	return c.cq.Progress()
}

// Sleeps tells that the program is about to wait for an event of a completion queue whose Ring.Quiet is set.
func (e *Engine) Sleeps(h uint32) {
	if c := e.cqs.get(h); c != nil {
		c.setQuiet(false)
	}
}

const (
	// watchEvery is how often it is looked whether a program spins. It does if it has polled in vain more than spinning times
	// meanwhile, and does no more after slowAfter looks that say no: one may fall into a time when it had no processor. After
	// watchFor such looks none follows until it polls with success again.
	watchEvery = time.Millisecond
	spinning   = 64
	slowAfter  = 4
	watchFor   = 100
	// pauseMin is for how long the engine does not rely on a program's polls that stopped, without its saying so, while something
	// waited to be received, as of one that waits for a peer's Write by looking at its memory. It doubles up to pauseMax each time.
	pauseMin = 10 * time.Millisecond
	pauseMax = time.Minute
)

// quiet is whether the engine relies on the program's polls.
type quiet struct {
	mu     sync.Mutex // guards the fields below it; taken before cq.mu
	on     bool
	unseen int           // streams that the program does not look at
	until  time.Time     // not before
	pause  time.Duration // the last one
}

func (q *quiet) addUnseen(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unseen += n
}

// watch has the streams of the queue wake nobody while the program spins, which brings what comes itself.
func (c *cq) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	w := watch{}
	for now := range tick.C {
		if !c.look(&w, now) {
			c.watched.Store(false)
			return
		}
	}
}

// watch is what the looks of a watch have found.
type watch struct {
	spins uint64
	slow  int // looks in a row at a program that did not spin
}

// look is one look, and reports whether there is to be another.
func (c *cq) look(w *watch, now time.Time) (again bool) {
	spins, ok := c.inRing(func(r *Ring) uint64 { return atomic.LoadUint64(&r.Spins) })
	if !ok {
		return false
	}
	n := spins - w.spins
	w.spins = spins
	if n > spinning {
		w.slow = 0
		c.relyOn(now)
		return true
	}
	if w.slow++; w.slow == slowAfter && c.setQuiet(false) {
		c.forswear(now)
	}
	return w.slow < watchFor
}

// inRing calls f for the ring, which the library may free as soon as it is another's or nobody's: ok is false then.
func (c *cq) inRing(f func(*Ring) uint64) (v uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return 0, false
	}
	return f(c.ring), true
}

func (c *cq) isArmed() bool {
	v, _ := c.inRing(func(r *Ring) uint64 { return atomic.LoadUint64(&r.Armed) })
	return v != 0
}

// relyOn begins to rely on the program's polls, unless it waits for an event.
func (c *cq) relyOn(now time.Time) {
	q := &c.quiet
	q.mu.Lock()
	on, early := q.on, now.Before(q.until)
	q.mu.Unlock()
	if on || early || c.isArmed() {
		return
	}
	c.setQuiet(true)
	if c.isArmed() { // it looks at Quiet after it has armed the queue
		c.setQuiet(false)
	}
}

// forswear has the engine not rely on the program's polls for a while.
func (c *cq) forswear(now time.Time) {
	q := &c.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.until) > 10*q.pause {
		q.pause = 0
	}
	q.pause = min(max(2*q.pause, pauseMin), pauseMax)
	q.until = now.Add(q.pause)
}

// setQuiet reports whether something waited.
func (c *cq) setQuiet(on bool) (waited bool) {
	q := &c.quiet
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.on == on || on && q.unseen > 0 {
		return false
	}
	q.on = on
	mark := uint32(0)
	if on {
		mark = 1
	}
	c.inRing(func(r *Ring) uint64 {
		atomic.StoreUint32(&r.Quiet, mark)
		return 0
	})
	return c.cq.Polled(on)
}

// lookAfter has who polls the completion queues of q look at its stream's socket, until the result is called.
func (q *qp) lookAfter() (forget func()) {
	raw, ok := q.v.Socket()
	if !ok {
		return func() {}
	}
	var mark int32
	if raw.Control(func(fd uintptr) { mark = int32(fd) + 1 }) != nil {
		return func() {}
	}
	cqs := []*cq{q.scq, q.rcq}
	if q.rcq == q.scq {
		cqs = cqs[:1]
	}
	var forgets []func()
	for _, c := range cqs {
		forgets = append(forgets, c.lookAt(mark))
	}
	return func() {
		for _, f := range forgets {
			f()
		}
	}
}

// lookAt adds a mark to Ring.Sockets, until the result is called. While one has no place, the engine does not rely on the
// program's polls, which look at the others alone.
func (c *cq) lookAt(mark int32) (forget func()) {
	if c.replaceSocket(0, mark) {
		return func() { c.replaceSocket(mark, 0) }
	}
	c.quiet.addUnseen(1)
	c.setQuiet(false)
	return func() { c.quiet.addUnseen(-1) }
}

// replaceSocket puts one mark of Ring.Sockets in the place of another, and reports whether there was that. The library may look at a
// descriptor that is another file's by then: it does not read from it.
func (c *cq) replaceSocket(old, mark int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return true
	}
	i := slices.Index(c.ring.Sockets[:], old)
	if i >= 0 {
		atomic.StoreInt32(&c.ring.Sockets[i], mark)
	}
	return i >= 0
}
