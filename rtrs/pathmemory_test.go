package rtrs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// Who has chosen a path just before it was removed finds it without memory, and uses it no
// more: the permit stays where it is, and its I/O goes by another path.
func TestPathThatWasRemovedWhileItWasChosen(t *testing.T) {
	for _, policy := range []Policy{MinInFlight, Preferred} {
		j := newJournal()
		srv := startServer(t, ServerConfig{NewSession: j.session})
		_, cfg := roads(t, srv, 2)
		cfg.Policy = policy
		cl := connect(t, cfg)
		allUp(t, cl)
		paths := cl.Paths()
		before := slices.Clone(*cl.up.Load())
		paths[0].Remove()
		now := cl.up.Load()
		stays, gone := paths[1], before[slices.IndexFunc(before, func(u *clientPath) bool { return u.path == paths[0] })]
		if gone.path.addUser() {
			t.Fatal("the memory of a path that was removed is used again")
		}

		for _, up := range [][]*clientPath{before, {gone}} { // what whoever chooses may still see
			p := get(t, cl)
			cl.up.Store(&up)
			cl.moveToPaths([]*Permit{p})
			if p.at == gone.path || p.at != nil && p.at != stays {
				t.Errorf("%v: a permit is in the memory of a path that was removed", policy)
			}
			if gone.post(p, false) {
				t.Errorf("%v: a path that was removed has taken an I/O", policy)
			}
			gone.hasRoom(p)
			cl.up.Store(now)
			w := newWaiter()
			copy(p.Buffer(), filled(512, 7))
			p.Submit(Write, header(7), 512, w)
			if e := w.wait(t); e != 0 {
				t.Error(e)
			}
			cl.Put(p)
		}
	}
}

// Permits come and go while paths do.
func TestPermitsWhilePathsComeAndGo(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	all, cfg := roads(t, srv, 3)
	cfg.Policy = RoundRobin
	cl := connect(t, cfg)
	allUp(t, cl)
	ctx, stop := context.WithCancel(testContext(t))
	var users sync.WaitGroup
	for range 3 {
		users.Go(func() {
			for ps := make([]*Permit, 2); ctx.Err() == nil; {
				if ok, err := cl.TryGetN(ps); err != nil {
					t.Error(err)
					return
				} else if !ok {
					continue
				}
				for _, p := range ps {
					fill(p.Buffer()[:64], uint64(p.ID()))
				}
				cl.Put(ps...)
			}
		})
	}
	for n := range 30 {
		cl.Paths()[0].Remove()
		if _, err := cl.AddPath(all[n%3].config(fmt.Sprint("again", n))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the path is up", func() bool { return len(*cl.up.Load()) == 3 })
	}
	stop()
	users.Wait()
}
