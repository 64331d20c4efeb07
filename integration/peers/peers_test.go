package peers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestReloadOfIPsecSettingsLeavesStreamsAlone changes settings that can change under a
// stream: it goes on, and the next authentication uses the new settings. The end is the
// control: another identity is another peer, and the streams end.
func TestReloadOfIPsecSettingsLeavesStreamsAlone(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	before := s.streams()
	s.until("the status has the first authentication", func() bool {
		l := s.peer(s.alpha, "beta").IPsec.Live
		return l != nil && strings.Contains(l.IKE, "AES_GCM_16-128")
	})
	for _, n := range []*node.Node{s.alpha, s.beta} {
		peer := map[*node.Node]string{s.alpha: "beta", s.beta: "alpha"}[n]
		main, err := os.ReadFile(n.Config)
		if err != nil {
			t.Fatal(err)
		}
		more := "ipsec:\n  profiles:\n    ours: {ike: [aes256-sha384-modp3072], esp: [aes256gcm16-modp3072], child_rekey: 30m}\n"
		if err := os.WriteFile(n.Config, append(main, more...), 0o600); err != nil {
			t.Fatal(err)
		}
		s.edit(n, peer, "profile: ours\nidle_reap: 10m\n")
		if out := s.must(n, "reload"); !strings.Contains(out, "peer "+peer+" changed") {
			t.Errorf("reload on %s: %s", n.Name(), out)
		}
	}
	s.ping()
	if after := s.streams(); !slices.Equal(before, after) {
		t.Errorf("streams %v, after the reload %v", before, after)
	}
	s.must(s.alpha, "sa", "delete", "--ike", "beta")
	s.ping()
	// The SA carries the ping before the daemon has read what it is.
	s.until("the status has the new authentication", func() bool {
		p := s.peer(s.alpha, "beta")
		l := p.IPsec.Live
		return l != nil && strings.Contains(l.IKE, "AES_CBC-256") && strings.Contains(l.ESP, "AES_GCM_16-256") && p.Profile == "ours"
	})
	if after := s.streams(); !slices.Equal(before, after) {
		t.Errorf("streams %v, after the new authentication %v", before, after)
	}

	s.edit(s.alpha, "beta", "local_id: alpha.example\n")
	s.edit(s.beta, "alpha", "remote_id: alpha.example\n")
	// Its exports name the old identity, which nobody has any more.
	if out, err := s.beta.Ironwarp(t.Context(), nil, "reload"); err == nil || !strings.Contains(err.Error(), "which no configured peer has") {
		t.Errorf("reload with an export to an identity of nobody: %s, %v", out, err)
	}
	export := filepath.Join(filepath.Dir(s.beta.Config), "exports.d", "disk.yaml")
	data, err := os.ReadFile(export)
	if err != nil {
		t.Fatal(err)
	}
	data = []byte(strings.ReplaceAll(string(data), "id:"+s.alpha.Addr().String(), "id:alpha.example"))
	if err := os.WriteFile(export, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "reload")
	s.must(s.alpha, "reload")
	s.until("the disk is back under the new identity", func() bool {
		list, err := s.alpha.Client().Attachments(t.Context())
		return err == nil && len(list) == 1 && list[0].State == api.AttachReady
	})
	for _, id := range s.streams() {
		if slices.Contains(before, id) {
			t.Errorf("stream %s of the old identity goes on", id)
		}
	}
	s.until("beta has authenticated the new identity", func() bool {
		l := s.peer(s.beta, "alpha").IPsec.Live
		return l != nil && l.RemoteID == "alpha.example"
	})
}

