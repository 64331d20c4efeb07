package peers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// TestAuditOfHostsWithESP audits running daemons against RFC 5042: they comply, until
// somebody opens a way around the guard, or a setting weakens something.
func TestAuditOfHostsWithESP(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	for _, n := range []*node.Node{s.alpha, s.beta} {
		var weak []string
		for _, r := range s.audit(n).Requirements {
			// A kernel without nf_tables can't block a peer.
			if r.State != api.AuditMet && (r.ID != "R19" || !errors.Is(guard.CanBlock(), guard.ErrNoBlock)) {
				weak = append(weak, fmt.Sprintf("%s is %s: %+v", r.ID, r.State, r.Weak))
			}
		}
		if len(weak) > 0 {
			t.Errorf("%s: %s", n.Name(), strings.Join(weak, "\n"))
		}
	}

	policy := []string{"src", s.alpha.Addr().String(), "dst", s.beta.Addr().String(), "dir", "out", "priority", "1"}
	if _, err := s.alpha.Run(t.Context(), "ip", append([]string{"xfrm", "policy", "add"}, append(policy, "action", "allow")...)...); err != nil {
		t.Fatal(err)
	}
	s.until("the hole is found", func() bool {
		r := s.requirement(s.alpha, "R4")
		return r.State == api.AuditNotMet && strings.Contains(r.Weak[0].Setting, "guard of peer beta")
	})
	if _, err := s.alpha.Ironwarp(t.Context(), nil, "security", "audit"); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("the command: %v, want exit status 1", err)
	}
	if _, err := s.alpha.Run(t.Context(), "ip", append([]string{"xfrm", "policy", "delete"}, policy[:6]...)...); err != nil {
		t.Fatal(err)
	}
	s.until("the hole is gone", func() bool { return s.requirement(s.alpha, "R4").State == api.AuditMet })

	s.edit(s.alpha, "beta", "profile: rfc7146-null\ngateway: 192.0.2.77\n")
	s.must(s.alpha, "reload")
	for id, want := range map[string]string{"R4": "profile: rfc7146-null", "R6": "gateway: 192.0.2.77", "R5": ""} {
		r := s.requirement(s.alpha, id)
		switch {
		case want == "" && r.State != api.AuditMet:
			t.Errorf("%s is %s: %+v", id, r.State, r.Weak)
		case want != "" && (r.State != api.AuditWeakened || !strings.Contains(r.Weak[0].Setting, want)):
			t.Errorf("%s is %s: %+v, want %q", id, r.State, r.Weak, want)
		}
	}
}

func (s *scene) audit(n *node.Node) api.Audit {
	s.t.Helper()
	a, err := n.Client().Audit(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *scene) requirement(n *node.Node, id string) api.Requirement {
	s.t.Helper()
	for _, r := range s.audit(n).Requirements {
		if r.ID == id {
			return r
		}
	}
	s.t.Fatalf("the audit has no %s", id)
	return api.Requirement{}
}
