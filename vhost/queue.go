package vhost

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// queue has the front end's settings of one of its queues.
type queue struct {
	index      int
	num        uint16
	addr       vringAddr
	hasAddr    bool // addr is set
	base       uint32
	enabled    bool
	kick, call *event // nil: none
	runner     *runner
}

// runner carries out the requests of a queue, with two goroutines: one takes requests from the
// ring, waits for the device to have room for them, and submits them; the other gives them
// back. Only these two touch the front end's memory, and the device's goroutines that place what
// is read (target.go): what the front end does to them is its own loss.
//
//	ring ─pop─▶ parsed ─Get, Submit─▶ at the device ─Complete─▶ done ─push─▶ ring
//	               └─────────────── refused ────────────────────▲
type runner struct {
	f          *frontend
	disk       *disk
	kick       *event
	call       atomic.Pointer[event]
	callSignal signaler // tells the guest that requests have ended
	kickSignal signaler // tells the successor of this runner that there are requests
	log        *region  // has the ring's log; nil if there is none
	stopping   atomic.Bool
	wake       chan struct{} // capacity 1: there is something for the second goroutine
	over       chan struct{} // closed when all that was taken has been given back

	mu     sync.Mutex // guards the fields below it
	ring   ring
	mem    *memory // nil once all has ended
	out    int     // requests that were taken and not given back, one while the first goroutine runs, and one for recall
	recall bool    // call is another: nobody was told by it of what ended before
	free   *request

	endedMu  sync.Mutex // guards the fields below it; innermost
	done     *piece
	finished *request
}

// start starts a runner for a queue whose ring is set up.
func (f *frontend) start(q *queue, ring ring, log *region) {
	r := &runner{f: f, disk: &f.disk, kick: q.kick, log: log, wake: make(chan struct{}, 1), over: make(chan struct{}),
		ring: ring, mem: f.mem.retain(), out: 1}
	if log != nil {
		log.refs.Add(1)
	}
	r.call.Store(q.call)
	q.runner = r
	q.kick.resume()
	f.running.Go(r.giveBack)
	f.running.Go(r.takeRequests)
}

// setCall sets what wakes the guest. The queue's own goroutine tells it that way: the front end
// can have any write to its counter wait, even of one that did not when it came.
func (q *queue) setCall(e *event) {
	old := q.call
	q.call = e
	if r := q.runner; r != nil {
		r.call.Store(e)
		r.tellAnew()
	}
	old.close()
}

// tellAnew has the second goroutine tell the guest, unless all has ended.
func (r *runner) tellAnew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out > 0 && !r.recall {
		r.recall = true
		r.out++
		r.wakeGiver()
	}
}

// takeRecall reports, once, whether the guest is to be told.
func (r *runner) takeRecall() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.recall
	r.recall = false
	return was
}

// stop takes no more requests. Those that were taken end.
func (r *runner) stop() {
	r.stopping.Store(true)
	r.kick.interrupt()
}

// isStopping reports whether no more requests are taken.
func (r *runner) isStopping() bool { return r.stopping.Load() || r.f.gone.Load() }

// await waits, after stop, until all requests have ended, or ctx does.
func (r *runner) await(ctx context.Context) bool {
	tick := time.NewTicker(hangUpTick)
	defer tick.Stop()
	for {
		select {
		case <-r.over:
			return true
		case <-ctx.Done():
			return false
		case <-tick.C:
			if r.f.gone.Load() {
				r.callSignal.unblock()
				r.kickSignal.unblock()
			}
		}
	}
}

// signaler signals a counter. If that is full and waits, unblock ends the wait. The counter may
// be the next front end's as well, so nothing is taken from it but for that.
type signaler struct {
	to atomic.Pointer[event] // nil: nobody signals
	is *event                // what to was when unblock was last called
}

func (t *signaler) signal(e *event) error {
	t.to.Store(e)
	defer t.to.Store(nil)
	return e.signal()
}

