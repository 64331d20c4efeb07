package verbs

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// Each kind of resource is refused past each principal's limit, naming it, and
// given back when it is freed (R2).
func TestQuotasHoldForEachPrincipal(t *testing.T) {
	take := map[string]func(e *end) (func(), error){
		"protection domains": func(e *end) (func(), error) {
			pd, err := e.ulp.AllocPD()
			return func() { pd.Dealloc() }, err
		},
		"memory regions": func(e *end) (func(), error) {
			mr, err := e.pd.RegisterMR(make([]byte, 1), 0)
			return func() { mr.Deregister() }, err
		},
		"registered bytes": func(e *end) (func(), error) {
			mr, err := e.pd.RegisterMR(make([]byte, 1000), 0)
			return func() { mr.Deregister() }, err
		},
		"completion queue entries": func(e *end) (func(), error) {
			cq, err := e.ulp.CreateCQ(600, nil)
			return func() { cq.Destroy() }, err
		},
		"memory windows": func(e *end) (func(), error) {
			mw, err := e.pd.AllocMW()
			return func() { mw.Dealloc() }, err
		},
		"shared receive queue entries": func(e *end) (func(), error) {
			srq, err := e.pd.CreateSRQ(SRQConfig{MaxRecv: 100})
			return func() { srq.Destroy() }, err
		},
		"streams": func(e *end) (func(), error) {
			qp, err := newQP(e.pd, e.cfg, fakeConn{"greedy"})
			return func() { qp.discard(nil) }, err
		},
		"work queue entries": func(e *end) (func(), error) {
			qp, err := newQP(e.pd, QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 3000, MaxRecv: 3000}, fakeConn{"greedy"})
			return func() { qp.discard(nil) }, err
		},
		"inbound read queue entries": func(e *end) (func(), error) {
			qp, err := newQP(e.pd, QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 1, MaxRecv: 1, IRD: 300}, fakeConn{"greedy"})
			return func() { qp.discard(nil) }, err
		},
	}
	limits := map[string]Limits{
		"protection domains":           {PDs: 3},
		"memory regions":               {MRs: 2},
		"memory windows":               {MWs: 2},
		"registered bytes":             {Bytes: 2500},
		"completion queue entries":     {CQEntries: 2700},
		"streams":                      {Streams: 2},
		"work queue entries":           {QueueEntries: 15000},
		"shared receive queue entries": {SRQEntries: 250},
		"inbound read queue entries":   {IRRQEntries: 700},
	}
	for name, grab := range take {
		for _, who := range []string{"device", "ULP", "peer"} {
			if who == "peer" && name != "streams" && name != "work queue entries" && name != "inbound read queue entries" {
				continue
			}
			t.Run(name+" of a "+who, func(t *testing.T) {
				var cfg Config
				switch who {
				case "device":
					cfg.Limits = limits[name]
				case "peer":
					cfg.Peer = limits[name]
				}
				e := newEnd(t, cfg)
				if who == "ULP" {
					ulp, err := e.dev.NewULP("small", ULPConfig{Quota: limits[name], Trust: ST})
					if err != nil {
						t.Fatal(err)
					}
					e.ulp = ulp
					e.pd, _ = ulp.AllocPD()
					e.cq, _ = ulp.CreateCQ(1024, nil)
					e.cfg.SendCQ, e.cfg.RecvCQ = e.cq, e.cq
				}
				before := e.dev.Usage()
				var free []func()
				var err error
				for range 8 {
					var f func()
					if f, err = grab(e); err != nil {
						break
					}
					free = append(free, f)
				}
				var q *QuotaError
				if !errors.As(err, &q) || q.Resource != name {
					t.Fatalf("after %d: %v, want a QuotaError of %s", len(free), err, name)
				}
				if len(free) == 0 {
					t.Fatal("not even one is given")
				}
				for _, f := range free {
					f()
				}
				if after := e.dev.Usage(); after != before {
					t.Errorf("use was %+v, is %+v", before, after)
				}
			})
		}
	}
}

// One peer at its limit takes nothing from another's share.
func TestOnePeersGreedLeavesAnotherItsShare(t *testing.T) {
	e := newEnd(t, Config{Peer: Quota{Streams: 2}})
	for range 2 {
		if _, err := newQP(e.pd, e.cfg, fakeConn{"greedy"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := newQP(e.pd, e.cfg, fakeConn{"greedy"}); err == nil {
		t.Error("a third stream of the same peer is given")
	}
	if _, err := newQP(e.pd, e.cfg, fakeConn{"modest"}); err != nil {
		t.Errorf("another peer is refused: %v", err)
	}
}

// Objects of another ULP or PD are refused wherever a verb takes them (R27, R31).
func TestForeignObjectsAreRefused(t *testing.T) {
	e := newEnd(t, Config{})
	other, err := e.dev.NewULP("other", ULPConfig{Trust: ST})
	if err != nil {
		t.Fatal(err)
	}
	foreignCQ, err := other.CreateCQ(8, nil)
	if err != nil {
		t.Fatal(err)
	}
	foreignPD, err := e.ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	foreignMR, err := foreignPD.RegisterMR(make([]byte, 8), LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []QPConfig{
		{SendCQ: foreignCQ, RecvCQ: e.cq, MaxSend: 1, MaxRecv: 1},
		{SendCQ: e.cq, RecvCQ: foreignCQ, MaxSend: 1, MaxRecv: 1},
	} {
		if _, err := newQP(e.pd, cfg, fakeConn{"p"}); err == nil {
			t.Error("a completion queue of another ULP is attached")
		}
	}
	la, lb := iwarptest.Pair(iwarptest.Options{})
	defer lb.Close()
	e.startOn(la)
	if err := e.qp.PostSend(&SendWR{Op: OpSend, SGL: whole(foreignMR, 8)}); err == nil {
		t.Error("a send from another PD's memory is posted")
	}
	if err := e.qp.PostRecv(RecvWR{SGL: whole(foreignMR, 8)}); err == nil {
		t.Error("a receive into another PD's memory is posted")
	}
}

// An overflow ends the streams of that queue and of no other (R26).
func TestCQOverflowEndsOnlyItsStreams(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		small, err := b.ulp.CreateCQ(2, nil)
		if err != nil {
			t.Fatal(err)
		}
		good := b.qp
		b.cfg.RecvCQ = small
		la, lb := iwarptest.Pair(iwarptest.Options{})
		first := a.qp
		a.startOn(la)
		b.startOn(lb)
		ended := b.qp
		for range 3 {
			b.recv(RecvWR{})
			a.post(SendWR{Op: OpSend})
		}
		if err := b.wantEnd(); !errors.Is(err, ErrCQOverflow) {
			t.Errorf("the stream of the full queue ended with %v", err)
		}
		b.qp, a.qp = good, first
		b.recv(RecvWR{ID: 5})
		a.post(SendWR{Op: OpSend})
		for {
			if wc := b.next(); wc.QP == ended {
				continue
			} else if wc.ID != 5 || wc.Err != nil {
				t.Errorf("completion %+v on the other queue", wc)
			}
			break
		}
	})
}
