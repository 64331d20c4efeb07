package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// TestPortsOfProgramsAreGuardedForAsLongAsTheyAreDeclared: a block of ports of ulps: comes with a reload,
// is another one after the next, outlives a daemon, also while its ULP is disabled, and goes, after a daemon
// that was not running when it was taken out has started.
func TestPortsOfProgramsAreGuardedForAsLongAsTheyAreDeclared(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	plain := s.alpha.More
	declare := func(ulps string) {
		t.Helper()
		s.alpha.More = plain + ulps
		main := fmt.Sprintf("state_dir: %s/state\n%s", s.alpha.Dir(), s.alpha.More)
		if err := os.WriteFile(s.alpha.Config, []byte(main), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reload := func() {
		// It fails for a ULP that is disabled, and applies the rest.
		_, _ = s.alpha.Ironwarp(t.Context(), nil, "reload")
	}
	guarded := func(want ...string) {
		t.Helper()
		s.until(fmt.Sprintf("the guards are %q", want), func() bool {
			have, err := guard.List(s.alpha.NetNS())
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			for _, p := range have {
				if p.Size > 0 {
					found[fmt.Sprintf("%d/%d", max(p.LocalPort, p.PeerPort), p.Size)] = true
				}
			}
			for _, w := range want {
				if !found[w] {
					return false
				}
			}
			return len(found) == len(want)
		})
	}
	// A clear connection to a guarded port is refused here, or led into the tun of userland ESP where no SA
	// covers it; beta refuses those to other ports, at which nobody listens.
	stopped := func(port uint16, want bool) {
		t.Helper()
		within := time.Second // of nothing
		if !want {
			within = healTime
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		c, err := s.alpha.Dial(ctx, netip.AddrPortFrom(s.beta.Addr(), port))
		if err == nil {
			c.Close()
		}
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) == want {
			t.Errorf("a clear connection to port %d: %v; it should be stopped: %v", port, err, want)
		}
	}
	shown := func(want string) {
		t.Helper()
		if out := s.must(s.alpha, "peer", "show", "beta"); strings.Contains(out, "program ports") != (want != "") || want != "" && !strings.Contains(out, want) {
			t.Errorf("want the program ports %q:\n%s", want, out)
		}
	}
	guarded()
	shown("")
	declare("ulps:\n  - {name: hpc, users: [53101], peers: [beta], ports: [18432/512]}\n  - {name: root-rdma, peers: [beta], ports: [20480/16]}\n")
	reload()
	guarded("18432/512", "20480/16")
	shown("18432/512 20480/16")
	for port, want := range map[uint16]bool{18431: false, 18432: true, 18500: true, 18943: true, 18944: false, 20490: true, 20496: false} {
		stopped(port, want)
	}
	if out, _ := s.alpha.Ironwarp(t.Context(), nil, "doctor"); !strings.Contains(string(out), "tcp ports 18432-18943") || strings.Contains(string(out), "has its say") {
		t.Errorf("doctor:\n%s", out)
	}
	declare("ulps:\n  - {name: hpc, users: [no-such-user], peers: [beta], ports: [18432/256]}\n")
	reload()
	guarded("18432/256")
	stopped(18500, true)
	stopped(18700, false)
	if err := s.alpha.Stop(); err != nil {
		t.Fatal(err)
	}
	guarded("18432/256")
	declare("")
	if err := s.alpha.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	guarded()
	shown("")
	stopped(18500, false)
}
