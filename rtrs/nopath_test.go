package rtrs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// failSoon has I/O fail soon after the last path has gone.
var failSoon = NoPath{Fail: true, After: 20 * time.Millisecond}

func isFailing(cl *Client) func() bool { return func() bool { return cl.Info().Failing } }

// submit begins a write of number n.
func submit(t testing.TB, cl *Client, n uint64) (*Permit, *waiter) {
	t.Helper()
	p, w := get(t, cl), newWaiter()
	fill(p.Buffer()[:512], n)
	p.Submit(Write, header(int(n)), 512, w)
	return p, w
}

// Without a path I/O fails after the time that it may wait: what is under way, what waits for
// a path or a permit, and what comes; and works again when there is a path.
func TestIOFailsWithoutAPath(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cfg.NoPath, cfg.QueueDepth = failSoon, 4
	cl := connect(t, cfg)
	allUp(t, cl)
	for round := range uint64(3) {
		for _, r := range rs {
			r.freeze(true)
		}
		p1, w1 := submit(t, cl, 1+round)
		for _, r := range rs {
			r.setDown(true)
			r.cut()
			r.freeze(false)
		}
		var all []*Permit
		var ws []*waiter
		for i := range uint64(3) {
			p, w := newWaiterOn(cl)
			if p == nil {
				break // it fails already
			}
			p.Submit(Write, header(int(100+i)), 0, w)
			all, ws = append(all, p), append(ws, w)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := cl.Get(testContext(t))
			waiting <- err
		}()
		for _, w := range append(ws, w1) {
			if e := w.wait(t); e != syscall.ENOTCONN {
				t.Fatalf("round %d: %v", round, e)
			}
		}
		if err := <-waiting; !errors.Is(err, ErrNoPath) {
			t.Fatalf("who waited for a permit: %v", err)
		}
		if _, err := cl.TryGetN(make([]*Permit, 1)); !errors.Is(err, ErrNoPath) {
			t.Fatal(err)
		}
		select {
		case <-cl.NoPath():
		default:
			t.Fatal("NoPath is open")
		}
		cl.Put(append(all, p1)...)
		rs[int(round)%2].setDown(false)
		eventually(t, "there is a path", func() bool { return !cl.Info().Failing })
		for n := range uint64(8) { // more than there are permits
			if e := j.put(t, cl, 1000*(round+1)+n, 512); e != 0 {
				t.Fatal(e)
			}
		}
		for _, r := range rs {
			r.setDown(false)
		}
		allUp(t, cl)
	}
	eventually(t, "all permits are free", func() bool { return cl.Info().InFlight == 0 })
}

func newWaiterOn(cl *Client) (*Permit, *waiter) {
	var one [1]*Permit
	if ok, _ := cl.TryGetN(one[:]); !ok {
		return nil, nil
	}
	return one[0], newWaiter()
}

// A write that failed while the server was executing it keeps its permit until the server has
// ended it: nothing else is done with that before.
func TestPermitOfAFailedWriteIsKeptUntilItIsSettled(t *testing.T) {
	m := newMemory(4096)
	entered, release := make(chan struct{}, 8), make(chan struct{})
	var executions atomic.Int32
	m.gate = func(r *Request) {
		if r.Dir == Write && len(r.Header) >= 8 && binary.LittleEndian.Uint64(r.Header) == 0 && executions.Add(1) == 1 {
			entered <- struct{}{}
			<-release
		}
	}
	srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 1)
	cfg.NoPath, cfg.QueueDepth = failSoon, 1
	cl := connect(t, cfg)
	p, w := get(t, cl), newWaiter()
	copy(p.Buffer(), bytes.Repeat([]byte{1}, 512))
	p.Submit(Write, header(0), 512, w)
	<-entered
	rs[0].setDown(true)
	rs[0].cut()
	if e := w.wait(t); e != syscall.ENOTCONN {
		t.Fatal(e)
	}
	var settled atomic.Bool
	if !p.OnSettled(func() { settled.Store(true) }) {
		t.Fatal("a write that is being executed is settled")
	}
	again := newWaiter()
	p.Submit(Write, header(0), 512, again)
	if e := again.wait(t); e != syscall.EINVAL {
		t.Fatalf("an unsettled permit was used again: %v", e)
	}
	cl.Put(p)
	rs[0].setDown(false)
	eventually(t, "there is a path", func() bool { return !cl.Info().Failing })
	next := make(chan syscall.Errno, 1)
	go func() { next <- write(t, cl, 0, bytes.Repeat([]byte{2}, 512)) }()
	// Reads are not held up by anything else than the one permit, so that only it can be what the write waits for.
	select {
	case e := <-next:
		t.Fatalf("the next write ended (%v) before the one that failed", e)
	case <-time.After(50 * time.Millisecond):
	}
	if settled.Load() {
		t.Fatal("settled while it is being executed")
	}
	close(release)
	if e := <-next; e != 0 {
		t.Fatal(e)
	}
	if !settled.Load() || executions.Load() != 2 {
		t.Errorf("settled %v, %d executions", settled.Load(), executions.Load())
	}
	m.wg.Wait()
	if m.data[0] != 2 {
		t.Error("the write that failed was executed after a later one")
	}
}

