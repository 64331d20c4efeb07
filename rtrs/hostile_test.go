package rtrs

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// rawPeer is a hand-driven client: it speaks what it likes.
type rawPeer struct {
	t      testing.TB
	qp     *verbs.QP
	cq     *verbs.CQ
	mr     *verbs.MR
	buf    []byte
	rsp    ConRsp
	chunks []sgDesc
	bits   int
}

const rawInfo = 64 << 10 // where a rawPeer receives INFO_RSP, and how much

// rawDial opens connection cid and stops there.
func rawDial(t testing.TB, h *host, addr netip.AddrPort, req ConReq) (*rawPeer, error) {
	t.Helper()
	pd, err := h.ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{t: t, buf: make([]byte, 128<<10)}
	if p.mr, err = pd.RegisterMR(p.buf, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if p.cq, err = h.ulp.CreateCQ(4096, nil); err != nil {
		t.Fatal(err)
	}
	dial := verbs.DialConfig{Remote: addr, Transport: loopback(), PrivateData: req.Append(nil),
		QP: verbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSend: 1024, MaxRecv: 1024}}
	qp, err := pd.Dial(testContext(t), dial)
	if err != nil {
		return nil, err
	}
	p.qp = qp
	t.Cleanup(func() { qp.Abort(nil); <-qp.Done() })
	if err := p.rsp.Parse(qp.PrivateData()); err != nil {
		t.Fatal(err)
	}
	p.bits = offsetBits(int(p.rsp.QueueDepth))
	if err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: p.mr, Off: rawInfo, Len: rawInfo}}}); err != nil {
		return nil, err
	}
	for range 512 {
		if err := qp.PostRecv(verbs.RecvWR{}); err != nil {
			return nil, err // the server has ended it already
		}
	}
	return p, nil
}

func pathReq(path byte) ConReq {
	return ConReq{Version: Version, CIDNum: 1, Incarnation: 1, Path: [16]byte{path}, First: true}
}

// rawConnect opens a session of one connection.
func rawConnect(t testing.TB, h *host, addr netip.AddrPort) *rawPeer {
	t.Helper()
	p, err := rawDial(t, h, addr, pathReq(0xee))
	if err != nil {
		t.Fatal(err)
	}
	p.open()
	return p
}

// open opens the session, whose connections are up.
func (p *rawPeer) open() {
	p.t.Helper()
	p.send((&infoReq{Name: "raw"}).Append(nil))
	wc := p.next(verbs.WCRecv)
	var rsp infoRsp
	if err := rsp.Parse(p.buf[rawInfo : rawInfo+wc.Len]); err != nil || rsp.Errno != 0 {
		p.t.Fatal(rsp.Errno, err)
	}
	p.chunks = rsp.Desc
}

func (p *rawPeer) post(wr verbs.SendWR) {
	if err := p.qp.PostSend(&wr); err != nil {
		p.t.Logf("post: %v", err) // the stream may be gone already, which is then what the test wants to see
	}
}

func (p *rawPeer) send(b []byte) {
	copy(p.buf, b)
	p.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: []verbs.SGE{{MR: p.mr, Len: uint32(len(b))}}})
}

func (p *rawPeer) write(stag uint32, to uint64, b []byte) {
	copy(p.buf, b)
	p.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Inline, SGL: []verbs.SGE{{MR: p.mr, Len: uint32(len(b))}}, RemoteSTag: stag, RemoteTO: to})
}

func (p *rawPeer) imm(v uint64) { p.post(verbs.SendWR{Op: verbs.OpImmediate, Imm: v}) }

// request writes a well-formed write request into chunk id and announces it.
func (p *rawPeer) request(id uint32, data []byte) { p.requestAs(1, id, data) }

// requestAs is request with this number in the slot.
func (p *rawPeer) requestAs(seq, id uint32, data []byte) {
	m := ioMsg{Type: msgWrite, UsrLen: 8, Seq: seq}
	p.write(p.chunks[id].STag, 0, m.Append(append(bytes.Clone(data), header(0)...)))
	p.imm(reqImm(id, uint32(len(data)+8), p.bits))
}

// poll returns the next completion.
func (p *rawPeer) poll() verbs.WC {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for {
		var wc [1]verbs.WC
		if p.cq.Poll(wc[:]) == 1 {
			return wc[0]
		}
		if err := p.cq.Wait(ctx); err != nil {
			p.t.Fatal("no completion:", err)
		}
	}
}

