package manage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends are two hosts, of which the first asks the second.
type ends struct {
	ulp  [2]*verbs.ULP
	net  [2]*verbstest.Host
	srv  *Server
	deny bool
}

func newEnds(t *testing.T, handle Handler) *ends {
	t.Helper()
	fabric := verbstest.New()
	e := &ends{}
	var devices [2]*verbs.Device
	for i, name := range []string{"alpha", "beta"} {
		e.net[i] = fabric.Host(name)
		dev, err := verbs.Open(verbs.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		devices[i] = dev
		if e.ulp[i], err = dev.NewULP("manage", verbs.ULPConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	e.srv = NewServer(e.ulp[1], slog.New(slog.DiscardHandler), handle)
	t.Cleanup(func() { e.srv.Close() })
	ln, err := devices[1].Listen(t.Context(), e.net[1].Addr(7471), verbs.ListenConfig{Transport: e.net[1].Transport()})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			cr, err := ln.Accept(t.Context())
			if err != nil {
				return
			}
			e.srv.Handle(cr, !e.deny)
		}
	}()
	return e
}

func (e *ends) call(ctx context.Context, request []byte) ([]byte, error) {
	return Call(ctx, e.ulp[0], verbs.DialConfig{Remote: e.net[1].Addr(7471), Transport: e.net[0].Transport()}, request, func() {})
}

func TestAnswersOfAnyLengthComeBack(t *testing.T) {
	for _, n := range []int{0, 1, chunk - 1, chunk, chunk + 1, 3*chunk + 5} {
		want := bytes.Repeat([]byte{7}, n)
		e := newEnds(t, func(_ context.Context, peer transport.Identity, q []byte) []byte {
			if peer != "alpha" || string(q) != "question" {
				t.Errorf("%s asks %q", peer, q)
			}
			return want
		})
		if got, err := e.call(t.Context(), []byte("question")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes for %d: %v", len(got), n, err)
		}
		for i, u := range e.ulp {
			if i == 0 && u.Usage() != (verbs.Limits{}) {
				t.Errorf("end %d holds %+v", i, u.Usage())
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	e := newEnds(t, nil)
	e.deny = true
	if _, err := e.call(t.Context(), nil); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "does not let this host manage") {
		t.Error(err)
	}
	if _, err := e.call(t.Context(), make([]byte, MaxRequest+1)); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("a request that is too long: %v", err)
	}
	for reason, words := range map[byte]string{refusedVersion: "version 1", refusedBusy: "is busy", refusedPeer: "any of its pools", 77: "refuses"} {
		if text := refusalText(appendRefusal(nil, reason)); !strings.Contains(text, words) {
			t.Errorf("%d: %s", reason, text)
		}
	}
}

// A caller who gives up ends what is being done for it.
func TestCallerThatGoesAwayEndsItsRequest(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	e := newEnds(t, func(ctx context.Context, _ transport.Identity, _ []byte) []byte {
		close(begun)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	if _, err := e.call(ctx, nil); err == nil {
		t.Error("a call that was given up succeeds")
	}
	<-ended
}

func FuzzMessage(f *testing.F) {
	f.Add(appendMessage(nil, kindRequest, true, []byte("{}")))
	f.Add(appendMessage(nil, kindAnswer, false, nil))
	f.Add([]byte{1, 3, 0, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) == 0 {
			return
		}
		payload, last, err := parseMessage(m, m[0])
		if err == nil && !bytes.Equal(appendMessage(nil, m[0], last, payload), m) {
			t.Errorf("%x is parsed as %x", m, payload)
		}
		if err == nil && len(payload) > chunk {
			t.Errorf("%d bytes", len(payload))
		}
	})
}

func TestGoldenBytes(t *testing.T) {
	if got := appendMessage(appendHello(nil), kindAnswer, true, []byte("x")); string(got) != "IWmg\x01\x02\x01\x00\x00x" {
		t.Errorf("%q", got)
	}
}
