package peers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/invite"
	"github.com/ironwarp/ironwarp/transport"
)

// dialogue is a command that a person answers.
type dialogue struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan error

	mu  sync.Mutex // guards the fields below it
	out bytes.Buffer
}

func (d *dialogue) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.Write(b)
}

func (d *dialogue) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.out.String()
}

// converse starts a command on a host.
func (s *scene) converse(n *node.Node, args ...string) *dialogue {
	s.t.Helper()
	d := &dialogue{t: s.t, cmd: n.Command(s.t.Context(), program.Path(s.t), args...), ended: make(chan error, 1)}
	d.cmd.Stdout, d.cmd.Stderr = d, d
	var err error
	if d.stdin, err = d.cmd.StdinPipe(); err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	go func() { d.ended <- d.cmd.Wait() }()
	s.t.Cleanup(func() { d.stdin.Close() })
	return d
}

func (d *dialogue) say(line string) {
	d.t.Helper()
	if _, err := io.WriteString(d.stdin, line+"\n"); err != nil {
		d.t.Errorf("%v, after:\n%s", err, d.output())
	}
}

// until waits for what a regular expression finds in the output, and returns its group.
func (d *dialogue) until(expr string) string {
	d.t.Helper()
	re := regexp.MustCompile(expr)
	ctx, cancel := context.WithTimeout(d.t.Context(), healTime)
	defer cancel()
	var found []string
	if err := node.Until(ctx, func() (bool, error) { found = re.FindStringSubmatch(d.output()); return found != nil, nil }); err != nil {
		d.t.Fatalf("no %q in:\n%s", expr, d.output())
	}
	return found[len(found)-1]
}

// end waits for the end of the command.
func (d *dialogue) end() error {
	d.t.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(healTime):
		d.t.Fatalf("does not end:\n%s", d.output())
	}
	return nil
}

const (
	tokenPattern = `\n(iw1[a-z2-7]+)\n`
	codePattern  = `\n    ([0-9]{3} [0-9]{3})\n`
)

// invitation is an invitation of alpha's that beta joins, up to where people are asked.
func (s *scene) invitation(more ...string) (a, b *dialogue, token string) {
	s.t.Helper()
	a = s.converse(s.alpha, append([]string{"peer", "invite"}, append(more, "beta")...)...)
	token = a.until(tokenPattern)
	b = s.converse(s.beta, "peer", "join", "--name", "alpha")
	b.say(token)
	return a, b, token
}

// noPeers fails unless neither host has the other, in any file of its configuration.
func (s *scene) noPeers(when string) {
	s.t.Helper()
	for _, n := range []*node.Node{s.alpha, s.beta} {
		for _, pattern := range []string{"peers.d/*", "secrets/*", "peers.d/.*", "secrets/.*"} {
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(n.Config), pattern)); err != nil || len(left) > 0 {
				s.t.Errorf("%s: %s has %v", when, n.Name(), left)
			}
		}
		if list, err := n.Client().Peers(s.t.Context()); err != nil || len(list) > 0 {
			s.t.Errorf("%s: the daemon of %s has %v, %v", when, n.Name(), list, err)
		}
	}
}

// TestInvitedHostBecomesAPeer by a token and a code, without a file that is copied, and nothing of their disk is ever in clear:
// beside ESP and IKE the wire has the port of the invitation alone.
func TestInvitedHostBecomesAPeer(t *testing.T) {
	s := newScene(t)
	for _, n := range []*node.Node{s.alpha, s.beta} {
		if out := s.must(n, "init", "--config", n.Config); !strings.Contains(out, "kept     "+n.Config) || !strings.Contains(out, "ironwarp peer invite") {
			t.Errorf("init: %s", out)
		}
	}
	wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{Allow: []string{lab.PortKind(transport.ProtoTCP, invite.DefaultPort)}})
	if err != nil {
		t.Fatal(err)
	}
	a, b, token := s.invitation("--profile", "rfc7146", "--local-id", "alpha.example")
	if x, y := a.until(codePattern), b.until(codePattern); x != y {
		t.Errorf("codes %s and %s", x, y)
	}
	s.noPeers("before anybody has confirmed")
	a.say("y")
	a.until("confirmed; waiting")
	s.noPeers("when one has confirmed")
	b.say("yes")
	for _, d := range []*dialogue{a, b} {
		if err := d.end(); err != nil {
			t.Fatalf("%v:\n%s", err, d.output())
		}
		if !strings.Contains(d.output(), "both hosts have each other as peers") {
			t.Errorf("%s", d.output())
		}
	}
	var secrets [2][]byte
	for i, n := range []*node.Node{s.alpha, s.beta} {
		peer := map[int]string{0: "beta", 1: "alpha"}[i]
		file := config.SecretPath(n.Config, peer)
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, st, err)
		}
		if secrets[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		if log := n.LogTail(1 << 20); strings.Contains(log, token) || strings.Contains(log, strings.TrimSpace(string(secrets[i]))) {
			t.Errorf("the log of %s has a secret", n.Name())
		}
	}
	if !bytes.Equal(secrets[0], secrets[1]) || len(bytes.TrimSpace(secrets[0])) != 44 {
		t.Error("the secrets are not the same 32 bytes")
	}
	if out := a.output() + strings.ReplaceAll(b.output(), token, ""); strings.Contains(out, strings.TrimSpace(string(secrets[0]))) {
		t.Error("a screen shows the secret")
	}
	s.ping()
	if p := s.peer(s.beta, "alpha"); p.RemoteID != "alpha.example" || p.IPsec.Live == nil || p.IPsec.Live.RemoteID != "alpha.example" {
		t.Errorf("%+v", p)
	}
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "alpha", "disk", image)
	s.must(s.alpha, "attach", "beta/disk")
	if _, err := wire.Stop(); err != nil {
		t.Error(err)
	}
	// The token is used, and its port is shut.
	again := s.converse(s.beta, "peer", "join", "--name", "gamma")
	again.say(token)
	if err := again.end(); err == nil || !strings.Contains(again.output(), "nobody answers at the addresses of the invitation") {
		t.Errorf("once more: %v\n%s", err, again.output())
	}
}

