package ipsec

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/auth/authtest"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

func mustProfile(t *testing.T, name string) *profile.Profile {
	t.Helper()
	p, err := profile.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPeerRefusesIdentitiesThatTheRFCsForbid(t *testing.T) {
	for id, words := range map[string]string{
		"@#0a0b0c":        "ID_KEY_ID",
		"@beta":           "without @",
		"C=DE, CN=beta":   "distinguished",
		"192.0.2.0/24":    "subnets",
		"%any":            "wildcard",
		"keyid:abc":       "key ids",
		"user@":           "user@host",
		"beta host":       "subnets",
		"b_e-t.a.":        "host name",
		"fe80::1%eth0":    "wildcard",
		"user@host@there": "user@host",
	} {
		p := testPeer("beta", 2)
		p.RemoteID = id
		if _, err := p.withDefaults(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("identity %q: %v, want %q", id, err, words)
		}
	}
	for _, id := range []string{"beta", "beta.example.org", "admin@example.org", "192.0.2.7", "2001:db8::7"} {
		p := testPeer("beta", 2)
		p.RemoteID = id
		if _, err := p.withDefaults(); err != nil {
			t.Errorf("identity %q: %v", id, err)
		}
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
		{"no authentication", func(p *Peer) { p.PSK = auth.Secret{} }, "pre-shared key is missing"},
		{"three children", func(p *Peer) { p.Children = 3 }, "power of two"},
		{"32 children", func(p *Peer) { p.Children = 32 }, "1 to 16"},
		{"less than one child", func(p *Peer) { p.Children = -1 }, "power of two"},
		{"two children by IKEv1", func(p *Peer) { p.Children, p.Profile = 2, mustProfile(t, "rfc3723") }, "RFC 2407"},
		{"reaping at once", func(p *Peer) { p.IdleReap = time.Millisecond }, "at least a second"},
		{"the peer as its own gateway", func(p *Peer) { p.Gateway = p.Remote }, "leave it out"},
		{"a gateway of another family", func(p *Peer) { p.Gateway = netip.MustParseAddr("2001:db8::1") }, "families"},
		{"any gateway", func(p *Peer) { p.Gateway = netip.MustParseAddr("0.0.0.0") }, "one host's address"},
		{"a gateway in transport mode", func(p *Peer) {
			p.Gateway, p.Profile = netip.MustParseAddr("192.0.2.99"), profile.Default()
			p.Profile.Mode = profile.Transport
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
	at := func(how, name string, id string) *Peer {
		p := testPeer(name, 2)
		p.Profile, p.LocalID, p.RemoteID, p.PSK = mustProfile(t, how), "alpha", id, auth.GenerateSecret()
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
	again.RemoteID, again.PSK = quiet.RemoteID, auth.GenerateSecret()
	m.warn(&again)
	if s := log.String(); !strings.Contains(s, "same identities") || strings.Contains(s, string(again.PSK.Reveal())) {
		t.Errorf("two keys for one identity: %s", s)
	}
}

func TestPeerWithCertificateIsChecked(t *testing.T) {
	dir := authtest.Authority(t, "here", "there")
	for _, tc := range []struct {
		name   string
		change func(*Peer)
		kind   error
		words  string
	}{
		{"a key as well", func(p *Peer) { p.PSK = auth.GenerateSecret() }, nil, "choose one"},
		{"no authority", func(p *Peer) { p.CAs = nil }, nil, "authority that issued"},
		{"an empty authority", func(p *Peer) { p.CAs = []auth.Authority{{}} }, auth.ErrCredential, "without a certificate"},
		{"an identity that is not in it", func(p *Peer) { p.LocalID = "elsewhere" }, auth.ErrCertIdentity, `"elsewhere"`},
		{"an address that is not in it", func(p *Peer) { p.LocalID = "" }, auth.ErrCertIdentity, "for here"},
		{"an authority and a key", func(p *Peer) { p.Cert, p.PSK = nil, auth.GenerateSecret() }, nil, "no certificate"},
	} {
		p := testPeer("beta", 2)
		p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
		tc.change(&p)
		_, err := p.withDefaults()
		if err == nil || !strings.Contains(err.Error(), tc.words) || tc.kind != nil && !errors.Is(err, tc.kind) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
	p := testPeer("beta", 2)
	p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
	p, err := p.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if p.revocation() != auth.RevocationIfURI {
		t.Errorf("without a place to ask: %s", p.revocation())
	}
	p.CAs[0].CRLURIs = []string{"http://192.0.2.1/ca.crl"}
	if p.revocation() != auth.RevocationStrict {
		t.Errorf("with a place to ask: %s, and charon would accept what it could not ask about", p.revocation())
	}
	p.Revocation = auth.RevocationRelaxed
	if p.revocation() != auth.RevocationRelaxed {
		t.Errorf("relaxed turned into %s", p.revocation())
	}
}
