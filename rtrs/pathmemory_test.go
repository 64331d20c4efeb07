package rtrs

import (
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/verbs"
)

// A path whose memory cannot be registered comes up when it can, with all of it, and leaves
// nothing behind meanwhile.
func TestPathWaitsForItsMemory(t *testing.T) {
	const depth = 8
	const of = depth + controlChunks + DefaultConns // MRs of a path
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ulp, err := dev.NewULP("rtrs", verbs.ULPConfig{Trust: verbs.ST, Quota: verbs.Quota{MRs: 2 * of}})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := ulp.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	var others []*verbs.MR
	for range of / 2 {
		mr, err := pd.RegisterMR(make([]byte, 1), verbs.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, mr)
	}
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	_, cfg := roads(t, srv, 2)
	cfg.ULP, cfg.QueueDepth, cfg.Policy = ulp, depth, RoundRobin
	cl := connect(t, cfg)
	eventually(t, "a path has no memory, again and again", func() bool {
		for _, p := range cl.Info().Paths {
			var quota *verbs.QuotaError
			if p.Failures > 2 && errors.As(p.LastError, &quota) {
				return true
			}
		}
		return false
	})
	for _, mr := range others {
		mr.Deregister()
	}
	pd.Dealloc()
	allUp(t, cl)
	var ps []*Permit
	var ws []*waiter
	for n := range 2 * depth {
		p, w := get(t, cl), newWaiter()
		p.Submit(Read, header(n), 512, w)
		if ps, ws = append(ps, p), append(ws, w); len(ps) < depth {
			continue
		}
		for _, w := range ws {
			if e := w.wait(t); e != 0 {
				t.Error(e)
			}
		}
		cl.Put(ps...)
		ps, ws = nil, nil
	}
	cl.Close()
	if u := ulp.Usage(); u != (verbs.Limits{}) {
		t.Errorf("left over: %+v", u)
	}
}
