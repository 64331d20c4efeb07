package attack

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// A peer breaks no rule but makes its stream take slow paths without end: they are
// counted, and the stream ends where the policy says so. A stream that does the same
// work efficiently goes on (R24, RFC 5042 section 6.4.4).
func TestSlowPathsWithoutEnd(t *testing.T) {
	const times, burst = 1000, 50
	// drive has the peer do something many times, and then send a Send whose receive is
	// posted.
	drive := func(o iwarptest.Options, do func(f *stream, stag uint32, i int), last func(f *stream)) func(v *target) bool {
		return func(v *target) bool {
			if err := v.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: 1, Burst: burst}); err != nil {
				v.Fatal(err)
			}
			cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 64, MaxRecv: 64, IRD: 4, ORD: 4}
			f := must(v.streamAs(v.pd, cfg, o, "mallory"))(v.T)
			mr, stag := f.grant(times, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
			const id = 7
			if err := f.qp.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{{MR: mr, Len: times}}}); err != nil {
				v.Fatal(err)
			}
			for i := range times {
				do(f, stag, i)
			}
			last(f)
			goesOn := f.completion(id).Err == nil
			v.slowPath(f, burst, goesOn)
			return goesOn
		}
	}
	send := func(f *stream) { f.send(0, nil) }
	segment := func(op rdmap.Opcode, stag uint32, data []byte) []byte {
		return iwarptest.Segment{Tagged: op == rdmap.OpWrite, Last: true, Op: op, STag: stag, MSN: 1, Payload: data}.Append(nil)
	}
	run(t,
		attack{"Writes of nothing", checks.SlowPath, drive(iwarptest.Options{}, func(f *stream, _ uint32, _ int) { f.write(0, 0, nil) }, send)},
		attack{"a Write in segments of one byte", checks.SlowPath, drive(iwarptest.Options{}, func(f *stream, stag uint32, i int) {
			_ = f.Say(iwarptest.Segment{Tagged: true, Op: rdmap.OpWrite, STag: stag, TO: uint64(i), Payload: []byte{1}})
		}, send)},
		attack{"a Send in segments of one byte", checks.SlowPath, drive(iwarptest.Options{}, func(f *stream, _ uint32, i int) {
			_ = f.Say(iwarptest.Segment{Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: 1, MO: uint32(i), Payload: []byte{1}})
		}, func(f *stream) {
			_ = f.Say(iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: 1, MO: times})
		})},
		attack{"Reads of nothing", checks.SlowPath, drive(iwarptest.Options{}, func(f *stream, _ uint32, _ int) {
			f.read(0, 0, 0)
			f.hear() // or it would be more than the IRD allows
		}, send)},
		attack{"segments out of order", checks.SlowPath, drive(iwarptest.Options{Window: 8}, func(f *stream, stag uint32, i int) {
			w := segment(rdmap.OpWrite, stag, make([]byte, 200))
			_ = f.SendNumbered(uint16(2*i+1), w)
			_ = f.SendNumbered(uint16(2*i), w)
		}, func(f *stream) {
			_ = f.SendNumbered(2*times, segment(rdmap.OpSend, 0, nil))
		})},
		attack{"segments in pieces of one byte", checks.SlowPath, func(v *target) bool {
			if err := v.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: 1, Burst: burst}); err != nil {
				v.Fatal(err)
			}
			f, c := v.pieces()
			write := segment(rdmap.OpWrite, 0, nil)
			for range times / len(write) {
				for _, b := range fpdu(write) {
					_, _ = c.Write([]byte{b}) // what fails shows in what goes on
				}
			}
			if err := f.qp.PostRecv(verbs.RecvWR{}); err == nil {
				_, _ = c.Write(fpdu(segment(rdmap.OpSend, 0, nil)))
			}
			goesOn := f.received(1)
			v.slowPath(f, burst, goesOn)
			return goesOn
		}},
	)
	t.Run("control: the same in a decent way", func(t *testing.T) {
		v := newTarget(t)
		if err := v.dev.SetSlowPolicy(verbs.SlowPolicy{PerSecond: 1, Burst: burst}); err != nil {
			t.Fatal(err)
		}
		f := v.stream(v.pd, "alice")
		_, stag := f.grant(times, all)
		for range times {
			f.write(stag, 0, make([]byte, times))
			f.read(stag, 0, 1)
			f.hear()
		}
		if !f.settled() {
			t.Errorf("the stream of a decent peer ends: %v", f.qp.Err())
		}
		if n := f.qp.SlowPath().Charged(); n != 0 {
			t.Errorf("an efficient peer is charged for %d slow paths", n)
		}
	})
}

