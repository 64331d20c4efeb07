package attack

import (
	"bytes"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

// common is an STag that is valid on two streams of a protection domain, that of a
// region with remote rights, made in each possible way. It ends the attack if it is
// refused.
var common = []struct {
	name string
	get  func(v *target, alice *stream) (*verbs.MR, error)
}{
	{"registered", func(v *target, alice *stream) (*verbs.MR, error) {
		return alice.qp.PD().RegisterMR(make([]byte, 64), all)
	}},
	{"registered anew", func(v *target, alice *stream) (*verbs.MR, error) {
		mr := v.region(alice.qp.PD(), 64, verbs.LocalWrite)
		_, err := mr.Reregister(0, 64, all)
		return mr, err
	}},
	{"registered by a post", func(v *target, alice *stream) (*verbs.MR, error) {
		mr := v.region(alice.qp.PD(), 64, verbs.LocalWrite)
		wr := verbs.SendWR{ID: 8, Op: verbs.OpRegister, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: mr, Len: 64}}, Access: all}
		if err := alice.qp.PostSend(&wr); err != nil {
			return nil, err
		}
		return mr, alice.completion(8).Err
	}},
}

// Streams that share a protection domain without trust in each other have no STag in
// common that is of use to a peer, so that none can be invalidated or used by the
// peer of one under another (R25; RFC 5042 sections 6.4.5 and 6.1.1).
func TestSTagOfSeveralStreams(t *testing.T) { run(t, commonSTags()...) }

func commonSTags() (attacks []attack) {
	for _, c := range common {
		for _, a := range accesses {
			attacks = append(attacks, attack{a.name + "/" + c.name, checks.SharedSTag, func(v *target) bool {
				pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
				alice := v.stream(pd, "alice")
				mr, err := c.get(v, alice)
				if err != nil {
					v.wantErrTrust(err)
					return false
				}
				return a.try(v.stream(pd, "mallory"), alice, mr, mr.STag())
			}})
		}
	}
	return attacks
}

// The window that takes its place is invalidated by its stream's peer alone (R25).
func TestWindowIsInvalidatedByItsOwnPeer(t *testing.T) {
	run(t, attack{"by another's peer", checks.StreamOfSTag, func(v *target) bool {
		pd := must(v.ulp.AllocPDAs(verbs.SNT))(v.T)
		alice, f := v.stream(pd, "alice"), v.stream(pd, "mallory")
		mr := v.region(pd, 64, verbs.LocalWrite|verbs.WindowBind)
		_, stag := alice.bind(mr, 0, 64, all)
		return accesses[3].try(f, alice, mr, stag)
	}})
	if checks.Weakened {
		return
	}
	v := newTargetAs(t, verbs.Config{}, verbs.SNT)
	alice := v.stream(v.pd, "alice")
	mr := v.region(v.pd, 64, verbs.LocalWrite|verbs.WindowBind)
	_, stag := alice.bind(mr, 0, 64, all)
	v.granted(alice.qp.PostRecv(verbs.RecvWR{ID: 1}))
	alice.send(stag, nil)
	if wc := alice.completion(1); wc.Err != nil || wc.Invalidated != stag {
		t.Errorf("her own peer's Send with Invalidate: %+v", wc)
	}
	alice.write(stag, 0, evil)
	if alice.settled() || bytes.HasPrefix(mr.Bytes(), evil) {
		t.Error("the window is open after that")
	}
}
