package chaos

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// TestSecretIsRotatedWithoutLosingAStream gives both hosts a new secret under
// load, one after the other, then ends the IKE SA: the next one can only come up
// with the new secret.
func TestSecretIsRotatedWithoutLosingAStream(t *testing.T) {
	s := newScene(t)
	l := s.begin(t, node.Load{})
	secret := newSecret(t)
	for _, n := range s.nodes() {
		s.setSecret(t, n, secret)
		s.mustFlow(t, l)
	}
	for _, n := range s.nodes() {
		old := s.children(t)
		s.loseIKE(t, n)
		s.awaitNewChild(t, l, old)
		s.mustFlow(t, l)
	}
	s.sameStreams(t, l)
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}

// TestWrongSecretOnOneSidePausesStreamsUntilItIsRight rotates the secret on alpha
// only.
func TestWrongSecretOnOneSidePausesStreamsUntilItIsRight(t *testing.T) {
	s := newScene(t)
	l := s.begin(t, node.Load{})
	secret := newSecret(t)
	s.setSecret(t, s.alpha, secret)
	// The SA that was authenticated before lives on.
	s.mustFlow(t, l)
	s.loseIKE(t, s.alpha)
	s.eventually(t, "alpha's streams are paused, and its status says why", l, func(ctx context.Context) bool {
		st, err := s.alpha.Client().Status(ctx)
		if err != nil || len(st.Peers) != 1 {
			return false
		}
		for _, x := range st.Streams {
			if x.Peer == "beta" && !x.Paused {
				return false
			}
		}
		// At first it may name what came before: that strongSwan was away.
		p := st.Peers[0].Problem
		if p == nil || !strings.Contains(p.Message, "authentication failed") || !strings.Contains(p.Fix, "pre-shared keys differ") && !strings.Contains(p.Fix, "secret") {
			return false
		}
		t.Logf("status of alpha: %s\n%s", p.Message, p.Fix)
		return true
	})
	s.setSecret(t, s.beta, secret)
	s.mustFlow(t, l)
	s.sameStreams(t, l)
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}

func newSecret(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/psk"
	if err := auth.GenerateSecret().Save(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// setSecret replaces the file of the peer's secret and reloads, as a person
// would.
func (s *scene) setSecret(t *testing.T, n *node.Node, secret string) {
	t.Helper()
	file := config.SecretPath(n.Config, s.other(n).Name())
	if err := os.WriteFile(file+".new", []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	out, err := n.Ironwarp(t.Context(), nil, "reload")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reload on %s: %s", n.Name(), strings.TrimSpace(string(out)))
}

// loseIKE makes the host forget its IKE SA without telling the peer: what follows
// is a new authentication.
func (s *scene) loseIKE(t *testing.T, n *node.Node) {
	t.Helper()
	if err := n.RestartCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
}