// next returns the next completion of the kind op, skipping heartbeats.
func (p *rawPeer) next(op verbs.WCOp) verbs.WC {
	p.t.Helper()
	for {
		wc := p.poll()
		if wc.Err != nil {
			p.t.Fatal("the stream ended:", wc.Err)
		}
		if wc.Op == op && (op != verbs.WCRecvImm || immType(wc.Imm) < immHB) {
			return wc
		}
	}
}

// gone waits for the end of the stream and returns why it ended.
func (p *rawPeer) gone() error {
	p.t.Helper()
	select {
	case <-p.qp.Done():
		return p.qp.Err()
	case <-time.After(testTimeout):
		p.t.Fatal("the server keeps the session of a peer that broke the protocol")
		return nil
	}
}

// TestHostileClientLosesItsSessionOnly mounts each attack beside a well-behaved
// session, which must not notice.
func TestHostileClientLosesItsSessionOnly(t *testing.T) {
	huge := bytes.Repeat([]byte{7}, 100)
	for name, attack := range map[string]func(p *rawPeer){
		"chunk out of range":        func(p *rawPeer) { p.imm(reqImm(uint32(len(p.chunks)), 12, p.bits)) },
		"message beyond the chunk":  func(p *rawPeer) { p.imm(reqImm(0, p.chunks[0].Len, p.bits)) },
		"message across the end":    func(p *rawPeer) { p.imm(reqImm(0, p.chunks[0].Len-3, p.bits)) },
		"no message at all":         func(p *rawPeer) { p.write(p.chunks[0].STag, 0, []byte{9, 9, 9, 9}); p.imm(reqImm(0, 0, p.bits)) },
		"immediate of unknown type": func(p *rawPeer) { p.imm(makeImm(5, 1)) },
		"response from a client":    func(p *rawPeer) { p.imm(rspImm(0, 0, 0)) },
		"second INFO_REQ":           func(p *rawPeer) { p.send((&infoReq{Name: "raw"}).Append(nil)) },
		"header longer than the request": func(p *rawPeer) {
			m := ioMsg{Type: msgWrite, UsrLen: 200}
			p.write(p.chunks[0].STag, 0, m.Append(bytes.Clone(huge)))
			p.imm(reqImm(0, 100, p.bits))
		},
		"header longer than allowed": func(p *rawPeer) {
			m := ioMsg{Type: msgWrite, UsrLen: MaxHeader + 1}
			p.write(p.chunks[0].STag, 0, m.Append(make([]byte, 4096)))
			p.imm(reqImm(0, 4096, p.bits))
		},
		"more data than allowed": func(p *rawPeer) {
			off := p.rsp.MaxIO + 512
			m := ioMsg{Type: msgWrite, UsrLen: 8}
			p.write(p.chunks[0].STag, uint64(off), m.Append(nil))
			p.imm(reqImm(0, off, p.bits))
		},
		"read into another length": func(p *rawPeer) {
			m := ioMsg{Type: msgRead, UsrLen: 8, Desc: sgDesc{0, p.mr.STag(), 101}}
			p.write(p.chunks[0].STag, 0, m.Append(make([]byte, 108)))
			p.imm(reqImm(0, 108, p.bits))
		},
		"chunk used twice": func(p *rawPeer) {
			p.request(1, []byte("held"))
			p.imm(reqImm(1, 12, p.bits))
		},
		"write one byte beyond a chunk": func(p *rawPeer) { p.write(p.chunks[0].STag, uint64(p.chunks[0].Len), []byte{1}) },
		"STag out of thin air":          func(p *rawPeer) { p.write(p.chunks[0].STag+1, 0, []byte{1}) },
		"more immediates than receives": func(p *rawPeer) {
			p.request(1, []byte("held"))
			for range 2000 {
				p.post(verbs.SendWR{Op: verbs.OpImmediate, Flags: verbs.More, Imm: makeImm(immHB, 0)})
			}
			p.qp.Flush()
			p.imm(makeImm(7, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(4096)
			held := make(chan struct{})
			m.gate = func(r *Request) {
				if string(r.Data) == "held" {
					<-held
				}
			}
			ended := make(chan error, 2)
			srv := startServer(t, ServerConfig{NewSession: func(i SessionInfo) (ServerHandler, error) {
				if i.Name == "raw" {
					return &spy{memory: m, ended: ended}, nil
				}
				return m, nil
			}})
			good := connect(t, clientConfig(newHost(t), srv.addr, "good"))
			p := rawConnect(t, newHost(t), srv.addr)
			attack(p)
			p.gone()
			close(held)
			select {
			case err := <-ended:
				if errors.Is(err, ErrPeerClosed) {
					t.Errorf("the session ended because of %v, not of the attack", err)
				}
			case <-time.After(testTimeout):
				t.Fatal("the session was not closed")
			}
			if e := write(t, good, 100, []byte("fine")); e != 0 {
				t.Error(e)
			}
			if i := good.Info(); i.Reconnects != 0 || i.State != Connected {
				t.Errorf("another session was disturbed: %+v", i)
			}
		})
	}
}

// spy is a handler that reports when its session ends.
type spy struct {
	*memory
	ended chan error
}

func (s *spy) Closed(_ time.Time, err error) { s.ended <- err }

// TestServerActsOnWhatItWasSent (RFC 5042 section 6.2.2): the peer rewrites its
// request after it has announced it. The handler sees the first content.
func TestServerActsOnWhatItWasSent(t *testing.T) {
	m := newMemory(4096)
	entered, release := make(chan struct{}), make(chan struct{})
	m.gate = func(*Request) { close(entered); <-release }
	srv := startServer(t, ServerConfig{NewSession: m.session})
	p := rawConnect(t, newHost(t), srv.addr)
	p.request(3, []byte("first"))
	<-entered
	p.write(p.chunks[3].STag, 0, []byte("other"))
	err := p.gone()
	close(release)
	m.wg.Wait()
	if string(m.data[:5]) != "first" {
		t.Errorf("the server acted on %q", m.data[:5])
	}
	if err == nil {
		t.Error("the peer was not told of its fault")
	}
}

// TestChunkSTagsAreForOneUse: after the response only the new STag opens the
// chunk.
func TestChunkSTagsAreForOneUse(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	p := rawConnect(t, newHost(t), srv.addr)
	p.request(0, []byte("one"))
	id, errno, stag := splitRsp(p.next(verbs.WCRecvImm).Imm)
	if id != 0 || errno != 0 || stag == 0 || stag == p.chunks[0].STag {
		t.Fatalf("response for %d: %v, STag %#x after %#x", id, errno, stag, p.chunks[0].STag)
	}
	old := p.chunks[0].STag
	p.chunks[0].STag = stag
	p.requestAs(2, 0, []byte("two"))
	p.next(verbs.WCRecvImm)
	p.write(old, 0, []byte("x"))
	p.gone()
	if string(m.data[:3]) != "two" {
		t.Errorf("memory has %q", m.data[:3])
	}
}

func TestSetupRefusals(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	h := newHost(t)
	change := func(f func(*ConReq)) ConReq {
		r := pathReq(1)
		f(&r)
		return r
	}
	for name, c := range map[string]struct {
		req  ConReq
		want syscall.Errno
	}{
		"another version":                   {change(func(r *ConReq) { r.Version = 0x0200 }), syscall.EPROTONOSUPPORT},
		"no version":                        {change(func(r *ConReq) { r.Version = 0 }), syscall.EPROTONOSUPPORT},
		"a major version of ours + 1":       {change(func(r *ConReq) { r.Version = Version + 0x100 }), syscall.EPROTONOSUPPORT},
		"no connections":                    {change(func(r *ConReq) { r.CIDNum = 0 }), syscall.EINVAL},
		"too many connections":              {change(func(r *ConReq) { r.CIDNum = MaxConns + 1 }), syscall.EINVAL},
		"connection 2 of 2":                 {change(func(r *ConReq) { r.CID, r.CIDNum = 2, 2 }), syscall.EINVAL},
		"second connection without a first": {change(func(r *ConReq) { r.CID, r.CIDNum = 1, 2 }), syscall.ESTALE},
	} {
		_, err := rawDial(t, h, srv.addr, c.req)
		var rej *verbs.RejectedError
		var rsp ConRsp
		if !errors.As(err, &rej) || rsp.Parse(rej.PrivateData) != nil || rsp.Errno != c.want {
			t.Errorf("%s: %v (%v), want %v", name, err, rsp.Errno, c.want)
		}
	}
	req := pathReq(2)
	req.Incarnation = 7
	if _, err := rawDial(t, h, srv.addr, req); err != nil {
		t.Fatal(err)
	}
	for _, inc := range []uint64{6, 7} {
		req.Incarnation = inc
		if _, err := rawDial(t, h, srv.addr, req); err == nil {
			t.Errorf("incarnation %d was accepted after 7", inc)
		}
	}
	p, err := rawDial(t, h, srv.addr, pathReq(3))
	if err != nil {
		t.Fatal(err)
	}
	p.imm(reqImm(0, 0, p.bits))
	p.gone()
	p, err = rawDial(t, h, srv.addr, pathReq(4))
	if err != nil {
		t.Fatal(err)
	}
	p.send((&infoReq{Name: "a\x01"}).Append(nil))
	p.gone()
}

// startRawServer accepts every connection and answers INFO_REQ with depth
// chunks that are all its one buffer. act is called with the peer for each
// request's immediate.
func startRawServer(t testing.TB, act func(p *rawPeer, imm uint64)) netip.AddrPort {
	t.Helper()
	return startRawServerBy(t, func(*ConReq) *ConRsp { return &ConRsp{Version: Version} }, act)
}

// startRawServerBy is startRawServer that answers requests with the version and errno of
// answer.
func startRawServerBy(t testing.TB, answer func(*ConReq) *ConRsp, act func(p *rawPeer, imm uint64)) netip.AddrPort {
	t.Helper()
	h := newHost(t)
	ln, err := h.dev.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: loopback()})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			cr, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { serveRaw(t, ctx, h, cr, answer, act) })
		}
	})
	t.Cleanup(func() { cancel(); ln.Close(); wg.Wait() })
	return ln.Addr()
}

