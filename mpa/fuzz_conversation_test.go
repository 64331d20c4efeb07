package mpa

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// closing is a memConn that knows whether it was closed.
type closing struct {
	memConn
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// configOf makes a Config of fuzzed bits.
func configOf(bits uint64) *Config {
	depths := []uint16{0, 1, 7, 32, enhanced.MaxDepth, enhanced.DepthULP, 0xfffe, 300}
	return &Config{
		CRC:         CRCMode(bits & 1),
		Markers:     bits&2 != 0,
		Revision:    uint8(bits >> 2 & 3),
		PeerToPeer:  enhanced.RTR(bits >> 4 & 7),
		IRD:         depths[bits>>7&7],
		ORD:         depths[bits>>10&7],
		LargeFPDU:   []int{0, 1, 40000, 1 << 30}[bits>>13&3],
		PrivateData: make([]byte, bits>>15&511),
		Pool:        &Pool{},
	}
}

// seedFrames adds each frame with an FPDU behind it, alone, and cut short.
func seedFrames(f *testing.F, bits uint64, frames []Frame) {
	for _, fr := range frames {
		b, err := fr.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, 0, 2, 1, 2, 0, 0, 0, 0), uint64(0), uint16(3))
		f.Add(b, bits, uint16(1000))
		f.Add(b[:len(b)-1], uint64(3), uint16(20))
	}
}

// FuzzRequest is a responder that is sent anything. It answers a request with
// one good reply, or closes.
func FuzzRequest(f *testing.F) {
	seedFrames(f, 0x1df0, []Frame{
		{Revision: 1, CRC: true},
		{Revision: 2, Markers: true, Enhanced: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRRead, IRD: enhanced.DepthULP, ORD: 9}, PrivateData: []byte("private")},
		{Revision: 2, PrivateData: hello{maxULPDU: 1 << 31}.append(nil)},
	})
	f.Fuzz(func(t *testing.T, b []byte, bits uint64, chunk uint16) {
		in := bytes.NewReader(b)
		nc := &closing{memConn: memConn{in: chunks{in, int(chunk) + 1}}}
		cfg := configOf(bits)
		r, err := Server(context.Background(), nc, cfg)
		if err != nil {
			if !nc.closed || nc.out.Len() > 0 || !errors.Is(err, ErrStartup) && !errors.Is(err, ErrConnectionLost) {
				t.Fatalf("closed %v, answered %x: %v", nc.closed, nc.out.Bytes(), err)
			}
			return
		}
		req := b[:len(b)-in.Len()]
		fr, err := ParseFrame(req, false)
		if err != nil {
			t.Fatalf("read %d of %d bytes: %v", len(req), len(b), err)
		}
		c, err := r.Accept(context.Background(), AcceptOptions{IRD: cfg.IRD, ORD: cfg.ORD})
		if err != nil {
			if !errors.Is(err, ErrPrivateData) || !nc.closed {
				t.Fatalf("Accept: %v, closed %v", err, nc.closed)
			}
			return
		}
		rep, err := ParseFrame(nc.out.Bytes(), true)
		if err != nil || rep.Reject || rep.Revision != fr.Revision || (rep.Enhanced != nil) != (fr.Enhanced != nil) {
			t.Fatalf("replied %+v to %+v: %v", rep, fr, err)
		}
		if c.CRC() != (fr.CRC || rep.CRC) || c.MarkersSend() != fr.Markers || c.MarkersRecv() != rep.Markers {
			t.Fatalf("CRC %v, markers %v and %v", c.CRC(), c.MarkersSend(), c.MarkersRecv())
		}
		checkDepths(t, c, fr.Enhanced, rep.Enhanced)
		if n := c.MULPDU(); n < minMULPDU-3 || n > MaxULPDU {
			t.Fatalf("MULPDU %d", n)
		}
		var fault *ddp.Error
		if err := c.Receive(&collector{direct: int(chunk) % 50}); err != io.EOF && !errors.As(err, &fault) {
			t.Fatalf("Receive: %v", err)
		}
	})
}

// checkDepths are the relations of RFC 6581 sections 9.1 and 9.2 between the
// enhanced data of request and reply on the responder's side.
func checkDepths(t *testing.T, c *Conn, req, rep *enhanced.Data) {
	if req == nil {
		if c.RTR() != 0 || c.PeerEnhanced() != nil {
			t.Fatal("negotiated without enhanced data")
		}
		return
	}
	switch {
	case rep.PeerToPeer != req.PeerToPeer,
		req.PeerToPeer && rep.RTR == 0, !req.PeerToPeer && c.RTR() != 0,
		(req.ORD == enhanced.DepthULP) && rep.IRD != enhanced.DepthULP,
		(req.IRD == enhanced.DepthULP) && rep.ORD != enhanced.DepthULP,
		req.IRD != enhanced.DepthULP && rep.ORD != enhanced.DepthULP && rep.ORD > req.IRD,
		rep.IRD != enhanced.DepthULP && rep.IRD != c.IRD(),
		rep.ORD != enhanced.DepthULP && rep.ORD != c.ORD(),
		c.RTR()&req.RTR&enhanced.RTRRead != 0 && c.IRD() == 0:
		t.Fatalf("request %+v, reply %+v, IRD %d, ORD %d, RTR %03b", req, rep, c.IRD(), c.ORD(), c.RTR())
	}
}