// slowPath checks that the peer's slow paths were counted, and the end of the stream if
// it does not go on.
func (v *target) slowPath(f *stream, burst uint64, goesOn bool) {
	v.Helper()
	if n := f.qp.SlowPath().Charged(); n < burst {
		v.Errorf("%d slow paths are counted", n)
	}
	if goesOn {
		return
	}
	<-f.qp.Done()
	if err := f.qp.Err(); !errors.Is(err, verbs.ErrSlowPath) {
		v.Errorf("the stream ended with: %v", err)
	}
	for {
		ev, ok := v.dev.TryEvent()
		if !ok {
			v.Error("no event reports it")
			return
		}
		if ev.Kind == verbs.EventSlowPath && ev.QP == f.qp.ID() {
			return
		}
	}
}

// pieces makes a stream whose connection delivers each of its writes by itself.
func (v *target) pieces() (*stream, net.Conn) {
	v.Helper()
	c, nc := net.Pipe()
	made := make(chan *mpa.Conn, 1)
	go func() {
		defer close(made)
		r, err := mpa.Server(v.Context(), nc, &mpa.Config{CRC: mpa.CRCAvoid})
		if err != nil {
			return
		}
		if m, err := r.Accept(v.Context(), mpa.AcceptOptions{}); err == nil {
			made <- m
		}
	}()
	_, err := io.WriteString(c, request)
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, len(request)))
	}
	m := <-made
	if m == nil {
		v.Fatalf("no start-up: %v", err)
	}
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		_, _ = c.Read(make([]byte, 1)) // a Terminate, or the test's end
		c.Close()
	}()
	v.Cleanup(func() {
		c.Close()
		<-listening
	})
	cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 4, MaxRecv: 4, IRD: 1, ORD: 1}
	a := verbs.AdoptMPA(cfg, m, conn{"mallory"}, false)
	a.IRD, a.ORD = 1, 1
	return &stream{v: v, cq: v.cq, qp: must(v.pd.Adopt(a))(v.T)}, c
}

// fpdu is a segment in an FPDU without CRC (RFC 5044 section 4.1).
func fpdu(segment []byte) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(segment))), segment...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return append(b, 0, 0, 0, 0)
}

// The administrator sees which stream takes slow paths, and ends it; others go on
// (R24).
func TestAdministratorEndsAStreamThatTakesSlowPaths(t *testing.T) {
	v := newTarget(t)
	f, other := v.stream(v.pd, "mallory"), v.stream(v.pd, "alice")
	for range 100 {
		f.write(0, 0, nil)
	}
	if !f.settled() || !other.settled() {
		t.Fatal("without a policy a stream ends")
	}
	var worst verbs.StreamInfo
	for _, s := range v.dev.Streams() {
		if s.Slow.Charged() > worst.Slow.Charged() {
			worst = s
		}
	}
	if worst.ID != f.qp.ID() || worst.Peer != "mallory" || worst.Slow.Empty != 100 {
		t.Fatalf("the list shows %+v", worst)
	}
	if err := v.dev.Kill(worst.ID, "slow paths"); err != nil {
		t.Fatal(err)
	}
	<-f.qp.Done()
	if err := f.qp.Err(); !errors.Is(err, verbs.ErrKilled) {
		t.Errorf("the stream ended with: %v", err)
	}
	if !other.settled() {
		t.Error("another stream has ended, too")
	}
	if err := v.dev.Kill(worst.ID, ""); !errors.Is(err, verbs.ErrNoStream) {
		t.Errorf("once more: %v", err)
	}
}