// TestNeitherHostKeepsHalfAPeerOfAnInvitation that somebody declines, interrupts or kills, which expires, or whose other side
// has such a peer already.
func TestNeitherHostKeepsHalfAPeerOfAnInvitation(t *testing.T) {
	s := newScene(t)
	for _, c := range []struct {
		name         string
		act          func(a, b *dialogue)
		saysA, saysB string
	}{
		{"declined by the inviter", func(a, b *dialogue) { b.say("y"); b.until("confirmed; waiting"); a.say("n") }, "not confirmed", "its people have not confirmed the code"},
		{"declined by the joiner", func(a, b *dialogue) { a.say("y"); a.until("confirmed; waiting"); b.say("") }, "its people have not confirmed the code", "not confirmed"},
		{"nobody answers", func(a, b *dialogue) { a.say("y"); a.until("confirmed; waiting"); b.stdin.Close() }, "its people have not confirmed the code", "standard input has ended without an answer"},
		{"interrupted at the inviter", func(a, b *dialogue) { b.say("y"); b.until("confirmed; waiting"); a.signal(syscall.SIGINT) }, "", "the other host is gone"},
		{"killed at the joiner", func(a, b *dialogue) { a.say("y"); a.until("confirmed; waiting"); b.signal(syscall.SIGKILL) }, "the other host is gone", ""},
	} {
		a, b, _ := s.invitation()
		a.until(codePattern)
		b.until(codePattern)
		c.act(a, b)
		for d, says := range map[*dialogue]string{a: c.saysA, b: c.saysB} {
			if err := d.end(); err == nil || !strings.Contains(d.output(), says) {
				t.Errorf("%s: %v, without %q:\n%s", c.name, err, says, d.output())
			}
		}
		s.noPeers(c.name)
	}

	// A profile that encrypts nothing is the inviter's choice, of which the joiner's people learn before they confirm.
	a, b, _ := s.invitation("--profile", "rfc7146-null")
	b.until(`INSECURE: profile rfc7146-null: NO CONFIDENTIALITY`)
	b.until(codePattern)
	b.say("n")
	a.end()
	b.end()
	s.noPeers("another profile")

	a = s.converse(s.alpha, "peer", "invite", "--expires", "1s")
	token := a.until(tokenPattern)
	if err := a.end(); err == nil || !strings.Contains(a.output(), "the invitation has expired") {
		t.Errorf("%v:\n%s", err, a.output())
	}
	if out, err := s.beta.Ironwarp(t.Context(), strings.NewReader(token), "peer", "join", "-"); err == nil || !strings.Contains(err.Error(), "the invitation has expired") {
		t.Errorf("expired: %s, %v", out, err)
	}

	// Who has such a peer already learns it before anybody is asked, and so does the other.
	s.must(s.beta, "peer", "add", "--generate-psk", "other", s.alpha.Addr().String())
	a, b, _ = s.invitation()
	for d, says := range map[*dialogue]string{a: "the other host has ended it", b: "`ironwarp peer rm other`, and invite it again"} {
		if err := d.end(); err == nil || regexp.MustCompile(codePattern).MatchString(d.output()) {
			t.Errorf("%v:\n%s", err, d.output())
		}
		if !strings.Contains(d.output(), says) || !strings.Contains(d.output(), "the same address "+s.alpha.Addr().String()) {
			t.Errorf("without %q:\n%s", says, d.output())
		}
	}
	s.must(s.beta, "peer", "rm", "other")
	os.Remove(config.SecretPath(s.beta.Config, "other"))
	s.noPeers("in the end")

	// A port of streams is none of an invitation's.
	if _, err := s.alpha.Ironwarp(t.Context(), nil, "peer", "invite", "--port", fmt.Sprint(config.DefaultPort)); err == nil || !strings.Contains(err.Error(), "port 7471 is that of RDMA streams") {
		t.Errorf("%v", err)
	}
	// And whoever confirms unseen does not take the token from where others read it.
	if _, err := s.beta.Ironwarp(t.Context(), nil, "peer", "join", "--yes", token); err == nil || !strings.Contains(err.Error(), "where others may read it") {
		t.Errorf("%v", err)
	}
}

// TestInvitationOfScripts confirms unseen on both hosts, with a token that is carried in a file.
func TestInvitationOfScripts(t *testing.T) {
	s := newScene(t)
	file := filepath.Join(s.alpha.Dir(), "token")
	a := s.converse(s.alpha, "--json", "peer", "invite", "--yes", "--token-file", file, "beta")
	a.until("Waiting for it at")
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	out := s.must(s.beta, "--json", "peer", "join", "--yes", "--token-file", file, "--name", "alpha")
	if err := a.end(); err != nil {
		t.Fatalf("%v:\n%s", err, a.output())
	}
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{out, a.output()} {
		if strings.Contains(shown, strings.TrimSpace(string(token))) || !strings.Contains(shown, `"psk_file"`) {
			t.Errorf("%s", shown)
		}
	}
	s.ping()
}

func (d *dialogue) signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}