// TestRotationOfASecretByCommandKeepsTheStreams includes a time in which only one host
// has the new secret and the IKE SA is lost.
func TestRotationOfASecretByCommandKeepsTheStreams(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	before := s.streams()
	same := func(when string) {
		t.Helper()
		if after := s.streams(); !slices.Equal(before, after) {
			t.Errorf("streams %v, %s %v", before, when, after)
		}
	}
	if out := s.must(s.alpha, "peer", "rotate-secret", "--generate-psk", "beta"); !strings.Contains(out, "peer beta has a new secret; SAs that are up stay") {
		t.Errorf("rotate-secret: %s", out)
	}
	s.ping() // the SA that is up serves new streams, too
	same("with the new secret on one host")
	s.must(s.alpha, "sa", "delete", "--ike", "beta")
	s.refused(api.ReasonAuthFailed, "authentication failed")
	var p api.Peer
	s.until("the status says what may be wrong", func() bool {
		p = s.peer(s.alpha, "beta")
		return p.State == api.PeerPaused && p.Problem != nil && strings.Contains(p.Problem.Fix, "another secret since") && strings.Contains(p.Problem.Fix, p.PSKFile)
	})
	same("with the IKE SA lost")
	secret, err := os.ReadFile(p.PSKFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.beta.Ironwarp(t.Context(), bytes.NewReader(secret), "peer", "rotate-secret", "--psk-file", "-", "alpha"); err != nil {
		t.Fatal(err)
	}
	s.ping()
	same("with the new secret on both hosts")
	s.until("the problem is over", func() bool {
		p = s.peer(s.alpha, "beta")
		return p.Problem == nil && p.State == api.PeerUp
	})
}

// TestRevokedCertificateIsRefusedAfterReload: strongSwan keeps a revocation list until
// it expires, and a reload does not wait for that. The control: before, the certificate
// is accepted.
func TestRevokedCertificateIsRefusedAfterReload(t *testing.T) {
	s := newScene(t)
	s.certificates(func(pki string) []string {
		return []string{"--crl-uri", "file://" + filepath.Join(pki, "ca.crl"), "--revocation", "strict"}
	})
	s.readDisk(s.attach()) // what no I/O has taken is not served
	s.documentedMetrics()
	before := s.streams()
	s.must(s.alpha, "pki", "revoke", "--dir", s.pki, "beta")
	s.must(s.alpha, "reload")
	if after := s.streams(); !slices.Equal(before, after) {
		t.Errorf("streams %v, after the reload %v", before, after)
	}
	s.must(s.alpha, "sa", "delete", "--ike", "beta")
	s.refused(api.ReasonCertRevoked, "the certificate was revoked")

	// A new certificate, and the streams that waited go on.
	s.issue(s.beta, "beta-2")
	s.edit(s.beta, "alpha", "", "beta.pem", "beta-2.pem", "beta.key", "beta-2.key")
	s.must(s.beta, "reload")
	s.ping()
	if after := s.streams(); !slices.Equal(before, after) {
		t.Errorf("streams %v, with the new certificate %v", before, after)
	}
}

// metricsInDocument are the metrics that the operations document names.
func (s *scene) metricsInDocument() []string {
	s.t.Helper()
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile(`ironwarp_[a-z_]+`).FindAllString(string(doc), -1))))
}

// serves reports whether what is served has a metric, which may be a histogram.
func serves(served, name string) bool {
	return slices.ContainsFunc([]string{"{", " ", "_bucket{"}, func(end string) bool { return strings.Contains(served, "\n"+name+end) })
}

// isOfTargets reports whether a metric is one that only hosts with iSCSI targets have.
func isOfTargets(name string) bool {
	return strings.HasPrefix(name, "ironwarp_target_") || strings.HasPrefix(name, "ironwarp_lun_")
}

// isOfSubsystems reports whether a metric is one that only hosts with NVMe subsystems have.
func isOfSubsystems(name string) bool {
	return strings.HasPrefix(name, "ironwarp_subsystem_") || strings.HasPrefix(name, "ironwarp_namespace_")
}

// isOfFabric reports whether a metric is one that only hosts in a fabric have.
func isOfFabric(name string) bool { return strings.HasPrefix(name, "ironwarp_fabric_") }

// metrics are those that a host serves.
func (s *scene) metrics(n *node.Node) string {
	s.t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		s.t.Skipf("%v: apt install curl", err)
	}
	served, err := n.Run(s.t.Context(), "curl", "-sS", "http://127.0.0.1:"+metricsPort+"/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	return served
}

// servesAll looks whether a host serves all those metrics that the operations document names and which of reports,
// and returns what it serves.
func (s *scene) servesAll(n *node.Node, which func(name string) bool) string {
	s.t.Helper()
	served, looked := s.metrics(n), 0
	for _, name := range s.metricsInDocument() {
		if !which(name) {
			continue
		}
		looked++
		if !serves(served, name) {
			s.t.Errorf("%s is not served", name)
		}
	}
	if looked == 0 {
		s.t.Error("the document names none of them")
	}
	return served
}

