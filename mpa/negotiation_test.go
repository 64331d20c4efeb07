package mpa

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// The rules of RFC 6581 sections 9 and 10 that are about both ends at once.

// TestEachRTROfferMeetsEachSupport is all 7 offers of an initiator against all
// 7 sets that a responder takes, and against IRDs of 0 (RFC 6581 section 9.2).
func TestEachRTROfferMeetsEachSupport(t *testing.T) {
	for offer := enhanced.RTRSend; offer <= enhanced.RTRSend|enhanced.RTRWrite|enhanced.RTRRead; offer++ {
		for support := enhanced.RTR(0); support <= enhanced.RTRSend|enhanced.RTRWrite|enhanced.RTRRead; support++ {
			for _, ird := range []uint16{0, 1, 8} {
				t.Run(fmt.Sprintf("offer %03b/support %03b/IRD %d", offer, support, ird), func(t *testing.T) {
					a, b := netPair(t, "pipe")
					done := serve(t, b, &Config{PeerToPeer: support, IRD: ird})
					c, err := Client(context.Background(), a, &Config{PeerToPeer: offer})
					r := <-done
					if r.err != nil {
						t.Fatal(r.err)
					}
					takes := support
					if takes == 0 {
						takes = enhanced.RTRWrite | enhanced.RTRRead
					}
					common := offer & takes
					if common == 0 {
						var ne *NegotiationError
						if !errors.As(err, &ne) || ne.Err.Code != CodeRTR {
							t.Fatalf("Client: %v, want code 7", err)
						}
						if e := ne.Conn.PeerEnhanced(); !e.PeerToPeer || e.RTR != takes {
							t.Errorf("the reply said %+v, want what the responder takes, %03b", e, takes)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					if c.RTR() == 0 || c.RTR()&^common != 0 || c.RTR() != r.c.RTR() {
						t.Fatalf("agreed on %03b and %03b of %03b", c.RTR(), r.c.RTR(), common)
					}
					if c.RTR()&enhanced.RTRRead != 0 && (r.c.IRD() < 1 || c.PeerEnhanced().IRD < 1) {
						t.Errorf("a Read may come and the responder has IRD %d and said %d", r.c.IRD(), c.PeerEnhanced().IRD)
					}
					if ird == 0 && common&^enhanced.RTRRead != 0 && (c.RTR()&enhanced.RTRRead != 0 || r.c.IRD() != 0) {
						t.Errorf("a responder without RDMA Reads chose %03b and IRD %d", c.RTR(), r.c.IRD())
					}
					if ird > 0 && c.RTR() != common {
						t.Errorf("agreed on %03b, want all of %03b", c.RTR(), common)
					}
				})
			}
		}
	}
}

// TestReadAsRTRGivesTheResponderAnIRD also where the depth is left to the ULPs.
func TestReadAsRTRGivesTheResponderAnIRD(t *testing.T) {
	for _, tt := range []struct {
		ord, wantLocal, wantReply uint16
	}{{0, 1, 1}, {5, 1, 1}, {enhanced.DepthULP, 1, enhanced.DepthULP}} {
		a, b := connect(t, "pipe", &Config{PeerToPeer: enhanced.RTRRead, ORD: tt.ord}, nil)
		if a.RTR() != enhanced.RTRRead || b.IRD() != tt.wantLocal || a.PeerEnhanced().IRD != tt.wantReply {
			t.Errorf("initiator ORD %#x: RTR %03b, IRD %d, reply %#x; want IRD %d, reply %#x",
				tt.ord, a.RTR(), b.IRD(), a.PeerEnhanced().IRD, tt.wantLocal, tt.wantReply)
		}
	}
}

// TestRepliesThatBreakRFC6581 come from a responder that answers as it likes.
func TestRepliesThatBreakRFC6581(t *testing.T) {
	p2p := func(r enhanced.RTR, ird, ord uint16) *enhanced.Data {
		return &enhanced.Data{PeerToPeer: true, RTR: r, IRD: ird, ORD: ord}
	}
	for _, tt := range []struct {
		name string
		cfg  Config
		rep  Frame
		code uint8 // 0: it works
		rtr  enhanced.RTR
		ird  uint16
		ord  uint16
	}{
		{name: "peer-to-peer unasked", cfg: Config{IRD: 1}, rep: Frame{Revision: 2, Enhanced: p2p(enhanced.RTRWrite, 1, 1)}, code: CodeRTR},
		{name: "client-server instead", cfg: Config{IRD: 1, PeerToPeer: enhanced.RTRWrite}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 1, ORD: 1}}, code: CodeRTR},
		{name: "client-server instead, which will do", cfg: Config{IRD: 32, ORD: 32, PeerToPeer: enhanced.RTRWrite, MayDecline: true}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 1, ORD: 1}}, ird: 32, ord: 1},
		{name: "another indication, where none will do", cfg: Config{IRD: 1, PeerToPeer: enhanced.RTRWrite, MayDecline: true}, rep: Frame{Revision: 2, Enhanced: p2p(enhanced.RTRRead, 1, 1)}, code: CodeRTR},
		{name: "no indication", cfg: Config{IRD: 1, PeerToPeer: enhanced.RTRWrite}, rep: Frame{Revision: 2, Enhanced: p2p(0, 1, 1)}, code: CodeRTR},
		{name: "another indication", cfg: Config{IRD: 1, PeerToPeer: enhanced.RTRWrite}, rep: Frame{Revision: 2, Enhanced: p2p(enhanced.RTRSend|enhanced.RTRRead, 1, 1)}, code: CodeRTR},
		{name: "Read with IRD 0", cfg: Config{IRD: 1, PeerToPeer: enhanced.RTRRead}, rep: Frame{Revision: 2, Enhanced: p2p(enhanced.RTRRead, 0, 1)}, code: CodeRTR},
		{name: "Read with IRD 0, or Write", cfg: Config{IRD: 32, ORD: 32, PeerToPeer: enhanced.RTRRead | enhanced.RTRWrite}, rep: Frame{Revision: 2, Enhanced: p2p(enhanced.RTRRead|enhanced.RTRWrite, 0, 1)},
			rtr: enhanced.RTRWrite, ird: 32, ord: 0},
		{name: "Read with IRD left to the ULP", cfg: Config{IRD: 32, ORD: 32, PeerToPeer: enhanced.RTRRead}, rep: Frame{Revision: 2, Enhanced: p2p(enhanced.RTRRead, enhanced.DepthULP, 1)},
			rtr: enhanced.RTRRead, ird: 32, ord: 32},
		{name: "additional indications", cfg: Config{IRD: 32, ORD: 32, PeerToPeer: enhanced.RTRWrite}, rep: Frame{Revision: 2, Enhanced: p2p(7, 1, 1)}, rtr: enhanced.RTRWrite, ird: 32, ord: 1},
		{name: "ORD at the limit", cfg: Config{IRD: 4, ORD: 32}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 9, ORD: 4}}, ird: 4, ord: 9},
		{name: "ORD past the limit", cfg: Config{IRD: 4}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 9, ORD: 5}}, code: CodeIRD},
		{name: "ORD at the end of the field", cfg: Config{IRD: 4}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 9, ORD: enhanced.MaxDepth}}, code: CodeIRD},
		{name: "any ORD with IRD 0", rep: Frame{Revision: 2, Enhanced: &enhanced.Data{ORD: 1}}, code: CodeIRD},
		{name: "IRD above our ORD", cfg: Config{IRD: 32, ORD: 4}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: enhanced.MaxDepth}}, ird: 32, ord: 4},
		{name: "both left to the ULP", cfg: Config{IRD: 3, ORD: 4}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}}, ird: 3, ord: 4},
		{name: "numbers where the ULP decides", cfg: Config{IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}, rep: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 3, ORD: 4}},
			ird: enhanced.DepthULP, ord: enhanced.DepthULP},
		// RFC 6581 section 10 has such a responder close; one that accepts is as good.
		{name: "revision 1", cfg: Config{IRD: 3, ORD: 4, PeerToPeer: enhanced.RTRWrite}, rep: Frame{Revision: 1}, ird: 3, ord: 4},
		{name: "revision 2 without enhanced data", cfg: Config{IRD: 3, ORD: 4}, rep: Frame{Revision: 2, PrivateData: []byte("data")}, ird: 3, ord: 4},
		{name: "revision 2 to a request of revision 1", cfg: Config{Revision: 1, IRD: 3, ORD: 4}, rep: Frame{Revision: 2, PrivateData: []byte("data")}, ird: 3, ord: 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netPair(t, "pipe")
			tt.rep.Reply = true
			done := reply(b, tt.rep)
			c, err := Client(context.Background(), a, &tt.cfg)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if tt.code != 0 {
				var ne *NegotiationError
				if !errors.As(err, &ne) || ne.Err.Code != tt.code {
					t.Fatalf("Client: %v, want code %d", err, tt.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.RTR() != tt.rtr || c.IRD() != tt.ird || c.ORD() != tt.ord || string(c.PrivateData()) != string(tt.rep.PrivateData) {
				t.Errorf("RTR %03b, IRD %d, ORD %d, private data %q; want %03b, %d, %d, %q",
					c.RTR(), c.IRD(), c.ORD(), c.PrivateData(), tt.rtr, tt.ird, tt.ord, tt.rep.PrivateData)
			}
			if want := min(tt.cfg.revision(), tt.rep.Revision); c.Revision() != want {
				t.Errorf("revision %d, want %d", c.Revision(), want)
			}
		})
	}
}

