package rtrs

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
)

// TestSteadyStateDoesNotAllocate covers both sides, which are in one process.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, tc := range map[string]*transport.Config{"TCP": loopback(), "SCTP in UDP": iwarptest.SCTPInUDP(t)} {
		addr := netip.AddrPortFrom(sctpLocal.Addr(), 0)
		if tc.Kind != transport.TCP {
			addr = sctpLocal
		}
		srv := startServerOn(t, tc, addr, ServerConfig{NewSession: func(SessionInfo) (ServerHandler, error) { return nullHandler{}, nil }})
		cfg := clientConfig(newHost(t), srv.addr, "a")
		cfg.Paths[0].Transport = tc
		cl := connect(t, cfg)
		for _, dir := range []Dir{Read, Write} {
			for _, depth := range []int{1, 32} {
				p := &pump{cl: cl, dir: dir, size: 4096, hdr: header(0), depth: depth, tick: make(chan *Permit, depth)}
				p.run(t, 5000)
				const ios = 2000
				if n := iwarptest.LeastAllocs(func() { p.run(t, ios) }); n > ios/100 {
					t.Errorf("%v at depth %d over %s: %v allocations in %d I/Os", dir, depth, name, n, ios)
				}
			}
		}
	}
}

func TestBatchEndFollowsCompletions(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	ends := make(chan struct{}, 16)
	cancel := cl.OnBatchEnd(func() {
		select {
		case ends <- struct{}{}:
		default:
		}
	})
	if e := write(t, cl, 0, []byte("x")); e != 0 {
		t.Fatal(e)
	}
	<-ends
	cancel()
	for len(ends) > 0 {
		<-ends
	}
	if e := write(t, cl, 0, []byte("x")); e != 0 {
		t.Fatal(e)
	}
	cl.Close()
	if len(ends) != 0 {
		t.Error("called after cancel")
	}
}

func TestSubmitChecksItsArguments(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	p := get(t, cl)
	for name, submit := range map[string]func(*waiter){
		"too much data":   func(w *waiter) { p.Submit(Write, nil, cl.MaxIO()+1, w) },
		"negative":        func(w *waiter) { p.Submit(Read, nil, -1, w) },
		"too long header": func(w *waiter) { p.Submit(Read, make([]byte, MaxHeader+1), 1, w) },
	} {
		w := newWaiter()
		submit(w)
		if e := w.wait(t); e != syscall.EINVAL {
			t.Errorf("%s: %v, want EINVAL", name, e)
		}
	}
	w := newWaiter()
	p.Submit(Write, make([]byte, MaxHeader), cl.MaxIO(), w)
	if e := w.wait(t); e == syscall.EINVAL {
		t.Error("the largest I/O with the longest header was refused")
	}
	cl.Put(p)
	if err := cl.GetN(testContext(t), make([]*Permit, cl.QueueDepth()+1)); err == nil {
		t.Error("more permits than there are")
	}
}

func TestErrnosReachTheClient(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	for _, want := range []syscall.Errno{syscall.EPERM, syscall.EIO, syscall.ENOSPC, syscall.EOPNOTSUPP, syscall.ESHUTDOWN} {
		m.errno = want
		if e := write(t, cl, 0, []byte("x")); e != want {
			t.Errorf("write: %v, want %v", e, want)
		}
		if e := read(t, cl, 0, make([]byte, 1)); e != want {
			t.Errorf("read: %v, want %v", e, want)
		}
	}
	if s := srv.Stats(); s.ReadErrors != 5 || s.WriteErrors != 5 {
		t.Errorf("server's stats %+v", s)
	}
}

func TestControlDoesNotNeedAPermit(t *testing.T) {
	m := newMemory(4096)
	copy(m.data, "answer")
	srv := startServer(t, ServerConfig{NewSession: m.session})
	px := startProxy(t, srv.addr)
	cl := connect(t, clientConfig(newHost(t), px.addr(), "a"))
	all := make([]*Permit, cl.QueueDepth())
	if err := cl.GetN(testContext(t), all); err != nil {
		t.Fatal(err)
	}
	defer cl.Put(all...)
	answer := make([]byte, 6)
	if err := cl.Control(testContext(t), header(0), answer); err != nil || string(answer) != "answer" {
		t.Fatalf("%q, %v", answer, err)
	}
	m.errno = syscall.ENOENT
	if err := cl.Control(testContext(t), header(0), answer); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v, want ENOENT", err)
	}
	m.errno = 0

	// One that its caller gave up does not disturb the next.
	entered, release := make(chan struct{}, 8), make(chan struct{})
	m.gate = func(*Request) { entered <- struct{}{}; <-release }
	ctx, cancel := context.WithCancel(testContext(t))
	go func() { <-entered; cancel() }()
	if err := cl.Control(ctx, header(0), answer); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	release <- struct{}{}
	go func() { <-entered; release <- struct{}{} }()
	if err := cl.Control(testContext(t), header(0), answer); err != nil {
		t.Error(err)
	}

	// One whose path is lost says so.
	go func() { <-entered; px.cut(); close(release) }()
	if err := cl.Control(testContext(t), header(0), answer); !errors.Is(err, ErrPathLost) {
		t.Errorf("%v, want ErrPathLost", err)
	}
	if err := cl.Control(testContext(t), header(0), answer); err != nil {
		t.Error(err)
	}
}
