package target_test

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi/lu"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const targetName = "iqn.2026-01.org.ironwarp:test"

// unit describes a LUN of a test.
type unit struct {
	size                int64
	block               uint32
	removable, readOnly bool
	medium              func(lu.Medium) lu.Medium // nil: the file as it is
}

// served is a server on loopback.
type served struct {
	address string
	files   []string
	device  *lu.Device
	server  *target.Server
	pipes   pipes         // of servePipes
	dev     *verbs.Device // of serveRDMA
	ulp     *verbs.ULP
	stop    func()
}

// serve serves units on files as LUNs from 0 on, over TCP.
func serve(t testing.TB, cfg target.Config, credentials []chap.Credentials, units ...unit) *served {
	t.Helper()
	return serveOn(t, cfg, credentials, func(ctx context.Context, srv *target.Server) (string, func() error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln.Addr().String(), func() error { return srv.Serve(ctx, ln) }
	}, units...)
}

// pipes is a listener of connections without a network, for tests by a clock that waits for everybody (testing/synctest).
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	nc, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return nc, nil
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// servePipes is serve without a network.
func servePipes(t testing.TB, cfg target.Config, units ...unit) *served {
	t.Helper()
	ln := make(pipes)
	s := serveOn(t, cfg, nil, func(ctx context.Context, srv *target.Server) (string, func() error) {
		return "", func() error { return srv.Serve(ctx, ln) }
	}, units...)
	s.pipes = ln
	return s
}

// connect connects to a server, by what it listens to.
func (s *served) connect() (net.Conn, error) {
	if s.pipes == nil {
		return net.Dial("tcp", s.address)
	}
	ours, theirs := net.Pipe()
	s.pipes <- theirs
	return ours, nil
}

// serveRDMA is serve on a port that takes RDMA, and streaming mode.
func serveRDMA(t testing.TB, cfg target.Config, units ...unit) *served {
	t.Helper()
	return serveULP(t, cfg, verbs.ULPConfig{}, units...)
}

// serveULP is serveRDMA with the target's share of the device.
func serveULP(t testing.TB, cfg target.Config, share verbs.ULPConfig, units ...unit) *served {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ulp, err := dev.NewULP("target", share)
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, cfg, nil, func(ctx context.Context, srv *target.Server) (string, func() error) {
		ln, err := dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}, Streaming: true})
		if err != nil {
			t.Fatal(err)
		}
		return ln.Addr().String(), func() error { return srv.ServeRDMA(ctx, ln, ulp) }
	}, units...)
	s.dev, s.ulp = dev, ulp
	stop := s.stop
	s.stop = func() {
		stop()
		if left := ulp.Usage(); left != (verbs.Limits{}) {
			t.Errorf("the sessions have left %+v", left)
		}
		if n := dev.Usage().HalfOpen; n != 0 {
			t.Errorf("%d half-open streams are left", n)
		}
		dev.Close()
	}
	return s
}

// files makes a device of units on files.
func files(t testing.TB, units ...unit) (d *lu.Device, paths []string, closers []func() error) {
	t.Helper()
	dir := t.TempDir()
	d = &lu.Device{}
	for i, u := range units {
		path := filepath.Join(dir, "disk"+string(rune('0'+i)))
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(u.size); err != nil {
			t.Fatal(err)
		}
		f.Close()
		st, err := backing.Open(path, backing.Options{})
		if err != nil {
			t.Fatal(err)
		}
		medium := lu.Medium(st)
		if u.medium != nil {
			medium = u.medium(st)
		}
		x, err := lu.New(lu.Config{Medium: medium, BlockSize: u.block, Removable: u.removable, ReadOnly: u.readOnly, Reservations: path + ".reservations", Sanitize: path + ".sanitize"})
		if err != nil {
			t.Fatal(err)
		}
		closers = append(closers, func() error { x.Close(); return st.Close() })
		if err := d.Add(uint16(i), x); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return d, paths, closers
}

// device is files for a server that has ended when the test ends.
func device(t testing.TB, units ...unit) *lu.Device {
	t.Helper()
	d, _, closers := files(t, units...)
	t.Cleanup(func() {
		for _, c := range closers {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	})
	return d
}

// serveOn serves units on files as LUNs from 0 on; listen returns the address and what serves it.
func serveOn(t testing.TB, cfg target.Config, credentials []chap.Credentials, listen func(context.Context, *target.Server) (string, func() error), units ...unit) *served {
	t.Helper()
	d, files, closers := files(t, units...)
	s := &served{files: files, device: d}
	cfg.LogoutWait = cmp.Or(cfg.LogoutWait, 10*time.Millisecond) // most tests' initiators do not log out
	srv := target.NewServer(cfg)
	s.server = srv
	if err := srv.Add(&target.Target{Name: targetName, Alias: "a test", Device: d, CHAP: credentials, ErrorRecoveryLevel: 2}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	address, run := listen(ctx, srv)
	done := make(chan error)
	go func() { done <- run() }()
	s.address = address
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, c := range closers {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
		s.stop = func() {}
	}
	t.Cleanup(func() { s.stop() })
	return s
}