// TestRepliesFollowTheRequest is RFC 6581 section 10 on the responder's side:
// enhanced to enhanced, unenhanced to unenhanced, in the request's revision.
func TestRepliesFollowTheRequest(t *testing.T) {
	for _, tt := range []struct {
		name     string
		req      Frame
		want     *enhanced.Data // of the reply
		ird, ord uint16
	}{
		{name: "revision 1", req: Frame{Revision: 1, PrivateData: []byte("data")}, ird: 8, ord: 9},
		{name: "revision 2 without enhanced data", req: Frame{Revision: 2, PrivateData: []byte("data")}, ird: 8, ord: 9},
		{name: "revision 2 with", req: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 3, ORD: 4}, PrivateData: []byte("data")}, want: &enhanced.Data{IRD: 4, ORD: 3}, ird: 4, ord: 3},
		{name: "more than we have", req: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: enhanced.MaxDepth, ORD: enhanced.MaxDepth}}, want: &enhanced.Data{IRD: 8, ORD: 9}, ird: 8, ord: 9},
		{name: "IRD left to the ULP", req: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: enhanced.DepthULP, ORD: 4}}, want: &enhanced.Data{IRD: 4, ORD: enhanced.DepthULP}, ird: 4, ord: 9},
		{name: "ORD left to the ULP", req: Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 3, ORD: enhanced.DepthULP}}, want: &enhanced.Data{IRD: enhanced.DepthULP, ORD: 3}, ird: 8, ord: 3},
		{name: "no reads", req: Frame{Revision: 2, Enhanced: &enhanced.Data{}}, want: &enhanced.Data{}, ird: 0, ord: 0},
		{name: "peer-to-peer without an indication", req: Frame{Revision: 2, Enhanced: &enhanced.Data{PeerToPeer: true}},
			want: &enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRWrite | enhanced.RTRRead}, ird: 0, ord: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := netPair(t, "pipe")
			done := serve(t, b, &Config{IRD: 8, ORD: 9})
			go a.Write(frameBytes(t, tt.req))
			rep, _, _, err := readFrame(a, true)
			r := <-done
			if err != nil || r.err != nil {
				t.Fatal(err, r.err)
			}
			if rep.Revision != tt.req.Revision || (rep.Enhanced != nil) != (tt.want != nil) || tt.want != nil && *rep.Enhanced != *tt.want {
				t.Errorf("reply of revision %d with %+v, want %+v", rep.Revision, rep.Enhanced, tt.want)
			}
			if r.c.IRD() != tt.ird || r.c.ORD() != tt.ord || string(r.c.PrivateData()) != string(tt.req.PrivateData) {
				t.Errorf("IRD %d, ORD %d, private data %q", r.c.IRD(), r.c.ORD(), r.c.PrivateData())
			}
		})
	}
}

