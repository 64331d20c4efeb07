package pad_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/auth/authtest"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

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
		p := padtest.Peer("beta", 2)
		p.RemoteID = id
		if _, err := p.WithDefaults(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("identity %q: %v, want %q", id, err, words)
		}
	}
	for _, id := range []string{"beta", "beta.example.org", "admin@example.org", "192.0.2.7", "2001:db8::7"} {
		p := padtest.Peer("beta", 2)
		p.RemoteID = id
		if _, err := p.WithDefaults(); err != nil {
			t.Errorf("identity %q: %v", id, err)
		}
	}
}

func TestPeerRefusesWhatDoesNotGoTogether(t *testing.T) {
	aggressive := padtest.Profile(t, "rfc3723-aggressive")
	for _, tc := range []struct {
		name   string
		change func(*pad.Peer)
		words  string
	}{
		{"aggressive mode with addresses", func(p *pad.Peer) { p.Profile, p.LocalID, p.RemoteID = aggressive, "", "" }, "names only"},
		{"aggressive mode with one address", func(p *pad.Peer) { p.Profile, p.LocalID, p.RemoteID = aggressive, "alpha", "192.0.2.2" }, "names only"},
		{"a profile without replay protection", func(p *pad.Peer) {
			p.Profile = profile.Default()
			p.Profile.ReplayWindow = 0
		}, "RFC 3723 2.3.1"},
		{"a profile with DES", func(p *pad.Peer) {
			p.Profile = profile.Default()
			p.Profile.ESP = []string{"des-sha1-modp2048"}
		}, "RFC 3723 2.3.1"},
		{"no authentication", func(p *pad.Peer) { p.PSK = auth.Secret{} }, "pre-shared key is missing"},
		{"three children", func(p *pad.Peer) { p.Children = 3 }, "power of two"},
		{"32 children", func(p *pad.Peer) { p.Children = 32 }, "1 to 16"},
		{"less than one child", func(p *pad.Peer) { p.Children = -1 }, "power of two"},
		{"two children by IKEv1", func(p *pad.Peer) { p.Children, p.Profile = 2, padtest.Profile(t, "rfc3723") }, "RFC 2407"},
		{"reaping at once", func(p *pad.Peer) { p.IdleReap = time.Millisecond }, "at least a second"},
		{"the peer as its own gateway", func(p *pad.Peer) { p.Gateway = p.Remote }, "leave it out"},
		{"a gateway of another family", func(p *pad.Peer) { p.Gateway = netip.MustParseAddr("2001:db8::1") }, "families"},
		{"any gateway", func(p *pad.Peer) { p.Gateway = netip.MustParseAddr("0.0.0.0") }, "one host's address"},
		{"a gateway in transport mode", func(p *pad.Peer) {
			p.Gateway, p.Profile = netip.MustParseAddr("192.0.2.99"), profile.Default()
			p.Profile.Mode = profile.Transport
		}, "tunnel mode is needed"},
		{"an unknown revocation policy", func(p *pad.Peer) { p.Revocation = "never" }, "strict, ifuri or relaxed"},
		{"anybody as the peer", func(p *pad.Peer) { p.RemoteID = "0.0.0.0" }, "would stand for any"},
		{"anybody as the peer, IPv6", func(p *pad.Peer) { p.RemoteID = "0::0" }, "would stand for any"},
		{"a star as the peer", func(p *pad.Peer) { p.RemoteID = "*" }, "wildcard"},
	} {
		p := padtest.Peer("beta", 2)
		tc.change(&p)
		if _, err := p.WithDefaults(); err == nil || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
	p := padtest.Peer("beta", 2)
	p.Profile, p.LocalID, p.RemoteID = aggressive, "alpha", "admin@example.org"
	if _, err := p.WithDefaults(); err != nil {
		t.Errorf("aggressive mode with names: %v", err)
	}
}

func TestKeysThatStrongSwanWouldConfuseAreFound(t *testing.T) {
	at := func(how, name string, id string) *pad.Peer {
		p := padtest.Peer(name, 2)
		p.Profile, p.LocalID, p.RemoteID, p.PSK = padtest.Profile(t, how), "alpha", id, auth.GenerateSecret()
		return &p
	}
	if err := at("rfc7146", "a", "beta").KeyClash(at("rfc7146", "b", "beta")); err == nil || !strings.Contains(err.Error(), "same identities") {
		t.Errorf("the same identities: %v", err)
	}
	if err := at("rfc3723", "a", "beta").KeyClash(at("rfc3723", "b", "beta2")); err == nil || !strings.Contains(err.Error(), "RFC 2409 5.4") {
		t.Errorf("main mode with the same addresses: %v", err)
	}
	if err := at("rfc7146", "a", "beta").KeyClash(at("rfc7146", "b", "beta2")); err != nil {
		t.Errorf("IKEv2 with different identities: %v", err)
	}
	a, b := at("rfc3723", "a", "beta"), at("rfc3723", "b", "beta2")
	b.PSK = a.PSK
	if err := a.KeyClash(b); err != nil {
		t.Errorf("the same key: %v", err)
	}
}

func TestPeerWithCertificateIsChecked(t *testing.T) {
	dir := authtest.Authority(t, "here", "there")
	for _, tc := range []struct {
		name   string
		change func(*pad.Peer)
		kind   error
		words  string
	}{
		{"a key as well", func(p *pad.Peer) { p.PSK = auth.GenerateSecret() }, nil, "choose one"},
		{"no authority", func(p *pad.Peer) { p.CAs = nil }, nil, "authority that issued"},
		{"an empty authority", func(p *pad.Peer) { p.CAs = []auth.Authority{{}} }, auth.ErrCredential, "without a certificate"},
		{"an identity that is not in it", func(p *pad.Peer) { p.LocalID = "elsewhere" }, auth.ErrCertIdentity, `"elsewhere"`},
		{"an address that is not in it", func(p *pad.Peer) { p.LocalID = "" }, auth.ErrCertIdentity, "for here"},
		{"an authority and a key", func(p *pad.Peer) { p.Cert, p.PSK = nil, auth.GenerateSecret() }, nil, "no certificate"},
	} {
		p := padtest.Peer("beta", 2)
		p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
		tc.change(&p)
		_, err := p.WithDefaults()
		if err == nil || !strings.Contains(err.Error(), tc.words) || tc.kind != nil && !errors.Is(err, tc.kind) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
	p := padtest.Peer("beta", 2)
	p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
	p, err := p.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if p.AskedRevocation() != auth.RevocationIfURI {
		t.Errorf("without a place to ask: %s", p.AskedRevocation())
	}
	p.CAs[0].CRLURIs = []string{"http://192.0.2.1/ca.crl"}
	if p.AskedRevocation() != auth.RevocationStrict {
		t.Errorf("with a place to ask: %s, and charon would accept what it could not ask about", p.AskedRevocation())
	}
	p.Revocation = auth.RevocationRelaxed
	if p.AskedRevocation() != auth.RevocationRelaxed {
		t.Errorf("relaxed turned into %s", p.AskedRevocation())
	}
}
