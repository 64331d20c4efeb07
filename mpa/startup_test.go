package mpa

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// answer runs Server on b and lets f answer the request.
func answer(b net.Conn, cfg *Config, f func(*Request) (*Conn, error)) chan error {
	done := make(chan error, 1)
	go func() {
		r, err := Server(context.Background(), b, cfg)
		if err == nil {
			_, err = f(r)
		}
		done <- err
	}()
	return done
}

func TestPrivateDataGoesBothWays(t *testing.T) {
	tests := []struct {
		name             string
		ccfg, scfg       Config
		accept           []byte
		toServer, toBack string
		large            int
	}{
		{name: "none"},
		{name: "plain", ccfg: Config{PrivateData: []byte("hi")}, scfg: Config{PrivateData: []byte("ho")}, toServer: "hi", toBack: "ho"},
		{name: "chosen at accept", scfg: Config{PrivateData: []byte("ho")}, accept: []byte("ha"), toBack: "ha"},
		{name: "revision 1", ccfg: Config{Revision: 1, PrivateData: []byte("hi")}, toServer: "hi"},
		{name: "full", ccfg: Config{PrivateData: bytes.Repeat([]byte("x"), 508)}, toServer: strings.Repeat("x", 508)},
		{name: "both large", ccfg: Config{LargeFPDU: 40000, PrivateData: []byte("hi")}, scfg: Config{LargeFPDU: 1 << 20, PrivateData: []byte("ho")},
			toServer: "hi", toBack: "ho", large: 39998},
		{name: "client large only", ccfg: Config{LargeFPDU: 40000, PrivateData: []byte("hi")}, scfg: Config{PrivateData: []byte("ho")},
			toServer: "hi", toBack: "ho"},
		{name: "server large only", ccfg: Config{PrivateData: []byte("hi")}, scfg: Config{LargeFPDU: 40000, PrivateData: []byte("ho")},
			toServer: "hi", toBack: "ho"},
		{name: "large and markers", ccfg: Config{LargeFPDU: 40000}, scfg: Config{LargeFPDU: 40000, Markers: true}},
		{name: "markers and large", ccfg: Config{LargeFPDU: 40000, Markers: true, PrivateData: []byte("hi")}, scfg: Config{LargeFPDU: 40000}, toServer: "hi"},
		{name: "large and revision 1", ccfg: Config{LargeFPDU: 64766, Revision: 1}, scfg: Config{LargeFPDU: 64766}, large: 64766},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netPair(t, "pipe")
			var sc *Conn
			var got string
			done := answer(b, &tt.scfg, func(r *Request) (*Conn, error) {
				got = string(r.PrivateData)
				c, err := r.Accept(context.Background(), AcceptOptions{PrivateData: tt.accept})
				sc = c
				return c, err
			})
			cc, err := Client(context.Background(), a, &tt.ccfg)
			if serr := <-done; err != nil || serr != nil {
				t.Fatal(err, serr)
			}
			if got != tt.toServer || string(sc.PrivateData()) != tt.toServer {
				t.Errorf("server got %q and %q, want %q", got, sc.PrivateData(), tt.toServer)
			}
			if string(cc.PrivateData()) != tt.toBack {
				t.Errorf("client got %q, want %q", cc.PrivateData(), tt.toBack)
			}
			if cc.LargeULPDU() != tt.large || sc.LargeULPDU() != tt.large {
				t.Errorf("large ULPDUs of %d and %d bytes, want %d", cc.LargeULPDU(), sc.LargeULPDU(), tt.large)
			}
			if tt.large > 0 && (cc.MULPDU() != tt.large || sc.MULPDU() != tt.large) {
				t.Errorf("MULPDU %d and %d, want %d", cc.MULPDU(), sc.MULPDU(), tt.large)
			}
			if cc.Revision() != sc.Revision() || cc.Revision() != tt.ccfg.revision() {
				t.Errorf("revisions %d and %d", cc.Revision(), sc.Revision())
			}
			if !cc.Initiator() || sc.Initiator() {
				t.Error("the roles are mixed up")
			}
		})
	}
}

func TestPrivateDataThatDoesNotFitIsRefused(t *testing.T) {
	for _, cfg := range []Config{
		{PrivateData: make([]byte, 509)},
		{Revision: 1, PrivateData: make([]byte, 513)},
		{LargeFPDU: 40000, PrivateData: make([]byte, 493)},
	} {
		a, _ := netPair(t, "pipe")
		if _, err := Client(context.Background(), a, &cfg); !errors.Is(err, ErrPrivateData) {
			t.Errorf("%d bytes: %v", len(cfg.PrivateData), err)
		}
	}
}

