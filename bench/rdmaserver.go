package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// rdmaServer accepts streams. It runs in a process of its own, or beside the
// client where allocations or memory are counted.
type rdmaServer struct {
	addr string // what clients dial
	dev  *verbs.Device
	pd   *verbs.PD
	ln   *verbs.Listener
	done chan struct{}

	polls polls // for streams that echo
}

// startRDMAServer listens. Of v only what concerns a server counts: markers,
// spin, polls, protector and what carries the streams.
func startRDMAServer(ctx context.Context, listen string, v variant) (*rdmaServer, error) {
	addr, err := netip.ParseAddrPort(listen)
	if err != nil {
		return nil, err
	}
	if v.kind == transport.SCTPUDP && addr.Port() == 0 {
		if addr, err = freeUDPPort(addr.Addr()); err != nil {
			return nil, err
		}
	}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return nil, err
	}
	s := &rdmaServer{addr: addr.String(), dev: dev, done: make(chan struct{}), polls: v.polls}
	fail := func(err error) (*rdmaServer, error) {
		dev.Close()
		return nil, err
	}
	ulp, err := dev.NewULP("bench", verbs.ULPConfig{Trust: verbs.SLT})
	if err != nil {
		return fail(err)
	}
	if s.pd, err = ulp.AllocPD(); err != nil {
		return fail(err)
	}
	// The client decides: CRCs are on if it asks for them, FPDUs large if it offers.
	local, cfg := v.address(addr, neighbours(addr.Addr())...)
	s.ln, err = dev.Listen(ctx, local, verbs.ListenConfig{Transport: cfg,
		Setup: verbs.Setup{NoCRC: true, LargeFPDU: largeFPDU, Markers: v.markers, Spin: v.spin}, Backlog: 1024})
	if err != nil {
		return fail(err)
	}
	if v.kind != transport.SCTPUDP {
		s.addr = s.ln.Addr().String()
	}
	go s.serve()
	return s, nil
}

// freeUDPPort is a UDP port that nobody has at the moment.
func freeUDPPort(a netip.Addr) (netip.AddrPort, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		return netip.AddrPort{}, err
	}
	return c.LocalAddr().(*net.UDPAddr).AddrPort(), c.Close()
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
	want, ok := parseRequest(r.PrivateData())
	switch {
	case !ok:
		return errors.New("private data of five bytes is expected")
	case want.kind == rdmaMutual:
		return s.acceptMutual(ctx, r, want.stag)
	case want.kind == rdmaNotice:
		return s.acceptNotice(ctx, r, want.stag)
	}
	e := &echo{}
	polls := s.polls
	if want.kind != rdmaEcho {
		polls = pollsNot
	}
	var handler verbs.CQHandler = e
	if polls != pollsNot {
		handler = nil
	}
	cq, err := s.pd.ULP().CreateCQ(128, handler)
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
	qp, err := r.Accept(ctx, s.pd, verbs.AcceptConfig{QP: qpConfig(cq), PrivateData: private, Prepare: e.prepare})
	if err != nil {
		return err
	}
	go func() {
		if polls != pollsNot {
			e.servePolled(polls, cq)
		}
		<-qp.Done()
		e.mr.Deregister()
		source.Deregister()
		cq.Destroy()
	}()
	return nil
}

// request is the client's private data: what it wants, and memory of its own that
// the server may write to.
type request struct {
	kind byte
	stag uint32
}

func (r request) bytes() []byte { return binary.BigEndian.AppendUint32([]byte{r.kind}, r.stag) }

func parseRequest(b []byte) (request, bool) {
	if len(b) != 5 {
		return request{}, false
	}
	return request{b[0], binary.BigEndian.Uint32(b[1:])}, true
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
