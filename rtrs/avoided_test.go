package rtrs

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"
)

// Control requests do not wait for a path whose security association is away while there is
// another. One that was under way fails, as with a path that is lost, and what its path holds
// back is not carried out later.
func TestControlRequestsAvoidAPathWhoseSAIsAway(t *testing.T) {
	m := newMemory(4096)
	var mu sync.Mutex
	served := map[uint64]int{}
	m.gate = func(r *Request) {
		if r.Dir == Read {
			mu.Lock()
			defer mu.Unlock()
			served[binary.LittleEndian.Uint64(r.Header)]++
		}
	}
	srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	allUp(t, cl)
	cl.mu.Lock()
	first := 0
	if cl.ctlPath.path == cl.paths[1] {
		first = 1
	}
	cl.mu.Unlock()
	rs[first].freeze(true)
	// More than have a permit at once.
	const n = 2*maxBorrowed + 1
	results := make(chan error, n)
	for i := range n {
		go func() { results <- cl.Control(testContext(t), header(i), make([]byte, 8)) }()
	}
	eventually(t, "some are under way", func() bool { return cl.Info().Paths[first].InFlight > 0 })
	rs[first].setAway(true)
	lost := 0
	for range n {
		err := <-results
		if err != nil && !errors.Is(err, ErrPathLost) {
			t.Fatal(err)
		}
		if err != nil {
			lost++
		}
	}
	if lost == 0 {
		t.Error("none was under way")
	}
	if i := cl.Info().Paths[first]; !i.Avoided {
		t.Errorf("%+v", i)
	}
	if err := cl.Control(testContext(t), header(n), make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	rs[first].setAway(false) // what was held back arrives
	eventually(t, "all is answered", func() bool { i := cl.Info(); return i.Paths[first].InFlight == 0 && i.InFlight == 0 })
	if err := cl.Control(context.Background(), header(n+1), nil); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	sum := 0
	for _, times := range served {
		sum += times
	}
	if sum != n+2-lost {
		t.Errorf("%d requests were carried out, and %d answered", sum, n+2-lost)
	}
	if s := srv.Stats(); int(s.Reads) != sum || s.Writes != 0 {
		t.Errorf("%d requests were carried out, counted are %+v", sum, s)
	}
}

// What makes such a request void may be lost with its own path. Then the path that holds the
// request back is given up, and the request with it.
func TestControlRequestIsNotCarriedOutWhenWhatMakesItVoidIsLost(t *testing.T) {
	k := keeper{make(chan *Request, 4)}
	srv := startServer(t, ServerConfig{NewSession: k.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	allUp(t, cl)
	cl.mu.Lock()
	holds, other := rs[0], rs[1]
	if cl.ctlPath.path == cl.paths[1] {
		holds, other = other, holds
	}
	up := cl.ctlPath
	cl.mu.Unlock()
	holds.freeze(true)
	other.freeze(true)
	result := make(chan error, 1)
	go func() { result <- cl.Control(testContext(t), header(1), make([]byte, 8)) }()
	eventually(t, "it is under way", func() bool { return up.path.flying.Load() == 1 })
	holds.setAway(true)
	eventually(t, "it is made void", func() bool { return cl.permits[cl.depth].state.Load()&0xff == permitSettle })
	other.cut()
	other.freeze(false)
	if err := <-result; !errors.Is(err, ErrPathLost) {
		t.Fatal(err)
	}
	eventually(t, "the path is given up", up.isDown)
	holds.cut()
	holds.setAway(false)
	allUp(t, cl)
	go func() { result <- cl.Control(testContext(t), header(2), make([]byte, 8)) }()
	r := <-k.arrived
	if n := binary.LittleEndian.Uint64(r.Header); n != 2 {
		t.Errorf("request %d is carried out", n)
	}
	r.answer()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A path whose security association went away while it was the only one is avoided once there
// is another: that does not wait for the next heartbeat.
func TestPathWhoseSAWasAwayBeforeAnotherCameIsAvoided(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	second := cfg.Paths[1]
	cfg.Paths = cfg.Paths[:1]
	cfg.Heartbeat.Interval = time.Hour
	cl := connect(t, cfg)
	allUp(t, cl)
	rs[0].setAway(true)
	p, w := get(t, cl), newWaiter()
	p.Submit(Write, header(1), 512, w)
	if _, err := cl.AddPath(second); err != nil {
		t.Fatal(err)
	}
	if e := w.wait(t); e != 0 {
		t.Fatal(e)
	}
	cl.Put(p)
}

func TestDisconnectedPathIsDownAtOnce(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
	_, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	for range 5 {
		allUp(t, cl)
		cl.Paths()[0].Disconnect()
		if i := cl.Info().Paths[0]; i.State == PathConnected {
			t.Fatalf("%+v", i)
		}
		cl.Paths()[0].Reconnect()
	}
}

// A path's security association has gone while nothing had to be sent by it. Once there is I/O,
// whether it goes by another path or waits there, something is sent by the idle one, which brings
// its association up: it would stay avoided else.
func TestPathThatWasIdleIsProdded(t *testing.T) {
	for _, other := range []struct {
		name string
		away bool
	}{{"other path works", false}, {"other path is away", true}} {
		t.Run(other.name, func(t *testing.T) {
			m := newMemory(4096)
			srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
			rs, cfg := roads(t, srv, 2)
			cfg.Policy = Preferred
			cfg.Heartbeat.Interval = time.Hour
			cl := connect(t, cfg)
			allUp(t, cl)
			rs[1].setAway(true)
			eventually(t, "the idle path is avoided", func() bool { return cl.Info().Paths[1].Avoided })
			cl.mu.Lock()
			idle := cl.paths[1].current
			cl.mu.Unlock()
			if idle.prodded.Load() {
				t.Error("an idle session has security associations brought up")
			}
			rs[0].setAway(other.away)
			p, w := get(t, cl), newWaiter()
			p.Submit(Write, header(1), 512, w)
			eventually(t, "something is sent by the idle path", idle.prodded.Load)
			rs[1].setAway(false)
			if e := w.wait(t); e != 0 {
				t.Fatal(e)
			}
			cl.Put(p)
			eventually(t, "the path is used again", func() bool { return !cl.Info().Paths[1].Avoided })
		})
	}
}
