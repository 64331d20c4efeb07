package peers

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/invite"
	"github.com/ironwarp/ironwarp/transport"
)

// linkLocal is a host's link-local address on its wire, once no other host has claimed it.
func (s *scene) linkLocal(n *node.Node) (at netip.Addr) {
	s.t.Helper()
	s.until(n.Name()+" has a link-local address", func() bool {
		out, err := exec.Command("ip", "-n", n.Namespace(), "-6", "-oneline", "addr", "show", "dev", n.Dev(), "scope", "link", "-tentative").CombinedOutput()
		if err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
		for _, word := range strings.Fields(string(out)) {
			if p, err := netip.ParsePrefix(word); err == nil {
				at = p.Addr()
			}
		}
		return at.IsValid()
	})
	return at
}

func (s *scene) ip(n *node.Node, args ...string) {
	s.t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", n.Namespace()}, args...)...).CombinedOutput(); err != nil {
		s.t.Fatalf("ip %v on %s: %v: %s", args, n.Name(), err, out)
	}
}

// TestInvitationOverIPv6Alone: hosts without an IPv4 address become peers by a token and a code, at the inviter's only
// address that reaches further than its link, and their disk is in ESP alone.
func TestInvitationOverIPv6Alone(t *testing.T) {
	s := newScene(t)
	for _, n := range []*node.Node{s.alpha, s.beta} {
		s.ip(n, "-4", "addr", "flush", "dev", n.Dev())
	}
	// Without a zone a link-local address is that of no host, and a token has no room for one, which would be another on the
	// other host anyway.
	local := s.linkLocal(s.alpha).String()
	for _, bad := range []string{local, local + "%" + s.alpha.Dev(), "[" + local + "]", "::1", s.alpha.Addr6().String() + "%" + s.alpha.Dev()} {
		if out, err := s.alpha.Ironwarp(t.Context(), nil, "peer", "invite", "--expires", "1s", "--address", bad); err == nil || !strings.Contains(err.Error(), "is not an address at which another host reaches this one") {
			t.Errorf("--address %s: %s, %v", bad, out, err)
		}
	}
	// Nor does a host become a peer that reaches the inviter from such an address.
	beta6, net6 := s.beta.Addr6().String()+"/64", netip.PrefixFrom(s.beta.Addr6(), 64).Masked().String()
	s.ip(s.beta, "addr", "del", beta6, "dev", s.beta.Dev())
	s.ip(s.beta, "-6", "route", "add", net6, "dev", s.beta.Dev())
	s.linkLocal(s.beta)
	a, b, _ := s.invitation()
	for _, d := range []*dialogue{a, b} {
		if d.until(`(link-local address|[0-9]{3} [0-9]{3}\n)`) != "link-local address" {
			t.Fatalf("somebody is asked:\n%s", d.output())
		}
		if err := d.end(); err == nil || !strings.Contains(d.output(), "`ip address`") {
			t.Errorf("%v:\n%s", err, d.output())
		}
	}
	s.noPeers("from a link-local address")
	s.ip(s.beta, "-6", "route", "del", net6, "dev", s.beta.Dev())
	s.ip(s.beta, "addr", "add", beta6, "dev", s.beta.Dev(), "nodad")

	wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{Allow: []string{lab.PortKind(transport.ProtoTCP, invite.DefaultPort)}})
	if err != nil {
		t.Fatal(err)
	}
	a, b, _ = s.invitation()
	at := netip.AddrPortFrom(s.alpha.Addr6(), invite.DefaultPort).String()
	if got := a.until(`Waiting for it at (.*) \(TCP\)`); got != at {
		t.Errorf("the inviter waits at %s; want: %s alone", got, at)
	}
	if x, y := a.until(codePattern), b.until(codePattern); x != y {
		t.Errorf("codes %s and %s", x, y)
	}
	a.say("y")
	b.say("y")
	for _, d := range []*dialogue{a, b} {
		if err := d.end(); err != nil {
			t.Fatalf("%v:\n%s", err, d.output())
		}
	}
	s.ping()
	for n, other := range map[*node.Node]*node.Node{s.alpha: s.beta, s.beta: s.alpha} {
		if p := s.peer(n, other.Name()); p.Address != other.Addr6().String() {
			t.Errorf("%s has %s at %s", n.Name(), other.Name(), p.Address)
		}
	}
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "alpha", "disk", image)
	s.readDisk(strings.TrimSpace(s.must(s.alpha, "attach", "--quiet", "beta/disk")))
	counts, err := wire.Stop()
	if err != nil {
		t.Error(err)
	}
	if counts.ESP == 0 {
		t.Errorf("no ESP on the wire: %+v", counts)
	}
}