// FuzzReply is an initiator that is answered anything. It has sent one good
// request, reads no byte too many, and closes unless the reply lets it keep the
// connection.
func FuzzReply(f *testing.F) {
	seedFrames(f, 0x2770, []Frame{
		{Reply: true, Revision: 1, CRC: true},
		{Reply: true, Revision: 2, Reject: true, Enhanced: &enhanced.Data{IRD: 3}, PrivateData: []byte("no")},
		{Reply: true, Revision: 2, Markers: true, Enhanced: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRRead, IRD: 1, ORD: 0x3000}, PrivateData: hello{maxULPDU: 300}.append(nil)},
	})
	f.Fuzz(func(t *testing.T, b []byte, bits uint64, chunk uint16) {
		in := bytes.NewReader(b)
		nc := &closing{memConn: memConn{in: chunks{in, int(chunk) + 1}}}
		cfg := configOf(bits)
		c, err := Client(context.Background(), nc, cfg)
		if nc.out.Len() == 0 {
			if !errors.Is(err, ErrPrivateData) || !nc.closed {
				t.Fatalf("no request: %v", err)
			}
			return
		}
		req, rerr := ParseFrame(nc.out.Bytes(), false)
		if rerr != nil {
			t.Fatalf("sent %x: %v", nc.out.Bytes(), rerr)
		}
		var rej *RejectedError
		var ne *NegotiationError
		switch {
		case errors.As(err, &rej):
			if nc.closed || c != nil {
				t.Fatal("a rejection closed the connection")
			}
		case errors.As(err, &ne):
			if nc.closed || ne.Conn == nil || ne.Err.Layer != ddp.LayerLLP || ne.Err.Code != CodeIRD && ne.Err.Code != CodeRTR {
				t.Fatalf("closed %v: %+v", nc.closed, ne)
			}
		case err != nil:
			if !nc.closed || !errors.Is(err, ErrStartup) && !errors.Is(err, ErrConnectionLost) {
				t.Fatalf("closed %v: %v", nc.closed, err)
			}
			return
		}
		rep, perr := ParseFrame(b[:len(b)-in.Len()], true)
		if perr != nil || rep.Reject != (rej != nil) {
			t.Fatalf("%v: the reply is %+v, %v", err, rep, perr)
		}
		if err != nil {
			return
		}
		if e := rep.Enhanced; e != nil && req.Enhanced != nil {
			switch {
			case e.ORD != enhanced.DepthULP && c.IRD() != enhanced.DepthULP && e.ORD > c.IRD(),
				e.IRD != enhanced.DepthULP && c.ORD() != enhanced.DepthULP && c.ORD() > e.IRD,
				c.RTR()&^(req.Enhanced.RTR&e.RTR) != 0, req.Enhanced.PeerToPeer && c.RTR() == 0,
				c.RTR() == enhanced.RTRRead && e.IRD == 0:
				t.Fatalf("request %+v, reply %+v, IRD %d, ORD %d, RTR %03b", req.Enhanced, e, c.IRD(), c.ORD(), c.RTR())
			}
		}
		if n := c.MULPDU(); n < minMULPDU-3 || n > MaxULPDU {
			t.Fatalf("MULPDU %d", n)
		}
		var fault *ddp.Error
		if err := c.Receive(&collector{direct: int(chunk) % 50}); err != io.EOF && !errors.As(err, &fault) {
			t.Fatalf("Receive: %v", err)
		}
	})
}

