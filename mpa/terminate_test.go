package mpa_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// upper is a stream's owner without memory or receives.
type upper struct {
	rdmap.Upper
	ended  chan error
	failed chan error // what operations ended with
}

func (u *upper) SendDone(_ *rdmap.Op, err error) { u.failed <- err }
func (u *upper) Completions(bool)                {}
func (u *upper) BatchEnd()                       {}
func (u *upper) Slow(rdmap.SlowPath) error       { return nil }
func (u *upper) Ended(err error)                 { u.ended <- err }

// terminate reads what the peer sends to its end and requires that it is one
// FPDU with a Terminate of the LLP that quotes no header.
func terminate(t *testing.T, nc net.Conn, code uint8) {
	t.Helper()
	b, err := io.ReadAll(nc)
	if err != nil {
		t.Fatalf("the peer's end: %v", err)
	}
	if len(b) < 2 {
		t.Fatalf("%d bytes came, want a Terminate", len(b))
	}
	n := int(binary.BigEndian.Uint16(b))
	if want := 2 + n + (4-(n+2)%4)%4 + 4; len(b) != want || n != ddp.UntaggedHeaderLen+4 {
		t.Fatalf("%d bytes came, want one FPDU with a Terminate without headers: %x", len(b), b)
	}
	u := ddp.Untagged(b[2 : 2+n])
	_, op := rdmap.ParseControl(u.ULP())
	if op != rdmap.OpTerminate || u.QN() != rdmap.QNTerminate || u.MSN() != 1 || u.MO() != 0 || !u.Last() {
		t.Fatalf("not a Terminate: %x", b)
	}
	want := [4]byte{0x20, code, 0, 0}
	if got := [4]byte(u.Payload()); got != want {
		t.Errorf("Terminate %x, want %x", got, want)
	}
}

// TestFaultsOfTheLLPGoOutInATerminate has an initiator break the rules in its
// first FPDU and in a later one. Code 1 goes out where only one direction is
// lost (RFC 5044 section 8).
func TestFaultsOfTheLLPGoOutInATerminate(t *testing.T) {
	// The second FPDU begins 24 octets into the grid of markers and reaches the
	// marker at 512, which points nowhere.
	beyond := append(append([]byte{1, 234}, make([]byte, 486)...), make([]byte, 4+4+4)...)
	faults := []struct {
		name          string
		cfg           mpa.Config
		first, second []byte
		code          uint8
	}{
		{name: "wrong CRC", first: []byte{0, 2, 'a', 'b', 1, 2, 3, 4}, code: mpa.CodeCRC},
		{name: "wrong marker", cfg: mpa.Config{CRC: mpa.CRCAvoid, Markers: true},
			first: []byte{0, 0, 0, 4, 0, 2, 'a', 'b', 0, 0, 0, 0}, second: beyond, code: mpa.CodeMarker},
		{name: "cut short", first: []byte{0, 2, 'a'}, code: mpa.CodeConnectionLost},
	}
	for _, f := range faults {
		for _, later := range []bool{false, true} {
			name := f.name + " at first"
			if later {
				name = f.name + " later"
			}
			t.Run(name, func(t *testing.T) {
				a, b := iwarptest.TCPPair(t)
				up := &upper{ended: make(chan error, 1)}
				started := make(chan error, 1)
				go func() {
					r, err := mpa.Server(context.Background(), b, &f.cfg)
					var c *mpa.Conn
					if err == nil {
						c, err = r.Accept(context.Background(), mpa.AcceptOptions{})
					}
					started <- err
					if err == nil {
						rdmap.New(rdmap.Config{LLP: c, Upper: up, MaxSend: 1}).Run()
					}
				}()
				client, err := mpa.Client(context.Background(), a, &mpa.Config{CRC: f.cfg.CRC})
				if err := errors.Join(err, <-started); err != nil {
					t.Fatal(err)
				}
				fpdu := f.first
				if later {
					write := ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpWrite), 0, 0) // of no length
					if err := errors.Join(client.Append(write, nil), client.Flush()); err != nil {
						t.Fatal(err)
					}
					if f.second != nil {
						fpdu = f.second
					}
				}
				client.NetConn().Write(fpdu)
				a.(*net.TCPConn).CloseWrite()
				terminate(t, a, f.code)
				var fault *ddp.Error
				if err := <-up.ended; !errors.As(err, &fault) || fault.Layer != ddp.LayerLLP || fault.Code != f.code {
					t.Errorf("the stream ended with %v, want code %d", err, f.code)
				}
			})
		}
	}
}

