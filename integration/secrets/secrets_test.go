package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// makeSecrets makes a pre-shared key and a private key below dir.
func makeSecrets(t *testing.T, dir string) (psk, key string) {
	t.Helper()
	psk = filepath.Join(dir, "psk")
	if err := auth.GenerateSecret().Save(psk); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.Init(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ca.Issue(pki.Request{Name: "alpha"})
	if err != nil {
		t.Fatal(err)
	}
	return psk, got.KeyFile
}

// kinds are the places that are searched. The control finds something in each.
var kinds = []string{
	"files", "log of the daemon", "log of strongSwan", "answers of the control API", "metrics", "events",
	"command lines", "environments", "output of commands",
}

// canary is no secret. It is the name under which a peer is authenticated, so it
// appears wherever a careless program would show a secret as well.
const canary = "canary-8c1f5e20"

// TestNoSecretShowsAnywhere goes through the life of two peers.
func TestNoSecretShowsAnywhere(t *testing.T) {
	lab.Require(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skipf("%v: apt install curl", err)
	}
	dir := t.TempDir()
	var program node.Program
	binary := program.Path(t)
	t.Cleanup(func() {
		if err := program.Remove(); err != nil {
			t.Error(err)
		}
	})
	l := lab.Start(t, lab.Config{})
	s := &story{t: t, hay: newHaystack(), dir: dir, calls: endpoints(t)}
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() { s.hay.watchProcesses(ctx) })
	s.alpha, s.beta = startHost(t, l.Host("alpha"), binary, s.hay), startHost(t, l.Host("beta"), binary, s.hay)
	for _, h := range []*host{s.alpha, s.beta} {
		h.watch()
		h.watch("--json")
	}
	s.image = filepath.Join(dir, "docs.img")
	if err := errors.Join(os.WriteFile(s.image, nil, 0o600), os.Truncate(s.image, 1<<20)); err != nil {
		t.Fatal(err)
	}
	s.certificates()
	s.preSharedKeys()
	s.canaries()
	cancel()
	looking.Wait()
	s.walk(func(string) bool { return false })
	t.Logf("searched:\n%s", s.hay)

	for kind, places := range s.hay.find(s.needles) {
		slices.Sort(places)
		t.Errorf("%s:\n  %s", kind, strings.Join(places, "\n  "))
	}
	// The control: what is no secret is found in each kind of place.
	seen := s.hay.find([]needle{{"the canary", []byte(canary)}})
	for _, kind := range kinds {
		if len(seen[kind]) == 0 {
			t.Errorf("the control finds nothing in: %s", kind)
		}
	}
	for _, e := range s.calls {
		peer := "beta"
		if e[0] == "DELETE" {
			peer = "nobody"
		}
		if place := fmt.Sprintf("%s %s from alpha", e[0], pathOf(e[1], peer)); len(s.hay.kinds["answers of the control API"][place]) == 0 {
			t.Errorf("%s was never answered", place)
		}
	}
	// So is a secret that somebody has leaked.
	for i, kind := range kinds {
		n := s.needles[i*7%len(s.needles)]
		planted := newHaystack()
		planted.add(kind, "planted", fmt.Appendf(nil, "level=DEBUG key=%s\n", n.b))
		if len(planted.find(s.needles)[kind]) != 1 {
			t.Errorf("a planted %s is not found in: %s", n.what, kind)
		}
	}
}

// story is what happens to alpha and beta.
type story struct {
	t           *testing.T
	hay         *haystack
	alpha, beta *host
	dir, image  string
	calls       [][2]string
	needles     []needle
	files       []string // that hold secrets
}

func (s *story) isSecretFile(path string) bool { return slices.Contains(s.files, path) }

// walk keeps the files of both hosts.
func (s *story) walk(except func(path string) bool) {
	s.t.Helper()
	for _, h := range []*host{s.alpha, s.beta} {
		if err := s.hay.walk(h.Dir(), func(path string) bool { return s.isSecretFile(path) || except(path) }); err != nil {
			s.t.Fatal(err)
		}
	}
}

// isLog reports whether a file only grows: its content at the end is all that it ever
// had.
func isLog(path string) bool { return slices.Contains([]string{".log", ".out"}, filepath.Ext(path)) }

func (s *story) psk(what, file string) {
	s.t.Helper()
	s.files = append(s.files, file)
	s.needles = append(s.needles, pskNeedles(s.t, what, file)...)
}

func (s *story) key(what, file string) {
	s.t.Helper()
	s.files = append(s.files, file)
	s.needles = append(s.needles, keyNeedles(s.t, what, file)...)
}

// look calls everything that shows something.
func (s *story) look() {
	s.t.Helper()
	s.walk(isLog)
	for h, peer := range map[*host]string{s.alpha: "beta", s.beta: "alpha"} {
		h.ask(s.calls, peer)
		for _, args := range [][]string{{"status"}, {"peer", "show", peer}, {"sa", "show", peer}, {"sa", "ls"}, {"peer", "ls"}, {"ls"}, {"export", "ls"}, {"reload"}, {"doctor", "--config", h.Config}} {
			h.run(nil, args...)
			h.run(nil, append([]string{"--json"}, args...)...)
		}
	}
}

// use attaches the disk and lets traffic through.
func (s *story) use() {
	s.t.Helper()
	s.beta.must("export", "add", "--allow", "alpha", "docs", s.image)
	s.alpha.must("attach", "beta/docs")
	s.alpha.must("ping", "--count", "2", "beta")
	s.alpha.must("sa", "rekey", "beta")
	s.alpha.must("sa", "delete", "--ike", "beta")
	s.alpha.must("ping", "--count", "2", "beta")
	s.look()
}

