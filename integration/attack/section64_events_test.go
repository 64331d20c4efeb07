package attack

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// One peer, or one ULP, raises events without end while nobody takes them. Those
// that are about others are still there, and the streams go on (R30, RFC 5042
// section 2.2.7).
func TestStormOfEvents(t *testing.T) {
	const room, storm = 1024, 2000
	// comesAndGoes has a peer start a stream and break a rule on it.
	comesAndGoes := func(v *target, id transport.Identity) {
		f := v.stream(v.pd, id)
		f.write(1, 0, evil)
		<-f.qp.Done()
	}
	// missing reports whether no event of this kind is about that stream or queue.
	missing := func(v *target, is func(verbs.Event) bool) bool {
		found, n, taken := false, 0, uint64(0)
		for ev, ok := v.dev.TryEvent(); ok; ev, ok = v.dev.TryEvent() {
			found = found || is(ev)
			n++
			taken += uint64(ev.Count)
		}
		if n > room {
			v.Errorf("there are %d events in the queue, which is to be bounded", n)
		}
		if all := taken + v.dev.EventsDropped(); all < storm {
			v.Errorf("%d events are counted of more than %d", all, storm)
		}
		return !found
	}
	// fault reports whether nothing says that alice broke a rule.
	fault := func(v *target) bool {
		f := v.stream(v.pd, "alice")
		if !f.settled() {
			v.Error("the stream of another peer does not go on")
		}
		f.write(1, 0, evil)
		<-f.qp.Done()
		return missing(v, func(ev verbs.Event) bool { return ev.Kind == verbs.EventPeerFault && ev.QP == f.qp.ID() })
	}
	// srq makes a shared receive queue whose low-water mark is reached again and again.
	srq := func(v *target, u *verbs.ULP) *verbs.SRQ {
		s := must(must(u.AllocPD())(v.T).CreateSRQ(verbs.SRQConfig{MaxRecv: 2}))(v.T)
		return s
	}
	arm := func(v *target, s *verbs.SRQ) {
		if err := s.Arm(1); err != nil {
			v.Fatal(err)
		}
	}
	run(t,
		attack{"of a peer that comes and goes", checks.EventShare, func(v *target) bool {
			for range storm / 2 {
				comesAndGoes(v, "mallory")
			}
			return fault(v)
		}},
		attack{"of many peers", checks.EventShare, func(v *target) bool {
			for i := range storm / 2 {
				comesAndGoes(v, transport.Identity(fmt.Sprintf("mallory %d", i%200)))
			}
			return fault(v)
		}},
		attack{"of a ULP", checks.EventShare, func(v *target) bool {
			s := srq(v, v.consumer("mallory", verbs.ST))
			for range storm {
				arm(v, s)
			}
			return fault(v)
		}},
		attack{"of a ULP after another one's event", checks.EventShare, func(v *target) bool {
			mallory, s := srq(v, v.consumer("mallory", verbs.ST)), srq(v, v.ulp)
			for range storm {
				arm(v, mallory)
			}
			arm(v, s)
			for range storm {
				arm(v, mallory)
			}
			return missing(v, func(ev verbs.Event) bool { return ev.SRQ == s })
		}},
	)
}