const rawDepth = 8

func serveRaw(t testing.TB, ctx context.Context, h *host, cr *verbs.ConnRequest, answer func(*ConReq) *ConRsp, act func(p *rawPeer, imm uint64)) {
	p := &rawPeer{t: t, buf: make([]byte, 512<<10), bits: offsetBits(rawDepth)}
	pd, err := h.ulp.AllocPD()
	if err != nil {
		t.Error(err)
		return
	}
	var req ConReq
	if err := req.Parse(cr.PrivateData()); err != nil {
		t.Error(err)
		return
	}
	rsp := answer(&req)
	if rsp.QueueDepth, rsp.MaxIO, rsp.MaxHeader = rawDepth, 64<<10, 4096; rsp.Errno != 0 {
		cr.Reject(ctx, rsp.Append(nil))
		return
	}
	p.mr, _ = pd.RegisterMR(p.buf, verbs.LocalWrite|verbs.RemoteWrite)
	p.cq, _ = h.ulp.CreateCQ(1024, nil)
	p.qp, err = cr.Accept(ctx, pd, verbs.AcceptConfig{QP: verbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSend: 256, MaxRecv: 256}, PrivateData: rsp.Append(nil), Prepare: func(qp *verbs.QP) error {
		for range 200 {
			if err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: p.mr, Off: 300 << 10, Len: 4096}}}); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return
	}
	defer func() { p.qp.Abort(nil); <-p.qp.Done() }()
	for {
		var wc [1]verbs.WC
		if p.cq.Poll(wc[:]) == 0 {
			if p.cq.Wait(ctx) != nil {
				return
			}
			continue
		}
		switch {
		case wc[0].Err != nil:
			return
		case wc[0].Op == verbs.WCRecv:
			info := infoRsp{Epoch: uuid{1}}
			for range rawDepth {
				info.Desc = append(info.Desc, sgDesc{0, p.mr.STag(), uint32(len(p.buf))})
			}
			p.send(info.Append(nil))
		case wc[0].Op == verbs.WCRecvImm:
			act(p, wc[0].Imm)
		}
	}
}

