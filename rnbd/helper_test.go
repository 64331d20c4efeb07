package rnbd

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = iwarptest.Patience

func testContext(t testing.TB) context.Context { return iwarptest.Context(t) }

func testLogger() *slog.Logger { return iwarptest.Logger("RNBD_TEST_LOG") }

func loopback() *transport.Config { return &transport.Config{Protector: transport.LoopbackOnly()} }

func newULP(t testing.TB) (*verbs.Device, *verbs.ULP) {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	ulp, err := dev.NewULP("rnbd", verbs.ULPConfig{Trust: verbs.ST})
	if err != nil {
		t.Fatal(err)
	}
	return dev, ulp
}

// testServer is a Server behind an rtrs.Server behind a listener.
type testServer struct {
	*Server
	rt   *rtrs.Server
	dev  *verbs.Device
	ln   *verbs.Listener
	addr netip.AddrPort
	wg   sync.WaitGroup
	once sync.Once
}

func startServer(t testing.TB, exports ...Export) *testServer {
	t.Helper()
	return startServerWith(t, rtrs.ServerConfig{}, exports...)
}

func startServerWith(t testing.TB, rc rtrs.ServerConfig, exports ...Export) *testServer {
	t.Helper()
	return startServerAt(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iwarptest.FreePort(t)), rc, exports...)
}

func startServerAt(t testing.TB, addr netip.AddrPort, rc rtrs.ServerConfig, exports ...Export) *testServer {
	t.Helper()
	return startServerOn(t, loopback(), addr, rc, exports...)
}

func startServerOn(t testing.TB, tc *transport.Config, addr netip.AddrPort, rc rtrs.ServerConfig, exports ...Export) *testServer {
	t.Helper()
	dev, ulp := newULP(t)
	s := &testServer{Server: NewServer(ServerConfig{Logger: testLogger()}), dev: dev}
	for _, e := range exports {
		if err := s.AddExport(e); err != nil {
			t.Fatal(err)
		}
	}
	rc.ULP, rc.Logger = ulp, testLogger()
	if rc.NewSession == nil {
		rc.NewSession = s.NewSession
	}
	var err error
	if rc.Linger == 0 {
		rc.Linger = 10 * time.Millisecond
	}
	if s.rt, err = rtrs.NewServer(rc); err != nil {
		t.Fatal(err)
	}
	s.ln, err = dev.Listen(context.Background(), addr, verbs.ListenConfig{Transport: tc, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}})
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
			s.rt.Handle(cr)
		}
	})
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *testServer) stop(t testing.TB) {
	s.once.Do(func() {
		s.ln.Close()
		s.wg.Wait()
		if err := s.rt.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Server.Close(); err != nil {
			t.Error(err)
		}
		s.dev.Close()
	})
}

func connect(t testing.TB, addr netip.AddrPort) *Client {
	t.Helper()
	return connectOver(t, loopback(), addr)
}

func connectOver(t testing.TB, tc *transport.Config, addr netip.AddrPort) *Client {
	t.Helper()
	return connectAs(t, t.Name(), tc, addr)
}