// TestFlagsWithoutPeerToPeerAreIgnored is the last rule of RFC 6581 section 9.2.
func TestFlagsWithoutPeerToPeerAreIgnored(t *testing.T) {
	b := frameBytes(t, Frame{Revision: 2, Enhanced: &enhanced.Data{IRD: 1, ORD: 2}})
	b[startupLen] |= 0x40
	b[startupLen+2] |= 0xc0
	f, err := ParseFrame(b, false)
	if err != nil || *f.Enhanced != (enhanced.Data{IRD: 1, ORD: 2}) {
		t.Fatalf("%+v, %v", f.Enhanced, err)
	}
	if b := frameBytes(t, Frame{Revision: 2, Enhanced: &enhanced.Data{RTR: enhanced.RTRSend | enhanced.RTRWrite | enhanced.RTRRead}}); b[startupLen]|b[startupLen+2] != 0 {
		t.Errorf("flags of %x are set in the client-server model", b[startupLen:])
	}
}

// TestRejectionMayNameTheDepths that would have done (RFC 6581 section 9.1).
func TestRejectionMayNameTheDepths(t *testing.T) {
	for _, rev := range []uint8{1, 2} {
		a, b := netPair(t, "tcp")
		done := answer(b, nil, func(r *Request) (*Conn, error) {
			if rev == 2 && (r.Enhanced.IRD != 2 || r.Enhanced.ORD != 3) {
				t.Errorf("the ULP was told %+v", r.Enhanced)
			}
			return nil, r.RejectDepths(context.Background(), []byte("more"), 0, 16)
		})
		_, err := Client(context.Background(), a, &Config{Revision: rev, IRD: 2, ORD: 3})
		var rej *RejectedError
		if serr := <-done; !errors.As(err, &rej) || serr != nil {
			t.Fatal(err, serr)
		}
		wantIRD, wantORD := uint16(0), uint16(16)
		if rev == 1 {
			wantIRD, wantORD = enhanced.DepthULP, enhanced.DepthULP
		}
		if rej.IRD != wantIRD || rej.ORD != wantORD || string(rej.PrivateData) != "more" {
			t.Errorf("revision %d: %+v", rev, rej)
		}
	}
}