func TestCRCIsOnIfEitherSideWantsIt(t *testing.T) {
	for _, c := range []CRCMode{CRCPrefer, CRCAvoid} {
		for _, s := range []CRCMode{CRCPrefer, CRCAvoid} {
			a, b := connect(t, "pipe", &Config{CRC: c}, &Config{CRC: s})
			want := c == CRCPrefer || s == CRCPrefer
			if a.CRC() != want || b.CRC() != want {
				t.Errorf("client %v, server %v: CRC %v and %v", c, s, a.CRC(), b.CRC())
			}
		}
	}
}

// TestDepthNegotiation is RFC 6581 section 9.1.
func TestDepthNegotiation(t *testing.T) {
	tests := []struct {
		name               string
		cIRD, cORD         uint16 // client's Config
		sIRD, sORD         uint16
		wcIRD, wcORD       uint16 // outcome
		wsIRD, wsORD       uint16
		rev                uint8
		insufficient       bool
		replyIRD, replyORD uint16
	}{
		{name: "none"},
		{name: "client smaller", cIRD: 4, cORD: 8, sIRD: 32, sORD: 32, wcIRD: 4, wcORD: 8, wsIRD: 8, wsORD: 4, replyIRD: 8, replyORD: 4},
		{name: "server smaller", cIRD: 32, cORD: 32, sIRD: 3, sORD: 5, wcIRD: 32, wcORD: 3, wsIRD: 3, wsORD: 5, replyIRD: 3, replyORD: 5},
		{name: "none of the client", sIRD: 32, sORD: 32},
		{name: "none of the server", cIRD: 32, cORD: 32, wcIRD: 32},
		{name: "client leaves it to the ULP", cIRD: enhanced.DepthULP, cORD: enhanced.DepthULP, sIRD: 7, sORD: 9, wcIRD: enhanced.DepthULP, wcORD: enhanced.DepthULP, wsIRD: 7, wsORD: 9,
			replyIRD: enhanced.DepthULP, replyORD: enhanced.DepthULP},
		{name: "server leaves it to the ULP", cIRD: 32, cORD: 32, sIRD: enhanced.DepthULP, sORD: enhanced.DepthULP, wcIRD: 32, wcORD: 32, wsIRD: enhanced.DepthULP, wsORD: 32, replyIRD: enhanced.DepthULP, replyORD: 32},
		{name: "revision 1", rev: 1, cIRD: 4, cORD: 5, sIRD: 6, sORD: 7, wcIRD: 4, wcORD: 5, wsIRD: 6, wsORD: 7},
		{name: "beyond 14 bits", cIRD: 0x4001, cORD: 0x8002, sIRD: 0x7fff, sORD: 0x7fff, wcIRD: enhanced.MaxDepth, wcORD: enhanced.MaxDepth, wsIRD: enhanced.MaxDepth, wsORD: enhanced.MaxDepth,
			replyIRD: enhanced.MaxDepth, replyORD: enhanced.MaxDepth},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := connect(t, "pipe", &Config{IRD: tt.cIRD, ORD: tt.cORD, Revision: tt.rev}, &Config{IRD: tt.sIRD, ORD: tt.sORD})
			if a.IRD() != tt.wcIRD || a.ORD() != tt.wcORD || b.IRD() != tt.wsIRD || b.ORD() != tt.wsORD {
				t.Errorf("client IRD %d ORD %d, server IRD %d ORD %d; want %d %d, %d %d",
					a.IRD(), a.ORD(), b.IRD(), b.ORD(), tt.wcIRD, tt.wcORD, tt.wsIRD, tt.wsORD)
			}
			if tt.rev == 1 {
				if a.PeerEnhanced() != nil || b.PeerEnhanced() != nil {
					t.Error("enhanced data in revision 1")
				}
				return
			}
			if e := a.PeerEnhanced(); e.IRD != tt.replyIRD || e.ORD != tt.replyORD {
				t.Errorf("the reply said IRD %d ORD %d, want %d %d", e.IRD, e.ORD, tt.replyIRD, tt.replyORD)
			}
		})
	}
}

// reply answers a client's request on b with fixed bytes.
func reply(b net.Conn, f Frame) chan error {
	done := make(chan error, 1)
	go func() {
		_, _, _, err := readFrame(b, false)
		if err == nil {
			var raw []byte
			if raw, err = f.Append(nil); err == nil {
				_, err = b.Write(raw)
			}
		}
		done <- err
	}()
	return done
}

