package web

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// lateConn is a connection that is being read until release is closed, also after its end.
type lateConn struct {
	net.Conn
	release chan struct{}
}

func (c *lateConn) Read([]byte) (int, error) {
	<-c.release
	return 0, io.EOF
}

// oneConn is a listener to which one client comes.
type oneConn struct {
	net.Listener
	comes  chan net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.comes:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	close(l.closed)
	return nil
}

// A request that has just come when the server ends has no handler yet, and gets one all the same: Serve waits for it.
func TestNoConnectionOutlivesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, client := net.Pipe()
		defer client.Close()
		c := &lateConn{ours, make(chan struct{})}
		ln := &oneConn{comes: make(chan net.Conn, 1), closed: make(chan struct{})}
		ln.comes <- c
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- New(Options{Source: &source{}}).Serve(ctx, ln) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-served:
			t.Errorf("Serve has returned %v, and a connection is being read", err)
			close(c.release)
			return
		default:
		}
		close(c.release)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
