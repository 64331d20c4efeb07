package names

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNamesAreLookedUpAndForgotten: a peer gets the address of its name, a busy daemon is asked again, and nothing is kept of
// peers that are gone.
func TestNamesAreLookedUpAndForgotten(t *testing.T) {
	var mu sync.Mutex
	peers := []Peer{{Name: "beta", Host: "beta.example"}, {Name: "gamma", Host: "gamma.example"}}
	refused := false
	f := New(Config{Log: slog.New(slog.DiscardHandler),
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			if host == "gamma.example" {
				<-ctx.Done() // silent
				return nil, ctx.Err()
			}
			return []netip.Addr{two}, nil
		},
		Peers: func() []Peer { mu.Lock(); defer mu.Unlock(); return append([]Peer(nil), peers...) },
		Check: func(string, netip.Addr) error { return nil },
		Move: func(_ context.Context, peer string, a netip.Addr) bool {
			mu.Lock()
			defer mu.Unlock()
			if !refused {
				refused = true
				return false
			}
			peers[0].At = a
			return true
		}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	f.round(ctx, epoch)
	if peers[0].At.IsValid() {
		t.Error("a daemon that ends has a peer move")
	}
	peers[1].Host = "delta.example" // answers
	f.round(t.Context(), epoch.Add(time.Hour))
	f.round(t.Context(), epoch.Add(2*time.Hour))
	if peers[0].At != two {
		t.Errorf("at %v", peers[0].At)
	}
	if len(f.trackers) != 2 || f.trackers["gamma.example"] != nil {
		t.Errorf("%d trackers", len(f.trackers))
	}
}

// TestSilentServerIsSaid and delays nothing but its own peer.
func TestSilentServerIsSaid(t *testing.T) {
	f := New(Config{Log: slog.New(slog.DiscardHandler),
		Lookup: func(context.Context, string) ([]netip.Addr, error) { return nil, context.DeadlineExceeded },
		Peers:  func() []Peer { return []Peer{{Name: "beta", Host: "beta.example"}} },
		Check:  func(string, netip.Addr) error { return nil },
	})
	f.round(t.Context(), epoch)
	if n := f.Note("beta.example"); !strings.Contains(n, "no answer in time") || f.Note("other.example") != "" {
		t.Errorf("%q", n)
	}
}