// FuzzStartupOfTwo starts up two ends of any configuration. They agree on what
// the stream is like, and it carries segments.
func FuzzStartupOfTwo(f *testing.F) {
	f.Add(uint64(0), uint64(0))
	f.Add(uint64(0x1ff3), uint64(0x0ff2))
	f.Add(uint64(0x5d70), uint64(0x4d80))
	f.Fuzz(func(t *testing.T, x, y uint64) {
		a, b := netPair(t, "pipe")
		ccfg, scfg := configOf(x), configOf(y)
		done := serve(t, b, scfg)
		c, err := Client(context.Background(), a, ccfg)
		if errors.Is(err, ErrPrivateData) {
			<-done
			return
		}
		r := <-done
		var ne *NegotiationError
		switch {
		case errors.Is(r.err, ErrPrivateData):
			return
		case errors.As(err, &ne) && ne.Err.Code == CodeRTR && r.err == nil:
			if takes := scfg.PeerToPeer; ccfg.PeerToPeer&takes != 0 {
				t.Fatalf("offer %03b, support %03b: %v", ccfg.PeerToPeer, takes, err)
			}
			return
		case err != nil || r.err != nil:
			t.Fatalf("%+v and %+v: %v, %v", ccfg, scfg, err, r.err)
		}
		s := r.c
		if c.CRC() != s.CRC() || c.MarkersSend() != s.MarkersRecv() || c.MarkersRecv() != s.MarkersSend() ||
			c.LargeULPDU() != s.LargeULPDU() || c.RTR() != s.RTR() || c.Revision() != s.Revision() {
			t.Fatalf("the ends disagree: %+v, %+v", c.p, s.p)
		}
		if c.Revision() == 2 && (c.ORD() != enhanced.DepthULP && s.IRD() != enhanced.DepthULP && c.ORD() > s.IRD() ||
			s.ORD() != enhanced.DepthULP && c.IRD() != enhanced.DepthULP && s.ORD() > c.IRD()) {
			t.Fatalf("initiator IRD %d ORD %d, responder IRD %d ORD %d", c.IRD(), c.ORD(), s.IRD(), s.ORD())
		}
		if len(c.PrivateData()) != len(scfg.PrivateData) || len(s.PrivateData()) != len(ccfg.PrivateData) {
			t.Fatal("private data was altered")
		}
		seg := pattern(c.MULPDU(), int(x))
		sent := make(chan error, 1)
		go func() { sent <- errors.Join(c.Append(seg[:14], [][]byte{seg[14:]}), c.Flush()) }()
		sink := until(1, 0)
		if err := s.Receive(sink); err != errEnough || !bytes.Equal(sink.segs[0], seg) {
			t.Fatalf("Receive: %v", err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzDeframe compares Receive with the reference on any stream.
func FuzzDeframe(f *testing.F) {
	for mode := range byte(8) {
		ref := refSender{crc: mode&1 == 0, markers: mode&2 != 0, pos: uint64(mode) * 100}
		for _, n := range []int{1, 18, 0, 480, 507, 1300} {
			ref.fpdu(pattern(n, n))
		}
		f.Add(ref.out, mode, uint16(mode)*100, uint16(600))
		f.Add(ref.out[:900], mode, uint16(mode)*100, uint16(2))
	}
	f.Fuzz(func(t *testing.T, stream []byte, mode byte, pos, chunk uint16) {
		crc, markers, at := mode&1 == 0, mode&2 != 0, uint64(pos)&^3
		want, wantCode := refReceive(stream, crc, markers, at)
		rx := connAt(&memConn{in: chunks{bytes.NewReader(stream), int(chunk) + 1}}, crc, markers, at)
		s := &collector{}
		if markers && mode&4 != 0 { // then whole FPDUs are verified before they are placed
			s.direct = int(chunk)%700 + 1
		}
		if code := received(t, rx, s); code != wantCode {
			t.Fatalf("code %d, want %d", code, wantCode)
		}
		sameSegments(t, s.segs, want)
	})
}

// FuzzRoundTrip sends messages in segments of MULPDU while the EMSS changes,
// flushes and detaches at any time, and takes what arrives apart by the
// reference and by Receive.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte{0, 200, 4, 90, 1, 30, 5, 10, 2, 0, 0, 255, 3, 0, 0, 100}, byte(0), uint16(100))
	f.Add([]byte{4, 7, 0, 255, 4, 20, 0, 255, 4, 255, 0, 255}, byte(2), uint16(7))
	f.Fuzz(func(t *testing.T, script []byte, mode byte, chunk uint16) {
		crc, markers := mode&1 == 0, mode&2 != 0
		emss := 1460
		mc := &memConn{}
		tx := connAt(mc, crc, markers, 0)
		tx.tx.emss = func() int { return emss }
		tx.refreshMULPDU()
		ref := refSender{crc: crc, markers: markers}
		var want [][]byte
		send := func(n int) {
			for msg := pattern(n, n); len(msg) > 0; {
				k := min(len(msg), tx.MULPDU())
				before := ref.pos
				ref.fpdu(msg[:k])
				if wire := int(ref.pos - before); wire > emss && k > minMULPDU {
					t.Fatalf("EMSS %d, markers %v: an FPDU takes %d bytes", emss, markers, wire)
				}
				hdr := min(k, int(chunk)%30)
				if err := tx.Append(msg[:hdr], [][]byte{msg[hdr:k]}); err != nil {
					t.Fatal(err)
				}
				want = append(want, msg[:k])
				msg = msg[k:]
			}
		}
		if len(script) > 100 {
			script = script[:100]
		}
		for i := 0; i+1 < len(script); i += 2 {
			n := int(script[i+1])
			switch script[i] % 6 {
			case 0:
				send(n*40 + 1)
			case 1:
				send(n + 1)
			case 2:
				if err := tx.Flush(); err != nil {
					t.Fatal(err)
				}
			case 3:
				tx.Detach()
			case 4:
				emss = n*7 + 60
				tx.refreshMULPDU()
			case 5:
				emss = n*257 + 60
				tx.refreshMULPDU()
			}
		}
		if err := tx.Flush(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mc.out.Bytes(), ref.out) {
			t.Fatal("the reference sends something else")
		}
		rx := connAt(&memConn{in: chunks{&mc.out, int(chunk) + 1}}, crc, markers, 0)
		s := &collector{direct: int(mode>>2) * 30}
		if code := received(t, rx, s); code != 0 {
			t.Fatalf("code %d", code)
		}
		sameSegments(t, s.segs, want)
	})
}
