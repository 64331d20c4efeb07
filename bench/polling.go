package main

import (
	"context"
	"runtime"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// polls is how an end of a ping-pong that has no handler awaits completions.
type polls uint8

const (
	pollsNot   polls = iota // it has a handler
	pollsOnly               // CQ.Poll, while the engine receives
	progresses              // CQ.Poll and CQ.Progress
)

var (
	polling     = variant{name: "polling, CRC on", polls: pollsOnly}
	progressing = variant{name: "polling with Progress, CRC on", polls: progresses}
)

// poll waits for completions.
func (p polls) poll(cq *verbs.CQ, wcs []verbs.WC) int {
	for {
		if n := cq.Poll(wcs); n > 0 {
			return n
		}
		if p == progresses {
			cq.Progress()
		}
		runtime.Gosched()
	}
}

// polledPingPong measures round trips of Sends of 64 bytes between two ends that poll.
func polledPingPong(srv *peer, v variant) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialRDMA(ctx, srv.addr, rdmaEcho, v, 2*echoSlot, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		end := time.Now().Add(srv.time)
		took, err := c.pingPolled(v.polls, func(int) bool { return time.Now().Before(end) })
		if err != nil {
			return nil, err
		}
		return percentiles(took)
	}
}

// pingPolled plays while more(n), and returns what each round trip took.
func (c *rdmaClient) pingPolled(p polls, more func(n int) bool) (took []time.Duration, err error) {
	took = make([]time.Duration, 0, 1<<17)
	var wcs [4]verbs.WC
	for more(len(took)) {
		start := time.Now()
		c.sge[0] = verbs.SGE{MR: c.mr, Off: echoSlot, Len: 64}
		c.wr = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: c.sge[:]}
		if err := c.qp.PostSend(&c.wr); err != nil {
			return nil, err
		}
		wc := &wcs[0]
		p.poll(c.cq, wcs[:1])
		took = append(took, time.Since(start))
		if wc.Err != nil {
			return nil, wc.Err
		}
		c.sge[0] = verbs.SGE{MR: c.mr, Len: echoSlot}
		if err := c.qp.PostRecv(verbs.RecvWR{ID: wc.ID, SGL: c.sge[:]}); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// servePolled answers until the stream ends, from a goroutine of its own.
func (e *echo) servePolled(p polls, cq *verbs.CQ) {
	var wcs [echoDepth]verbs.WC
	for {
		n := p.poll(cq, wcs[:])
		e.Completions(cq, wcs[:n])
		if wcs[0].Err != nil {
			return
		}
	}
}
