package local

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A ULP has so many requests under way, and so many connections; one that is privileged has
// more.
func TestGateBoundsWhatAULPHas(t *testing.T) {
	g := ULPGate(false)
	for range ulpConns {
		if !g.addConn() {
			t.Fatal("a connection that it may have is refused")
		}
	}
	if g.addConn() {
		t.Error("it has more connections than it may")
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	var ends []func()
	for range ulpRequests {
		end, err := g.Begin(t.Context(), "alice", r)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	g.wait = 1 // it has waited long enough
	var e *api.Error
	if _, err := g.Begin(t.Context(), "alice", r); !errors.As(err, &e) || e.Code != api.CodeUnavailable || !strings.Contains(e.Message, "ULP alice has to wait: 8 of its requests are under way") {
		t.Errorf("one more: %v", err)
	}
	for _, end := range ends {
		end()
	}
	if conns, requests, refused := g.Use(); conns != ulpConns || requests != 0 || refused != 2 {
		t.Errorf("%d connections, %d requests, %d refused", conns, requests, refused)
	}
	if root := ULPGate(true); root.maxConns != rootConns || root.requests != nil || root.AwaitDial(t.Context(), 0) != nil {
		t.Error("a privileged ULP has a gate as others have")
	}
}

func TestTurnsAtAPeersPingService(t *testing.T) {
	var all Turns
	take := func(ctx context.Context, peer, name string) (func(), error) { return all.Take(ctx, peer, name, name) }
	a, err := take(t.Context(), "beta", "alice")
	if err != nil {
		t.Fatal(err)
	}
	_, err = take(t.Context(), "beta", "alice")
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeInUse || !strings.Contains(e.Message, "ULP alice is already pinging beta") {
		t.Errorf("a second ping: %v", err)
	}
	other, err := take(t.Context(), "gamma", "alice")
	if err != nil {
		t.Fatal(err)
	}
	b, err := take(t.Context(), "beta", "bob")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := take(ctx, "beta", "carol"); !errors.Is(err, context.Canceled) {
		t.Errorf("a third one at a time: %v", err)
	}
	a()
	c, err := take(t.Context(), "beta", "carol")
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range []func(){b, c, other} {
		release()
	}
	if len(all.peers) != 0 {
		t.Errorf("left: %v", all.peers)
	}
}
