package verbs

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// emptyRead is a Read Request of nothing, from no STag.
func emptyRead(msn uint32) []byte {
	return untagged(true, rdmap.OpReadRequest, rdmap.QNReadRequest, msn, 0, rdmap.ReadRequest{SinkSTag: 1}.Append(nil)...)
}

// slowly makes the peer at raw drive one slow path n times.
var slowly = map[string]struct {
	options iwarptest.Options
	drive   func(e *end, raw *iwarptest.LLP, n int)
	count   func(n uint64) SlowCounts
}{
	"tiny segments of a Write": {
		drive: func(e *end, raw *iwarptest.LLP, n int) {
			stag := e.mr(1<<10, LocalWrite|RemoteWrite).STag()
			for range n {
				raw.Send(tagged(false, rdmap.OpWrite, stag, 0, 1), tagged(true, rdmap.OpWrite, stag, 1, 100))
			}
		},
		count: func(n uint64) SlowCounts { return SlowCounts{Tiny: n} },
	},
	"tiny segments of a Send": {
		drive: func(e *end, raw *iwarptest.LLP, n int) {
			for i := range n {
				e.recv(RecvWR{SGL: whole(e.mr(100, LocalWrite), 100)})
				raw.Send(untagged(false, rdmap.OpSend, 0, uint32(i+1), 0, 7), untagged(true, rdmap.OpSend, 0, uint32(i+1), 1, 8))
			}
		},
		count: func(n uint64) SlowCounts { return SlowCounts{Tiny: n} },
	},
	"tiny segments placed directly": {
		options: iwarptest.Options{Direct: true},
		drive: func(e *end, raw *iwarptest.LLP, n int) {
			stag := e.mr(1<<10, LocalWrite|RemoteWrite).STag()
			for range n {
				raw.Send(tagged(false, rdmap.OpWrite, stag, 0, 1), tagged(true, rdmap.OpWrite, stag, 1, 100))
			}
		},
		count: func(n uint64) SlowCounts { return SlowCounts{Tiny: n} },
	},
	"Writes of nothing": {
		drive: func(_ *end, raw *iwarptest.LLP, n int) {
			for range n {
				raw.Send(tagged(true, rdmap.OpWrite, 0xbad, 0, 0))
			}
		},
		count: func(n uint64) SlowCounts { return SlowCounts{Empty: n} },
	},
	"Reads of nothing": {
		drive: func(_ *end, raw *iwarptest.LLP, n int) {
			for i := range n {
				if i > 0 {
					raw.Recv() // no more at once than the IRD
				}
				raw.Send(emptyRead(uint32(i + 1)))
			}
		},
		count: func(n uint64) SlowCounts { return SlowCounts{EmptyReads: n} },
	},
	"segments ahead of their turn": {
		options: iwarptest.Options{Window: 64},
		drive: func(e *end, raw *iwarptest.LLP, n int) {
			stag := e.mr(1<<10, LocalWrite|RemoteWrite).STag()
			seg := tagged(true, rdmap.OpWrite, stag, 0, 100)
			for i := range uint16(n) {
				for _, k := range []uint16{1, 2, 3, 0} {
					raw.SendNumbered(4*i+k, seg)
				}
			}
		},
		count: func(n uint64) SlowCounts { return SlowCounts{OutOfOrder: n} },
	},
}

// What a peer makes a stream do the hard way is counted (R24), and nothing else is:
// that is in TestHonestStreamsTakeNoSlowPath.
func TestSlowPathsAreCounted(t *testing.T) {
	const n = 5
	for name, s := range slowly {
		t.Run(name, func(t *testing.T) {
			e := newEnd(t, Config{})
			raw, l := iwarptest.Pair(s.options)
			e.startOn(l)
			s.drive(e, raw, n)
			raw.CloseWrite()
			e.wantEnd()
			if got, want := e.qp.SlowPath(), s.count(n); got != want || got.Charged() != n {
				t.Errorf("counted %+v, want %+v", got, want)
			}
		})
	}
}

// A peer that drives slow paths beyond the policy is terminated, whichever they are,
// with an event of its own; as many as the policy permits do no harm (R24).
func TestPeerThatDrivesSlowPathsIsTerminated(t *testing.T) {
	const burst = 40
	for name, s := range slowly {
		for n, ends := range map[int]bool{burst: false, burst + 1: true} {
			inBubble(t, name, func(t *testing.T) {
				e := newEnd(t, Config{Slow: SlowPolicy{PerSecond: 1, Burst: burst}})
				raw, l := iwarptest.Pair(s.options)
				e.startOn(l)
				s.drive(e, raw, n)
				if !ends {
					raw.CloseWrite()
					if err := e.wantEnd(); errors.Is(err, ErrSlowPath) {
						t.Errorf("%d of %d at once end the stream: %v", n, burst, err)
					}
					return
				}
				if term := readTerminate(t, raw); term.Layer != ddp.LayerRDMA || term.Type != rdmap.TypeRemoteOperation || term.Code != rdmap.CodeCatastrophicStream {
					t.Errorf("Terminate %+v", term)
				}
				if err := e.wantEnd(); !errors.Is(err, ErrSlowPath) {
					t.Errorf("ended with %v", err)
				}
				wantEvent(t, e.dev, EventSlowPath, e.qp.ID())
				if ev, ok := e.dev.TryEvent(); !ok || ev.Kind != EventStreamDown || !errors.Is(ev.Err, ErrSlowPath) {
					t.Errorf("then event %v, want the stream's end and nothing else", ev)
				}
			})
		}
	}
}

