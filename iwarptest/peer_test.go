package iwarptest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestSegmentsSurviveTheWire(t *testing.T) {
	for _, s := range []iwarptest.Segment{
		{Tagged: true, Last: true, Op: rdmap.OpWrite, DDP: 1, RDMAP: 1, STag: 0xabcdef01, TO: 1<<63 + 5, Payload: []byte("payload")},
		{Tagged: true, Op: rdmap.OpReadResponse, DDP: 3, RDMAP: 2, Payload: []byte{}},
		{Last: true, Op: rdmap.OpSendInvalidate, DDP: 1, RDMAP: 1, STag: 7, QN: 0, MSN: 1<<32 - 1, MO: 99, Payload: []byte{1}},
		{Op: 15, DDP: 2, RDMAP: 3, QN: 1 << 31, MSN: 2, Payload: []byte{}},
	} {
		got, ok := iwarptest.ParseSegment(s.Append(nil))
		if !ok || !bytes.Equal(got.Payload, s.Payload) {
			t.Errorf("%+v comes back as %+v, %v", s, got, ok)
		}
		got.Payload, s.Payload = nil, nil
		if fmt.Sprint(got) != fmt.Sprint(s) {
			t.Errorf("%+v comes back as %+v", s, got)
		}
	}
	if _, ok := iwarptest.ParseSegment(make([]byte, ddp.UntaggedHeaderLen-1)); ok {
		t.Error("half a header parses")
	}
}

func TestPeerHearsAndSays(t *testing.T) {
	p, l := iwarptest.NewPeer(iwarptest.Options{})
	send := iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: 1, Payload: []byte("hello")}
	for _, payload := range []string{"a", "b"} {
		if err := l.Append(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpSend), 0, 0, 1, 0), payload...), nil); err != nil {
			t.Fatal(err)
		}
	}
	term := rdmap.Terminate{Layer: ddp.LayerDDP, Type: 1, Code: 2}
	if err := l.Append(term.Append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpTerminate), 0, rdmap.QNTerminate, 1, 0)), nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpTerminate), 0, rdmap.QNTerminate, 1, 0), nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if s, err := p.Hear(); err != nil || s.Op != rdmap.OpSend || string(s.Payload) != "a" {
		t.Errorf("heard %+v, %v", s, err)
	}
	if got, err := p.HearTerminate(); err != nil || got.Layer != term.Layer || got.Type != 1 || got.Code != 2 {
		t.Errorf("heard Terminate %+v, %v", got, err)
	}
	if _, err := p.HearTerminate(); !errors.Is(err, iwarptest.ErrNoTerminate) {
		t.Errorf("an empty Terminate: %v", err)
	}
	l.CloseWrite()
	if _, err := p.Hear(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if err := p.Say(send); err != nil {
		t.Fatal(err)
	}
	p.CloseWrite()
	var got sink
	if err := l.Receive(&got); !errors.Is(err, io.EOF) || len(got) != 1 || !bytes.Equal(got[0], send.Append(nil)) {
		t.Errorf("the stack received %x, %v", got, err)
	}
}

// sink keeps the segments that it is given.
type sink [][]byte

func (s *sink) Segment(seg []byte) error {
	*s = append(*s, bytes.Clone(seg))
	return nil
}
func (*sink) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (*sink) DirectBuffer() ([]byte, error)         { return nil, nil }
func (*sink) DirectDone(int) error                  { return nil }
func (*sink) BatchEnd()                             {}

// unprotected stands for the connection under an in-memory LLP.
type unprotected struct{}

func (unprotected) Flow() transport.Flow               { return transport.Flow{} }
func (u unprotected) Protection() transport.Protection { return u }
func (unprotected) Peer() transport.Identity           { return "peer" }
func (unprotected) Paused() bool                       { return false }
func (unprotected) Kind() string                       { return "none" }
func (unprotected) Release()                           {}

// A peer writes to memory that nobody gave it, and reads the answer.
func ExamplePeer() {
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	ulp, _ := dev.NewULP("example", verbs.ULPConfig{})
	pd, _ := ulp.AllocPD()
	cq, _ := ulp.CreateCQ(16, nil)
	cfg := verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1}

	peer, llp := iwarptest.NewPeer(iwarptest.Options{})
	defer peer.Close()
	if _, err := pd.Adopt(verbs.AdoptConfig{QP: cfg, LLP: llp, Conn: unprotected{}}); err != nil {
		fmt.Println(err)
		return
	}
	peer.Say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: 0xdead, Payload: []byte("take this")})
	term, err := peer.HearTerminate()
	fmt.Println(&rdmap.TerminateError{Terminate: term}, err)
	// Output: rdmap: peer terminated the stream: DDP error 1.0x00 (invalid STag) <nil>
}