// TestFaultsOfNegotiationGoOutInATerminate is what an initiator that cannot go
// on after the reply sends to the responder (RFC 6581 sections 8, 9.1 to 9.3).
func TestFaultsOfNegotiationGoOutInATerminate(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  mpa.Config
		rep  enhanced.Data
		code uint8
	}{
		{"local", mpa.Config{IRD: 1}, enhanced.Data{IRD: 1, ORD: 1}, mpa.CodeLocal},
		{"IRD", mpa.Config{IRD: 1}, enhanced.Data{IRD: 1, ORD: 2}, mpa.CodeIRD},
		{"RTR", mpa.Config{IRD: 1, PeerToPeer: enhanced.RTRSend}, enhanced.Data{PeerToPeer: true, RTR: enhanced.RTRRead, IRD: 1, ORD: 1}, mpa.CodeRTR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := iwarptest.TCPPair(t)
			refused := make(chan error, 1)
			go func() {
				c, err := mpa.Client(context.Background(), a, &tt.cfg)
				fault := mpa.LocalFault(errors.New("out of memory"))
				var ne *mpa.NegotiationError
				if errors.As(err, &ne) {
					c, fault, err = ne.Conn, ne.Err, nil
				}
				if err == nil {
					rdmap.Refuse(c, fault)
				}
				refused <- err
			}()
			rep, err := (&mpa.Frame{Reply: true, CRC: true, Revision: 2, Enhanced: &tt.rep}).Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(b, make([]byte, 24)); err != nil { // the request
				t.Fatal(err)
			}
			if _, err := b.Write(rep); err != nil {
				t.Fatal(err)
			}
			terminate(t, b, tt.code)
			b.Close()
			if err := <-refused; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestInitiatorThatWaitsForTheResponder is a program that expects the first
// message of a responder, which may not send it: the stream ends rather than
// wait for ever (RFC 5044 section 7.1.2 rule 4).
func TestInitiatorThatWaitsForTheResponder(t *testing.T) {
	a, b := iwarptest.TCPPair(t)
	started := make(chan *mpa.Conn, 1)
	go func() {
		defer close(started)
		if r, err := mpa.Server(context.Background(), b, &mpa.Config{HoldTimeout: 1}); err == nil {
			if c, err := r.Accept(context.Background(), mpa.AcceptOptions{}); err == nil {
				started <- c
			}
		}
	}()
	if _, err := mpa.Client(context.Background(), a, nil); err != nil {
		t.Fatal(err)
	}
	up := &upper{ended: make(chan error, 1), failed: make(chan error, 1)}
	s := rdmap.New(rdmap.Config{LLP: <-started, Upper: up, MaxSend: 1})
	go s.Run()
	op, err := s.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	op.Kind = rdmap.OpWrite
	s.Commit(false)
	if b, err := io.ReadAll(a); err != nil || len(b) > 0 {
		t.Errorf("%d bytes came before the first FPDU, %v", len(b), err)
	}
	if err := <-up.ended; !errors.Is(err, mpa.ErrNoFPDU) {
		t.Errorf("the stream ended with %v, want ErrNoFPDU", err)
	}
	if err := <-up.failed; !errors.Is(err, mpa.ErrNoFPDU) {
		t.Errorf("the Write ended with %v, want ErrNoFPDU", err)
	}
}