// unblock ends a wait for room that has lasted since it was last called.
func (t *signaler) unblock() {
	is := t.to.Load()
	if is == t.is {
		is.drain()
	}
	t.is = is
}

// takeRequests takes requests from the ring.
func (r *runner) takeRequests() {
	defer r.countEnded(1)
	for !r.isStopping() {
		if err := r.takeAll(); err != nil {
			r.f.fail(err)
			return
		}
		if err := r.awaitKick(); err != nil {
			if !isInterrupted(err) {
				r.f.fail(err)
			}
			return
		}
	}
}

// awaitKick waits until the guest has kicked, or r is to stop. A kick that came when r was to
// stop is left to its successor.
func (r *runner) awaitKick() error {
	err := r.kick.wait()
	if err == nil && r.isStopping() {
		err = r.kickSignal.signal(r.kick)
	}
	return err
}

// takeAll takes all requests that there are. What it has submitted is started, whatever comes
// next.
func (r *runner) takeAll() error {
	defer r.disk.Kick()
	for {
		q, err := r.popRequest()
		if err != nil {
			return err
		}
		if q != nil {
			if err := r.carryOut(q); err != nil {
				return err
			}
			continue
		}
		if more, err := r.rearm(); err != nil || !more {
			return err
		}
	}
}

// popRequest takes the next request. It returns nil if there is none, or the queue is to stop.
func (r *runner) popRequest() (*request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isStopping() || !r.f.touch() {
		return nil, nil
	}
	defer r.f.touched()
	q := r.free
	if q == nil {
		q = &request{r: r}
	} else {
		r.free = q.next
	}
	q.next = nil
	ok, err := false, error(nil)
	ring := r.ring
	if terr := guarded(func() error { ok, err = ring.pop(&q.chain); return nil }); terr != nil {
		err = terr
	}
	if !ok || err != nil {
		q.chain.reset()
		q.next, r.free = r.free, q
		return nil, err
	}
	q.mem = r.mem.retain()
	r.out++
	return q, nil
}

func (r *runner) rearm() (more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.f.touch() {
		return false, nil
	}
	defer r.f.touched()
	ring := r.ring
	err = guarded(func() error { more = ring.rearm(); return nil })
	return more && !r.isStopping(), err
}

// carryOut parses a request and submits it. It fails if the front end has to end.
func (r *runner) carryOut(q *request) error {
	q.left.Store(1)
	q.errno.Store(0)
	var err, fatal error
	if terr := guarded(func() error { err, fatal = q.parse(r.disk); return nil }); terr != nil {
		fatal = terr
	}
	if err != nil {
		q.fail(err)
	} else if fatal == nil {
		fatal = r.submit(q)
	}
	if fatal != nil {
		r.f.fail(fatal) // before it is given back
	}
	r.endPart(q)
	return fatal
}

// submit gives a request to the device, in pieces if it takes no longer ones.
func (r *runner) submit(q *request) error {
	switch {
	case q.op.HasData() && (q.n == 0 || q.data == nil):
		return nil
	case !q.op.HasData():
		return r.submitPiece(q, 0, q.n)
	}
	most := r.disk.maxIO()
	for at := uint32(0); at < q.n; {
		n := min(most, q.n-at)
		if err := r.submitPiece(q, at, n); err != nil || q.errno.Load() != 0 {
			return err
		}
		at += n
	}
	return nil
}

func (r *runner) submitPiece(q *request, at, n uint32) error {
	d := r.disk
	io, err := d.TryGet(q.op, q.off+uint64(at), n, q.fl)
	if err == block.ErrBusy {
		d.Kick()
		io, err = d.Get(r.f.ctx, q.op, q.off+uint64(at), n, q.fl)
	}
	if err != nil {
		q.fail(err)
		return nil
	}
	if q.op == block.OpWrite {
		at := at
		err := guarded(func() error {
			for _, b := range io.Buffers() {
				gather(b, q.data, at)
				at += uint32(len(b))
			}
			return nil
		})
		if err != nil {
			io.Release()
			return err
		}
	}
	q.left.Add(1)
	(&piece{req: q, io: io, at: at, n: n}).submit(true)
	return nil
}

