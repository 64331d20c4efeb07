package verbs

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/mpa"
)

// streamPair returns a listener that takes streaming mode and a function that connects to it.
func streamPair(t *testing.T, b *end) (*Listener, func(first string) net.Conn) {
	t.Helper()
	ln, err := b.dev.Listen(testContext(t), netip.MustParseAddrPort("127.0.0.1:0"), ListenConfig{Transport: tcp, Streaming: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln, func(first string) net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, first)
		return c
	}
}

// A connection that does not begin with MPA is the ULP's, byte for byte, until it starts MPA. All that
// time it is charged as half-open (R19).
func TestStreamingModeGoesOnWithMPA(t *testing.T) {
	b := newEnd(t, Config{})
	ln, connect := streamPair(t, b)
	c := connect("hello")
	r, err := ln.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	s := r.Stream()
	if s == nil {
		t.Fatal("it is not in streaming mode")
	}
	if _, err := r.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg}); !errors.Is(err, errStreaming) {
		t.Errorf("accepted before MPA: %v", err)
	}
	c = connect("hello")
	if r, err = ln.Accept(testContext(t)); err != nil {
		t.Fatal(err)
	}
	s = r.Stream()
	buf := make([]byte, 5)
	if _, err := io.ReadFull(s, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q %v", buf, err)
	}
	if n := b.dev.Usage().HalfOpen; n != 1 {
		t.Errorf("%d half-open streams, want 1", n)
	}
	client := make(chan error, 1)
	go func() {
		io.WriteString(s, "go on")
		io.ReadFull(c, buf)
		m, err := mpa.Client(testContext(t), c, &mpa.Config{PrivateData: []byte("private")})
		if err == nil {
			m.Close()
		}
		client <- err
	}()
	if err := r.StartMPA(testContext(t)); err != nil || string(r.PrivateData()) != "private" || r.Stream() != nil {
		t.Fatalf("%v, %q", err, r.PrivateData())
	}
	if n := b.dev.Usage().HalfOpen; n != 1 {
		t.Errorf("%d half-open streams during MPA's start-up, want 1", n)
	}
	qp, err := r.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg})
	if err != nil || <-client != nil {
		t.Fatal(err)
	}
	<-qp.Done()
	wantHalfOpen(t, b.dev, 0)
}

// The same port takes MPA as ever, and a ULP that stays in streaming mode.
func TestStreamingModeBesideMPA(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	ln, connect := streamPair(t, b)
	go func() {
		r, err := ln.Accept(testContext(t))
		if err != nil || r.Stream() != nil {
			t.Errorf("MPA is taken for streaming mode, or %v", err)
			return
		}
		r.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg})
	}()
	qp, err := a.dial(ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	qp.Abort(nil)
	c := connect("x")
	r, err := ln.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	s := r.Stream()
	r.Detach()
	wantHalfOpen(t, b.dev, 0)
	io.WriteString(s, "y")
	if n, err := c.Read(make([]byte, 1)); n != 1 {
		t.Error(err)
	}
	s.Close()
	connect("x")
	if r, err = ln.Accept(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.Reject(testContext(t), nil); err != nil {
		t.Error(err)
	}
	wantHalfOpen(t, b.dev, 0)
	connect("") // silent: it holds up neither others nor Close
	wantHalfOpen(t, b.dev, 1)
	ln.Close()
	wantHalfOpen(t, b.dev, 0)
}
