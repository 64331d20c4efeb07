package main

import (
	"context"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// rdmaStreams writes on n streams for a while in Writes of size bytes, each
// followed by a message that the server answers: it has got everything then.
// Each stream goes round span bytes of the server's memory.
func rdmaStreams(p *peer, v variant, n, size, span int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		h, err := newRDMAHome(p.addr, v)
		if err != nil {
			return nil, err
		}
		defer h.Close()
		streams := make([]*rdmaClient, n)
		for i := range streams {
			if streams[i], err = h.dial(ctx, rdmaTarget, size, nil); err != nil {
				return nil, err
			}
			streams[i].span = span
		}
		return measureStream(p, func(until time.Time) (float64, error) {
			return atOnce(streams, func(c *rdmaClient) (float64, error) {
				n, err := c.writes(ctx, size, func(int) bool { return time.Now().Before(until) })
				if err == nil {
					err = c.sync(ctx)
				}
				return float64(n) * float64(size), err
			})
		})
	}
}

// rdmaSingly is a stream as perftest's: each Write is posted on its own and
// signaled.
func rdmaSingly(p *peer, v variant, size int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialRDMA(ctx, p.addr, rdmaTarget, v, size, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return measureStream(p, func(until time.Time) (float64, error) {
			n, err := c.writesListed(ctx, size, 1, func(int) bool { return time.Now().Before(until) })
			if err == nil {
				err = c.sync(ctx)
			}
			return float64(n) * float64(size), err
		})
	}
}

// window is how many bytes of Writes are posted and not yet done.
const window = 4 << 20

// writes posts Writes while more(n), in lists of a quarter of the window.
func (c *rdmaClient) writes(ctx context.Context, size int, more func(n int) bool) (n int, err error) {
	return c.writesListed(ctx, size, max(window/size/4, 1), more)
}

// writesListed posts Writes while more(n), in lists of every requests, the last
// of them signaled.
func (c *rdmaClient) writesListed(ctx context.Context, size, every int, more func(n int) bool) (n int, err error) {
	depth := window / size
	var wcs [64]verbs.WC
	credit := depth
	for more(n) {
		for credit == 0 {
			k, err := c.reap(ctx, wcs[:], verbs.WCWrite)
			if err != nil {
				return n, err
			}
			credit += k * every
		}
		n++
		credit--
		c.sge[0] = verbs.SGE{MR: c.mr, Len: uint32(size)}
		c.wr = verbs.SendWR{Op: verbs.OpWrite, SGL: c.sge[:], RemoteSTag: c.stag, RemoteTO: uint64(n*size) % uint64(c.span)}
		if c.wr.Flags = verbs.More; n%every == 0 {
			c.wr.Flags = verbs.Signaled
		}
		if err := c.qp.PostSend(&c.wr); err != nil {
			return n, err
		}
	}
	return n, nil
}

// sync sends a message and waits for the answer: the server has got all then.
func (c *rdmaClient) sync(ctx context.Context) error {
	var wcs [64]verbs.WC
	c.sge[0] = verbs.SGE{MR: c.mr, Len: echoSlot}
	c.wr = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: c.sge[:]}
	if err := c.qp.PostSend(&c.wr); err != nil {
		return err
	}
	for {
		if k, err := c.reap(ctx, wcs[:], verbs.WCRecv); k > 0 || err != nil {
			return err
		}
	}
}

// reap waits for completions and returns how many are of kind op.
func (c *rdmaClient) reap(ctx context.Context, wcs []verbs.WC, op verbs.WCOp) (n int, err error) {
	k := c.cq.Poll(wcs)
	for ; k == 0; k = c.cq.Poll(wcs) {
		if err := c.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
	for _, wc := range wcs[:k] {
		if wc.Err != nil {
			return n, wc.Err
		}
		if wc.Op == op {
			n++
		}
	}
	return n, nil
}
