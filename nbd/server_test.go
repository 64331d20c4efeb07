package nbd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		serveDisk()
		return
	}
	goleak.VerifyTestMain(m)
}

// server is a running Server.
type server struct {
	*nbd.Server
	t    testing.TB
	path string
	by   func() (net.Conn, error) // a connection is made
	stop context.CancelFunc
	done chan error

	mu    sync.Mutex
	conns []net.Conn // the server's ends
}

// listener keeps what it has accepted.
type listener struct {
	net.Listener
	s *server
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		l.s.conns = append(l.s.conns, c)
	}
	return c, err
}

// serve starts a server with one export, "disk".
func serve(t testing.TB, b block.Device, cfg nbd.Config) *server {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := nbd.ListenUnix(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, b, cfg, ln, toSocket(path))
	s.path = path
	return s
}

// serveInMemory is serve for connections that are no sockets.
func serveInMemory(t testing.TB, b block.Device, cfg nbd.Config) *server {
	t.Helper()
	h := verbstest.New().Host("local")
	n := h.Transport().Network
	ln, err := n.Listen(h.Addr(10809))
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, b, cfg, ln, func() (net.Conn, error) { return n.Dial(t.Context(), h.Addr(0).Addr(), h.Addr(10809)) })
}

// serveOn starts a server on a listener that is dialled by a function.
func serveOn(t testing.TB, b block.Device, cfg nbd.Config, ln net.Listener, by func() (net.Conn, error)) *server {
	t.Helper()
	s := &server{Server: nbd.NewServer(cfg), t: t, by: by, done: make(chan error, 1)}
	if err := s.Export("disk", b, "a disk for tests"); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go func() { s.done <- s.Serve(ctx, listener{ln, s}) }()
	t.Cleanup(func() { s.close() })
	return s
}

// close ends Serve and returns its error.
func (s *server) close() error {
	s.stop()
	err := <-s.done
	s.done <- err
	return err
}

func toSocket(path string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial("unix", path) }
}

