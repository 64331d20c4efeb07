package rtrs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// clientPath is one incarnation of a path: from its first connection to the end of its
// last.
type clientPath struct {
	cl    *Client
	path  *Path
	id    uint64 // no other incarnation of the client's has it
	inc   uint64 // of the path
	conns []*clientConn
	info  chan infoRsp // capacity 1

	version Protocol // agreed on; before, the newest that this host speaks

	// Announced by the server on connection 0.
	slots    int
	offBits  int
	newSTags bool // each response carries the chunk's new STag

	avoided  atomic.Bool // its security association has been away for a while
	prodded  atomic.Bool // something was sent since then that has it brought up
	useful   atomic.Bool // an I/O has completed here
	failOnce sync.Once
	failed   chan struct{} // closed with the client's lock held, when it is taken out of use
	err      error         // valid once failed is closed
}

// clientConn is one connection of a path. It has its own completion queue, so one
// goroutine at a time runs Completions.
type clientConn struct {
	path  *clientPath
	cid   int
	qp    *verbs.QP
	cq    *verbs.CQ
	hb    heartbeat
	dirty atomic.Bool // posted with More, not flushed

	gate sync.RWMutex // guards the fields below it; read-locked while posting
	shut bool         // no more posts
}

func (t *clientPath) fail(err error) {
	t.failOnce.Do(func() {
		t.err = err
		t.cl.pathDown(t, err)
	})
}

func (t *clientPath) isDown() bool {
	select {
	case <-t.failed:
		return true
	default:
		return false
	}
}

// shut ends posting.
func (t *clientPath) shut() {
	for _, c := range t.conns {
		c.gate.Lock()
		c.shut = true
		c.gate.Unlock()
	}
}

// shutdown ends the connections and returns when nothing of them is left: no post,
// completion or placement follows. If graceful, posted requests are sent first, within
// shutdownTimeout.
func (t *clientPath) shutdown(graceful bool) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	for _, c := range t.conns {
		switch {
		case c.qp == nil:
		case graceful:
			c.qp.Close()
		default:
			c.qp.Abort(t.err)
		}
	}
	for _, c := range t.conns {
		if c.qp != nil {
			_ = c.qp.Shutdown(ctx) // only its end matters
		}
		if c.cq != nil {
			c.cq.Destroy()
		}
	}
}

// flush starts sending what was posted with More.
func (t *clientPath) flush() {
	for _, c := range t.conns {
		if c.dirty.Load() && c.dirty.Swap(false) {
			c.qp.Flush()
		}
	}
}

// Completions implements verbs.CQHandler.
func (c *clientConn) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	var stats Stats
	for i := range wcs {
		wc := &wcs[i]
		if wc.Err != nil {
			if !c.path.isDown() {
				c.path.fail(ended(c.cid, wc.Err))
			}
			continue
		}
		switch wc.Op {
		case verbs.WCRecvImm:
			c.hb.seen()
			c.immediate(wc.Imm, &stats)
		case verbs.WCRecv:
			c.message(wc)
		}
	}
	if stats != (Stats{}) {
		c.path.cl.counters.add(&stats)
		c.path.path.counters.add(&stats)
		if !c.path.useful.Load() {
			c.path.useful.Store(true)
		}
	}
	c.path.flush()
	c.path.cl.EndBatch()
}

func (c *clientConn) immediate(imm uint64, stats *Stats) {
	if err := c.qp.PostRecv(verbs.RecvWR{}); err != nil {
		c.path.fail(err)
	}
	switch immType(imm) {
	case immIORsp:
		c.response(imm, stats)
	case immHB:
		c.postImm(makeImm(immHBAck, 0), true)
	case immHBAck:
	default:
		c.path.fail(violation("immediate %#x of an unknown type", imm))
	}
}

// response ends the I/O it belongs to, unless that has gone on by another path.
func (c *clientConn) response(imm uint64, stats *Stats) {
	t, cl := c.path.path, c.path.cl
	id, errno, stag := splitRsp(imm)
	if int(id) >= len(t.chunks) || int(id)%len(c.path.conns) != c.cid || !t.chunks[id].busy.Load() {
		c.path.fail(violation("response for chunk %d, which has no request in flight on connection %d", id, c.cid))
		return
	}
	p, ch := cl.permits[id], &t.chunks[id]
	if c.path.newSTags {
		ch.stag = stag
	}
	mine := p.state.CompareAndSwap(c.path.flying(permitFlying), permitIdle) || p.state.CompareAndSwap(c.path.flying(permitControl), permitIdle)
	settle := !mine && p.state.CompareAndSwap(c.path.flying(permitSettle), permitIdle)
	if ch.posted != 0 {
		t.noteLatency(nanotime() - ch.posted)
	}
	if t.freeChunk(ch) != nil && errno == 0 {
		errno = syscall.EIO
	}
	switch {
	case mine:
		stats.count(p.dir, p.n, errno)
	case !settle:
		cl.unpark(p)
		return
	}
	p.finish(errno)
}

