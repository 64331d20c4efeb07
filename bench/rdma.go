package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// What the client of a stream asks the server for, in its private data.
const (
	rdmaTarget = 't' // memory to write to and read from; a Send is answered when it arrives
	rdmaEcho   = 'e' // every Send comes back
)

const (
	// targetSize is the server's memory region: as small as the buffer that the
	// TCP rival reads into again and again allows, so that the caches treat both
	// alike.
	targetSize = 1 << 20
	echoDepth  = 4
	largeFPDU  = 64 << 10
)

// variant is how a stream frames.
type variant struct {
	name  string
	crc   mpa.CRCMode
	large int // LargeFPDU of the client
	emss  int // FPDUs of the client fit TCP segments of this size; 0: of the connection's own
}

var (
	largeCRC   = variant{"large FPDUs, CRC on", mpa.CRCPrefer, largeFPDU, 0}
	largeNoCRC = variant{"large FPDUs, CRC off", mpa.CRCAvoid, largeFPDU, 0}
	smallCRC   = variant{"1460-byte FPDUs, CRC on", mpa.CRCPrefer, 0, 1460}
)

func loopback() *transport.Config { return &transport.Config{Protector: transport.LoopbackOnly()} }

// rdmaServer accepts streams. It runs in a process of its own, or beside the
// client where allocations or memory are counted.
type rdmaServer struct {
	dev  *verbs.Device
	pd   *verbs.PD
	ln   *verbs.Listener
	done chan struct{}
}

// startRDMAServer listens on loopback.
func startRDMAServer(ctx context.Context) (*rdmaServer, error) {
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	s := &rdmaServer{dev: dev, done: make(chan struct{})}
	fail := func(err error) (*rdmaServer, error) {
		dev.Close()
		return nil, err
	}
	ulp, err := dev.NewULP("bench", verbs.Quota{})
	if err != nil {
		return fail(err)
	}
	if s.pd, err = ulp.AllocPD(); err != nil {
		return fail(err)
	}
	// The client decides: CRCs are on if it asks for them, FPDUs large if it offers.
	s.ln, err = dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{
		Transport: loopback(), MPA: mpa.Config{CRC: mpa.CRCAvoid, LargeFPDU: largeFPDU}, Backlog: 1024})
	if err != nil {
		return fail(err)
	}
	go s.serve()
	return s, nil
}

func (s *rdmaServer) serve() {
	defer close(s.done)
	ctx := context.Background()
	for {
		r, err := s.ln.Accept(ctx)
		if err != nil {
			return
		}
		if err := s.accept(ctx, r); err != nil {
			r.Reject(ctx, []byte(err.Error()))
		}
	}
}

func (s *rdmaServer) accept(ctx context.Context, r *verbs.ConnRequest) error {
	if len(r.PrivateData()) != 1 {
		return errors.New("private data of one byte is expected")
	}
	e := &echo{}
	cq, err := s.pd.ULP().CreateCQ(128, e)
	if err != nil {
		return err
	}
	size := targetSize
	if r.PrivateData()[0] == rdmaEcho {
		size = echoDepth * echoSlot
	}
	if e.mr, err = s.pd.RegisterMR(make([]byte, size), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return err
	}
	private := binary.BigEndian.AppendUint32(nil, e.mr.STag())
	qp, err := r.Accept(ctx, s.pd, qpConfig(cq), private, e.prepare)
	if err != nil {
		return err
	}
	go func() {
		<-qp.Done()
		e.mr.Deregister()
		cq.Destroy()
	}()
	return nil
}

func (s *rdmaServer) Close() error {
	s.ln.Close()
	<-s.done
	return s.dev.Close()
}

func qpConfig(cq *verbs.CQ) verbs.QPConfig {
	return verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 72, MaxRecv: 16, IRD: 64, ORD: 64}
}

// echo sends back whatever arrives, from the engine's goroutine.
type echo struct {
	mr  *verbs.MR
	sge [1]verbs.SGE
	wr  verbs.SendWR
}

// echoSlot is the part of the region that one receive uses.
const echoSlot = 64

func (e *echo) prepare(qp *verbs.QP) error {
	for i := range echoDepth {
		if err := qp.PostRecv(e.recv(uint64(i))); err != nil {
			return err
		}
	}
	return nil
}

func (e *echo) recv(id uint64) verbs.RecvWR {
	e.sge[0] = verbs.SGE{MR: e.mr, Off: uint32(id) * echoSlot, Len: echoSlot}
	return verbs.RecvWR{ID: id, SGL: e.sge[:]}
}