// TestFallbackToRevision1 dials anew after a peer of revision 1 has hung up.
func TestFallbackToRevision1(t *testing.T) {
	oldResponder := func(b net.Conn) chan accepted {
		done := make(chan accepted, 1)
		go func() {
			f, _, _, err := readFrame(b, false)
			if err == nil && f.Revision != 1 {
				b.Close()
				done <- accepted{}
				return
			}
			_, err = b.Write(frameBytes(t, Frame{Reply: true, Revision: 1, CRC: true}))
			done <- accepted{nil, err}
		}()
		return done
	}
	cfg := Config{IRD: 5, ORD: 6}
	a, b := netPair(t, "tcp")
	done := oldResponder(b)
	_, err := Client(context.Background(), a, &cfg)
	<-done
	if !RetryRevision1(err) || !errors.Is(err, ErrConnectionLost) {
		t.Fatalf("Client: %v", err)
	}
	cfg.Revision = 1
	a, b = netPair(t, "tcp")
	done = oldResponder(b)
	c, err := Client(context.Background(), a, &cfg)
	if r := <-done; err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	if c.Revision() != 1 || c.PeerEnhanced() != nil || c.IRD() != 5 || c.ORD() != 6 {
		t.Errorf("revision %d, IRD %d, ORD %d", c.Revision(), c.IRD(), c.ORD())
	}
}
