package target_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi/lu"
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
	stop    func()
}

// serve serves units on files as LUNs from 0 on.
func serve(t testing.TB, cfg target.Config, credentials []chap.Credentials, units ...unit) *served {
	t.Helper()
	dir := t.TempDir()
	d := &lu.Device{}
	s := &served{}
	var closers []func() error
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
		s.files = append(s.files, path)
	}
	srv := target.NewServer(cfg)
	if err := srv.Add(&target.Target{Name: targetName, Alias: "a test", Device: d, CHAP: credentials}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Serve(ctx, ln) }()
	s.address = ln.Addr().String()
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
