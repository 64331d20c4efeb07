package main

import (
	"context"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// pinger sends a message, waits for it to come back, and sends the next, all
// from the engine's goroutine: the way in which rtrs and the daemon use verbs.
type pinger struct {
	c     *rdmaClient
	size  uint32
	more  func(n int) bool
	n     int
	took  []time.Duration // nil: not wanted
	start time.Time
	ended chan error
}

// rdmaPingPong measures round trips of Sends of size bytes.
func rdmaPingPong(srv *peer, v variant, size int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		p := &pinger{size: uint32(size), took: make([]time.Duration, 0, 1<<17)}
		c, err := p.dial(ctx, srv.addr, v)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		end := time.Now().Add(srv.time)
		p.more = func(int) bool { return time.Now().Before(end) }
		if err := p.run(ctx); err != nil {
			return nil, err
		}
		return percentiles(p.took)
	}
}

func (p *pinger) dial(ctx context.Context, addr string, v variant) (*rdmaClient, error) {
	p.ended = make(chan error, 1)
	c, err := dialRDMA(ctx, addr, rdmaEcho, v, 2*echoSlot, p)
	p.c = c
	return c, err
}

// run plays until more says no.
func (p *pinger) run(ctx context.Context) error {
	if err := p.ping(); err != nil {
		return err
	}
	select {
	case err := <-p.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pinger) ping() error {
	c := p.c
	c.sge[0] = verbs.SGE{MR: c.mr, Off: echoSlot, Len: p.size}
	c.wr = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: c.sge[:]}
	p.start = time.Now()
	return c.qp.PostSend(&c.wr)
}

func (p *pinger) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		err := wc.Err
		if err == nil && wc.Op == verbs.WCRecv {
			p.n++
			if p.took != nil {
				p.took = append(p.took, time.Since(p.start))
			}
			p.c.sge[0] = verbs.SGE{MR: p.c.mr, Len: echoSlot}
			err = wc.QP.PostRecv(verbs.RecvWR{ID: wc.ID, SGL: p.c.sge[:]})
			switch {
			case err != nil:
			case p.more(p.n):
				err = p.ping()
			default:
				p.end(nil)
			}
		}
		if err != nil {
			p.end(err)
		}
	}
}

func (p *pinger) end(err error) {
	select {
	case p.ended <- err:
	default:
	}
}

// reader keeps Reads outstanding from the engine's goroutine.
type reader struct {
	c           *rdmaClient
	size        int
	more        func(n int) bool
	done        int
	outstanding int
	ended       chan error
}

// rdmaReads keeps depth Reads of size bytes outstanding, of memory of a kind.
func rdmaReads(srv *peer, kind byte, v variant, size, depth int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		r := &reader{size: size}
		c, err := r.dial(ctx, srv.addr, kind, v, depth)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		start := time.Now()
		late := false
		r.more = func(n int) bool {
			// The rival, too, looks at the clock once for all that a read brought.
			if n%32 == 0 {
				late = time.Since(start) >= srv.time
			}
			return !late
		}
		if err := r.run(ctx, depth); err != nil {
			return nil, err
		}
		return metrics{"ops": float64(r.done) / time.Since(start).Seconds()}, nil
	}
}

func (r *reader) dial(ctx context.Context, addr string, kind byte, v variant, depth int) (*rdmaClient, error) {
	r.ended = make(chan error, 1)
	c, err := dialRDMA(ctx, addr, kind, v, max(depth*r.size, 4<<10), r)
	r.c = c
	return c, err
}

func (r *reader) run(ctx context.Context, depth int) error {
	// The first completion may come while these are still being posted.
	r.outstanding = depth
	var sge [1]verbs.SGE
	for i := range depth {
		wr := r.request(&sge, uint64(i))
		if i < depth-1 {
			wr.Flags |= verbs.More
		}
		if err := r.c.qp.PostSend(&wr); err != nil {
			return err
		}
	}
	select {
	case err := <-r.ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *reader) request(sge *[1]verbs.SGE, slot uint64) verbs.SendWR {
	sge[0] = verbs.SGE{MR: r.c.mr, Off: uint32(slot) * uint32(r.size), Len: uint32(r.size)}
	return verbs.SendWR{ID: slot, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: sge[:],
		RemoteSTag: r.c.stag, RemoteTO: slot * uint64(r.size) % targetSize}
}

func (r *reader) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	posted := false
	for i := range wcs {
		wc := &wcs[i]
		if wc.Op != verbs.WCRead {
			continue
		}
		err := wc.Err
		if err == nil {
			r.done++
			if r.more(r.done) {
				r.c.wr = r.request(&r.c.sge, wc.ID)
				r.c.wr.Flags |= verbs.More
				err = wc.QP.PostSend(&r.c.wr)
				posted = true
			} else {
				r.outstanding--
			}
		}
		if err != nil || r.outstanding == 0 {
			select {
			case r.ended <- err:
			default:
			}
		}
	}
	if posted {
		r.c.qp.Flush()
	}
}