func (s *story) remove() {
	s.t.Helper()
	s.alpha.must("detach", "beta/docs")
	s.beta.must("export", "rm", "docs")
	s.alpha.must("peer", "rm", "beta")
	s.beta.must("peer", "rm", "alpha")
}

// names are the identities of alpha and beta.
func names() (alpha, beta string) {
	return "alpha." + canary + ".example", "beta." + canary + ".example"
}

func (s *story) certificates() {
	t := s.t
	t.Helper()
	ca := filepath.Join(s.alpha.Dir(), "pki")
	s.alpha.must("pki", "init", "--dir", ca)
	s.key("the authority's private key", filepath.Join(ca, "ca.key"))
	alphaID, betaID := names()
	for _, x := range []struct {
		file     string
		id, peer string
		on       *host
		at       *host
	}{{"alpha", alphaID, betaID, s.alpha, s.beta}, {"beta", betaID, alphaID, s.beta, s.alpha}} {
		s.alpha.must("pki", "issue", "--dir", ca, "--san", x.id, x.file)
		s.key(x.file+"'s private key", filepath.Join(ca, x.file+".key"))
		x.on.must("peer", "add", "--cert-file", filepath.Join(ca, x.file+".pem"), "--key-file", filepath.Join(ca, x.file+".key"), "--ca-file", filepath.Join(ca, "ca.pem"),
			"--local-id", x.id, "--remote-id", x.peer, x.at.Name(), x.at.Addr().String())
	}
	s.use()
	// A new certificate for alpha, and one that does not match its key.
	s.alpha.must("pki", "issue", "--dir", ca, "--san", alphaID, "alpha2")
	s.key("alpha's second private key", filepath.Join(ca, "alpha2.key"))
	old := readFile(t, filepath.Join(ca, "alpha.key"))
	for _, key := range []string{"alpha2.key", "alpha.key"} {
		data := readFile(t, filepath.Join(ca, "alpha2.key"))
		if key == "alpha.key" {
			data = old
		}
		if err := os.WriteFile(filepath.Join(ca, "alpha.key"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		// A key that does not match its certificate fails the reload.
		if _, ok := s.alpha.run(nil, "reload"); ok != (key == "alpha.key") {
			t.Fatalf("reload with %s as alpha's key: ok is %v", key, ok)
		}
		s.look()
	}
	s.remove()
}

func (s *story) preSharedKeys() {
	t := s.t
	t.Helper()
	alphaID, betaID := names()
	s.alpha.must("peer", "add", "--generate-psk", "--local-id", alphaID, "--remote-id", betaID, "beta", s.beta.Addr().String())
	here, there := config.SecretPath(s.alpha.Config, "beta"), config.SecretPath(s.beta.Config, "alpha")
	s.psk("the secret", here)
	secret := readFile(t, here)
	if _, ok := s.beta.run(bytes.NewReader(secret), "peer", "add", "--psk-file", "-", "--local-id", betaID, "--remote-id", alphaID, "alpha", s.alpha.Addr().String()); !ok {
		t.Fatal("beta did not take the secret")
	}
	s.files = append(s.files, there)
	s.use()

	s.fabric()

	// A rotation, including the time in which only alpha has the new secret.
	s.alpha.must("peer", "rotate-secret", "--generate-psk", "beta")
	s.psk("the second secret", here)
	s.alpha.must("ping", "--count", "1", "beta")
	s.alpha.must("sa", "delete", "--ike", "beta")
	s.until("a ping says that authentication has failed", func() bool { // IKE on a busy machine may need more than one
		out, ok := s.alpha.run(nil, "ping", "--timeout", "10s", "--count", "1", "beta")
		if ok {
			t.Fatal("a ping gets through")
		}
		return strings.Contains(out, "authentication failed")
	})
	s.look()
	next := readFile(t, here)
	if _, ok := s.beta.run(bytes.NewReader(next), "peer", "rotate-secret", "--psk-file", "-", "alpha"); !ok {
		t.Fatal("beta did not take the second secret")
	}
	// An attempt that began before may still fail.
	s.until("a ping gets through", func() bool { _, ok := s.alpha.run(nil, "ping", "--count", "1", "beta"); return ok })

	// Files that cannot be used.
	if err := os.Chmod(here, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.alpha.run(nil, "reload"); ok {
		t.Fatal("a secret that others may read is no failure of the reload")
	}
	s.look()
	if err := os.Chmod(here, 0o600); err != nil {
		t.Fatal(err)
	}
	s.alpha.fails("already", "peer", "add", "--generate-psk", "beta", s.beta.Addr().String())
	s.remove()
	// The secret where something else belongs.
	s.alpha.fails("private key", "peer", "add", "--cert-file", filepath.Join(s.alpha.Dir(), "pki", "alpha.pem"), "--key-file", here, "--ca-file", filepath.Join(s.alpha.Dir(), "pki", "ca.pem"), "beta", s.beta.Addr().String())
	s.alpha.fails("", "--config", here, "daemon", "--check")
}

// canaries puts the control's word into kinds of place where the peers' life has not
// put it.
func (s *story) canaries() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sleep", "60")
	cmd.Env = append(os.Environ(), "IRONWARP_CANARY="+canary)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.hay.processes()
	cancel()
	_ = cmd.Wait() // it is killed
}
