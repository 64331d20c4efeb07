package main

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// The latency of a Write: each end polls its memory for the
// other's Write, as perftest's ib_write_lat does, and answers with one.

// notice is one end. The last byte of a Write is its number, never 0.
type notice struct {
	*rdmaClient
	size   int
	number byte
}

func (s *rdmaServer) acceptNotice(ctx context.Context, r *verbs.ConnRequest, stag uint32) (err error) {
	c := &rdmaClient{stag: stag}
	if c.cq, err = s.pd.ULP().CreateCQ(128, nil); err != nil {
		return err
	}
	if c.mr, err = s.pd.RegisterMR(make([]byte, targetSize), verbs.LocalWrite); err != nil {
		return err
	}
	if c.sink, err = s.pd.RegisterMR(make([]byte, targetSize), verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return err
	}
	if c.qp, err = r.Accept(ctx, s.pd, verbs.AcceptConfig{QP: qpConfig(c.cq), PrivateData: binary.BigEndian.AppendUint32(nil, c.sink.STag())}); err != nil {
		return err
	}
	go func() {
		n := notice{rdmaClient: c, size: noticeSize}
		for n.await(n.next()) == nil && n.write() == nil {
		}
		<-c.qp.Done()
		c.mr.Deregister()
		c.sink.Deregister()
		c.cq.Destroy()
	}()
	return nil
}

const noticeSize = 64

// rdmaNotices measures round trips of Writes; half of one is a Write's latency.
func rdmaNotices(srv *peer, v variant) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialRDMA(ctx, srv.addr, rdmaNotice, v, noticeSize, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		end := time.Now().Add(srv.time)
		took, err := c.notices(func(int) bool { return time.Now().Before(end) })
		if err != nil {
			return nil, err
		}
		for i := range took {
			took[i] /= 2
		}
		return percentiles(took)
	}
}

// notices goes to and fro while more says so.
func (c *rdmaClient) notices(more func(int) bool) (took []time.Duration, err error) {
	n := notice{rdmaClient: c, size: noticeSize}
	for more(len(took)) {
		start := time.Now()
		if err := n.write(); err != nil {
			return nil, err
		}
		if err := n.await(n.number); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}

func (n *notice) next() byte { return n.number%255 + 1 }

// write posts a Write with the next number and takes the completions of those
// before.
func (n *notice) write() error {
	n.number = n.next()
	n.mr.Bytes()[n.size-1] = n.number
	n.sge[0] = verbs.SGE{MR: n.mr, Len: uint32(n.size)}
	n.wr = verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: n.sge[:], RemoteSTag: n.stag}
	if err := n.qp.PostSend(&n.wr); err != nil {
		return err
	}
	var wcs [4]verbs.WC
	for _, wc := range wcs[:n.cq.Poll(wcs[:])] {
		if wc.Err != nil {
			return wc.Err
		}
	}
	return nil
}

// await looks at the memory until the Write with this number is there.
func (n *notice) await(number byte) error {
	for !arrived(n.sink.Bytes(), n.size-1, number) {
		select {
		case <-n.qp.Done():
			return errors.Join(errors.New("the stream has ended"), n.qp.Err())
		default:
			runtime.Gosched()
		}
	}
	return nil
}

// arrived looks at memory that the engine writes to at the same time; that a
// peer does so is not the race detector's business.
//
//go:norace
func arrived(b []byte, at int, number byte) bool { return b[at] == number }
