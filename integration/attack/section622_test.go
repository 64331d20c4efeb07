package attack

import (
	"bytes"
	"hash/crc32"
	"runtime"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/verbs"
)

// slowLLP is an LLP that stops in the middle of a peer's access to memory, the memory
// held: held is closed then. It goes on when resume is closed or, since a revocation
// is to wait for it, after a while.
type slowLLP struct {
	*iwarptest.LLP
	held, resume chan struct{}
}

func newSlowLLP(l *iwarptest.LLP) *slowLLP {
	return &slowLLP{LLP: l, held: make(chan struct{}), resume: make(chan struct{})}
}

func (l *slowLLP) stop() {
	select {
	case <-l.held:
		return // only the first time
	default:
	}
	close(l.held)
	long := 20 * time.Millisecond
	if checks.Weakened {
		long = patience
	}
	select {
	case <-l.resume:
	case <-time.After(long):
	}
}

// Append is where the peer's RDMA Read takes the memory.
func (l *slowLLP) Append(hdr []byte, sgl [][]byte) error {
	if ddp.IsTagged(hdr) {
		l.stop()
	}
	return l.LLP.Append(hdr, sgl)
}

// Receive is where its RDMA Write does.
func (l *slowLLP) Receive(s ddp.Sink) error { return l.LLP.Receive(slowSink{s, l}) }

type slowSink struct {
	ddp.Sink
	l *slowLLP
}

func (s slowSink) DirectBuffer() ([]byte, error) {
	b, err := s.Sink.DirectBuffer()
	if err == nil {
		s.l.stop()
	}
	return b, err
}

// exposed is memory that a peer may use, and a neighbour of its stream.
type exposed struct {
	v         *target
	mr        *verbs.MR
	mw        *verbs.MW // nil: the region's STag is exposed
	stag      uint32
	stream    *stream
	neighbour *stream
}

// waysToRevoke are all ways to revoke. Each returns when the revocation is reported as
// done.
var waysToRevoke = []struct {
	name   string
	window bool // it is a memory window that is exposed
	revoke func(e *exposed)
}{
	{"local invalidation of a region", false, func(e *exposed) { e.ok(e.mr.Invalidate()) }},
	{"registration anew", false, func(e *exposed) {
		_, err := e.mr.Reregister(0, 8, verbs.RemoteRead)
		e.ok(err)
	}},
	{"deregistration", false, func(e *exposed) { e.ok(e.mr.Deregister()) }},
	{"posted invalidation", false, func(e *exposed) {
		e.post(verbs.SendWR{Op: verbs.OpInvalidateLocal, InvalidateSTag: e.stag, Flags: verbs.Signaled})
	}},
	{"posted registration", false, func(e *exposed) {
		e.post(verbs.SendWR{Op: verbs.OpRegister, SGL: []verbs.SGE{{MR: e.mr, Len: 8}}, Access: verbs.RemoteRead, Flags: verbs.Signaled})
	}},
	{"invalidation by the peer of another stream", false, func(e *exposed) {
		e.neighbour.send(e.stag, nil) // settled posts the receive for the Send behind it
		e.ok(e.neighbour.qp.PostRecv(verbs.RecvWR{}))
		if !e.neighbour.settled() {
			e.v.Fatal("the neighbour can't invalidate")
		}
	}},
	{"local invalidation of a window", true, func(e *exposed) { e.ok(e.mw.Invalidate()) }},
	{"deallocation of a window", true, func(e *exposed) { e.ok(e.mw.Dealloc()) }},
}

func (e *exposed) ok(err error) {
	e.v.Helper()
	if err != nil {
		e.v.Fatal(err)
	}
}

// post posts on the neighbour's queue pair and waits for the completion.
func (e *exposed) post(wr verbs.SendWR) {
	wr.ID = 77
	e.ok(e.neighbour.qp.PostSend(&wr))
	e.ok(e.neighbour.completion(wr.ID).Err)
}

// A peer's right is taken away in the middle of an access: when the revocation is done,
// so is the access (R12).
func TestRevocationWaitsForTheAccessThatIsUnderWay(t *testing.T) {
	var attacks []attack
	for _, way := range waysToRevoke {
		expose := func(v *target) (*exposed, *slowLLP) {
			peer, llp := iwarptest.NewPeer(iwarptest.Options{Direct: true})
			slow := newSlowLLP(llp)
			cfg := verbs.QPConfig{SendCQ: v.cq, RecvCQ: v.cq, MaxSend: 8, MaxRecv: 8, IRD: 4, ORD: 4}
			f := must(v.streamOn(v.pd, cfg, peer, slow, "mallory"))(v.T)
			e := &exposed{v: v, stream: f, neighbour: v.stream(v.pd, "neighbour")}
			e.mr = v.region(v.pd, 64, all|verbs.WindowBind)
			e.stag = e.mr.STag()
			if way.window {
				e.mw, e.stag = f.bind(e.mr, 0, 64, verbs.RemoteRead|verbs.RemoteWrite)
			}
			return e, slow
		}
		attacks = append(attacks,
			attack{"write/" + way.name, checks.Revocation, func(v *target) bool {
				e, slow := expose(v)
				e.stream.write(e.stag, 0, evil)
				<-slow.held
				way.revoke(e)
				snapshot := bytes.Clone(e.mr.Bytes())
				close(slow.resume)
				<-closed(e.stream)
				return !bytes.Equal(snapshot, e.mr.Bytes())
			}},
			attack{"read/" + way.name, checks.Revocation, func(v *target) bool {
				e, slow := expose(v)
				e.stream.read(e.stag, 0, 6)
				<-slow.held
				way.revoke(e)
				copy(e.mr.Bytes(), "secret") // what the peer must not see any more
				close(slow.resume)
				s, ok := e.stream.hear()
				return ok && s.Tagged && string(s.Payload) == "secret"
			}},
		)
	}
	run(t, attacks...)
}

// A peer that floods while its right is taken away, in the middle of what it writes:
// nothing changes after the revocation, and the race detector finds no access that is not
// ordered with it (R12).
func TestWriterWhoseRightIsRevoked(t *testing.T) {
	if checks.Weakened {
		t.Skip("TestRevocationWaitsForTheAccessThatIsUnderWay has the twins")
	}
	v := newTarget(t)
	const size, rounds, flood = 60000, 200, 40
	mr := v.region(v.pd, size, verbs.LocalWrite|verbs.RemoteWrite)
	inTheMiddle := 0
	for round := range rounds {
		stag := must(mr.Reregister(0, size, verbs.RemoteWrite))(t)
		f := v.stream(v.pd, "mallory")
		for i := range flood {
			f.write(stag, 0, bytes.Repeat([]byte{byte(i), byte(round)}, size/2))
		}
		for f.qp.Stats().RecvBytes < uint64(round%flood)*size {
			runtime.Gosched()
		}
		if err := mr.Invalidate(); err != nil {
			t.Fatal(err)
		}
		sum := crc32.ChecksumIEEE(mr.Bytes())
		if !f.settled() {
			inTheMiddle++
		}
		<-closed(f)
		if crc32.ChecksumIEEE(mr.Bytes()) != sum {
			t.Fatal("the memory has changed after the revocation")
		}
	}
	t.Logf("%d of %d revocations came in the middle", inTheMiddle, rounds)
	if inTheMiddle == 0 {
		t.Error("no revocation came in the middle of what was written")
	}
}
