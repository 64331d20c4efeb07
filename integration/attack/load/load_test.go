//go:build !weakened

package load

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/iwarptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what takes milliseconds on an idle machine.
const patience = 2 * time.Minute

// startTarget starts a daemon with an export and returns where it is, and the addresses of
// its peers: one that behaves, one that comes later and the attackers.
func startTarget(t *testing.T) (v Target, behaved, newcomer netip.Addr, attackers []netip.Addr) {
	t.Helper()
	dir, err := os.MkdirTemp("", "iw") // a Unix socket's name is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	v = Target{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iwarptest.FreePort(t)), UDP: iwarptest.FreeUDPPort(t), Control: filepath.Join(dir, "run", "ironwarp.sock")}
	config, peers := Config(v, filepath.Join(dir, "disk.img"))
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	main := filepath.Join(dir, "ironwarp.yaml")
	if err := os.WriteFile(main, []byte(config+"state_dir: state\nruntime_dir: run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Start(t.Context(), daemon.Options{Config: main, Named: true, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return v, peers[0], peers[1], peers[2:]
}

// TestStreamLivesUnderEachAttack: while 32 peers attack, another peer's stream goes on
// and a newcomer gets one, over TCP and over SCTP in UDP.
func TestStreamLivesUnderEachAttack(t *testing.T) {
	if testing.Short() {
		t.Skip("27 attacks on a whole daemon are no short test")
	}
	const reads, blows = 10, 200
	for _, x := range Attacks() {
		t.Run(strings.ReplaceAll(x.Name, " ", "_"), func(t *testing.T) {
			v, behaved, newcomer, attackers := startTarget(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s, err := Dial(ctx, v, behaved, x.Carrier, Export)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if x.Packets {
				attackers = attackers[:2] // all in one process, on any machine
			}
			attack := x.Start(ctx, v, attackers)
			defer attack.Stop()
			begun := waitFor(ctx, func() bool { return attack.Count() > 0 && (attack.AtRest() || !x.Bounded && attack.Count() >= blows) })
			if begun != nil {
				t.Fatalf("the attack does not come as far as it can: %d blows", attack.Count())
			}
			for range reads {
				if err := s.Read(ctx, 4096); err != nil {
					t.Fatalf("the stream stands still: %v", err)
				}
			}
			late, err := Dial(ctx, v, newcomer, x.Carrier, Export)
			if err != nil {
				t.Fatalf("a newcomer is not let in: %v", err)
			}
			defer late.Close()
			if err := late.Read(ctx, 4096); err != nil {
				t.Fatalf("the newcomer's stream: %v", err)
			}
			if n := s.Reconnects(); n != 0 {
				t.Errorf("the stream was lost %d times", n)
			}
		})
	}
}

func waitFor(ctx context.Context, f func() bool) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("never happened: %w", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