// While its only path waits for the security association, a session has no path. What the
// path has not sent is never carried out, even if its bytes arrive when the write is settled.
func TestIOFailsWhileTheSAIsAway(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	allUp(t, cl)
	cl.Paths()[1].Disconnect()
	eventually(t, "one path is down", func() bool { return cl.Info().Paths[1].State == PathDisconnected })
	rs[0].setAway(true)
	p, w := submit(t, cl, 1)
	cl.SetNoPath(failSoon) // from now on
	if e := w.wait(t); e != syscall.ENOTCONN {
		t.Fatal(e)
	}
	settled := make(chan struct{})
	if !p.OnSettled(func() { close(settled) }) {
		t.Fatal("a write that was sent is settled")
	}
	cl.Put(p)
	cl.Paths()[1].Reconnect()
	select {
	case <-settled:
	case <-time.After(testTimeout):
		t.Fatal("the write is not settled")
	}
	// What waits, the settling among it, goes ahead of new I/O.
	eventually(t, "a path takes new I/O", func() bool { return cl.Info().Paths[1].State == PathConnected })
	if e := j.put(t, cl, 65, 512); e != 0 {
		t.Fatal(e)
	}
	rs[0].setAway(false) // what was held back arrives
	allUp(t, cl)
	if n := j.executions(1); n != 0 {
		t.Errorf("the write that failed was executed %d times, afterwards", n)
	}
	if e := j.put(t, cl, 129, 512); e != 0 || j.last[1] != 129 {
		t.Errorf("%v, the place has %d", e, j.last[1])
	}
}

// I/O waits for ever unless it is to fail, and again once it is not.
func TestNoPathCanBeChanged(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 1)
	cl := connect(t, cfg)
	rs[0].setDown(true)
	rs[0].cut()
	eventually(t, "the path is lost", func() bool { return cl.Info().State == Reconnecting })
	p, w := submit(t, cl, 1)
	cl.SetNoPath(NoPath{Fail: true, After: time.Hour})
	cl.SetNoPath(failSoon)
	if e := w.wait(t); e != syscall.ENOTCONN {
		t.Fatal(e)
	}
	cl.Put(p)
	cl.SetNoPath(NoPath{Fail: true, After: time.Hour})
	if isFailing(cl)() {
		t.Error("I/O fails before its time")
	}
	cl.SetNoPath(failSoon)
	eventually(t, "I/O fails", isFailing(cl))
	cl.SetNoPath(NoPath{})
	p, w = submit(t, cl, 2)
	rs[0].setDown(false)
	if e := w.wait(t); e != 0 {
		t.Fatal(e)
	}
	cl.Put(p)
	if j.executions(1) != 0 || j.executions(2) != 1 {
		t.Errorf("executions: %d, %d", j.executions(1), j.executions(2))
	}
}

// I/O does not fail by a time that was over just when another was set, which is not.
func TestNoPathIsChangedWhenItsTimeIsOver(t *testing.T) {
	srv := startServer(t, ServerConfig{NewSession: newMemory(1).session})
	rs, cfg := roads(t, srv, 1)
	cl := connect(t, cfg)
	rs[0].setDown(true)
	rs[0].cut()
	eventually(t, "the path is lost", func() bool { return cl.Info().State == Reconnecting })
	cl.SetNoPath(NoPath{Fail: true, After: time.Hour})
	cl.mu.Lock()
	o := cl.outage
	cl.mu.Unlock()
	cl.failAllIO(cl.ctx, o) // as the timer of before does
	if isFailing(cl)() {
		t.Error("I/O fails before its time")
	}
}

// A client that is closed while I/O fails leaves nothing behind, whether what failed is
// settled or not.
func TestCloseWithoutAPath(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	rs, cfg := roads(t, srv, 1)
	cfg.NoPath = failSoon
	h := &host{ulp: cfg.ULP}
	cl := connect(t, cfg)
	rs[0].freeze(true)
	p, w := submit(t, cl, 1)
	q, u := submit(t, cl, 2)
	rs[0].setDown(true)
	rs[0].cut()
	for _, w := range []*waiter{w, u} {
		if e := w.wait(t); e != syscall.ENOTCONN {
			t.Fatal(e)
		}
	}
	cl.Put(p)
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	cl.Put(q)
	h.unused(t)
}

// A path that could not be brought up as often as it may be tried is given up, until it is
// reconnected, or more attempts are allowed.
func TestReconnectAttemptsAreBounded(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cfg.ReconnectAttempts = 2
	cl := connect(t, cfg)
	allUp(t, cl)
	state := func(s PathState) func() bool { return func() bool { return cl.Info().Paths[0].State == s } }
	lose := func() {
		t.Helper()
		rs[0].setDown(true)
		rs[0].cut()
		eventually(t, "the path is given up", state(PathGivenUp))
		if i := cl.Info().Paths[0]; i.Tries != 2 || i.LastError == nil {
			t.Errorf("%d attempts, %v", i.Tries, i.LastError)
		}
		rs[0].setDown(false)
		if e := j.put(t, cl, 1, 512); e != 0 { // by the other path
			t.Fatal(e)
		}
	}
	lose()
	cl.Paths()[0].Reconnect()
	eventually(t, "the path is up", state(PathConnected))
	lose()
	cl.SetReconnectAttempts(0)
	eventually(t, "the path is up", state(PathConnected))
	rs[0].setDown(true)
	rs[0].cut()
	eventually(t, "the path is tried on and on", func() bool { i := cl.Info().Paths[0]; return i.Tries > 4 && i.State != PathGivenUp })
}