func (s *server) dial() net.Conn {
	s.t.Helper()
	c, err := s.by()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) connect(structured bool) *nbdtest.Client {
	s.t.Helper()
	c, err := nbdtest.Connect(s.dial(), "disk", structured)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// eachKind runs f with simple and with structured replies.
func eachKind(t *testing.T, f func(t *testing.T, structured bool)) {
	t.Run("simple", func(t *testing.T) { f(t, false) })
	t.Run("structured", func(t *testing.T) { f(t, true) })
}

// wantEnd fails unless the server closes the connection without a word.
func wantEnd(t testing.TB, c net.Conn) {
	t.Helper()
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil && !isReset(err) {
		t.Errorf("% x, %v where the end was expected", b, err)
	}
}

func TestExportNames(t *testing.T) {
	s := nbd.NewServer(nbd.Config{})
	m := nbdtest.NewMemory(512)
	if err := s.Export("a", m, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Export("a", m, ""); !errors.Is(err, nbd.ErrExportExists) {
		t.Errorf("twice: %v", err)
	}
	for _, bad := range []string{string(make([]byte, 4097)), "a\x00b", "\xff"} {
		if err := s.Export(bad, m, ""); !errors.Is(err, nbd.ErrExportName) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	if _, ok := s.Stats("b"); ok {
		t.Error("figures of an export that is not there")
	}
}

func TestClientThatSaysNothingIsCutOff(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{HandshakeTimeout: 20 * time.Millisecond})
	c := s.dial()
	io.ReadFull(c, make([]byte, 18))
	wantEnd(t, c)
}

func TestClientThatNegotiatesForEverIsCutOff(t *testing.T) {
	for limit := 500 * time.Millisecond; ; limit *= 4 {
		s := serve(t, nbdtest.NewMemory(512), nbd.Config{HandshakeTimeout: limit})
		c, err := nbdtest.Hello(s.dial(), 3)
		if err != nil && limit < time.Minute { // a busy machine has not got to it in that time
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = c.Option(3, nil)
		}
		return
	}
}

func TestOneClientTooMany(t *testing.T) {
	s := serve(t, nbdtest.NewMemory(512), nbd.Config{MaxClients: 1})
	c := s.connect(false)
	wantEnd(t, s.dial())
	if r, err := c.Do(0, cmdRead, 0, 512, nil); err != nil || r.Error != 0 {
		t.Errorf("the first client: %+v, %v", r, err)
	}
}

func TestServeEndsWhenItsListenerFails(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := nbd.NewServer(nbd.Config{}).Serve(context.Background(), ln); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	m := nbdtest.NewMemory(4096)
	s := serve(t, m, nbd.Config{})
	idle, negotiating := s.connect(false), s.dial()
	if _, err := nbdtest.Hello(negotiating, 3); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	wantEnd(t, idle)
	wantEnd(t, negotiating)
}

func TestServeLetsRequestsFinish(t *testing.T) {
	m := nbdtest.NewMemory(4096)
	m.Hold = func(block.Op, uint64) bool { return true }
	s := serve(t, m, nbd.Config{DrainTimeout: time.Hour})
	c := s.connect(false)
	c.Send(0, cmdRead, 1, 0, 512, nil)
	m.WaitHeld(1)
	s.stop()
	m.Let(0)
	if r, err := c.Receive(func(uint64) int { return 512 }); err != nil || r.Error != 0 || len(r.Data) != 512 {
		t.Errorf("%+v, %v", r, err)
	}
	wantEnd(t, c)
	s.close()
	m.WaitLive(0)
}

func TestServeCutsWhatDoesNotFinish(t *testing.T) {
	m := nbdtest.NewMemory(8 << 20)
	m.Hold = func(block.Op, uint64) bool { return true }
	m.Depth = 3
	s := serve(t, m, nbd.Config{DrainTimeout: time.Millisecond})
	reading, waiting, large := s.connect(false), s.connect(false), s.connect(false)
	reading.Send(0, cmdRead, 1, 0, 512, nil)
	reading.Send(0, cmdWrite, 2, 0, 512, make([]byte, 512))
	m.WaitHeld(2)
	large.Send(0, cmdRead, 3, 0, 2<<20, nil)
	m.WaitHeld(3)
	waiting.Send(0, cmdRead, 4, 0, 512, nil) // there is no I/O left for it
	if err := s.close(); err != nil {
		t.Error(err)
	}
	for _, c := range []net.Conn{reading, waiting, large} {
		wantEnd(t, c)
	}
	if n := m.Live(); n != 3 {
		t.Errorf("%d I/Os are out, want 3", n)
	}
	m.LetAll() // the device completes them long after
	m.WaitLive(0)
}

func TestListenUnix(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := nbd.ListenUnix(ctx, path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if _, err := nbd.ListenUnix(ctx, path, 0o600); !errors.Is(err, nbd.ErrSocketInUse) {
		t.Errorf("while another listens: %v", err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	if ln, err = nbd.ListenUnix(ctx, path, 0o660); err != nil {
		t.Fatalf("after a server that died: %v", err)
	}
	ln.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	os.WriteFile(path, []byte("precious"), 0o600)
	if _, err := nbd.ListenUnix(ctx, path, 0o600); !errors.Is(err, os.ErrExist) {
		t.Errorf("where a file is: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file was replaced")
	}
	if _, err := nbd.ListenUnix(ctx, filepath.Join(path, "s"), 0o600); err == nil {
		t.Error("below a file: no error")
	}
}

// A descriptor that a client passes would be closed by the server's read, which lasts as long as
// the client likes: it cannot be passed.
func TestClientsPassNoDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := nbd.ListenUnix(t.Context(), path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var known error
	if err := raw.Control(func(fd uintptr) { _, known = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS) }); err != nil {
		t.Fatal(err)
	}
	if known == unix.ENOPROTOOPT {
		t.Skip("this kernel lets everybody pass descriptors: SO_PASSRIGHTS is of Linux 6.16")
	}
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("a descriptor was passed: %v", err)
	}
}