// readTarget is where the client wants the result of the read that imm
// announces.
func (p *rawPeer) readTarget(imm uint64) (id uint32, d sgDesc) {
	id, off := splitReq(imm, p.bits)
	var m ioMsg
	if err := m.Parse(p.mr.Bytes()[off:]); err != nil {
		p.t.Error(err)
	}
	return id, m.Desc
}

// TestHostileServerReachesNothingButTheWindow mounts each attack of a server on
// its client (RFC 5042 sections 6.3.3 and 6.3.4). The client gives the path up;
// I/O waits for a better one, and its buffer has nothing it should not have.
func TestHostileServerReachesNothingButTheWindow(t *testing.T) {
	for name, attack := range map[string]func(p *rawPeer, imm uint64){
		"one byte too many": func(p *rawPeer, imm uint64) {
			_, d := p.readTarget(imm)
			p.write(d.STag, 0, bytes.Repeat([]byte{0xbd}, int(d.Len)+1))
		},
		"behind the window": func(p *rawPeer, imm uint64) {
			_, d := p.readTarget(imm)
			p.write(d.STag, uint64(d.Len), []byte{0xbd})
		},
		"before the window": func(p *rawPeer, imm uint64) {
			_, d := p.readTarget(imm)
			p.write(d.STag, ^uint64(0), []byte{0xbd})
		},
		"response for a chunk out of range": func(p *rawPeer, imm uint64) { p.imm(rspImm(1000, 0, 0)) },
		"response for an idle chunk":        func(p *rawPeer, imm uint64) { p.imm(rspImm(5, 0, 0)) },
		"response twice": func(p *rawPeer, imm uint64) {
			id, _ := p.readTarget(imm)
			p.imm(rspImm(id, 0, 0))
			p.imm(rspImm(id, 0, 0))
		},
		"request from a server":  func(p *rawPeer, imm uint64) { p.imm(reqImm(0, 0, p.bits)) },
		"second INFO_RSP":        func(p *rawPeer, imm uint64) { p.send((&infoRsp{}).Append(nil)) },
		"immediate of no type":   func(p *rawPeer, imm uint64) { p.imm(makeImm(14, 0)) },
		"end without a response": func(p *rawPeer, imm uint64) { p.qp.Abort(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			attacked := make(chan struct{}, 64)
			addr := startRawServer(t, func(p *rawPeer, imm uint64) {
				if immType(imm) == immIOReq {
					attack(p, imm)
					attacked <- struct{}{}
				}
			})
			cfg := clientConfig(newHost(t), addr, "a")
			cfg.Setup, cfg.Conns = verbs.Setup{}, 1
			cl := connect(t, cfg)
			p := get(t, cl)
			copy(p.Buffer(), bytes.Repeat([]byte{1}, 4096))
			w := newWaiter()
			p.Submit(Read, header(0), 100, w)
			<-attacked
			eventually(t, "the client gives the path up", func() bool { return cl.Info().Paths[0].Incarnation > 1 })
			cl.Close()
			w.wait(t)
			if got := p.Buffer()[100:4096]; !bytes.Equal(got, bytes.Repeat([]byte{1}, len(got))) {
				t.Error("the server has written outside the read's window")
			}
			cl.Put(p)
		})
	}
}

