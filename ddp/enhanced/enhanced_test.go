package enhanced

import (
	"bytes"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
)

// RFC 6581 section 9: the bits, as other stacks send them.
func TestBits(t *testing.T) {
	for _, tc := range []struct {
		b []byte
		d Data
	}{
		{[]byte{0x00, 0x01, 0x00, 0x02}, Data{IRD: 1, ORD: 2}},
		{[]byte{0x3f, 0xff, 0x3f, 0xfe}, Data{IRD: DepthULP, ORD: MaxDepth}},
		{[]byte{0x80, 0x01, 0xc0, 0x01}, Data{PeerToPeer: true, RTR: RTRWrite | RTRRead, IRD: 1, ORD: 1}},
		{[]byte{0xc0, 0x00, 0x40, 0x00}, Data{PeerToPeer: true, RTR: RTRSend | RTRRead}},
	} {
		if got := Parse(tc.b); *got != tc.d {
			t.Errorf("%x: %+v, want %+v", tc.b, *got, tc.d)
		}
		if got := tc.d.Append(nil); !bytes.Equal(got, tc.b) {
			t.Errorf("%+v: %x, want %x", tc.d, got, tc.b)
		}
	}
	// Section 9.2: without flag A the others have no meaning, and are not sent.
	if got := Parse([]byte{0x40, 1, 0xc0, 2}); *got != (Data{IRD: 1, ORD: 2}) {
		t.Errorf("flags without A: %+v", got)
	}
	if got := (&Data{RTR: RTRSend | RTRWrite | RTRRead}).Append(nil); !bytes.Equal(got, make([]byte, 4)) {
		t.Errorf("flags without A are sent: %x", got)
	}
}

// RFC 6581 sections 9.1 and 9.2: a Read serves as RTR only where the responder has an
// IRD for it.
func TestReadAsRTRHasAnIRD(t *testing.T) {
	for _, tc := range []struct {
		name           string
		ird, ord       uint16 // of the responder's IRD, the initiator's ORD
		offer, support RTR
		want           Data
		agreed         RTR
	}{
		{"no IRD, and something else will do", 0, 16, RTRWrite | RTRRead, 0, Data{RTR: RTRWrite}, RTRWrite},
		{"no IRD, and nothing else will do", 0, 16, RTRRead, 0, Data{RTR: RTRRead, IRD: 1}, RTRRead},
		{"no ORD", 16, 0, RTRWrite | RTRRead, 0, Data{RTR: RTRWrite | RTRRead, IRD: 1}, RTRWrite | RTRRead},
		{"neither", 0, 0, RTRWrite | RTRRead, 0, Data{RTR: RTRWrite}, RTRWrite},
		{"no ORD, and no Read", 16, 0, RTRWrite, 0, Data{RTR: RTRWrite}, RTRWrite},
		{"nothing in common", 0, 0, RTRSend, RTRRead, Data{RTR: RTRRead}, 0},
	} {
		responder := Agreed{IRD: tc.ird, ORD: 0}
		tc.want.PeerToPeer = true
		req := &Data{PeerToPeer: true, RTR: tc.offer, ORD: tc.ord}
		rep := responder.Answer(req, tc.support)
		if *rep != tc.want || responder.RTR != tc.agreed || responder.IRD != rep.IRD {
			t.Errorf("%s: the reply is %+v, want %+v; the responder has %+v", tc.name, *rep, tc.want, responder)
		}
		initiator := Agreed{}
		if f := initiator.Take(req, rep); (f == nil) != (tc.agreed != 0) || initiator.RTR != tc.agreed {
			t.Errorf("%s: the initiator has %+v, %v", tc.name, initiator, f)
		}
	}
}

// FuzzNegotiation has any request answered by any responder, and the answer taken;
// and any reply. What RFC 6581 section 9 demands of both ends holds.
func FuzzNegotiation(f *testing.F) {
	f.Add([]byte{0x80, 0x01, 0xc0, 0x00, 0, 0, 0, 0}, uint16(0), uint16(32), uint8(0))
	f.Add([]byte{0x3f, 0xff, 0x3f, 0xff, 0xff, 0xff, 0xff, 0xff}, uint16(DepthULP), uint16(3), uint8(RTRSend))
	f.Fuzz(func(t *testing.T, b []byte, ird, ord uint16, support uint8) {
		if len(b) < 2*Len {
			return
		}
		req, other := Parse(b), Parse(b[Len:])
		for i, d := range []*Data{req, other} {
			if again := d.Append(nil); *Parse(again) != *d || d.PeerToPeer && !bytes.Equal(again, b[i*Len:][:Len]) {
				t.Fatalf("%x is encoded as %x", b[i*Len:][:Len], again)
			}
		}
		if req.PeerToPeer && req.RTR == 0 {
			return // no initiator asks so
		}
		had := Agreed{IRD: Depth(ird), ORD: Depth(ord)}
		responder := had
		rep := responder.Answer(req, RTR(support)&(RTRSend|RTRWrite|RTRRead))
		if rep.PeerToPeer != req.PeerToPeer || rep.PeerToPeer != (rep.RTR != 0) {
			t.Fatalf("%+v is answered by %+v", *req, *rep)
		}
		if req.ORD == DepthULP && (rep.IRD != DepthULP || responder.IRD != had.IRD && responder.IRD != 1) ||
			req.IRD == DepthULP && (rep.ORD != DepthULP || responder.ORD != had.ORD) ||
			req.IRD != DepthULP && (responder.ORD > req.IRD || rep.ORD != responder.ORD) ||
			rep.IRD != DepthULP && rep.IRD != responder.IRD {
			t.Fatalf("%+v and %+v: answered by %+v with %+v", *req, had, *rep, responder)
		}
		initiator := Agreed{}
		fault := initiator.Take(req, rep)
		switch {
		case req.PeerToPeer && responder.RTR == 0:
			if fault == nil || fault.Code != CodeRTR || fault.Layer != ddp.LayerLLP {
				t.Fatalf("nothing in common, and the initiator has %+v, %v", initiator, fault)
			}
		case fault != nil:
			t.Fatalf("%+v is answered by %+v, which is not taken: %v", *req, *rep, fault)
		case initiator.RTR != responder.RTR:
			t.Fatalf("the ends agreed on %03b and %03b", initiator.RTR, responder.RTR)
		case initiator.RTR&RTRRead != 0 && (responder.IRD == 0 || rep.IRD == 0):
			t.Fatalf("a Read may come, and %+v said %+v", responder, *rep)
		case rep.IRD != DepthULP && req.ORD != DepthULP && initiator.ORD > responder.IRD,
			rep.ORD != DepthULP && req.IRD != DepthULP && responder.ORD > initiator.IRD:
			t.Fatalf("more reads are outstanding than fit: %+v and %+v", initiator, responder)
		}
		initiator.Take(req, other) // must not panic
	})
}