func TestWhatTheInitiatorCannotMeetComesWithItsConnection(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		rep  enhanced.Data
		code uint8
	}{
		{"the peer's ORD exceeds our IRD", Config{IRD: 4}, enhanced.Data{IRD: 32, ORD: 5}, CodeIRD},
		{"no common RTR", Config{IRD: 32, PeerToPeer: enhanced.RTRWrite}, enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRRead, IRD: 32, ORD: 32}, CodeRTR},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netPair(t, "pipe")
			done := reply(b, Frame{Reply: true, CRC: true, Revision: 2, Enhanced: &tt.rep})
			_, err := Client(context.Background(), a, &tt.cfg)
			var ne *NegotiationError
			if !errors.As(err, &ne) || ne.Err.Code != tt.code || ne.Err.Layer != ddp.LayerLLP || ne.Conn == nil {
				t.Fatalf("Client: %v, want a NegotiationError with code %d", err, tt.code)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, b)
			if err := errors.Join(ne.Conn.Append([]byte("terminate"), nil), ne.Conn.Flush(), ne.Conn.Close()); err != nil {
				t.Fatalf("send a Terminate through it: %v", err)
			}
		})
	}
}

func TestPeerToPeerAgreesOnRTR(t *testing.T) {
	tests := []struct{ offer, support, want enhanced.RTR }{
		{enhanced.RTRSend | enhanced.RTRWrite | enhanced.RTRRead, 0, enhanced.RTRWrite | enhanced.RTRRead},
		{enhanced.RTRWrite, 0, enhanced.RTRWrite},
		{enhanced.RTRSend, enhanced.RTRSend, enhanced.RTRSend},
		{enhanced.RTRSend | enhanced.RTRRead, enhanced.RTRSend | enhanced.RTRWrite, enhanced.RTRSend},
	}
	for _, tt := range tests {
		a, b := connect(t, "pipe", &Config{PeerToPeer: tt.offer}, &Config{PeerToPeer: tt.support, IRD: 32})
		if a.RTR() != tt.want || b.RTR() != tt.want {
			t.Errorf("offer %b, support %b: %b and %b, want %b", tt.offer, tt.support, a.RTR(), b.RTR(), tt.want)
		}
		if wantIRD := uint16(tt.want & enhanced.RTRRead / enhanced.RTRRead); b.IRD() != wantIRD {
			t.Errorf("offer %b: responder IRD %d, want %d", tt.offer, b.IRD(), wantIRD)
		}
	}
	a, b := connect(t, "pipe", nil, &Config{PeerToPeer: enhanced.RTRSend})
	if a.RTR() != 0 || b.RTR() != 0 {
		t.Error("RTR without the peer-to-peer model")
	}
}