// connectAs is connectOver with another name of the session.
func connectAs(t testing.TB, name string, tc *transport.Config, addr netip.AddrPort) *Client {
	t.Helper()
	_, ulp := newULP(t)
	c, err := Connect(testContext(t), ClientConfig{Logger: testLogger(), RTRS: rtrs.ClientConfig{ULP: ulp, Name: name,
		Paths: []rtrs.PathConfig{{Remote: addr, Transport: tc}}, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func openDisk(t testing.TB, c *Client, name string) *Disk {
	t.Helper()
	d, err := c.Open(testContext(t), name, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fileExport is an export of a new file of n bytes.
func fileExport(t testing.TB, name string, n int64) Export {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	st, err := backing.Open(path, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return Export{Name: name, Storage: st, AllowAll: true}
}

// ram is Storage in memory, whose operations tests can hold up and fail.
type ram struct {
	mu       sync.Mutex
	data     []byte
	size     int64
	readOnly bool
	flushed  []byte // what a crash would leave
	identity block.Identity
	kept     []block.ID
	fault    string
	// before, when set, is called on the operation's own goroutine before it
	// is carried out; other than 0 is its result.
	before func(op block.Op, off, n int64) syscall.Errno
	// onOpen, when set, is called when a client opens the disk.
	onOpen atomic.Pointer[func()]
}

func newRAM(n int64) *ram {
	return &ram{data: make([]byte, n), size: n, flushed: make([]byte, n), identity: block.Identity{Disk: block.NewID(), Life: block.NewID()}}
}

// Geometry is what a server asks when it has entered a device that is being opened.
func (r *ram) Geometry() block.Geometry {
	if f := r.onOpen.Load(); f != nil {
		(*f)()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return block.Geometry{Size: uint64(r.size), PreferredBlock: 4096, ReadOnly: r.readOnly, Rotational: true, CanTrim: true}
}

// grow makes the disk n bytes long.
func (r *ram) grow(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data, r.flushed, r.size = append(r.data, make([]byte, n-r.size)...), append(r.flushed, make([]byte, n-r.size)...), n
}

func (r *ram) Fault() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

func (r *ram) Identity() block.Identity {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.identity
}
func (r *ram) Keeps(life block.ID) bool { return slices.Contains(r.kept, life) }
func (r *ram) NewQueue(afterBatch func()) block.Queue {
	return &ramQueue{ram: r, afterBatch: afterBatch}
}

type ramQueue struct {
	*ram
	afterBatch func()
	wg         sync.WaitGroup
}

func (q *ramQueue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	if q.before == nil {
		done.Complete(q.run(op, buf, off, n, fl))
		return true
	}
	q.wg.Go(func() {
		errno := q.before(op, off, n)
		if errno == 0 {
			errno = q.run(op, buf, off, n, fl)
		}
		done.Complete(errno)
		q.afterBatch()
	})
	return false
}

func (q *ramQueue) Close() error { q.wg.Wait(); return nil }

func (r *ram) run(op block.Op, buf []byte, off, n int64, fl block.Flags) syscall.Errno {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch op {
	case block.OpRead:
		copy(buf, r.data[off:])
	case block.OpWrite:
		copy(r.data[off:], buf)
		n = int64(len(buf))
	case block.OpFlush:
		copy(r.flushed, r.data)
	case block.OpTrim, block.OpWriteZeroes:
		clear(r.data[off : off+n])
	case block.OpCache, block.OpStatus:
		return syscall.EOPNOTSUPP // as an older server
	}
	if fl&block.FUA != 0 {
		copy(r.flushed[off:off+n], r.data[off:])
	}
	return 0
}

// holdFirstWrite has the first write stay at the storage: entered is closed when it is there,
// and it goes on when release is. writes counts all that were begun.
func (r *ram) holdFirstWrite() (entered, release chan struct{}, writes *atomic.Int32) {
	entered, release, writes = make(chan struct{}), make(chan struct{}), new(atomic.Int32)
	r.before = func(op block.Op, _, _ int64) syscall.Errno {
		if op == block.OpWrite && writes.Add(1) == 1 {
			close(entered)
			<-release
		}
		return 0
	}
	return entered, release, writes
}

func ramExport(name string, r *ram) Export { return Export{Name: name, Storage: r, AllowAll: true} }

// sharedExport is a ramExport that may have several writers.
func sharedExport(name string, r *ram) Export {
	e := ramExport(name, r)
	e.Writers = SharedWriters
	return e
}

// waiter is a block.Completion to wait for.
type waiter struct{ ch chan syscall.Errno }

func newWaiter() *waiter { return &waiter{make(chan syscall.Errno, 1)} }

func (w *waiter) Complete(errno syscall.Errno) { w.ch <- errno }

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

// do carries out one I/O; p is the data of a read or write.
func do(t testing.TB, d block.Device, op block.Op, p []byte, off uint64, n uint32, fl block.Flags) syscall.Errno {
	t.Helper()
	if p != nil {
		n = uint32(len(p))
	}
	io, err := d.Get(testContext(t), op, off, n, fl)
	if err != nil {
		return errnoOf(t, err)
	}
	defer io.Release()
	if op == block.OpWrite {
		rest := p
		for _, b := range io.Buffers() {
			rest = rest[copy(b, rest):]
		}
	}
	w := newWaiter()
	io.Submit(w, false)
	errno := w.wait(t)
	if op == block.OpRead {
		rest := p
		for _, b := range io.Buffers() {
			rest = rest[copy(rest, b):]
		}
	}
	return errno
}

func write(t testing.TB, d block.Device, p []byte, off uint64) {
	t.Helper()
	if e := do(t, d, block.OpWrite, p, off, 0, 0); e != 0 {
		t.Fatalf("write %d bytes at %d: %v", len(p), off, e)
	}
}

func read(t testing.TB, d block.Device, n int, off uint64) []byte {
	t.Helper()
	p := make([]byte, n)
	if e := do(t, d, block.OpRead, p, off, 0, 0); e != 0 {
		t.Fatalf("read %d bytes at %d: %v", n, off, e)
	}
	return p
}

// statusOf asks for the status of n bytes.
func statusOf(t testing.TB, d block.Device, off uint64, n uint32) []block.Extent {
	t.Helper()
	io, err := d.Get(testContext(t), block.OpStatus, off, n, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer io.Release()
	w := newWaiter()
	io.Submit(w, false)
	if errno := w.wait(t); errno != 0 {
		t.Fatalf("status of %d bytes at %d: %v", n, off, errno)
	}
	return block.ParseExtents(io.Buffers()[0], n, SectorSize)
}

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

func errnoOf(t testing.TB, err error) syscall.Errno {
	t.Helper()
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		t.Fatalf("an error without an errno: %v", err)
	}
	return errno
}
