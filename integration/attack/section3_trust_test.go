package attack

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Two streams that nobody has said trust each other share what only streams that do
// may share (R3; RFC 5042 section 3).
func TestStreamsWithoutDeclaredTrustShare(t *testing.T) {
	run(t,
		attack{"a protection domain", checks.StreamTrust, func(v *target) bool {
			pd := must(v.ulp.AllocPDAs(verbs.NSNT))(v.T)
			mr := must(pd.RegisterMR(make([]byte, 64), all))(v.T)
			must(v.tryStream(pd, must(v.ulp.CreateCQ(64, nil))(v.T), "alice"))(v.T)
			f, err := v.tryStream(pd, must(v.ulp.CreateCQ(64, nil))(v.T), "mallory")
			if err != nil {
				v.wantErrTrust(err)
				return false
			}
			f.write(mr.STag(), 0, evil)
			f.settled()
			return string(mr.Bytes()[:4]) == "evil"
		}},
		attack{"a completion queue", checks.StreamTrust, func(v *target) bool {
			one, other := must(v.ulp.AllocPDAs(verbs.NSNT))(v.T), must(v.ulp.AllocPDAs(verbs.NSNT))(v.T)
			alice := must(v.tryStream(one, v.cq, "alice"))(v.T)
			f, err := v.tryStream(other, v.cq, "mallory")
			if err != nil {
				v.wantErrTrust(err)
				return false
			}
			f.settled()
			return alice.cq == f.cq
		}},
		attack{"a completion queue with a stream that shares", checks.StreamTrust, func(v *target) bool {
			must(v.tryStream(must(v.ulp.AllocPDAs(verbs.NSNT))(v.T), v.cq, "alice"))(v.T)
			_, err := v.tryStream(v.pd, v.cq, "mallory")
			if err != nil {
				v.wantErrTrust(err)
			}
			return err == nil
		}},
		attack{"a shared receive queue", checks.StreamTrust, func(v *target) bool {
			pd := must(v.ulp.AllocPDAs(verbs.NSNT))(v.T)
			srq := must(pd.CreateSRQ(verbs.SRQConfig{MaxRecv: 1}))(v.T)
			v.granted(srq.PostRecv(verbs.RecvWR{}))
			join := func(id transport.Identity) (*stream, error) {
				cq := must(v.ulp.CreateCQ(64, nil))(v.T)
				return v.streamAs(pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, SRQ: srq}, iwarptest.Options{}, id)
			}
			alice := must(join("alice"))(v.T)
			f, err := join("mallory")
			if err != nil {
				v.wantErrTrust(err)
				return false
			}
			f.send(0, nil) // takes the receive that was for alice
			f.completion(0)
			alice.send(0, nil)
			alice.end()
			return alice.qp.Err() != nil
		}},
		attack{"what a consumer of which nothing is said declares itself", checks.DeclaredTrust, func(v *target) bool {
			u := must(v.dev.NewULP("mallory", verbs.ULPConfig{}))(v.T)
			var pd *verbs.PD
			for _, m := range verbs.TrustModels()[1:] {
				got, err := u.AllocPDAs(m)
				if err != nil {
					v.wantErrTrust(err)
					continue
				}
				pd = got
			}
			return pd != nil && pd.Trust() == verbs.ST
		}},
	)
}

func (v *target) wantErrTrust(err error) {
	v.Helper()
	if !errors.Is(err, verbs.ErrTrust) {
		v.Errorf("refused with %v, want ErrTrust", err)
	}
}

// A neighbour that keeps its inbound read queue full takes nothing from another stream,
// since every stream has its own (R3).
func TestReadQueueIsTheStreamsOwn(t *testing.T) {
	v := newTarget(t)
	alice, f := v.stream(v.pd, "alice"), v.stream(v.pd, "mallory")
	mr := v.region(v.pd, 64, all)
	copy(mr.Bytes(), secret)
	f.Stall(true)
	for range 4 { // its IRD
		f.read(mr.STag(), 0, 64)
	}
	if !f.settled() {
		t.Fatalf("four Reads end the stream: %v", f.qp.Err())
	}
	for range 4 {
		alice.read(mr.STag(), 0, uint32(len(secret)))
		if s, ok := alice.hear(); !ok || string(s.Payload) != string(secret) {
			t.Fatalf("alice reads %+v", s)
		}
	}
}