func TestRejectionLeavesTheConnectionOpen(t *testing.T) {
	a, b := netPair(t, "tcp")
	done := answer(b, nil, func(r *Request) (*Conn, error) {
		err := r.Reject(context.Background(), []byte("no thanks"))
		if _, aerr := r.Accept(context.Background(), AcceptOptions{}); aerr == nil {
			t.Error("Accept after Reject succeeded")
		}
		return nil, err
	})
	_, err := Client(context.Background(), a, &Config{IRD: 32, ORD: 32})
	var rej *RejectedError
	if !errors.As(err, &rej) || string(rej.PrivateData) != "no thanks" || rej.IRD != 32 || rej.ORD != 32 {
		t.Fatalf("Client: %v (%+v)", err, rej)
	}
	if RetryRevision1(err) {
		t.Error("a rejection in revision 2 is no reason to try revision 1")
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("still")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(b, got); err != nil || string(got) != "still" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestPeersThatKnowOnlyRevision1(t *testing.T) {
	t.Run("hangs up", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		go func() {
			readFrame(b, false)
			b.Close()
		}()
		_, err := Client(context.Background(), a, nil)
		if !RetryRevision1(err) {
			t.Fatalf("Client: %v, want an error that suggests revision 1", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the connection was left open: %v", err)
		}
	})
	t.Run("hangs up on revision 1, too", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		go func() {
			readFrame(b, false)
			b.Close()
		}()
		if _, err := Client(context.Background(), a, &Config{Revision: 1}); err == nil || RetryRevision1(err) {
			t.Fatalf("Client: %v", err)
		}
	})
	t.Run("rejects", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		done := reply(b, Frame{Reply: true, Reject: true, Revision: 1})
		if _, err := Client(context.Background(), a, nil); !RetryRevision1(err) {
			t.Fatalf("Client: %v, want an error that suggests revision 1", err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("accepts", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		done := reply(b, Frame{Reply: true, Revision: 1, PrivateData: []byte("abcdef")})
		c, err := Client(context.Background(), a, &Config{ORD: 3})
		if err != nil {
			t.Fatal(err)
		}
		if c.Revision() != 1 || string(c.PrivateData()) != "abcdef" || c.ORD() != 3 {
			t.Errorf("revision %d, private data %q", c.Revision(), c.PrivateData())
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestBadStartupFramesCloseTheConnection(t *testing.T) {
	good, err := (&Frame{CRC: true, Revision: 2, Enhanced: &enhanced.Data{}}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	patch := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	rep, err := (&Frame{Reply: true, Revision: 2, Enhanced: &enhanced.Data{}}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		data []byte
		text string
	}{
		{"garbage", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "not an MPA start-up frame"},
		{"a reply", rep, "both ends act as MPA responder"},
		{"revision 0", patch(17, 0), "revision 0"},
		{"revision 3", patch(17, 3), "revision 3"},
		{"oversized private data", patch(18, 2, 1), "exceeds 512"},
		{"no room for enhanced data", patch(18, 0, 3), "cannot hold the enhanced"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netPair(t, "tcp")
			if _, err := a.Write(tt.data); err != nil {
				t.Fatal(err)
			}
			_, err := Server(context.Background(), b, nil)
			if !errors.Is(err, ErrStartup) || !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("Server: %v, want %q", err, tt.text)
			}
			if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the connection was left open: %v", err)
			}
		})
	}
	t.Run("two initiators", func(t *testing.T) {
		a, b := netPair(t, "tcp")
		if _, err := b.Write(good); err != nil {
			t.Fatal(err)
		}
		if _, err := Client(context.Background(), a, nil); !errors.Is(err, ErrStartup) || !strings.Contains(err.Error(), "initiator") {
			t.Fatalf("Client: %v", err)
		}
	})
	t.Run("cut short", func(t *testing.T) {
		for _, n := range []int{0, 1, 19, 22} {
			a, b := netPair(t, "tcp")
			a.Write(good[:n])
			a.Close()
			if _, err := Server(context.Background(), b, nil); err == nil {
				t.Errorf("%d bytes of a request were taken", n)
			}
		}
	})
}

// TestOldReservedBit: before revision 2 the S bit is reserved and not checked.
func TestOldReservedBit(t *testing.T) {
	f := Frame{Revision: 1, PrivateData: []byte("abcdef")}
	b, err := f.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	b[16] |= flagEnhanced | flagReject | 0x0f
	g, err := ParseFrame(b, false)
	if err != nil || g.Enhanced != nil || g.Reject || string(g.PrivateData) != "abcdef" {
		t.Fatalf("%+v, %v", g, err)
	}
}

func TestSilentPeersTimeOut(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		_, b := netPair(t, "tcp")
		_, err := Server(context.Background(), b, &Config{StartupTimeout: time.Millisecond})
		if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "silent") {
			t.Fatalf("Server: %v", err)
		}
	})
	t.Run("client", func(t *testing.T) {
		a, _ := netPair(t, "tcp")
		if _, err := Client(context.Background(), a, &Config{StartupTimeout: time.Millisecond}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Client: %v", err)
		}
	})
	t.Run("context deadline", func(t *testing.T) {
		_, b := netPair(t, "pipe")
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := Server(ctx, b, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Server: %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		for _, kind := range []string{"tcp", "pipe"} {
			a, b := netPair(t, kind)
			ctx, cancel := context.WithCancel(context.Background())
			go func() {
				readFrame(b, false)
				cancel()
			}()
			if _, err := Client(ctx, a, nil); !errors.Is(err, context.Canceled) {
				t.Fatalf("Client: %v", err)
			}
		}
	})
}

func TestDeadlinesOfTheStartupDoNotStay(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a, b := netPair(t, "tcp")
	done := answer(b, &Config{StartupTimeout: time.Hour}, func(r *Request) (*Conn, error) { return r.Accept(ctx, AcceptOptions{}) })
	c, err := Client(ctx, a, nil)
	if serr := <-done; err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	cancel() // must not touch the established connection
	if err := errors.Join(c.Append([]byte("x"), nil), c.Flush()); err != nil {
		t.Fatal(err)
	}
}

func TestHello(t *testing.T) {
	b := hello{maxULPDU: 0x01020304}.append([]byte("before"))
	want := "beforeIWrp\x01\x00\x00\x00\x01\x02\x03\x04\x00\x00\x00\x00"
	if string(b) != want {
		t.Fatalf("%q, want %q", b, want)
	}
	h, rest, ok := cutHello(append(b[6:], "rest"...))
	if !ok || h.maxULPDU != 0x01020304 || string(rest) != "rest" {
		t.Fatalf("%+v %q %v", h, rest, ok)
	}
	for _, s := range []string{"", "IWrp", want[6:21], "IWrp\x02" + want[11:], "iwrp" + want[10:]} {
		if _, rest, ok := cutHello([]byte(s)); ok || string(rest) != s {
			t.Errorf("%q was taken for a hello", s)
		}
	}
}