// message handles the one Send that a server makes, INFO_RSP on connection 0.
func (c *clientConn) message(wc *verbs.WC) {
	c.hb.seen()
	var rsp infoRsp
	if err := rsp.Parse(c.path.path.infoBuf()[:wc.Len]); err != nil {
		c.path.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		return
	}
	select {
	case c.path.info <- rsp:
	default:
		c.path.fail(violation("a second INFO_RSP"))
	}
}

// postImm sends an immediate without data. more is set by the receiving goroutine, which
// flushes at the end of its batch, and not by the client's.
func (c *clientConn) postImm(imm uint64, more bool) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.shut {
		return
	}
	c.post(verbs.SendWR{Op: verbs.OpImmediate, Imm: imm}, more)
}

// post posts wr; the gate is held. The connection is marked dirty afterwards, so that a
// concurrent flush cannot clear the mark and miss the post.
func (c *clientConn) post(wr verbs.SendWR, more bool) {
	if more {
		wr.Flags |= verbs.More
	}
	if err := c.qp.PostSend(&wr); err != nil {
		c.path.fail(err)
		return
	}
	if more {
		c.dirty.Store(true)
	}
}

// watch sends heartbeats until the path fails, or is not wanted any more. While the
// session has other paths it looks more often whether this one's security association is
// there.
func (t *clientPath) watch() {
	hb := t.cl.heartbeat.Load()
	tick, stop := hb.ticker(hb.Interval)
	defer func() { stop() }()
	var look <-chan time.Time
	var away time.Duration
	var before Stats // when the path was last seen with its security association
	for {
		if now := t.cl.heartbeat.Load(); now != hb {
			stop()
			hb = now
			tick, stop = hb.ticker(hb.Interval)
		}
		if look == nil && (t.cl.hasOther(t) || t.cl.mayFail()) {
			ticker := time.NewTicker(avoidTick)
			defer ticker.Stop()
			look = ticker.C
		}
		select {
		case <-t.failed:
			return
		case <-t.path.ctx.Done():
			return
		case <-t.path.poke:
			if t.path.isOff() {
				return
			}
			continue
		case <-look:
			switch {
			case !t.isPaused():
				away, before = 0, t.cl.Stats()
				t.prodded.Store(false)
			case away < avoidAfter:
				away += avoidTick
			}
			t.avoid(away >= avoidAfter)
			if away < avoidAfter {
				continue
			}
			if t.cl.hasOther(t) {
				t.cl.failOver(t)
			}
			if t.cl.pool.inUse() > 0 || t.cl.Stats() != before {
				t.prod()
			}
			continue
		case <-tick:
		}
		for _, c := range t.conns {
			send, dead := c.hb.tick(c.qp.Paused(), hb.Missed)
			if dead {
				t.fail(silent(c.cid, *hb))
			}
			if send {
				c.postImm(makeImm(immHB, 0), false)
			}
		}
	}
}

// prod has the path's security association brought up, which may have gone because nothing had to
// be sent by the path: nothing would be, since such a path is avoided.
func (t *clientPath) prod() {
	if t.prodded.Swap(true) {
		return
	}
	for _, c := range t.conns {
		c.postImm(makeImm(immHB, 0), false)
	}
}

// avoid notes whether the path's security association has been away for a while.
func (t *clientPath) avoid(on bool) {
	if t.avoided.Load() == on {
		return
	}
	t.cl.mu.Lock()
	defer t.cl.mu.Unlock()
	t.avoided.Store(on)
	t.cl.noteOutageLocked()
}

// isPaused reports whether a connection's security association is down.
func (t *clientPath) isPaused() bool {
	return slices.ContainsFunc(t.conns, func(c *clientConn) bool { return c.qp.Paused() })
}

// answers asks the server for a sign of life on each connection that can bring one, and
// reports whether one comes soon.
func (t *clientPath) answers(ctx context.Context) bool {
	for _, c := range t.conns {
		if !c.qp.Paused() {
			c.hb.rx.Store(false)
			c.postImm(makeImm(immHB, 0), false)
		}
	}
	look := time.NewTicker(challengeTick)
	defer look.Stop()
	over := time.NewTimer(t.cl.cfg.challengeWait)
	defer over.Stop()
	for {
		if slices.ContainsFunc(t.conns, func(c *clientConn) bool { return !c.qp.Paused() && c.hb.rx.Load() }) {
			return true
		}
		select {
		case <-look.C:
		case <-t.failed:
			return false
		case <-ctx.Done():
			return false
		case <-over.C:
			return false
		}
	}
}

func silent(cid int, hb HeartbeatConfig) error {
	return fmt.Errorf("%w: connection %d was silent for %v", ErrHeartbeat, cid, time.Duration(hb.Missed+1)*hb.Interval)
}

// began is when nanotime began.
var began = time.Now()

func nanotime() int64 { return int64(time.Since(began)) }
