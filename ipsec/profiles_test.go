package ipsec

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func mustProfile(t *testing.T, name string) *Profile {
	t.Helper()
	p, err := ProfileByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBuiltInProfilesAreValidAndEveryLineHasItsClause(t *testing.T) {
	for _, name := range ProfileNames() {
		p := mustProfile(t, name)
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		lines := map[string]int{}
		for _, c := range p.Clauses() {
			lines[c.Setting]++
			if c.Setting == "" || c.Value == "" || c.Level == "" || c.Text == "" || !strings.HasPrefix(c.RFC, "RFC ") {
				t.Errorf("%s: a line without its clause: %+v", name, c)
			}
		}
		if lines["ike"] != len(p.IKE) || lines["esp"] != len(p.ESP) || lines["replay_window"] != 1 || lines["manual_keys"] != 1 {
			t.Errorf("%s: lines %v", name, lines)
		}
	}
	if p := mustProfile(t, ""); p.Name != "rfc7146" {
		t.Errorf("the default is %s", p.Name)
	}
	_, err := ProfileByName("rfc2401")
	if !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), "rfc3723") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestOwnLinesOfAProfileClaimNoClause(t *testing.T) {
	p := DefaultProfile()
	p.ESP = []string{"chacha20poly1305-ecp256", "aes128gcm16-ecp256"}
	p.ChildRekey = 90 * time.Minute
	for _, c := range p.Clauses() {
		own := c.Value == "chacha20poly1305-ecp256" || c.Value == "1h30m"
		if own != (c.RFC == "") {
			t.Errorf("%+v", c)
		}
	}
}

func TestProfilesOfferWhatTheRFCsDemand(t *testing.T) {
	old := mustProfile(t, "rfc3723")
	if old.Version != 1 || old.Aggressive || !old.PFS || old.Mode != ModeTunnel {
		t.Errorf("rfc3723 is %+v", old)
	}
	// RFC 3723 2.3.1 and 2.3.4, with the groups of RFC 7146 3.2.
	for _, want := range []string{"aes128ctr-aesxcbc-modp2048", "aes128-sha1-modp2048", "3des-sha1-modp2048"} {
		if !slices.Contains(old.ESP, want) {
			t.Errorf("rfc3723 does not offer %s", want)
		}
	}
	if life := old.lifeBytes(); life == 0 || life > MaxSmallBlockBytes {
		t.Errorf("3DES keys live for %d bytes", life)
	}
	aggressive := mustProfile(t, "rfc3723-aggressive")
	if !aggressive.Aggressive || len(aggressive.Warnings()) != 1 || !strings.Contains(aggressive.Warnings()[0], "offline") {
		t.Errorf("aggressive mode without a warning: %v", aggressive.Warnings())
	}
	for _, name := range []string{"rfc7146-null", "rfc3723-null"} {
		p := mustProfile(t, name)
		if len(p.Warnings()) != 1 || !strings.Contains(p.Warnings()[0], "NO CONFIDENTIALITY") {
			t.Errorf("%s without a warning: %v", name, p.Warnings())
		}
		for _, e := range p.ESP {
			if prop, err := parseProposal(e); err != nil || !prop.null {
				t.Errorf("%s encrypts with %s", name, e)
			}
		}
	}
	for _, name := range []string{"rfc7146", "rfc3723"} {
		if w := mustProfile(t, name).Warnings(); len(w) != 0 {
			t.Errorf("%s warns: %v", name, w)
		}
	}
}

func TestProfileIsOfferedAsTheDataPlaneAndTheIKEVersionTakeIt(t *testing.T) {
	null := mustProfile(t, "rfc7146-null")
	if got := null.espFor(esp.Userland); slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "gmac") }) {
		t.Errorf("userland ESP is offered GMAC, which it has not: %v", got)
	}
	if got := null.espFor(esp.Kernel); got[0] != "aes128gmac-modp2048-esn-noesn" {
		t.Errorf("the kernel is offered %v", got)
	}
	// An IKEv1 transform has either kind of sequence numbers (RFC 4304).
	if got := mustProfile(t, "rfc3723").espFor(esp.Kernel)[:2]; !slices.Equal(got, []string{"aes128ctr-aesxcbc-modp2048-esn", "aes128ctr-aesxcbc-modp2048"}) {
		t.Errorf("IKEv1: %v", got)
	}
	p := DefaultProfile()
	p.Mode = ModeTransport
	if err := p.fits(esp.Userland); !errors.Is(err, ErrDataPlane) || !strings.Contains(err.Error(), "transport") {
		t.Errorf("transport mode over userland ESP: %v", err)
	}
	if err := p.fits(esp.Kernel); err != nil {
		t.Errorf("transport mode over the kernel's ESP: %v", err)
	}
	p = DefaultProfile()
	p.ESP = []string{"aes128gmac-ecp256"}
	if err := p.fits(esp.Userland); !errors.Is(err, ErrDataPlane) {
		t.Errorf("GMAC alone over userland ESP: %v", err)
	}
}

