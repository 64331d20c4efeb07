package rtrs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// TestNothingIsLostWhenThePathIsCut cuts the path again and again under
// verified I/O. Each worker owns a region and compares each read with the last
// write that was acknowledged.
func TestNothingIsLostWhenThePathIsCut(t *testing.T) {
	const workers, region, cuts = 8, 64 << 10, 12
	m := newMemory(workers * region)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	px := startProxy(t, srv.addr)
	cl := connect(t, clientConfig(newHost(t), px.addr(), "a"))
	var stop atomic.Bool
	var ops atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			model := make([]byte, region)
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for !stop.Load() {
				off := rnd.IntN(region)
				n := rnd.IntN(region - off + 1)
				if rnd.IntN(2) == 0 {
					for i := range n {
						model[off+i] = byte(rnd.Uint32())
					}
					if e := write(t, cl, w*region+off, model[off:off+n]); e != 0 {
						t.Errorf("write: %v", e)
						return
					}
				} else {
					got := make([]byte, n)
					if e := read(t, cl, w*region+off, got); e != 0 {
						t.Errorf("read: %v", e)
						return
					}
					if !bytes.Equal(got, model[off:off+n]) {
						t.Errorf("worker %d: %d bytes at %d differ", w, n, off)
						return
					}
				}
				ops.Add(1)
			}
		})
	}
	for i := range cuts {
		before := ops.Load()
		eventually(t, "I/O flows", func() bool { return ops.Load() > before+20 || t.Failed() })
		away := i%4 == 1
		if away {
			px.setDown(true) // first: the client may be back at once
		}
		if i%3 == 2 {
			if up := *cl.up.Load(); len(up) > 0 {
				up[0].conns[i%2].qp.Abort(errors.New("cut by the test"))
			}
		} else {
			px.cut()
		}
		if away {
			eventually(t, "the client notices", func() bool { return cl.Info().State == Reconnecting })
			px.setDown(false)
		}
	}
	before := ops.Load()
	eventually(t, "I/O flows", func() bool { return ops.Load() > before+20 || t.Failed() })
	stop.Store(true)
	wg.Wait()
	// I/O may have flowed by one connection without the end of the other being noticed yet.
	eventually(t, "the path is up", func() bool { i := cl.Info(); return i.State == Connected && len(i.Conns) == 2 })
	if i := cl.Info(); i.Reconnects == 0 {
		t.Errorf("after %d cuts: %+v", cuts, i)
	}
}

// TestNoLateWriteAfterReconnect: a write is held up at the backend while its
// path is cut. The client sends it again on the new path, and when that is
// acknowledged a second write to the same place follows. The first execution of
// the first write must not land after the second write.
func TestNoLateWriteAfterReconnect(t *testing.T) {
	m := newMemory(4096)
	var held atomic.Int32
	entered, release := make(chan struct{}, 1), make(chan struct{})
	m.gate = func(r *Request) {
		if r.Dir == Write && held.Add(1) == 1 {
			entered <- struct{}{}
			<-release
		}
	}
	srv := startServer(t, ServerConfig{NewSession: m.session, predecessorWait: 20 * time.Millisecond})
	px := startProxy(t, srv.addr)
	cl := connect(t, clientConfig(newHost(t), px.addr(), "a"))
	p := get(t, cl)
	old := bytes.Repeat([]byte{1}, 4096)
	copy(p.Buffer(), old)
	w := newWaiter()
	p.Submit(Write, header(0), 4096, w)
	<-entered
	px.cut()

	// As long as the first execution runs, no new incarnation is accepted.
	eventually(t, "the server fences the session", func() bool {
		i := cl.Info()
		var refused *RefusedError
		return i.State == Reconnecting && errors.As(i.LastError, &refused) && refused.Errno == syscall.EBUSY
	})
	if s := srv.Sessions(); len(s) != 1 || s[0].State != SessionFencing || s[0].Executing != 1 {
		t.Errorf("sessions while fencing: %+v", s)
	}
	select {
	case e := <-w.ch:
		t.Fatalf("the write completed (%v) before its first execution ended", e)
	default:
	}
	close(release)
	if e := w.wait(t); e != 0 {
		t.Fatal(e)
	}
	cl.Put(p)
	if e := write(t, cl, 0, bytes.Repeat([]byte{2}, 4096)); e != 0 {
		t.Fatal(e)
	}
	got := make([]byte, 4096)
	if e := read(t, cl, 0, got); e != 0 || !bytes.Equal(got, bytes.Repeat([]byte{2}, 4096)) {
		t.Fatalf("%v; the second write was overwritten by a late execution of the first", e)
	}
	if held.Load() != 3 {
		t.Errorf("%d executions of writes, want 3: the first, its repetition, the second", held.Load())
	}
	if err := <-m.closed; err == nil {
		t.Error("the handler was not told why its session ended")
	}
}

