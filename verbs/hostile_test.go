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

// raw segments that no conforming peer sends, and what each is answered with.
var hostile = []struct {
	name  string
	segs  [][]byte
	layer ddp.Layer
	typ   uint8
	code  uint8
}{
	{"empty segment", [][]byte{{}}, ddp.LayerRDMA, 2, 0xff},
	{"half a header", [][]byte{{0xc1, 0x40, 0}}, ddp.LayerRDMA, 2, 0xff},
	{"tagged, DDP version 0", [][]byte{{0xc0, 0x40, 13: 0}}, ddp.LayerDDP, 1, 4},
	{"untagged, DDP version 2", [][]byte{{0x42, 0x43, 17: 0}}, ddp.LayerDDP, 2, 6},
	{"RDMAP version 0", [][]byte{{0xc1, 0x00, 13: 0}}, ddp.LayerRDMA, 2, 5},
	{"RDMAP version 3, untagged", [][]byte{{0x41, 0xc3, 17: 0}}, ddp.LayerRDMA, 2, 5},
	{"a Send that is tagged", [][]byte{{0xc1, 0x43, 13: 0}}, ddp.LayerRDMA, 2, 6},
	{"a Write that is untagged", [][]byte{untagged(true, rdmap.OpWrite, 0, 1, 0)}, ddp.LayerRDMA, 2, 6},
	{"opcode 15", [][]byte{untagged(true, 15, 0, 1, 0)}, ddp.LayerRDMA, 2, 6},
	{"queue 4", [][]byte{untagged(true, rdmap.OpSend, 4, 1, 0)}, ddp.LayerDDP, 2, 1},
	{"a Send on queue 1", [][]byte{untagged(true, rdmap.OpSend, 1, 1, 0)}, ddp.LayerRDMA, 2, 6},
	{"message number 0", [][]byte{untagged(true, rdmap.OpSend, 0, 0, 0)}, ddp.LayerDDP, 2, 3},
	{"message number skipped", [][]byte{untagged(true, rdmap.OpSend, 0, 2, 0)}, ddp.LayerDDP, 2, 3},
	{"offset in a first segment", [][]byte{untagged(true, rdmap.OpSend, 0, 1, 4)}, ddp.LayerDDP, 2, 4},
	{"offset repeated", [][]byte{untagged(false, rdmap.OpSend, 0, 1, 0, 1, 2), untagged(true, rdmap.OpSend, 0, 1, 1, 3)}, ddp.LayerDDP, 2, 4},
	{"offset near the end of 32 bits", [][]byte{untagged(true, rdmap.OpSend, 0, 1, 0xfffffffc, 1, 2, 3, 4, 5)}, ddp.LayerDDP, 2, 4},
	{"a Read Response that nobody asked for", [][]byte{ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpReadResponse), 1, 0)}, ddp.LayerDDP, 1, 0},
	{"an Atomic Response that nobody asked for", [][]byte{untagged(true, rdmap.OpAtomicResponse, 3, 1, 0, make([]byte, 12)...)}, ddp.LayerRDMA, 2, 6},
	{"a short Read Request", [][]byte{untagged(true, rdmap.OpReadRequest, 1, 1, 0, make([]byte, 27)...)}, ddp.LayerRDMA, 2, 0xff},
	{"a Read Request in two segments", [][]byte{untagged(false, rdmap.OpReadRequest, 1, 1, 0, make([]byte, 28)...)}, ddp.LayerDDP, 2, 5},
	{"a short Atomic Request", [][]byte{untagged(true, rdmap.OpAtomicRequest, 1, 1, 0, make([]byte, 51)...)}, ddp.LayerRDMA, 2, 6},
	{"Immediate Data of 7 bytes", [][]byte{untagged(true, rdmap.OpImmediate, 0, 1, 0, make([]byte, 7)...)}, ddp.LayerRDMA, 2, 0xff},
}

// Each ends its own stream with the right Terminate and is an event; a second
// stream of the same device feels nothing.
func TestHostileSegments(t *testing.T) {
	for _, direct := range []bool{false, true} {
		for _, tc := range hostile {
			name := tc.name
			if direct {
				name += ", direct"
			}
			t.Run(name, func(t *testing.T) {
				e, other := newEnd(t, Config{}), newEnd(t, Config{})
				raw, l := iwarptest.Pair(iwarptest.Options{Direct: direct})
				good, lgood := iwarptest.Pair(iwarptest.Options{})
				other.startOn(good)
				e.startOn(lgood)
				bystander := e.qp
				e.startOn(l)
				e.recv(RecvWR{SGL: whole(e.mr(64, LocalWrite), 64)})
				if err := raw.Send(tc.segs...); err != nil {
					t.Fatal(err)
				}
				term := readTerminate(t, raw)
				if term.Layer != tc.layer || term.Type != tc.typ || term.Code != tc.code {
					t.Errorf("Terminate %v %d.%#02x, want %v %d.%#02x", term.Layer, term.Type, term.Code, tc.layer, tc.typ, tc.code)
				}
				raw.CloseWrite()
				if err := e.wantEnd(); !errors.Is(err, &ddp.Error{Layer: tc.layer, Type: tc.typ, Code: tc.code}) {
					t.Errorf("ended with %v", err)
				}
				wantEvent(t, e.dev, EventPeerFault, e.qp.ID())
				e.qp = bystander
				e.post(SendWR{Op: OpWrite, Flags: Signaled})
				for wc := e.next(); wc.QP != bystander; wc = e.next() {
				}
				if err := bystander.Err(); err != nil {
					t.Errorf("the bystander ended: %v", err)
				}
			})
		}
	}
}

// readTerminate takes what the stack sends until its Terminate.
func readTerminate(t *testing.T, raw *iwarptest.LLP) rdmap.Terminate {
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
		select {
		case ev := <-d.Events():
			if ev.Kind == k && ev.QP == qp {
				return
			}
		default:
			t.Errorf("no event %v", k)
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
