package verbs

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// What the caller gets from a peer that lacks Atomics or Immediate Data, by an
// RFC's Terminate and by siw's, whose first octet has its halves swapped.
func TestPeerWithoutExtensions(t *testing.T) {
	atomic, immediate, write := SendWR{Op: OpFetchAdd, RemoteSTag: 1}, SendWR{Op: OpImmediate}, SendWR{Op: OpWrite}
	quote := func(seg []byte) []byte {
		return rdmap.Terminate{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteOperation, Code: rdmap.CodeUnexpectedOpcode, SegLen: uint16(len(seg)), DDP: seg[:ddp.HeaderLen(seg)]}.Append(nil)
	}
	plain := func([]byte) []byte { return []byte{0x02, 0x06, 0, 0} }
	for name, tc := range map[string]struct {
		wr   SendWR
		say  func(seg []byte) []byte
		want bool
	}{
		"atomic, quoted":           {atomic, quote, true},
		"immediate, quoted":        {immediate, quote, true},
		"atomic, not quoted":       {atomic, plain, true},
		"immediate, not quoted":    {immediate, plain, true},
		"atomic, siw":              {atomic, func([]byte) []byte { return []byte{0x20, 0x06, 0, 0} }, true},
		"immediate, siw":           {immediate, func([]byte) []byte { return []byte{0x20, 0x06, 0, 0} }, true},
		"a Write, quoted":          {write, quote, false},
		"a Write, not quoted":      {write, plain, false},
		"atomic, for its STag":     {atomic, func([]byte) []byte { return []byte{0x01, 0x00, 0, 0} }, false},
		"atomic, connection error": {atomic, func([]byte) []byte { return []byte{0x20, 0x02, 0, 0} }, false},
	} {
		e := newEnd(t, Config{})
		raw, l := iwarptest.Pair(iwarptest.Options{})
		e.startOn(l)
		wr := tc.wr
		wr.Flags = Signaled
		e.post(wr)
		e.post(SendWR{ID: 5, Op: OpRead, Flags: Fence | Signaled, RemoteSTag: 1}) // caught in the queue, or unanswered
		segs, err := raw.Recv()
		if err != nil {
			t.Fatal(err)
		}
		raw.Send(untagged(true, rdmap.OpTerminate, rdmap.QNTerminate, 1, 0, tc.say(segs[0])...))
		raw.CloseWrite()
		err = e.wantEnd()
		var te *rdmap.TerminateError
		if errors.Is(err, ErrUnsupportedByPeer) != tc.want || !errors.As(err, &te) {
			t.Errorf("%s: ended with %v", name, err)
		}
		wc := e.next()
		if tc.wr.Op == OpFetchAdd {
			if wc.Op != WCAtomic || !errors.Is(wc.Err, ErrFlushed) || errors.Is(wc.Err, ErrUnsupportedByPeer) != tc.want {
				t.Errorf("%s: completion %v, %v", name, wc.Op, wc.Err)
			}
		} else if wc.Err != nil { // it had left
			t.Errorf("%s: completion %v, %v", name, wc.Op, wc.Err)
		}
		if wc := e.next(); wc.ID != 5 || !errors.Is(wc.Err, ErrFlushed) {
			t.Errorf("%s: completion %+v of what followed", name, wc)
		}
		for down := false; !down; {
			ev := nextEvent(t, e.dev)
			if ev.Kind == EventTerminated && errors.Is(ev.Err, ErrUnsupportedByPeer) != tc.want {
				t.Errorf("%s: event %v", name, ev.Err)
			}
			down = ev.Kind == EventStreamDown
		}
	}
}
