package accept

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// scripted is a listener that accepts what it is told to.
type scripted struct {
	results []any // errors and connections
	last    error // once they have been accepted; nil: it waits to be closed
	closed  chan struct{}
}

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.results) == 0 {
		if s.last != nil {
			return nil, s.last
		}
		<-s.closed
		return nil, net.ErrClosed
	}
	r := s.results[0]
	s.results = s.results[1:]
	if err, ok := r.(error); ok {
		return nil, err
	}
	return r.(net.Conn), nil
}

func (s *scripted) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (s *scripted) Addr() net.Addr { return &net.UnixAddr{Name: "socket", Net: "unix"} }

func acceptError(errno syscall.Errno) error {
	return &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", errno)}
}

// What the machine is short of for a time ends no server, and pauses grow until a connection
// is accepted.
func TestAcceptsAgainAfterAShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, far := net.Pipe()
		defer far.Close()
		second, far2 := net.Pipe()
		defer far2.Close()
		l := &scripted{closed: make(chan struct{}), results: []any{
			acceptError(syscall.EMFILE), acceptError(syscall.ENFILE), acceptError(syscall.ENOBUFS), first,
			acceptError(syscall.ENOMEM), acceptError(syscall.EMFILE), second,
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		start, times := time.Now(), []time.Duration(nil)
		var served []net.Conn
		err := Loop(ctx, l, "test", slog.New(slog.DiscardHandler), func(nc net.Conn) {
			served, times = append(served, nc), append(times, time.Since(start))
			if nc == second {
				cancel()
			}
		})
		if err != nil {
			t.Errorf("the loop has failed when its context ended: %v", err)
		}
		if !slices.Equal(served, []net.Conn{first, second}) {
			t.Errorf("served %v, not the two connections", served)
		}
		if want := []time.Duration{35 * time.Millisecond, 50 * time.Millisecond}; !slices.Equal(times, want) {
			t.Errorf("served after %v, not %v", times, want)
		}
	})
}

// A listener that is broken, or that somebody else has closed, ends the loop with its error.
func TestListenerFails(t *testing.T) {
	for _, last := range []error{acceptError(syscall.EBADF), net.ErrClosed} {
		l := &scripted{closed: make(chan struct{}), last: last}
		err := Loop(t.Context(), l, "test", slog.New(slog.DiscardHandler), func(net.Conn) {})
		if !errors.Is(err, last) || err.Error() != "test: accept on socket: "+last.Error() {
			t.Errorf("failed with %v, not %v", err, last)
		}
		select {
		case <-l.closed:
		default:
			t.Error("the listener has been left open")
		}
	}
}
