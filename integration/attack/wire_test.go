package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// wire is an attacker at the far end of a TCP connection, for services that make their
// streams themselves: MPA is there, and above it anything can be said.
type wire struct {
	t     *testing.T
	mpa   *mpa.Conn
	heard chan iwarptest.Segment // what the target has sent; closed at its end
	term  rdmap.Terminate        // valid when heard is closed
	msn   uint32                 // of queue 0
	rmsn  uint32                 // of queue 1
}

const wireDepth = 16 // IRD and ORD

// call opens a stream to a service of the target. It returns the error of a
// rejection.
func call(t *testing.T, to netip.AddrPort, private []byte) (*wire, error) {
	t.Helper()
	nc := must(net.Dial("tcp", to.String()))(t)
	m, err := mpa.Client(t.Context(), nc, &mpa.Config{IRD: wireDepth, ORD: wireDepth, PrivateData: private})
	if err != nil {
		return nil, err
	}
	return newWire(t, m), nil
}

// lure waits for streams from the target and answers each with the private data that
// answer makes from its own.
func lure(t *testing.T, answer func(private []byte) []byte) (netip.AddrPort, <-chan *wire) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	wires := make(chan *wire, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			req, err := mpa.Server(t.Context(), nc, nil)
			if err != nil {
				continue
			}
			if m, err := req.Accept(t.Context(), mpa.AcceptOptions{PrivateData: answer(req.PrivateData), IRD: wireDepth, ORD: wireDepth}); err == nil {
				wires <- newWire(t, m)
			}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return must(netip.ParseAddrPort(l.Addr().String()))(t), wires
}

func newWire(t *testing.T, m *mpa.Conn) *wire {
	w := &wire{t: t, mpa: m, heard: make(chan iwarptest.Segment, 1<<12)}
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		defer close(w.heard)
		// What was received counts, not why it ended.
		_ = m.Receive(w)
	}()
	t.Cleanup(func() {
		w.close()
		<-listening
	})
	return w
}

func (w *wire) close() { w.mpa.Close() }

// Segment implements ddp.Sink.
func (w *wire) Segment(raw []byte) error {
	s, ok := iwarptest.ParseSegment(bytes.Clone(raw))
	if !ok {
		w.t.Errorf("the target sent %d bytes that are no DDP segment: %x", len(raw), raw)
	}
	if !s.Tagged && s.QN == rdmap.QNTerminate {
		w.term, _ = rdmap.ParseTerminate(s.Payload)
		w.mpa.CloseWrite()
	}
	w.heard <- s
	return nil
}

func (w *wire) Direct([]byte, int) (int, bool, error) { return 0, false, nil }
func (w *wire) DirectBuffer() ([]byte, error)         { panic("nothing is placed") }
func (w *wire) DirectDone(int) error                  { panic("nothing is placed") }
func (w *wire) BatchEnd()                             {}

// say sends a segment. If that fails, the attack fails.
func (w *wire) say(s iwarptest.Segment) {
	raw := s.Append(nil)
	n := ddp.HeaderLen(raw)
	if w.mpa.Append(raw[:n], [][]byte{raw[n:]}) == nil {
		_ = w.mpa.Flush()
	}
}

func (w *wire) write(stag uint32, to uint64, data []byte) {
	w.say(iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: stag, TO: to, Payload: data})
}

func (w *wire) read(stag uint32, to uint64, n uint32) {
	w.rmsn++
	req := rdmap.ReadRequest{SinkSTag: 1, Size: n, SourceSTag: stag, SourceTO: to}
	w.say(iwarptest.Segment{Last: true, Op: rdmap.OpReadRequest, QN: rdmap.QNReadRequest, MSN: w.rmsn, Payload: req.Append(nil)})
}

func (w *wire) send(op rdmap.Opcode, data []byte) {
	w.msn++
	w.say(iwarptest.Segment{Last: true, Op: op, QN: rdmap.QNSend, MSN: w.msn, Payload: data})
}

// imm sends Immediate Data (RFC 7306 section 6).
func (w *wire) imm(v uint64) { w.send(rdmap.OpImmediate, binary.BigEndian.AppendUint64(nil, v)) }

// hear returns the next segment that is wanted, false at the stream's end.
func (w *wire) hear(wanted func(iwarptest.Segment) bool) (iwarptest.Segment, bool) {
	w.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case s, more := <-w.heard:
			if !more || wanted(s) {
				return s, more
			}
		case <-late.C:
			w.t.Fatal("the target says nothing")
		}
	}
}

func isSend(s iwarptest.Segment) bool     { return !s.Tagged && s.Op == rdmap.OpSend }
func isWrite(s iwarptest.Segment) bool    { return s.Tagged && s.Op == rdmap.OpWrite }
func isResponse(s iwarptest.Segment) bool { return s.Tagged && s.Op == rdmap.OpReadResponse }

// wantTerminated checks that the target has ended the stream with this Terminate.
func (w *wire) wantTerminated(want rdmap.Terminate) {
	w.t.Helper()
	for {
		if _, more := w.hear(func(iwarptest.Segment) bool { return true }); !more {
			break
		}
	}
	if got := w.term; got.Layer != want.Layer || got.Type != want.Type || got.Code != want.Code {
		w.t.Errorf("Terminate %v %d.%#02x, want %v %d.%#02x", got.Layer, got.Type, got.Code, want.Layer, want.Type, want.Code)
	}
}

// loopbackOnly is for services whose peers are on this host.
func loopbackOnly() *transport.Config { return &transport.Config{Protector: transport.LoopbackOnly()} }

// serve passes each request for a stream of the target to handle.
func (v *target) serve(handle func(*verbs.ConnRequest)) netip.AddrPort {
	v.Helper()
	ln := must(v.dev.Listen(v.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: loopbackOnly()}))(v.T)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			cr, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			handle(cr)
		}
	}()
	v.Cleanup(func() {
		ln.Close()
		<-done
	})
	return ln.Addr()
}
