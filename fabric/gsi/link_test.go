package gsi

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends are two hosts: listener takes what dialler asks it for.
type ends struct {
	dev [2]*verbs.Device
	ulp [2]*verbs.ULP
	ln  *verbs.Listener
	net [2]*verbstest.Host
}

func newEnds(t *testing.T) *ends {
	t.Helper()
	fabric := verbstest.New()
	e := &ends{}
	for i, name := range []string{"alpha", "beta"} {
		e.net[i] = fabric.Host(name)
		dev, err := verbs.Open(verbs.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		e.dev[i] = dev
		if e.ulp[i], err = dev.NewULP("fabric", verbs.ULPConfig{Privileged: true}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if e.ln, err = e.dev[1].Listen(t.Context(), e.net[1].Addr(7471), verbs.ListenConfig{Transport: e.net[1].Transport()}); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *ends) dial() verbs.DialConfig {
	return verbs.DialConfig{Remote: e.net[1].Addr(7471), Transport: e.net[0].Transport()}
}

// link sets up a link, whose ends hand what they receive to their handlers.
func (e *ends) link(t *testing.T, dialler, listener Handler) (*Link, *Link) {
	t.Helper()
	accepted := make(chan *Link, 1)
	go func() {
		cr, err := e.ln.Accept(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		l, err := Accept(t.Context(), e.ulp[1], cr, listener)
		if err != nil {
			t.Error(err)
		}
		accepted <- l
	}()
	a, err := Dial(t.Context(), e.ulp[0], e.dial(), dialler)
	if err != nil {
		t.Fatal(err)
	}
	b := <-accepted
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

type handler func(*Link, []byte)

func (h handler) Receive(l *Link, m []byte) { h(l, m) }

func none(*Link, []byte) {}

func message(n byte) []byte {
	m := make([]byte, Size)
	m[0], m[Size-1] = n, n
	return m
}

func TestMessagesArriveInOrderFromWhoSentThem(t *testing.T) {
	e := newEnds(t)
	const n = 3 * receives
	got := make(chan byte, n)
	a, _ := e.link(t, handler(none), handler(func(l *Link, m []byte) {
		if l.Peer() != "alpha" || m[0] != m[Size-1] {
			t.Errorf("message %d, %d from %s", m[0], m[Size-1], l.Peer())
		}
		got <- m[0]
	}))
	for i := range n {
		if err := a.Send(t.Context(), message(byte(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if m := <-got; m != byte(i) {
			t.Fatalf("message %d came in place of %d", m, byte(i))
		}
	}
}

func TestSendFailsWhenTheLinkHasEnded(t *testing.T) {
	e := newEnds(t)
	a, b := e.link(t, handler(none), handler(none))
	b.Close()
	<-a.Done()
	if err := a.Send(t.Context(), message(1)); err == nil {
		t.Error("Send on a link that has ended succeeds")
	}
	if e.ulp[0].Usage() != (verbs.Limits{}) {
		t.Errorf("the end that was left holds %+v", e.ulp[0].Usage())
	}
}

// A sender that is faster than the network waits, and a context ends its waiting.
func TestSendWaitsForRoom(t *testing.T) {
	e := newEnds(t)
	a, _ := e.link(t, handler(none), handler(none))
	ctx, cancel := context.WithCancel(t.Context())
	for range sends {
		<-a.room
	}
	done := make(chan error)
	go func() { done <- a.Send(ctx, message(1)) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Send without room: %v", err)
	}
	for range sends {
		a.room <- struct{}{}
	}
}

// What is no GRH and MAD ends the stream.
func TestMessageOfAnotherLengthEndsTheLink(t *testing.T) {
	for _, n := range []int{0, 1, Size - 1} {
		e := newEnds(t)
		a, b := e.link(t, handler(none), handler(func(*Link, []byte) { t.Error("a message was received") }))
		if err := a.QP().PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, Data: make([]byte, n)}); err != nil {
			t.Fatal(err)
		}
		<-b.Done()
		if b.Err() == nil {
			t.Errorf("%d bytes: the link ended without an error", n)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, answer := range map[string]func(*verbs.ConnRequest, *verbs.ULP) error{
		"rejected": func(cr *verbs.ConnRequest, _ *verbs.ULP) error { return cr.Reject(t.Context(), nil) },
		"other service": func(cr *verbs.ConnRequest, u *verbs.ULP) error {
			pd, _ := u.AllocPD()
			cq, _ := u.CreateCQ(16, nil)
			_, err := cr.Accept(t.Context(), pd, verbs.AcceptConfig{QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}, PrivateData: []byte("IWpg")})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t)
			go func() {
				cr, err := e.ln.Accept(t.Context())
				if err == nil {
					err = answer(cr, e.ulp[1])
				}
				if err != nil {
					t.Error(err)
				}
			}()
			if _, err := Dial(t.Context(), e.ulp[0], e.dial(), handler(none)); !errors.Is(err, ErrRefused) {
				t.Errorf("Dial: %v", err)
			}
			if e.ulp[0].Usage() != (verbs.Limits{}) {
				t.Errorf("a refused link holds %+v", e.ulp[0].Usage())
			}
		})
	}
}

func TestAnotherVersionIsRejected(t *testing.T) {
	e := newEnds(t)
	got := make(chan error, 1)
	go func() {
		cr, err := e.ln.Accept(t.Context())
		if err == nil {
			_, err = Accept(t.Context(), e.ulp[1], cr, handler(none))
		}
		got <- err
	}()
	pd, _ := e.ulp[0].AllocPD()
	cq, _ := e.ulp[0].CreateCQ(16, nil)
	dial := e.dial()
	dial.QP, dial.PrivateData = verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}, append([]byte(magic), version+1)
	_, err := pd.Dial(t.Context(), dial)
	var rejected *verbs.RejectedError
	if !errors.As(err, &rejected) || !IsRequest(rejected.PrivateData) {
		t.Errorf("Dial with another version: %v", err)
	}
	if err := <-got; err == nil {
		t.Error("Accept took another version")
	}
}
