package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// Streams on which both ends write at the same time.

// mutual is the server's end: it writes until a message comes in, which says
// that the client is done, and answers with the number of its Writes.
type mutual struct {
	rdmaClient
	once sync.Once
	stop chan struct{}
}

const mutualSize = 64 << 10

func (s *rdmaServer) acceptMutual(ctx context.Context, r *verbs.ConnRequest, stag uint32) (err error) {
	m := &mutual{rdmaClient: rdmaClient{stag: stag, span: targetSize}, stop: make(chan struct{})}
	if m.cq, err = s.pd.ULP().CreateCQ(128, nil); err != nil {
		return err
	}
	cfg := qpConfig(m.cq)
	if cfg.RecvCQ, err = s.pd.ULP().CreateCQ(128, m); err != nil {
		return err
	}
	if m.mr, err = s.pd.RegisterMR(make([]byte, mutualSize+echoSlot), verbs.LocalWrite); err != nil {
		return err
	}
	if m.sink, err = s.pd.RegisterMR(make([]byte, targetSize), verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return err
	}
	m.qp, err = r.Accept(ctx, s.pd, verbs.AcceptConfig{QP: cfg, PrivateData: binary.BigEndian.AppendUint32(nil, m.sink.STag()), Prepare: func(qp *verbs.QP) error {
		recv := [1]verbs.SGE{{MR: m.mr, Off: mutualSize, Len: echoSlot}}
		return qp.PostRecv(verbs.RecvWR{SGL: recv[:]})
	}})
	if err != nil {
		return err
	}
	go func() {
		m.write()
		<-m.qp.Done()
		m.mr.Deregister()
		m.sink.Deregister()
		m.cq.Destroy()
		cfg.RecvCQ.Destroy()
	}()
	return nil
}

// write is the server's share. It ends early with its stream.
func (m *mutual) write() {
	more := func(int) bool {
		select {
		case <-m.stop:
			return false
		default:
			return true
		}
	}
	n, err := m.writes(context.Background(), mutualSize, more)
	if err != nil {
		return
	}
	// The memory of the Writes is still in use.
	var sum [1]verbs.SGE
	binary.BigEndian.PutUint64(m.mr.Bytes()[mutualSize:], uint64(n))
	sum[0] = verbs.SGE{MR: m.mr, Off: mutualSize, Len: echoSlot}
	m.qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: sum[:]})
}

func (m *mutual) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	if len(wcs) > 0 {
		m.once.Do(func() { close(m.stop) })
	}
}

// rdmaMutualStream has both ends write for a while and counts the bytes of
// both.
func rdmaMutualStream(p *peer, v variant) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialRDMA(ctx, p.addr, rdmaMutual, v, mutualSize, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return measureStream(p, func(until time.Time) (float64, error) {
			ours, theirs, err := c.mutual(ctx, func(int) bool { return time.Now().Before(until) })
			return float64(ours+theirs) * mutualSize, err
		})
	}
}

// mutual writes while more says so and returns how often each end has written.
func (c *rdmaClient) mutual(ctx context.Context, more func(int) bool) (ours, theirs int, err error) {
	if ours, err = c.writes(ctx, mutualSize, more); err != nil {
		return 0, 0, err
	}
	if err := c.sync(ctx); err != nil {
		return 0, 0, err
	}
	return ours, int(binary.BigEndian.Uint64(c.mr.Bytes())), nil
}

// tcpMutualStream is tcpStream in both directions at once.
func tcpMutualStream(p *peer, size int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialTCP(ctx, p.addr, tcpMutual, size)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return measureStream(p, func(until time.Time) (bytes float64, err error) {
			got := make(chan float64, 1)
			go func() { got <- drain(c) }()
			for buf := make([]byte, size); time.Now().Before(until); bytes += float64(size) {
				if _, err := c.Write(buf); err != nil {
					return 0, err
				}
			}
			err = c.(*net.TCPConn).CloseWrite()
			return bytes + <-got, err
		})
	}
}

// serveTCPMutual writes until the client has ended its direction.
func serveTCPMutual(c net.Conn, size int) {
	ended := make(chan struct{})
	go func() {
		drain(c)
		close(ended)
	}()
	for buf := make([]byte, size); ; {
		select {
		case <-ended:
			return
		default:
		}
		if _, err := c.Write(buf); err != nil {
			<-ended
			return
		}
	}
}

// drain reads to the end and counts.
func drain(r io.Reader) (bytes float64) {
	for buf := make([]byte, readSize); ; {
		n, err := r.Read(buf)
		bytes += float64(n)
		if err != nil {
			return bytes
		}
	}
}