func TestPeerRefusesWhatDoesNotGoTogether(t *testing.T) {
	aggressive := mustProfile(t, "rfc3723-aggressive")
	for _, tc := range []struct {
		name   string
		change func(*Peer)
		words  string
	}{
		{"aggressive mode with addresses", func(p *Peer) { p.Profile, p.LocalID, p.RemoteID = aggressive, "", "" }, "names only"},
		{"aggressive mode with one address", func(p *Peer) { p.Profile, p.LocalID, p.RemoteID = aggressive, "alpha", "192.0.2.2" }, "names only"},
		{"no authentication", func(p *Peer) { p.PSK = Secret{} }, "pre-shared key is missing"},
		{"three children", func(p *Peer) { p.Children = 3 }, "power of two"},
		{"32 children", func(p *Peer) { p.Children = 32 }, "1 to 16"},
		{"less than one child", func(p *Peer) { p.Children = -1 }, "power of two"},
		{"two children by IKEv1", func(p *Peer) { p.Children, p.Profile = 2, mustProfile(t, "rfc3723") }, "RFC 2407"},
		{"reaping at once", func(p *Peer) { p.IdleReap = time.Millisecond }, "at least a second"},
		{"the peer as its own gateway", func(p *Peer) { p.Gateway = p.Remote }, "leave it out"},
		{"a gateway of another family", func(p *Peer) { p.Gateway = netip.MustParseAddr("2001:db8::1") }, "families"},
		{"any gateway", func(p *Peer) { p.Gateway = netip.MustParseAddr("0.0.0.0") }, "one host's address"},
		{"a gateway in transport mode", func(p *Peer) {
			p.Gateway, p.Profile = netip.MustParseAddr("192.0.2.99"), DefaultProfile()
			p.Profile.Mode = ModeTransport
		}, "tunnel mode is needed"},
		{"an unknown revocation policy", func(p *Peer) { p.Revocation = "never" }, "strict, ifuri or relaxed"},
		{"anybody as the peer", func(p *Peer) { p.RemoteID = "0.0.0.0" }, "would stand for any"},
		{"anybody as the peer, IPv6", func(p *Peer) { p.RemoteID = "0::0" }, "would stand for any"},
		{"a star as the peer", func(p *Peer) { p.RemoteID = "*" }, "wildcard"},
	} {
		p := testPeer("beta", 2)
		tc.change(&p)
		if _, err := p.withDefaults(); err == nil || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
	p := testPeer("beta", 2)
	p.Profile, p.LocalID, p.RemoteID = aggressive, "alpha", "admin@example.org"
	if _, err := p.withDefaults(); err != nil {
		t.Errorf("aggressive mode with names: %v", err)
	}
}

func TestKeysThatStrongSwanWouldConfuseAreFound(t *testing.T) {
	at := func(profile string, name string, id string) *Peer {
		p := testPeer(name, 2)
		p.Profile, p.LocalID, p.RemoteID, p.PSK = mustProfile(t, profile), "alpha", id, GenerateSecret()
		return &p
	}
	if err := at("rfc7146", "a", "beta").keyClash(at("rfc7146", "b", "beta")); err == nil || !strings.Contains(err.Error(), "same identities") {
		t.Errorf("the same identities: %v", err)
	}
	if err := at("rfc3723", "a", "beta").keyClash(at("rfc3723", "b", "beta2")); err == nil || !strings.Contains(err.Error(), "RFC 2409 5.4") {
		t.Errorf("main mode with the same addresses: %v", err)
	}
	if err := at("rfc7146", "a", "beta").keyClash(at("rfc7146", "b", "beta2")); err != nil {
		t.Errorf("IKEv2 with different identities: %v", err)
	}
	a, b := at("rfc3723", "a", "beta"), at("rfc3723", "b", "beta2")
	b.PSK = a.PSK
	if err := a.keyClash(b); err != nil {
		t.Errorf("the same key: %v", err)
	}
}

func TestDangerousSettingsAreLoggedLoudly(t *testing.T) {
	var log bytes.Buffer
	m, err := New(Config{Socket: "/nonexistent", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	quiet := testPeer("beta", 2)
	m.warn(&quiet)
	if log.Len() != 0 {
		t.Errorf("the default profile warns: %s", log.String())
	}
	loud := testPeer("gamma", 3)
	loud.Profile = mustProfile(t, "rfc3723-aggressive")
	m.warn(&loud)
	if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "AGGRESSIVE MODE") || !strings.Contains(s, "peer=gamma") {
		t.Errorf("aggressive mode: %s", s)
	}
	m.peers["beta"] = newPeer(m, quiet)
	defer delete(m.peers, "beta")
	log.Reset()
	again := testPeer("beta2", 2)
	again.RemoteID, again.PSK = quiet.RemoteID, GenerateSecret()
	m.warn(&again)
	if s := log.String(); !strings.Contains(s, "same identities") || strings.Contains(s, string(again.PSK.Reveal())) {
		t.Errorf("two keys for one identity: %s", s)
	}
}