// refused is why a client is not let in, however slow the machine is.
func refused(t *testing.T, cfg ClientConfig) *RefusedError {
	t.Helper()
	for limit := time.Second; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		cl, err := Connect(ctx, cfg)
		cancel()
		var why *RefusedError
		switch {
		case err == nil:
			cl.Close()
			t.Fatal("it was let in")
		case errors.As(err, &why):
			return why
		case limit > testTimeout:
			t.Fatal(err)
		}
	}
}

// TestRestartedClientIsFenced: the same for a client that is restarted, which
// is a new session of the same name.
func TestRestartedClientIsFenced(t *testing.T) {
	m := newMemory(4096)
	var once sync.Once
	entered, release := make(chan struct{}), make(chan struct{})
	m.gate = func(r *Request) {
		once.Do(func() { close(entered); <-release })
	}
	srv := startServer(t, ServerConfig{NewSession: m.session, predecessorWait: 20 * time.Millisecond})
	px := startProxy(t, srv.addr)
	first := connect(t, clientConfig(newHost(t), px.addr(), "host"))
	p := get(t, first)
	w := newWaiter()
	p.Submit(Write, header(0), 512, w)
	<-entered
	px.setDown(true) // the first client is dead: its connections are gone and it never comes back
	px.cut()

	if err := refused(t, clientConfig(newHost(t), srv.addr, "host")); err.Errno != syscall.EBUSY {
		t.Errorf("the restarted client got %v, want EBUSY", err)
	}
	connect(t, clientConfig(newHost(t), srv.addr, "other"))
	close(release)
	connect(t, clientConfig(newHost(t), srv.addr, "host"))
	first.Close()
	if e := w.wait(t); e != syscall.ESHUTDOWN {
		t.Errorf("I/O of the closed client: %v, want ESHUTDOWN", e)
	}
	first.Put(p)
}

func TestNameIsUniqueAmongAPeersSessions(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session, challengeWait: testTimeout}) // the first answers, however slow the machine is
	connect(t, clientConfig(newHost(t), srv.addr, "a"))
	if err := refused(t, clientConfig(newHost(t), srv.addr, "a")); err.Errno != syscall.EEXIST {
		t.Errorf("got %v, want EEXIST", err)
	}
	connect(t, clientConfig(newHost(t), srv.addr, "b"))
}

func TestSessionSurvivesServerRestart(t *testing.T) {
	m := newMemory(1 << 20)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	cfg := clientConfig(newHost(t), srv.addr, "a")
	var resent atomic.Int32
	var connects atomic.Int32
	cfg.OnConnect = func(ctx context.Context, cl *Client) error {
		connects.Add(1)
		return cl.Control(ctx, nil, make([]byte, 16))
	}
	cfg.OnResend = func(p *Permit) syscall.Errno {
		resent.Add(1)
		if binary.LittleEndian.Uint64(p.Header()) == 8192 {
			return syscall.ENXIO
		}
		return 0
	}
	cl := connect(t, cfg)
	if e := write(t, cl, 0, []byte("before")); e != 0 {
		t.Fatal(e)
	}
	srv.stop(t)
	eventually(t, "the client notices", func() bool { return cl.Info().State == Reconnecting })
	waiting, refused := get(t, cl), get(t, cl)
	w1, w2 := newWaiter(), newWaiter()
	waiting.Submit(Read, header(0), 6, w1)
	refused.Submit(Read, header(8192), 6, w2)
	startServerAt(t, srv.addr, ServerConfig{NewSession: m.session, QueueDepth: 200})
	if e := w1.wait(t); e != 0 || string(waiting.Buffer()[:6]) != "before" {
		t.Errorf("%v, %q", e, waiting.Buffer()[:6])
	}
	if e := w2.wait(t); e != syscall.ENXIO {
		t.Errorf("OnResend's refusal came out as %v", e)
	}
	cl.Put(waiting, refused)
	if connects.Load() != 2 || resent.Load() != 2 {
		t.Errorf("OnConnect was called %d times, OnResend %d", connects.Load(), resent.Load())
	}
}

// I/O that waited for its chunk while the session was introduced to a server that had forgotten
// it is not sent without OnResend when the chunk's old request is answered.
func TestIOThatWaitedForItsChunkIsResentAsOtherIO(t *testing.T) {
	srv := startServer(t, ServerConfig{NewSession: newMemory(1).session})
	cfg := clientConfig(newHost(t), srv.addr, "a")
	cfg.OnResend = func(*Permit) syscall.Errno { return syscall.EPERM }
	cl := connect(t, cfg)
	p := get(t, cl)
	defer cl.Put(p)
	busy := &(*cl.up.Load())[0].path.chunks[p.id].busy
	busy.Store(true)
	w := newWaiter()
	p.Submit(Write, header(0), 1, w)
	busy.Store(false)
	cl.greetings.Add(1)
	cl.unpark(p)
	if errno := w.wait(t); errno != syscall.EPERM {
		t.Errorf("it was sent, and ended with %v", errno)
	}
}