// endPart notes that a part of a request has ended, or its submission.
func (r *runner) endPart(q *request) {
	if q.left.Add(-1) > 0 {
		return
	}
	r.endedMu.Lock()
	q.next, r.finished = r.finished, q
	r.endedMu.Unlock()
	r.wakeGiver()
}

// queueCompleted is a piece's end at the device.
func (r *runner) queueCompleted(p *piece) {
	r.endedMu.Lock()
	p.next, r.done = r.done, p
	r.endedMu.Unlock()
	r.wakeGiver()
}

func (r *runner) wakeGiver() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// giveBack gives requests back when they have ended.
func (r *runner) giveBack() {
	defer r.log.release()
	for {
		select {
		case <-r.wake:
		case <-r.over:
			r.releaseMemory()
			return
		}
		if err := r.giveBackEnded(); err != nil {
			r.f.fail(err)
		}
	}
}

func (r *runner) giveBackEnded() (err error) {
	r.endedMu.Lock()
	p := r.done
	r.done = nil
	r.endedMu.Unlock()
	for p != nil {
		next := p.next
		done, perr := r.endPiece(p)
		if perr != nil {
			err = perr
		}
		if done {
			r.endPart(p.req)
		}
		p = next
	}
	r.endedMu.Lock()
	list := r.finished
	r.finished = nil
	r.endedMu.Unlock()
	n, call, perr := 0, r.takeRecall(), error(nil)
	if call {
		n = 1
	}
	if list != nil {
		ended, due, lerr := r.pushAll(list)
		n, call, perr = n+ended, call || due, lerr
	}
	if n == 0 {
		return err
	}
	if call {
		if serr := r.callSignal.signal(r.call.Load()); err == nil {
			err = serr
		}
	}
	if err == nil {
		err = perr
	}
	r.countEnded(n)
	return err
}

// endPiece delivers what a piece has read to the guest's memory, and ends it. It reports false
// if the piece is read once more.
func (r *runner) endPiece(p *piece) (done bool, err error) {
	switch {
	case p.errno != 0:
		p.req.fail(p.errno)
	case p.req.op == block.OpRead && r.f.touch():
		done, err = p.deliver()
		if r.f.touched(); !done {
			return false, nil
		}
	}
	p.io.Release()
	return true, err
}

// pushAll gives the requests back to the ring, unless the front end is gone: its successor finds
// them under way.
func (r *runner) pushAll(list *request) (n int, call bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ring := r.ring
	if r.f.touch() {
		err = guarded(func() error {
			for q := list; q != nil; q = q.next {
				if q.status != nil {
					q.status[0] = q.result()
				}
				ring.push(&q.chain, q.bytesWritten())
			}
			call = ring.publish()
			return nil
		})
		r.f.touched()
	}
	for q := list; q != nil; n++ {
		next := q.next
		r.f.srv.count(q)
		q.chain.reset()
		q.mem.release()
		q.mem, q.data, q.status, q.fl, q.n = nil, nil, nil, 0, 0
		q.next, r.free = r.free, q
		q = next
	}
	return n, call, err
}

// countEnded subtracts n from out.
func (r *runner) countEnded(n int) {
	r.mu.Lock()
	r.out -= n
	over := r.out == 0
	r.mu.Unlock()
	if over {
		close(r.over)
	}
}

// releaseMemory gives the memory up, after all has ended.
func (r *runner) releaseMemory() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mem.release()
	r.mem = nil
}

// relocate moves the ring to other memory. It fails if not all of it is there. A queue that has
// ended by itself, of a front end that is being ended for that, needs none.
func (r *runner) relocate(mem *memory, at vringAddr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	if err := r.ring.relocate(mem, at); err != nil {
		return err
	}
	old := r.mem
	r.mem = mem.retain()
	old.release()
	return nil
}

// base is where the ring goes on, after all has ended.
func (r *runner) base() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring.base()
}