// documentedMetrics compares what is served with the operations document.
func (s *scene) documentedMetrics() {
	s.t.Helper()
	served := s.metrics(s.alpha)
	names := s.metricsInDocument()
	if len(names) < 15 {
		s.t.Errorf("the document names %v", names)
	}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "ironwarp_path_"): // only of a peer with several addresses
			continue
		case isOfFabric(name): // TestFabricWithESP has them
			continue
		case isOfTargets(name): // TestISERInitiatorOnAPeerIsServedInESPOnly has them
			continue
		case isOfSubsystems(name): // TestNVMeHostOnAPeerIsServedInESPOnly has them
			continue
		case strings.HasPrefix(name, "ironwarp_peer_block"), name == "ironwarp_streams_slow_paths": // one that is blocked, or drives slow paths
			continue
		}
		if !serves(served, name) {
			s.t.Errorf("%s is not served", name)
		}
	}
	if !strings.Contains(served, `ironwarp_ike_sa_info{algorithms="`) || !strings.Contains(served, `identity="`+s.beta.Addr().String()+`"`) {
		s.t.Error("the identity that IKE has authenticated is not served")
	}
	// No label may grow without bound: SPIs and stream ids do.
	for _, c := range s.children() {
		if strings.Contains(served, c.SPIIn) || strings.Contains(served, c.SPIOut) {
			s.t.Errorf("an SPI of %s is in the metrics", c.Child)
		}
	}
	for _, id := range s.streams() {
		if strings.Contains(served, id) {
			s.t.Errorf("the id of stream %s is in the metrics", id)
		}
	}
}

func (s *scene) children() []api.SA {
	s.t.Helper()
	list, err := s.alpha.Client().SAs(s.t.Context())
	if err != nil || len(list) == 0 {
		s.t.Fatalf("%v, %v", list, err)
	}
	return list
}

// pingSays waits until alpha's pings, none of which gets through, say these words.
func (s *scene) pingSays(words string) {
	s.t.Helper()
	s.until("a ping says "+words, func() bool { // IKE on a busy machine may need more than one
		_, err := s.alpha.Ironwarp(s.t.Context(), nil, "ping", "--timeout", "10s", "--count", "1", "beta")
		if err == nil {
			s.t.Fatal("a ping gets through")
		}
		s.t.Log(err)
		return strings.Contains(err.Error(), words)
	})
}

// refused waits until alpha cannot reach beta for that reason.
func (s *scene) refused(reason, words string) {
	s.t.Helper()
	s.pingSays(words)
	var p *api.Error
	s.until(fmt.Sprintf("the status says %s", reason), func() bool {
		p = s.peer(s.alpha, "beta").Problem
		return p != nil && p.Reason == reason
	})
	if !strings.Contains(p.Message, words) || p.Fix == "" {
		s.t.Errorf("the status says %+v, want %q", p, words)
	}
}