// TestWindowIsShutWhenTheReadIsDone: what a server writes after its response
// changes nothing.
func TestWindowIsShutWhenTheReadIsDone(t *testing.T) {
	completed := make(chan struct{})
	addr := startRawServer(t, func(p *rawPeer, imm uint64) {
		if immType(imm) == immIOReq {
			id, d := p.readTarget(imm)
			p.imm(rspImm(id, 0, 0))
			<-completed
			p.write(d.STag, 0, []byte{0xbd})
		}
	})
	cfg := clientConfig(newHost(t), addr, "a")
	cfg.Setup, cfg.Conns = verbs.Setup{}, 1
	cl := connect(t, cfg)
	p := get(t, cl)
	p.Buffer()[0] = 1
	w := newWaiter()
	p.Submit(Read, header(0), 100, w)
	if e := w.wait(t); e != 0 {
		t.Fatal(e)
	}
	close(completed)
	eventually(t, "the client gives the path up", func() bool { return cl.Info().Paths[0].Incarnation > 1 })
	if p.Buffer()[0] != 1 {
		t.Error("the server has written after its response")
	}
	cl.Put(p)
}

// TestFaultsAreTold: the server's Terminate names the fault of a Write with a
// dead STag.
func TestFaultsAreTold(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	p := rawConnect(t, newHost(t), srv.addr)
	p.write(p.chunks[0].STag^0x5555, 0, []byte{1})
	err := p.gone()
	var term *rdmap.TerminateError
	if !errors.As(err, &term) {
		t.Errorf("the stream ended with %v, want the server's Terminate", err)
	}
}
