package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// What the client of a stream asks the server for, in its private data.
const (
	rdmaTarget = 't' // memory to write to and read from; a Send is answered when it arrives
	rdmaSource = 's' // memory to read from that the server does not write to
	rdmaEcho   = 'e' // every Send comes back
	rdmaMutual = 'm' // the server writes as well, see mutual.go
	rdmaNotice = 'n' // the server answers a Write with a Write, see notice.go
)

// anyLoopback is where a server listens unless it is told otherwise.
const anyLoopback = "127.0.0.1:0"

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
	// markers: this end asks the other for markers.
	markers bool
	// spin: this end looks for so long before it sleeps.
	spin time.Duration
}

// spinTime is longer than any pause in a row that spins. Those rows give each
// end one processor: a second one would do nothing but to wake up with each
// message and find that it was taken.
const spinTime = 50 * time.Millisecond

// onOneProcessor runs a contender that spins.
func onOneProcessor(run func(context.Context) (metrics, error)) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		return run(ctx)
	}
}

var (
	largeCRC   = variant{name: "large FPDUs, CRC on", crc: mpa.CRCPrefer, large: largeFPDU}
	largeNoCRC = variant{name: "large FPDUs, CRC off", crc: mpa.CRCAvoid, large: largeFPDU}
	spinning   = variant{name: "spinning, CRC on", crc: mpa.CRCPrefer, spin: spinTime}
	smallCRC   = variant{name: "1460-byte FPDUs, CRC on", crc: mpa.CRCPrefer, emss: 1460}
)

// transportFor admits peers of this host on loopback, and on another address,
// which only the namespaces of a virtual machine have here, whatever is in peers.
func transportFor(addr netip.Addr, peers ...netip.Addr) *transport.Config {
	if addr.IsLoopback() {
		return &transport.Config{Protector: transport.LoopbackOnly()}
	}
	return &transport.Config{Protector: transport.Plaintext(slog.New(slog.DiscardHandler), peers...)}
}

// rdmaServer accepts streams. It runs in a process of its own, or beside the
// client where allocations or memory are counted.
type rdmaServer struct {
	dev  *verbs.Device
	pd   *verbs.PD
	ln   *verbs.Listener
	done chan struct{}
}

// startRDMAServer listens. Of v only what concerns a server counts: markers and
// spin.
func startRDMAServer(ctx context.Context, listen string, v variant) (*rdmaServer, error) {
	addr, err := netip.ParseAddrPort(listen)
	if err != nil {
		return nil, err
	}
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
	s.ln, err = dev.Listen(ctx, addr, verbs.ListenConfig{Transport: transportFor(addr.Addr(), guestClient),
		MPA: mpa.Config{CRC: mpa.CRCAvoid, LargeFPDU: largeFPDU, Markers: v.markers, Spin: v.spin}, Backlog: 1024})
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
	want, ok := parseWish(r.PrivateData())
	switch {
	case !ok:
		return errors.New("private data of five bytes is expected")
	case want.kind == rdmaMutual:
		return s.acceptMutual(ctx, r, want.stag)
	case want.kind == rdmaNotice:
		return s.acceptNotice(ctx, r, want.stag)
	}
	e := &echo{}
	cq, err := s.pd.ULP().CreateCQ(128, e)
	if err != nil {
		return err
	}
	size := targetSize
	if want.kind != rdmaTarget {
		size = echoDepth * echoSlot
	}
	if e.mr, err = s.pd.RegisterMR(make([]byte, size), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return err
	}
	source := e.mr
	if want.kind == rdmaSource {
		if source, err = s.pd.RegisterMR(make([]byte, targetSize), verbs.RemoteRead); err != nil {
			return err
		}
	}
	private := binary.BigEndian.AppendUint32(nil, source.STag())
	qp, err := r.Accept(ctx, s.pd, qpConfig(cq), private, e.prepare)
	if err != nil {
		return err
	}
	go func() {
		<-qp.Done()
		e.mr.Deregister()
		source.Deregister()
		cq.Destroy()
	}()
	return nil
}

// wish is the client's private data: what it wants, and memory of its own that
// the server may write to.
type wish struct {
	kind byte
	stag uint32
}

func (w wish) bytes() []byte { return binary.BigEndian.AppendUint32([]byte{w.kind}, w.stag) }

func parseWish(b []byte) (wish, bool) {
	if len(b) != 5 {
		return wish{}, false
	}
	return wish{b[0], binary.BigEndian.Uint32(b[1:])}, true
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
	sink *verbs.MR // own memory that the server writes to, if it does
	stag uint32    // the server's memory
	span int       // bytes of it that a stream of Writes goes round
	sge  [1]verbs.SGE
	wr   verbs.SendWR
}

// dialRDMA opens a stream with size bytes of memory. handler may be nil.
func dialRDMA(ctx context.Context, addr string, kind byte, v variant, size int, handler verbs.CQHandler) (*rdmaClient, error) {
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	c := &rdmaClient{dev: dev, span: targetSize}
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
	w := wish{kind: kind}
	if kind == rdmaMutual || kind == rdmaNotice {
		if c.sink, err = pd.RegisterMR(make([]byte, targetSize), verbs.LocalWrite|verbs.RemoteWrite); err != nil {
			return err
		}
		w.stag = c.sink.STag()
	}
	mc := mpa.Config{CRC: v.crc, LargeFPDU: v.large, Markers: v.markers, Spin: v.spin, PrivateData: w.bytes()}
	if v.emss > 0 {
		mc.EMSS = func() int { return v.emss }
	}
	var private []byte
	c.qp, private, err = ulp.Dial(ctx, pd, qpConfig(c.cq), verbs.DialConfig{Remote: remote,
		Transport: transportFor(remote.Addr(), remote.Addr()), MPA: mc}, func(qp *verbs.QP) error {
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

// rdmaStreams writes on n streams for a while in Writes of size bytes, each
// followed by a message that the server answers: it has got everything then.
// Each stream goes round span bytes of the server's memory.
func rdmaStreams(p *peer, v variant, n, size, span int) func(context.Context) (metrics, error) {
	return func(ctx context.Context) (metrics, error) {
		dev, err := verbs.Open(verbs.Config{})
		if err != nil {
			return nil, err
		}
		defer dev.Close()
		streams := make([]*rdmaClient, n)
		for i := range streams {
			streams[i] = &rdmaClient{dev: dev, span: span}
			if err := streams[i].dial(ctx, p.addr, rdmaTarget, v, size, nil); err != nil {
				return nil, err
			}
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
