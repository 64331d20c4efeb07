package peers

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
)

// address removes an address from a host's wire, or adds one.
func (s *scene) address(verb, addr string) {
	s.t.Helper()
	if out, err := exec.Command("ip", "-n", s.alpha.Namespace(), "addr", verb, addr, "dev", s.alpha.Dev()).CombinedOutput(); err != nil {
		s.t.Fatalf("ip addr %s %s: %v: %s", verb, addr, err, out)
	}
}

// TestLostAddressIsReportedAndItsReturnHeals: a daemon whose address is removed reports
// that for the listener and the peer, and goes on when it is back.
func TestLostAddressIsReportedAndItsReturnHeals(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	s.ping()
	own := s.alpha.Addr().String() + "/24"
	for range 2 {
		s.address("del", own)
		var st api.Status
		s.until("status says that the address has gone", func() bool {
			var err error
			if st, err = s.alpha.Client().Status(t.Context()); err != nil || len(st.Listeners) != 1 || len(st.Peers) != 1 {
				return false
			}
			l, p := st.Listeners[0], st.Peers[0]
			return l.State == api.PeerProblem && l.Problem != nil && strings.Contains(l.Problem.Message, "no interface of this host has that address") &&
				p.State == api.PeerProblem && p.Problem != nil
		})
		s.address("add", own)
		s.until("status says that all is well", func() bool {
			st, err := s.alpha.Client().Status(t.Context())
			return err == nil && st.Listeners[0].State == "listening" && st.Listeners[0].Problem == nil && st.Peers[0].Problem == nil &&
				len(st.Attachments) == 1 && st.Attachments[0].State == api.AttachReady
		})
		s.ping()
		st, err := s.alpha.Client().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.readDisk(st.Attachments[0].Socket)
	}
	for _, want := range []string{"nobody can reach this host where it listens", "listening again", "peer is not usable"} {
		if log := s.alpha.LogTail(1 << 20); !strings.Contains(log, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}