// watch writes what a command prints to out until the test ends.
func (s *scene) watch(out *lines, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	cmd := s.alpha.Command(ctx, program.Path(s.t), args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		cancel()
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
}

// TestCommandsOfSA goes through the commands of `sa`.
func TestCommandsOfSA(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	var people, programs lines
	s.watch(&people, "sa", "watch")
	s.watch(&programs, "sa", "watch", "--json", "beta")
	seen := func(kind, reason string) {
		t.Helper()
		s.until("an event "+kind+", "+reason, func() bool {
			return people.has(kind, reason) && programs.has(`"kind":"`+kind+`"`, reason) || people.has(kind) && reason == "" && programs.has(kind)
		})
	}
	s.attach()
	// The watchers have begun once they show something.
	s.until("watchers", func() bool {
		s.must(s.alpha, "sa", "rekey", "beta")
		return people.has("child-rekey") && programs.has("child-rekey")
	})
	before := s.streams()
	var list []api.IKESA
	if err := s.alpha.Query(t.Context(), &list, "sa", "show", "beta"); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(x api.IKESA) bool { return x.State == "ESTABLISHED" })
	if i < 0 {
		t.Fatalf("%+v", list)
	}
	ike := list[i]
	if ike.RemoteID != s.beta.Addr().String() || ike.LocalID != s.alpha.Addr().String() || ike.Version != 2 || ike.RekeyInSeconds <= 0 || ike.Algorithms == "" || len(ike.Children) == 0 {
		t.Errorf("%+v", ike)
	}
	for _, c := range ike.Children {
		if c.State == "INSTALLED" && (c.Mode != "tunnel" || c.ExpiresInSeconds <= c.RekeyInSeconds || c.RekeyInSeconds <= 0 || c.Encryption == "" || c.SPIIn == c.SPIOut) {
			t.Errorf("%+v", c)
		}
	}
	if out := s.must(s.alpha, "sa", "show", "beta"); !strings.Contains(out, s.beta.Addr().String()+" (authenticated peer)") {
		t.Errorf("sa show:\n%s", out)
	}
	s.must(s.alpha, "sa", "rekey", "--ike", "beta")
	seen("ike-rekey", "fresh keys")
	s.must(s.alpha, "sa", "delete", "--child", "beta-out", "beta")
	seen("child-down", "deleted on request")
	s.ping()
	s.must(s.beta, "sa", "delete", "alpha")
	seen("child-down", "deleted by the peer")
	s.ping()
	s.must(s.alpha, "sa", "delete", "--ike", "beta")
	seen("ike-down", "deleted on request")
	s.ping()
	seen("restored", "")
	for _, event := range []string{"event=child-rekey", "event=ike-rekey", "event=child-down", "event=ike-down", "event=child-up", "reason=\"deleted by the peer\""} {
		if log := s.alpha.LogTail(1 << 20); !strings.Contains(log, event) {
			t.Errorf("the log has no %s", event)
		}
	}
	if after := s.streams(); !slices.Equal(before, after) {
		t.Errorf("streams %v, in the end %v", before, after)
	}
	p := s.peer(s.alpha, "beta")
	if i := p.IPsec; i.DeletedByPeer == 0 || i.DeletedHere == 0 || i.Rekeys == 0 || i.IKERekeys == 0 || i.ChildDeletes < i.DeletedByPeer+i.DeletedHere {
		t.Errorf("counters %+v", i)
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"has no child", []string{"sa", "rekey", "--child", "nonsense", "beta"}},
		{"unknown peer", []string{"sa", "delete", "gamma"}},
		{"exclude each other", []string{"sa", "delete", "--ike", "--child", "beta-out", "beta"}},
	} {
		if _, err := s.alpha.Ironwarp(t.Context(), nil, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("ironwarp %s: %v", strings.Join(tc.args, " "), err)
		}
	}
	s.must(s.alpha, "detach", "beta/disk")
	s.until("there is nothing to delete", func() bool {
		s.must(s.alpha, "sa", "ls")
		_, err := s.alpha.Ironwarp(t.Context(), nil, "sa", "delete", "--ike", "beta")
		return err != nil && strings.Contains(err.Error(), "has no IKE SA now")
	})
}

// TestCertificateOfAnotherAuthorityIsRefused: neither side trusts the other's
// authority.
func TestCertificateOfAnotherAuthorityIsRefused(t *testing.T) {
	s := newScene(t)
	s.certificates(func(string) []string { return nil })
	s.ping() // the control
	ours := s.pki
	s.pki = filepath.Join(s.beta.Dir(), "other")
	s.must(s.beta, "pki", "init", "--dir", s.pki)
	s.must(s.beta, "pki", "issue", "--dir", s.pki, "--san", s.beta.Addr().String(), "beta")
	s.edit(s.beta, "alpha", "", filepath.Join(ours, "beta."), filepath.Join(s.pki, "beta."))
	s.must(s.beta, "reload")
	s.must(s.alpha, "sa", "delete", "--ike", "beta")
	s.pingSays("no IPsec SA with peer beta")
	s.until("the status says why", func() bool {
		p := s.peer(s.alpha, "beta").Problem
		return p != nil && (strings.Contains(p.Reason, "cert") || p.Reason == api.ReasonAuthFailed)
	})
	t.Log(s.peer(s.alpha, "beta").Problem)
}
