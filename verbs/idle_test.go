package verbs

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
)

// crowd is a device with room for 20 streams, and n of them from the peer named.
func crowd(t *testing.T, e *end, peer transport.Identity, n int) (qps []*QP, raws []*iwarptest.LLP) {
	t.Helper()
	for range n {
		raw, l := iwarptest.Pair(iwarptest.Options{})
		t.Cleanup(func() { raw.Close() })
		qp, err := e.pd.Adopt(AdoptConfig{QP: e.cfg, LLP: l, Conn: fakeConn{peer}, IRD: 1, ORD: 1})
		if err != nil {
			t.Fatalf("stream of %s: %v", peer, err)
		}
		qps, raws = append(qps, qp), append(raws, raw)
	}
	return qps, raws
}

func ended(qps []*QP) (n int) {
	for _, qp := range qps {
		if errors.Is(qp.Err(), ErrReaped) {
			n++
		}
	}
	return n
}

// Idle streams go when streams run short, those of the peer with most first, and a
// newcomer gets in; who is active stays, and without pressure everybody does (R20).
func TestIdleStreamsGoWhenStreamsRunShort(t *testing.T) {
	for name, tc := range map[string]struct {
		policy IdlePolicy
		model  TrustModel
		idle   int
		want   bool // some are ended

		privileged bool
	}{
		"pressure":                                 {IdlePolicy{After: time.Minute}, SLT, 10, true, true},
		"no pressure":                              {IdlePolicy{After: time.Minute}, SLT, 4, false, true},
		"pressure from a lower mark":               {IdlePolicy{After: time.Minute, Mark: 60}, SLT, 4, true, true},
		"control: no policy":                       {IdlePolicy{}, SLT, 10, false, true},
		"streams that may idle":                    {IdlePolicy{After: time.Minute}, ST, 10, false, true},
		"streams that may idle, but not their ULP": {IdlePolicy{After: time.Minute}, ST, 10, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnd(t, Config{Limits: Limits{Streams: 20}, Idle: tc.policy})
				if err := e.dev.SetPeers(map[transport.Identity]Quota{"hoarder": {}}); err != nil {
					t.Fatal(err)
				}
				var err error
				if e.pd, err = e.ulp.AllocPDAs(tc.model); err != nil {
					t.Fatal(err)
				}
				e.ulp.privileged = tc.privileged
				e.cfg.MaxRecv = 64
				active, raws := crowd(t, e, "active", 2)
				more, _ := crowd(t, e, "other", 2)
				idle, _ := crowd(t, e, "hoarder", tc.idle)
				for range 30 { // the active ones go on
					<-time.After(10 * time.Second)
					for i, raw := range raws {
						mr, err := e.pd.RegisterMR(make([]byte, 8<<10), LocalWrite|RemoteWrite)
						if err != nil {
							t.Fatal(err)
						}
						raw.Send(tagged(true, 0, mr.STag(), 0, 8<<10))
						_ = active[i]
					}
				}
				synctest.Wait()
				if n := ended(active); n > 0 {
					t.Errorf("%d active streams were ended", n)
				}
				if n := ended(idle); (n > 0) != tc.want {
					t.Errorf("%d of %d idle streams were ended", n, len(idle))
				}
				if n := ended(more); n > 0 {
					t.Errorf("%d streams of the peer with fewer were ended", n)
				}
			})
		})
	}
}
