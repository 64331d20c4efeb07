package nbd_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

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

// A context that has ended lets no client begin anything, although the connection's deadline,
// which another goroutine sets, has not passed yet.
func TestNothingBeginsOnceTheContextHasEnded(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	srv := nbd.NewServer(nbd.Config{})
	if err := srv.Export("disk", m, ""); err != nil {
		t.Fatal(err)
	}
	ln := newPipeListener()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- srv.Serve(ctx, ln) }()
	c, err := nbdtest.Connect(ln.dialBy(func(c net.Conn) net.Conn { return lateDeadline{c} }), "disk", true)
	if err != nil {
		t.Fatal(err)
	}
	want(t, c, "write", 0, cmdWrite, 0, 1, []byte{1}, 0)
	stop()
	if r, err := c.Do(0, cmdWrite, 0, 1, []byte{2}); err == nil {
		t.Errorf("a write that came after the end was answered: %+v", r)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	m.Data(func(data []byte) {
		if data[0] != 1 {
			t.Error("a write that came after the end was executed")
		}
	})
}

// lateDeadline never gets to set a deadline that has passed.
type lateDeadline struct{ net.Conn }

func (c lateDeadline) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
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
	return l.dialBy(func(c net.Conn) net.Conn { return c })
}

// dialBy is dial to an end of the server's that is wrapped.
func (l *pipeListener) dialBy(wrap func(net.Conn) net.Conn) net.Conn {
	a, b := net.Pipe()
	l.conns <- wrap(a)
	return b
}
