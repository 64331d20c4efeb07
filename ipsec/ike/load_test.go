package ike

import (
	"crypto/x509"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/auth/authtest"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

func TestConnectionSaysWhatTheProfileSays(t *testing.T) {
	const plane = esp.Kernel
	for _, name := range profile.Names() {
		p := padtest.Peer("beta", 2)
		p.Profile = padtest.Profile(t, name)
		conn := charon.Sub(connMessage(&p, plane), "beta")
		if charon.Str(conn, "version") != strconv.Itoa(p.Profile.Version) || (charon.Str(conn, "aggressive") == "yes") != p.Profile.Aggressive || !slices.Equal(charon.List(conn, "proposals"), p.Profile.IKE) {
			t.Errorf("%s: version %s, aggressive %q, proposals %v", name, charon.Str(conn, "version"), charon.Str(conn, "aggressive"), charon.List(conn, "proposals"))
		}
		// RFC 7146 3.1 d: single addresses, and here one protocol and port.
		ends := map[string][2]string{
			"beta-out": {"192.0.2.1/32[6]", "198.51.100.2/32[6/7471]"},
			"beta-in":  {"192.0.2.1/32[6/7471]", "198.51.100.2/32[6]"},
		}
		if n := len(charon.Sub(conn, "children").Keys()); n != len(ends) {
			t.Errorf("%s: %d children, want %d", name, n, len(ends))
		}
		for child, ts := range ends {
			c := charon.Sub(charon.Sub(conn, "children"), child)
			if local, remote := charon.List(c, "local_ts"), charon.List(c, "remote_ts"); !slices.Equal(local, ts[:1]) || !slices.Equal(remote, ts[1:]) {
				t.Errorf("%s: child %s is for %v to %v, want %v", name, child, local, remote, ts)
			}
			if charon.Str(c, "mode") != "tunnel" || charon.Str(c, "replay_window") != "1024" {
				t.Errorf("%s: child %s in mode %q with a replay window of %q", name, child, charon.Str(c, "mode"), charon.Str(c, "replay_window"))
			}
			offers := charon.List(c, "esp_proposals")
			esp := strings.Join(offers, " ")
			if !slices.Equal(offers, p.Profile.ESPFor(plane)) || !strings.Contains(esp, "-esn") || !strings.Contains(esp, "modp2048") {
				t.Errorf("%s: ESP %s, the profile has %s", name, esp, p.Profile.ESPFor(plane))
			}
			// RFC 7146 2.2: no key of a cipher of 64-bit blocks lives past 3 GiB, and
			// fresh ones are made well before.
			rekey, life := charon.Num(c, "rekey_bytes"), charon.Num(c, "life_bytes")
			if strings.Contains(esp, "3des") && (rekey == 0 || life <= rekey || life > profile.MaxSmallBlockBytes) {
				t.Errorf("%s: 3DES with rekey_bytes %d and life_bytes %d", name, rekey, life)
			}
		}
	}
	p := padtest.Peer("beta", 2)
	p.Profile.Mode = profile.Transport
	if c := charon.Sub(charon.Sub(charon.Sub(connMessage(&p, esp.Kernel), "beta"), "children"), "beta-out"); charon.Str(c, "mode") != "transport" {
		t.Errorf("mode %q", charon.Str(c, "mode"))
	}
}

func TestKeyBelongsToThePeerAlone(t *testing.T) {
	p := padtest.Peer("beta", 2)
	if owners := charon.List(sharedMessage(&p), "owners"); !slices.Equal(owners, []string{"beta"}) {
		t.Errorf("the key of beta has the owners %v: strongSwan takes it for everybody that one of them talks to", owners)
	}
}

func TestConnectionEndsAtTheGatewayThatWasAskedFor(t *testing.T) {
	p := padtest.Peer("beta", 2)
	ends := func() []string {
		return charon.List(charon.Sub(connMessage(&p, esp.Kernel), "beta"), "remote_addrs")
	}
	if got := ends(); !slices.Equal(got, []string{p.Remote.String()}) {
		t.Errorf("without a gateway: %v", got)
	}
	p.Gateway = p.Remote.Next()
	if got := ends(); !slices.Equal(got, []string{p.Gateway.String()}) {
		t.Errorf("with one: %v", got)
	}
}

func TestConnectionPinsTheAuthorityAndTheIdentity(t *testing.T) {
	dir := authtest.Authority(t, "here")
	p := padtest.Peer("beta", 2)
	conn := charon.Sub(connMessage(&p, esp.Kernel), "beta")
	if l, r := charon.Sub(conn, "local-1"), charon.Sub(conn, "remote-1"); charon.Str(l, "auth") != "psk" || charon.Str(r, "auth") != "psk" || charon.Str(l, "id") != "here" || charon.Str(r, "id") != "beta" {
		t.Errorf("with a key: %v, %v", l, r)
	}
	p.PSK, p.Cert, p.CAs, p.Revocation = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}, auth.RevocationStrict
	conn = charon.Sub(connMessage(&p, esp.Kernel), "beta")
	l, r := charon.Sub(conn, "local-1"), charon.Sub(conn, "remote-1")
	if charon.Str(l, "auth") != "pubkey" || charon.Str(l, "id") != "here" || !slices.Equal(charon.List(l, "certs"), []string{string(p.Cert.Certificate().Raw)}) {
		t.Errorf("this host: %s as %s", charon.Str(l, "auth"), charon.Str(l, "id"))
	}
	if charon.Str(r, "auth") != "pubkey" || charon.Str(r, "id") != "beta" || !slices.Equal(charon.List(r, "cacerts"), []string{string(p.CAs[0].Certificate().Raw)}) || charon.Str(r, "revocation") != "strict" {
		t.Errorf("the peer: %s as %s, revocation %s", charon.Str(r, "auth"), charon.Str(r, "id"), charon.Str(r, "revocation"))
	}
	if charon.Str(conn, "send_certreq") != "yes" {
		t.Error("no certificate request (RFC 7146 3.1 b)")
	}
	p.CAs[0].CRLURIs, p.CAs[0].OCSPURIs = []string{"http://192.0.2.1/ca.crl"}, []string{"http://192.0.2.1/"}
	a := charon.Sub(authorityMessage("beta", 0, &p.CAs[0]), "ironwarp-beta/1")
	if charon.Str(a, "cacert") == "" || len(charon.List(a, "crl_uris")) != 1 || len(charon.List(a, "ocsp_uris")) != 1 {
		t.Errorf("the authority: %v, %v", charon.List(a, "crl_uris"), charon.List(a, "ocsp_uris"))
	}
}

func TestPrivateKeyGoesToCharonOnlyInItsOwnMessage(t *testing.T) {
	dir := authtest.Authority(t, "here")
	p := padtest.Peer("beta", 2)
	p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
	_, der, err := p.Cert.Reveal()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	d := string(raw)
	m, err := keyMessage(p.Cert)
	if err != nil || !strings.Contains(charon.Str(m, "data"), d) {
		t.Errorf("load-key has no key: %v", err)
	}
	if text := connMessage(&p, esp.Kernel).String(); strings.Contains(text, d) {
		t.Error("load-conn has the key")
	}
}