func (e *echo) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		if wc.Err != nil || wc.Op != verbs.WCRecv {
			continue
		}
		e.sge[0] = verbs.SGE{MR: e.mr, Off: uint32(wc.ID) * echoSlot, Len: wc.Len}
		e.wr = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: e.sge[:]}
		err := wc.QP.PostSend(&e.wr)
		if err == nil {
			err = wc.QP.PostRecv(e.recv(wc.ID))
		}
		if err != nil {
			wc.QP.Abort(err)
		}
	}
}

// rdmaClient is the measuring end of one stream.
type rdmaClient struct {
	dev  *verbs.Device
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR // own memory: source of Writes and Sends, sink of Reads
	stag uint32    // the server's memory
	sge  [1]verbs.SGE
	wr   verbs.SendWR
}

// dialRDMA opens a stream with size bytes of memory. handler may be nil.
func dialRDMA(ctx context.Context, addr string, kind byte, v variant, size int, handler verbs.CQHandler) (*rdmaClient, error) {
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	c := &rdmaClient{dev: dev}
	if err := c.dial(ctx, addr, kind, v, size, handler); err != nil {
		dev.Close()
		return nil, err
	}
	return c, nil
}

func (c *rdmaClient) dial(ctx context.Context, addr string, kind byte, v variant, size int, handler verbs.CQHandler) error {
	remote, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	ulp, err := c.dev.NewULP("bench", verbs.Quota{})
	if err != nil {
		return err
	}
	pd, err := ulp.AllocPD()
	if err != nil {
		return err
	}
	if c.cq, err = ulp.CreateCQ(256, handler); err != nil {
		return err
	}
	if c.mr, err = pd.RegisterMR(make([]byte, size), verbs.LocalWrite); err != nil {
		return err
	}
	mc := mpa.Config{CRC: v.crc, LargeFPDU: v.large, PrivateData: []byte{kind}}
	if v.emss > 0 {
		mc.EMSS = func() int { return v.emss }
	}
	var private []byte
	c.qp, private, err = ulp.Dial(ctx, pd, qpConfig(c.cq), verbs.DialConfig{Remote: remote, Transport: loopback(),
		MPA: mc}, func(qp *verbs.QP) error {
		for i := range echoDepth {
			c.sge[0] = verbs.SGE{MR: c.mr, Off: 0, Len: echoSlot}
			if err := qp.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: c.sge[:]}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(private) < 4 {
		return fmt.Errorf("the server answered with %d bytes of private data", len(private))
	}
	c.stag = binary.BigEndian.Uint32(private)
	return nil
}

func (c *rdmaClient) Close() error { return c.dev.Close() }

// rdmaStream writes for a while in Writes of size bytes, then sends a message
// that the server answers: it has got everything then.
func rdmaStream(p *peer, v variant, size int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		c, err := dialRDMA(ctx, p.addr, rdmaTarget, v, size, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return measureStream(p, func(until time.Time) (float64, error) {
			n, err := c.writes(ctx, size, func(int) bool { return time.Now().Before(until) })
			return float64(n) * float64(size), err
		})
	}
}

// window is how many bytes of Writes are posted and not yet done.
const window = 4 << 20

// writes posts Writes while more(n) and waits until the server has them all.
func (c *rdmaClient) writes(ctx context.Context, size int, more func(n int) bool) (n int, err error) {
	depth := window / size
	// Work is posted in lists of every requests, the last of them signaled.
	every := max(depth/4, 1)
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
		c.wr = verbs.SendWR{Op: verbs.OpWrite, SGL: c.sge[:], RemoteSTag: c.stag, RemoteTO: uint64(n*size) % targetSize}
		if c.wr.Flags = verbs.More; n%every == 0 {
			c.wr.Flags = verbs.Signaled
		}
		if err := c.qp.PostSend(&c.wr); err != nil {
			return n, err
		}
	}
	return n, c.sync(ctx, wcs[:])
}

// sync sends a message and waits for the answer.
func (c *rdmaClient) sync(ctx context.Context, wcs []verbs.WC) error {
	c.sge[0] = verbs.SGE{MR: c.mr, Len: echoSlot}
	c.wr = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: c.sge[:]}
	if err := c.qp.PostSend(&c.wr); err != nil {
		return err
	}
	for {
		if k, err := c.reap(ctx, wcs, verbs.WCRecv); k > 0 || err != nil {
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
