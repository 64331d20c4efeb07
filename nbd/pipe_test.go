package nbd_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// TestConnectionWithoutADescriptor runs over net.Pipe, which has no socket.
func TestConnectionWithoutADescriptor(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	srv := nbd.NewServer(nbd.Config{})
	if err := srv.Export("disk", m, ""); err != nil {
		t.Fatal(err)
	}
	ln := newPipeListener()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Serve(ctx, ln) }()
	c, err := nbdtest.Connect(ln.dial(), "disk", true)
	if err != nil {
		t.Fatal(err)
	}
	p := randomBytes(200_000)
	want(t, c, "write", 0, cmdWrite, 5, uint32(len(p)), p, 0)
	if r := want(t, c, "read", 0, cmdRead, 5, uint32(len(p)), nil, 0); !bytes.Equal(r.Data, p) {
		t.Error("other data than written")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// pipeListener accepts connections that were made in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial() net.Conn {
	a, b := net.Pipe()
	l.conns <- a
	return b
}
