package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// A peer that resets its connection at each octet of an FPDU, header, payload and
// CRC, ends its own stream and nothing else: the caller learns that the
// connection is lost, which is no fault of protocol.
func TestResetAtEachOctet(t *testing.T) {
	lost := isFault(ddp.LayerLLP, mpa.TypeMPA, mpa.CodeConnectionLost)
	for _, crc := range []mpa.CRCMode{mpa.CRCPrefer, mpa.CRCAvoid} {
		v := newTarget(t)
		open := func(t *testing.T) (rawPeer, ddp.LLP) { return tcpLLP(t, mpa.Config{CRC: crc}) }
		for _, kind := range []struct {
			region string // that may be written
			seg    func(v *target) []byte
		}{
			{"write", func(v *target) []byte { return tagged(false, rdmap.OpWrite, v.stag("write"), 0, regionLen) }},
			{"recv", func(*target) []byte { return untagged(false, rdmap.OpSend, 0, 1, 0, make([]byte, 60)...) }},
			{"sink", func(v *target) []byte {
				return tagged(true, rdmap.OpReadResponse, v.reqs[0].SinkSTag, 0, regionLen)
			}},
		} {
			for n := 0; ; n++ {
				v.arm(t, open)
				v.asks(OpRead)
				seg := kind.seg(v)
				fpdu := append(binary.BigEndian.AppendUint16(nil, uint16(len(seg))), seg...)
				if n > len(fpdu) { // within the CRC
					v.raw.CloseWrite()
					v.raw.Close()
					v.wantEnd()
					v.wantWound(func(error) bool { return true }, kind.region)
					break
				}
				tcp := v.raw.(*rawLLP).tcp
				if _, err := tcp.Write(fpdu[:n]); err != nil {
					t.Fatal(err)
				}
				if err := tcp.SetLinger(0); err != nil {
					t.Fatal(err)
				}
				tcp.Close()
				v.wantWound(lost, kind.region)
			}
		}
	}
}

// A peer whose stream ends within a message, in whatever way, leaves the receive
// flushed and not completed.
func TestEndWithinAMessage(t *testing.T) {
	for _, l := range attackLLPs {
		t.Run(l.name, func(t *testing.T) {
			v := newTarget(t)
			for name, end := range map[string]func() error{
				"graceful": func() error { return v.raw.CloseWrite() },
				"abortive": func() error { return v.raw.Close() },
			} {
				v.arm(t, l.open)
				if err := v.raw.Send(untagged(false, rdmap.OpSend, 0, 1, 0, 1, 2, 3)); err != nil {
					t.Fatal(err)
				}
				if err := end(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				v.wantWound(func(err error) bool { return err != nil }, "recv")
			}
		})
	}
}

// A Terminate is never answered by one, whatever is wrong with it (RFC 5040
// sections 5.4 and 7.1). It is an event of its own.
func TestTerminateOfEveryKindIsNotAnswered(t *testing.T) {
	control := rdmap.Terminate{Layer: ddp.LayerRDMA, Type: 2, Code: 6, DDP: tagged(true, rdmap.OpWrite, 1, 2, 0), SegLen: 14, RDMAP: rdmap.ReadRequest{}.Append(nil)}.Append(nil)
	terminate := func(last bool, msn, mo uint32, p []byte) []byte {
		return untagged(last, rdmap.OpTerminate, rdmap.QNTerminate, msn, mo, p...)
	}
	kinds := map[string][][]byte{
		"in two segments":        {terminate(false, 1, 0, control)},
		"message number 0":       {terminate(true, 0, 0, control)},
		"message number 2":       {terminate(true, 2, 0, control)},
		"the largest number":     {terminate(true, 0xffffffff, 0, control)},
		"offset 1":               {terminate(true, 1, 1, control)},
		"the largest offset":     {terminate(true, 1, 0xffffffff, control)},
		"oversized":              {terminate(true, 1, 0, append(control, make([]byte, 1300)...))},
		"twice":                  {terminate(true, 1, 0, control), terminate(true, 2, 0, control)},
		"then a segment a fault": {terminate(true, 1, 0, control), {}},
	}
	for n := range control {
		kinds[fmt.Sprintf("of %d bytes", n)] = [][]byte{terminate(true, 1, 0, control[:n])}
	}
	for b := range 256 {
		p := append([]byte(nil), control...)
		p[0], p[1], p[2] = byte(b), byte(b), byte(b)
		kinds[fmt.Sprintf("control octets %#02x", b)] = [][]byte{terminate(true, 1, 0, p)}
	}
	for _, l := range attackLLPs {
		t.Run(l.name, func(t *testing.T) {
			v := newTarget(t)
			for name, segs := range kinds {
				v.arm(t, l.open)
				if err := v.raw.Send(segs...); err != nil {
					t.Fatal(err)
				}
				v.raw.CloseWrite()
				for got, err := v.raw.Recv(); err == nil; got, err = v.raw.Recv() {
					t.Errorf("%s: answered with %x", name, got)
				}
				v.wantWound(func(err error) bool {
					var te *rdmap.TerminateError
					return errors.As(err, &te)
				}, "", EventTerminated)
			}
		})
	}
}

// A Write into memory that is being deregistered places nothing once the
// deregistration has returned, and ends the stream that sent it.
func TestWritesIntoMemoryThatGoes(t *testing.T) {
	for _, l := range attackLLPs {
		t.Run(l.name, func(t *testing.T) {
			v := newTarget(t)
			v.arm(t, l.open)
			g, stag := v.mem["write"], v.stag("write")
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				// The stack reads until the fault; then sending may fail.
				for i := range 2000 {
					if v.raw.Send(append(tagged(true, rdmap.OpWrite, stag, 0, 0), byte(i), byte(i>>8))) != nil {
						return
					}
				}
			}()
			for runtime.Gosched(); v.qp.Stats().RecvBytes == 0; runtime.Gosched() {
			}
			if err := g.mr.Deregister(); err != nil {
				t.Fatal(err)
			}
			was := append([]byte(nil), g.buf...)
			<-sent
			// The last Write surely comes after the end of the registration.
			v.raw.Send(tagged(true, rdmap.OpWrite, stag, 0, 1))
			if term := readTerminate(t, v.raw); term.Layer != ddp.LayerDDP || term.Type != ddp.TypeTagged || term.Code != ddp.CodeTaggedInvalidSTag {
				t.Errorf("Terminate %+v", term)
			}
			v.raw.CloseWrite()
			v.wantWound(isFault(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedInvalidSTag), "write", EventPeerFault)
			if string(was) != string(g.buf) {
				t.Error("memory has changed after its deregistration")
			}
		})
	}
}

