package rtrs

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = iwarptest.Patience

func testContext(t testing.TB) context.Context { return iwarptest.Context(t) }

func testLogger(t testing.TB) *slog.Logger { return iwarptest.Logger("RTRS_TEST_LOG") }

func loopback() *transport.Config { return &transport.Config{Protector: transport.LoopbackOnly()} }

// host is a device with a ULP.
type host struct {
	dev *verbs.Device
	ulp *verbs.ULP
}

func newHost(t testing.TB) *host {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	ulp, err := dev.NewULP("rtrs", verbs.ULPConfig{Trust: verbs.ST})
	if err != nil {
		t.Fatal(err)
	}
	return &host{dev, ulp}
}

// unused fails the test if anything that the host's ULP allocated is left.
func (h *host) unused(t testing.TB) {
	t.Helper()
	if u := h.ulp.Usage(); u != (verbs.Limits{}) {
		t.Errorf("left over: %+v", u)
	}
}

// testServer is a Server behind a listener.
type testServer struct {
	*Server
	*host
	ln   *verbs.Listener
	addr netip.AddrPort
	wg   sync.WaitGroup
	once sync.Once
}

func startServer(t testing.TB, cfg ServerConfig) *testServer {
	t.Helper()
	return startServerAt(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iwarptest.FreePort(t)), cfg)
}

func startServerAt(t testing.TB, addr netip.AddrPort, cfg ServerConfig) *testServer {
	t.Helper()
	return startServerOn(t, loopback(), addr, cfg)
}

// sctpLocal is where servers over SCTP in UDP are.
var sctpLocal = netip.MustParseAddrPort("127.0.0.1:7471")

func startServerOn(t testing.TB, tc *transport.Config, addr netip.AddrPort, cfg ServerConfig) *testServer {
	t.Helper()
	s := &testServer{host: newHost(t)}
	cfg.ULP, cfg.Logger = s.ulp, testLogger(t)
	if cfg.Linger == 0 {
		cfg.Linger = 10 * time.Millisecond
	}
	var err error
	if s.Server, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	s.ln, err = s.dev.Listen(context.Background(), addr, verbs.ListenConfig{Transport: tc, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}})
	if err != nil {
		t.Fatal(err)
	}
	s.addr = s.ln.Addr()
	s.wg.Go(func() {
		for {
			cr, err := s.ln.Accept(context.Background())
			if err != nil {
				return
			}
			s.Handle(cr)
		}
	})
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *testServer) stop(t testing.TB) {
	s.once.Do(func() {
		s.ln.Close()
		s.wg.Wait()
		if err := s.Server.Close(); err != nil {
			t.Error(err)
		}
		s.host.unused(t)
		s.dev.Close()
	})
}

func clientConfig(h *host, addr netip.AddrPort, name string) ClientConfig {
	return ClientConfig{ULP: h.ulp, Name: name, Paths: []PathConfig{{Remote: addr, Transport: loopback()}},
		Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}}
}

// connect opens a session that is closed at the end of the test.
func connect(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = testLogger(t)
	}
	cl, err := Connect(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// memory is a handler that keeps an array of bytes. The header of a request is
// its offset.
type memory struct {
	mu     sync.Mutex
	data   []byte
	reads  int
	writes int
	closed chan error
	// gate, when set, is asked before a request is carried out, on its own
	// goroutine.
	gate func(r *Request)
	wg   sync.WaitGroup
	// errno, when not 0, is every request's result.
	errno syscall.Errno
}

func newMemory(n int) *memory { return &memory{data: make([]byte, n), closed: make(chan error, 64)} }

func (m *memory) session(SessionInfo) (ServerHandler, error) { return m, nil }

func header(off int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(off)) }

func (m *memory) Serve(r *Request) {
	if m.gate == nil {
		r.CompleteMore(m.do(r))
		return
	}
	m.wg.Go(func() {
		m.gate(r)
		r.Complete(m.do(r))
	})
}

func (m *memory) do(r *Request) syscall.Errno {
	if m.errno != 0 {
		return m.errno
	}
	if len(r.Header) < 8 {
		return 0
	}
	off := int(binary.LittleEndian.Uint64(r.Header))
	m.mu.Lock()
	defer m.mu.Unlock()
	if off+len(r.Data) > len(m.data) {
		return syscall.ENOSPC
	}
	if r.Dir == Read {
		m.reads++
		copy(r.Data, m.data[off:])
	} else {
		m.writes++
		copy(m.data[off:], r.Data)
	}
	return 0
}

func (m *memory) BatchEnd()                     {}
func (m *memory) Closed(_ time.Time, err error) { m.closed <- err }

// waiter is a Completion to wait for.
type waiter struct{ ch chan syscall.Errno }

func newWaiter() *waiter { return &waiter{make(chan syscall.Errno, 1)} }

func (w *waiter) Complete(_ *Permit, errno syscall.Errno) { w.ch <- errno }

func (w *waiter) wait(t testing.TB) syscall.Errno {
	t.Helper()
	select {
	case e := <-w.ch:
		return e
	case <-time.After(testTimeout):
		t.Fatal("an I/O did not complete")
		return 0
	}
}

func get(t testing.TB, cl *Client) *Permit {
	t.Helper()
	p, err := cl.Get(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t testing.TB, cl *Client, off int, data []byte) syscall.Errno {
	t.Helper()
	p := get(t, cl)
	defer cl.Put(p)
	copy(p.Buffer(), data)
	w := newWaiter()
	p.Submit(Write, header(off), len(data), w)
	return w.wait(t)
}

func read(t testing.TB, cl *Client, off int, data []byte) syscall.Errno {
	t.Helper()
	p := get(t, cl)
	defer cl.Put(p)
	w := newWaiter()
	p.Submit(Read, header(off), len(data), w)
	errno := w.wait(t)
	copy(data, p.Buffer())
	return errno
}

// eventually waits for cond, polling without a fixed pace.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testTimeout)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out: %s", what)
		}
	}
}