// inBubble runs a subtest in which no time passes while something happens.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// Without a burst a policy permits the rate at once.
func TestSlowPolicyWithoutABurst(t *testing.T) {
	if l := (&SlowPolicy{PerSecond: 7}).limit(); l.PerSecond != 7 || l.Burst != 7 {
		t.Errorf("%+v", l)
	}
	if l := (&SlowPolicy{PerSecond: 7, Burst: 3}).limit(); l.Burst != 3 {
		t.Errorf("%+v", l)
	}
}

// A policy counts for streams that are up already, and one that makes no sense is
// refused.
func TestSlowPolicyAtRunTime(t *testing.T) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	e.recv(RecvWR{})
	for range 1000 {
		raw.Send(tagged(true, rdmap.OpWrite, 0, 0, 0))
	}
	raw.Send(untagged(true, rdmap.OpSend, 0, 1, 0))
	e.wantOK(WCRecv)
	if err := e.dev.SetSlowPolicy(SlowPolicy{PerSecond: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(100) {
		raw.Send(emptyRead(i + 1))
	}
	if err := e.wantEnd(); !errors.Is(err, ErrSlowPath) {
		t.Errorf("ended with %v", err)
	}
	for _, p := range []SlowPolicy{{PerSecond: -1}, {PerSecond: 1, Burst: -1}, {Burst: 1}} {
		if err := e.dev.SetSlowPolicy(p); err == nil {
			t.Errorf("%+v is taken", p)
		}
		if d, err := Open(Config{Slow: p}); err == nil {
			d.Close()
			t.Errorf("a device is opened with %+v", p)
		}
	}
}

// Pieces of a few bytes of an FPDU, each of which takes a read of its own, count
// (R24). The peer waits for each to be read, so they are read one by one.
func TestBytesThatDribble(t *testing.T) {
	for name, crc := range map[string]mpa.CRCMode{"CRC": mpa.CRCPrefer, "no CRC": mpa.CRCAvoid} {
		t.Run(name, func(t *testing.T) {
			e := newEnd(t, Config{})
			raw, l := tcpLLP(t, mpa.Config{CRC: crc})
			e.startOn(l)
			const n = 40
			seg := tagged(true, rdmap.OpWrite, e.mr(1<<10, LocalWrite|RemoteWrite).STag(), 0, 200)
			fpdu := append(binary.BigEndian.AppendUint16(nil, uint16(len(seg))), seg...)
			for e.qp.SlowPath().Empty == 0 { // what the stream begins with, see tcpLLP
				runtime.Gosched()
			}
			for i := range n {
				if _, err := raw.tcp.Write(fpdu[i : i+1]); err != nil {
					t.Fatal(err)
				}
				for e.qp.SlowPath().Dribbled < uint64(i+1) {
					if e.qp.Err() != nil {
						t.Fatal(e.qp.Err())
					}
					runtime.Gosched()
				}
			}
			raw.tcp.Close()
			e.wantEnd()
			if got := e.qp.SlowPath(); got != (SlowCounts{Empty: 1, Dribbled: n}) {
				t.Errorf("counted %+v, want %d pieces", got, n)
			}
		})
	}
}

// An honest peer's stream takes no slow path, whatever it carries, but that of a
// network which reorders.
func TestHonestStreamsTakeNoSlowPath(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		const most = 1 << 16
		from, sink := a.mr(most, 0), a.mr(most, LocalWrite)
		to, source, buf := b.mr(most, LocalWrite|RemoteWrite), b.mr(most, RemoteRead), b.mr(most, LocalWrite)
		for _, n := range []int{1, 63, 65, 1500, most} {
			b.recv(RecvWR{SGL: whole(buf, n)})
			a.post(SendWR{Op: OpWrite, SGL: whole(from, n), RemoteSTag: to.STag()})
			a.post(SendWR{Op: OpRead, SGL: whole(sink, n), RemoteSTag: source.STag(), Flags: Signaled})
			a.post(SendWR{Op: OpSend, SGL: whole(from, n)})
			a.wantOK(WCRead)
			b.wantOK(WCRecv)
		}
		for _, qp := range []*QP{a.qp, b.qp} {
			got := qp.SlowPath()
			got.OutOfOrder = 0
			if got.Charged() != 0 {
				t.Errorf("counted %+v", got)
			}
		}
	})
}

// A peer that takes nothing makes its stream stall, which is seen and costs nobody
// anything.
func TestStallsAreCounted(t *testing.T) {
	e := newEnd(t, Config{Slow: SlowPolicy{PerSecond: 1}})
	raw, l := iwarptest.Pair(iwarptest.Options{})
	e.startOn(l)
	for i := range uint64(5) {
		raw.Stall(true)
		e.post(SendWR{Op: OpSend, Flags: Signaled})
		for ctx := testContext(t); e.qp.SlowPath().Stalls != i+1; runtime.Gosched() {
			if ctx.Err() != nil {
				t.Fatalf("%d stalls, want %d", e.qp.SlowPath().Stalls, i+1)
			}
		}
		raw.Stall(false)
		e.wantOK(WCSend)
	}
	if n := e.qp.SlowPath().Charged(); n != 0 {
		t.Errorf("%d are charged", n)
	}
	raw.CloseWrite()
	if err := e.wantEnd(); errors.Is(err, ErrSlowPath) {
		t.Error(err)
	}
}
