package verbs

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

func untagged(last bool, op rdmap.Opcode, qn, msn, mo uint32, payload ...byte) []byte {
	return append(ddp.AppendUntagged(nil, last, rdmap.Control(op), 0, qn, msn, mo), payload...)
}

// readTerminate takes what the stack sends until its Terminate.
func readTerminate(t *testing.T, raw interface{ Recv() ([][]byte, error) }) rdmap.Terminate {
	t.Helper()
	for {
		segs, err := raw.Recv()
		if err != nil {
			t.Fatalf("no Terminate: %v", err)
		}
		for _, seg := range segs {
			u := ddp.Untagged(seg)
			if ddp.IsTagged(seg) || u.QN() != rdmap.QNTerminate {
				continue
			}
			term, ok := rdmap.ParseTerminate(u.Payload())
			if !ok {
				t.Fatalf("Terminate %x does not parse", seg)
			}
			return term
		}
	}
}

func wantEvent(t *testing.T, d *Device, k EventKind, qp uint64) {
	t.Helper()
	for {
		ev, ok := d.TryEvent()
		if !ok {
			t.Errorf("no event %v", k)
			return
		}
		if ev.Kind == k && ev.QP == qp {
			return
		}
	}
}

// A Terminate is never answered by a Terminate.
func TestTerminateIsNotAnswered(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	term := rdmap.Terminate{Layer: ddp.LayerDDP, Type: 1, Code: 1}
	raw.Send(untagged(true, rdmap.OpTerminate, rdmap.QNTerminate, 1, 0, term.Append(nil)...))
	if segs, err := raw.Recv(); err == nil {
		t.Errorf("answered with %x", segs)
	}
	var te *rdmap.TerminateError
	if err := e.wantEnd(); !errors.As(err, &te) || te.Terminate.Code != 1 {
		t.Errorf("ended with %v", err)
	}
}

// Read Requests past IRD end the stream that sends them (R23). The stalled
// direction keeps the responses of the first ones from leaving.
func TestReadRequestsPastIRDTerminate(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	mr := e.mr(1<<20, RemoteRead)
	raw.Stall(true)
	for i := range uint32(e.cfg.IRD + 1) {
		req := rdmap.ReadRequest{SinkSTag: 1, Size: 1 << 20, SourceSTag: mr.STag()}
		raw.Send(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpReadRequest), 0, 1, i+1, 0), req.Append(nil)...))
	}
	raw.CloseWrite()
	if err := e.wantEnd(); !errors.Is(err, &ddp.Error{Layer: ddp.LayerDDP, Type: 2, Code: 2}) {
		t.Errorf("ended with %v", err)
	}
}

// A peer that takes no bytes of a Read Response can't hold up a revocation.
func TestStalledReadResponseDoesNotHoldMemory(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	defer raw.Close()
	e.startOn(l)
	mr := e.mr(1<<16, RemoteRead)
	e.recv(RecvWR{})
	raw.Stall(true)
	req := rdmap.ReadRequest{SinkSTag: 1, Size: 1 << 16, SourceSTag: mr.STag()}
	raw.Send(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpReadRequest), 0, 1, 1, 0), req.Append(nil)...),
		untagged(true, rdmap.OpSend, 0, 1, 0))
	e.wantOK(WCRecv)
	if err := mr.Invalidate(); err != nil {
		t.Fatal(err)
	}
	raw.Stall(false)
	if term := readTerminate(t, raw); term.Layer != ddp.LayerRDMA || term.Code != rdmap.CodeInvalidSTag || term.RDMAP == nil {
		t.Errorf("Terminate %+v", term)
	}
}