func TestShrunkServerIsExplained(t *testing.T) {
	m := newMemory(1 << 20)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	srv.stop(t)
	small := startServerAt(t, srv.addr, ServerConfig{NewSession: m.session, QueueDepth: 16})
	eventually(t, "the client says that the server shrank", func() bool {
		var s *shrunkError
		return errors.As(cl.Info().LastError, &s)
	})
	small.stop(t)
	startServerAt(t, srv.addr, ServerConfig{NewSession: m.session})
	if e := write(t, cl, 0, []byte("again")); e != 0 {
		t.Error(e)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	m := newMemory(1 << 20)
	release := make(chan struct{})
	m.gate = func(*Request) { <-release }
	srv := startServer(t, ServerConfig{NewSession: m.session})
	h := newHost(t)
	cl := connect(t, clientConfig(h, srv.addr, "a"))
	var ws []*waiter
	var ps []*Permit
	for range cl.QueueDepth() {
		p, w := get(t, cl), newWaiter()
		p.Submit(Write, header(0), 4096, w)
		ws, ps = append(ws, w), append(ps, p)
	}
	getErr := make(chan error, 1)
	go func() { _, err := cl.Get(context.Background()); getErr <- err }()
	eventually(t, "a Get waits", func() bool { return cl.pool.waiting() == 1 })
	cl.Close()
	if err := <-getErr; !errors.Is(err, ErrClosed) {
		t.Errorf("a waiting Get: %v", err)
	}
	for _, w := range ws {
		if e := w.wait(t); e != syscall.ESHUTDOWN {
			t.Errorf("I/O in flight: %v, want ESHUTDOWN", e)
		}
	}
	for _, p := range ps[1:] {
		cl.Put(p)
	}
	if h.ulp.Usage().MRs == 0 {
		t.Error("memory was freed while a permit is still out")
	}
	ps[0].Buffer()[0] = 1
	w := newWaiter()
	ps[0].Submit(Write, nil, 1, w)
	if e := w.wait(t); e != syscall.ESHUTDOWN {
		t.Errorf("Submit after Close: %v", e)
	}
	cl.Put(ps[0])
	h.unused(t)
	cl.Close()
	close(release)
	srv.stop(t)
	m.wg.Wait()
}

func TestConnectErrorsSayWhy(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{MaxSessionsPerPeer: 1, NewSession: func(i SessionInfo) (ServerHandler, error) {
		if i.Name == "unwanted" {
			return nil, errors.New("not you")
		}
		return m, nil
	}})
	connectErr := func(cfg ClientConfig) error {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		cl, err := Connect(ctx, cfg)
		if err == nil {
			cl.Close()
		}
		return err
	}
	if err := connectErr(clientConfig(newHost(t), srv.addr, "unwanted")); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a session that NewSession refuses: %v", err)
	}
	eventually(t, "the refused session is gone", func() bool {
		paths, _ := srv.Rooms()
		return len(paths) == 0
	})
	connect(t, clientConfig(newHost(t), srv.addr, "first"))
	if err := connectErr(clientConfig(newHost(t), srv.addr, "second")); !errors.Is(err, syscall.EUSERS) {
		t.Errorf("one session too many: %v", err)
	}
	if err := connectErr(clientConfig(newHost(t), srv.addr, "")); err == nil {
		t.Error("an empty name was accepted")
	}
}

// A few peers that open as many sessions as they may keep no other out: half of the
// sessions is for peers that have none.
func TestSessionsAreKeptForPeersThatHaveNone(t *testing.T) {
	m := newMemory(4096)
	var peers []netip.Addr // a peer each
	for i := byte(2); i <= 5; i++ {
		peers = append(peers, netip.AddrFrom4([4]byte{127, 0, 0, i}))
	}
	byAddress := &transport.Config{Protector: transport.Plaintext(testLogger(t), peers...)}
	srv := startServerOn(t, byAddress, netip.MustParseAddrPort("127.0.0.1:0"),
		ServerConfig{MaxSessions: 4, NewSession: func(SessionInfo) (ServerHandler, error) { return m, nil }})
	from := func(addr, name string) (*Client, error) {
		cfg := clientConfig(newHost(t), srv.addr, name)
		tc := loopback()
		tc.Local = netip.MustParseAddr(addr)
		cfg.Paths[0].Transport = tc
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		cl, err := Connect(ctx, cfg)
		if err == nil {
			t.Cleanup(func() { cl.Close() })
		}
		return cl, err
	}
	for _, s := range []struct {
		addr, name string
		want       error
	}{
		{"127.0.0.2", "a", nil}, {"127.0.0.2", "b", nil}, {"127.0.0.2", "c", syscall.EUSERS},
		{"127.0.0.3", "d", nil}, {"127.0.0.3", "e", syscall.EUSERS}, {"127.0.0.4", "f", nil}, {"127.0.0.5", "g", syscall.ENOMEM},
	} {
		if _, err := from(s.addr, s.name); !errors.Is(err, s.want) {
			t.Errorf("session %s of %s: %v, want %v", s.name, s.addr, err, s.want)
		}
	}
}