// Floods of what moves no byte are bounded: an operation is either refused, or it
// leaves nothing behind.
func TestZeroLengthFloods(t *testing.T) {
	const n = 20000
	noBuffer := isFault(ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedNoBuffer)
	read := func(i uint32) []byte {
		return rdmap.ReadRequest{SinkSTag: 1}.Append(untagged(true, rdmap.OpReadRequest, 1, i+1, 0))
	}
	for _, tc := range []struct {
		name  string
		seg   func(i uint32) []byte
		stall bool // the peer takes no answers
		want  func(error) bool
	}{
		{"Sends without a receive", func(i uint32) []byte { return untagged(true, rdmap.OpSend, 0, i+1, 0) }, false, noBuffer},
		{"Sends that never end", func(uint32) []byte { return untagged(false, rdmap.OpSend, 0, 1, 0) }, false, nil},
		{"Writes", func(uint32) []byte { return tagged(true, rdmap.OpWrite, 0, 0, 0) }, false, nil},
		{"Reads", read, false, nil},
		{"Reads past IRD", read, true, noBuffer},
		{"Atomics past IRD", nil, true, noBuffer},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			v := newTarget(t)
			v.arm(t, memoryLLP(iwarptest.Options{}))
			raw := v.raw.(*iwarptest.LLP)
			seg, word := tc.seg, v.stag("atomic")
			if seg == nil {
				seg = func(i uint32) []byte {
					return rdmap.AtomicRequest{ID: i, STag: word, AddSwap: 1}.Append(untagged(true, rdmap.OpAtomicRequest, 1, i+1, 0))
				}
			}
			raw.Stall(tc.stall)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			answers := uint64(0)
			for i := uint32(0); i < n; i++ {
				if raw.Send(seg(i)) != nil {
					break
				}
				if tc.want == nil && !tc.stall && i%4 == 3 && tc.name == "Reads" {
					for answers < uint64(i)+1 { // within IRD, as a peer that keeps to it
						segs, err := raw.Recv()
						if err != nil {
							t.Fatalf("after %d Reads: %v", i, err)
						}
						answers += uint64(len(segs))
					}
				}
			}
			if tc.want == nil {
				v.wantBystanderOf(t)
				if err := v.raw.Send(octet(tagged(true, rdmap.OpWrite, 0, 0, 0), 0, 3, 0)); err != nil {
					t.Fatalf("the flood has ended the stream: %v", err)
				}
				tc.want = isFault(ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedInvalidVersion)
			}
			raw.Stall(false)
			readTerminate(t, raw)
			raw.CloseWrite()
			written := ""
			if tc.seg == nil {
				written = "atomic"
			}
			v.wantWound(tc.want, written, EventPeerFault)
			v.raw, raw = nil, nil // with what the peer had sent and nobody took
			// What ends on other goroutines may hold some of it a little longer.
			grown := int64(0)
			for until := time.Now().Add(10 * time.Second); time.Now().Before(until); <-time.After(10 * time.Millisecond) {
				runtime.GC()
				runtime.ReadMemStats(&after)
				if grown = int64(after.HeapAlloc) - int64(before.HeapAlloc); grown <= 1<<20 {
					break
				}
			}
			if grown > 1<<20 {
				t.Errorf("the flood leaves %d bytes", grown)
			}
			runtime.KeepAlive(v)
		})
	}
}

// wantBystanderOf checks the bystander while the attacked stream goes on.
func (v *target) wantBystanderOf(t *testing.T) {
	t.Helper()
	attacked := v.qp
	v.wantBystander()
	v.qp = attacked
}
