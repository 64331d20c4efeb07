package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
)

// TestKillDuringARefusedChangeLeavesWhatADaemonStartsWith kills `peer add` of an
// address that another peer has, and `peer rm` of a peer that an export allows, at
// random moments of their lives.
func TestKillDuringARefusedChangeLeavesWhatADaemonStartsWith(t *testing.T) {
	if testing.Short() {
		t.Skip("80 killed processes are no short test")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "ironwarp") // by that name the test binary is the program
	if err := os.Symlink(exe, bin); err != nil {
		t.Fatal(err)
	}
	main := filepath.Join(dir, "ironwarp.yaml")
	run := func(ctx context.Context, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, bin, args...)
		cmd.Env = append(os.Environ(), "IRONWARP_CONFIG="+main, "IRONWARP_SOCKET="+filepath.Join(dir, "none.sock"))
		return cmd.CombinedOutput()
	}
	for _, args := range [][]string{{"peer", "add", "--generate-psk", "beta", "198.51.100.2"}, {"export", "add", "--allow", "beta", "docs", disk(t, dir)}} {
		if out, err := run(t.Context(), args...); err != nil {
			t.Fatalf("%s", out)
		}
	}
	before := time.Now()
	if out, err := run(t.Context(), "peer", "rm", "beta"); err == nil {
		t.Fatalf("it was not refused: %s", out)
	}
	takes := time.Since(before)
	for round := range 40 {
		for _, args := range [][]string{{"peer", "add", "--generate-psk", "gamma", "198.51.100.2"}, {"peer", "rm", "beta"}} {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(takes+takes/4))
			out, err := run(ctx, args...)
			cancel()
			var exit *exec.ExitError
			if err == nil || !errors.As(err, &exit) && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("ironwarp %v: %v %s", args, err, out)
			}
			c, err := config.Load(main, false)
			if err != nil {
				t.Fatalf("round %d, ironwarp %v killed: %v", round, args, err)
			}
			if len(c.Peers) != 1 || len(c.Exports) != 1 {
				t.Fatalf("round %d, ironwarp %v killed: peers %v, exports %v", round, args, c.PeerNames(), c.Exports)
			}
		}
	}
}

func disk(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
