package ipsec

import (
	"crypto/ecdsa"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

func TestConnectionSaysWhatTheProfileSays(t *testing.T) {
	for _, name := range profile.Names() {
		p := testPeer("beta", 2)
		p.Profile = mustProfile(t, name)
		conn := sub(connMessage(&p, esp.Kernel), "beta")
		if str(conn, "version") != strconv.Itoa(p.Profile.Version) || (str(conn, "aggressive") == "yes") != p.Profile.Aggressive || !slices.Equal(list(conn, "proposals"), p.Profile.IKE) {
			t.Errorf("%s: version %s, aggressive %q, proposals %v", name, str(conn, "version"), str(conn, "aggressive"), list(conn, "proposals"))
		}
		for _, child := range []string{"beta-out", "beta-in"} {
			c := sub(sub(conn, "children"), child)
			if str(c, "mode") != "tunnel" || str(c, "replay_window") != "1024" {
				t.Errorf("%s: child %s in mode %q with a replay window of %q", name, child, str(c, "mode"), str(c, "replay_window"))
			}
			esp := strings.Join(list(c, "esp_proposals"), " ")
			if !strings.Contains(esp, "-esn") || !strings.Contains(esp, "modp2048") {
				t.Errorf("%s: ESP %s", name, esp)
			}
			// RFC 7146 2.2: no key of a cipher of 64-bit blocks lives past 3 GiB, and
			// fresh ones are made well before.
			rekey, life := num(c, "rekey_bytes"), num(c, "life_bytes")
			if strings.Contains(esp, "3des") && (rekey == 0 || life <= rekey || life > profile.MaxSmallBlockBytes) {
				t.Errorf("%s: 3DES with rekey_bytes %d and life_bytes %d", name, rekey, life)
			}
		}
	}
	p := testPeer("beta", 2)
	p.Profile.Mode = profile.Transport
	if c := sub(sub(sub(connMessage(&p, esp.Kernel), "beta"), "children"), "beta-out"); str(c, "mode") != "transport" {
		t.Errorf("mode %q", str(c, "mode"))
	}
}

func TestKeyBelongsToThePeerAlone(t *testing.T) {
	p := testPeer("beta", 2)
	if owners := list(sharedMessage(&p), "owners"); !slices.Equal(owners, []string{"beta"}) {
		t.Errorf("the key of beta has the owners %v: strongSwan takes it for everybody that one of them talks to", owners)
	}
}

func TestConnectionEndsAtTheGatewayThatWasAskedFor(t *testing.T) {
	p := testPeer("beta", 2)
	ends := func() []string {
		return list(sub(connMessage(&p, esp.Kernel), "beta"), "remote_addrs")
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
	dir := labAuthority(t, "here")
	p := testPeer("beta", 2)
	conn := sub(connMessage(&p, esp.Kernel), "beta")
	if l, r := sub(conn, "local-1"), sub(conn, "remote-1"); str(l, "auth") != "psk" || str(r, "auth") != "psk" || str(l, "id") != "here" || str(r, "id") != "beta" {
		t.Errorf("with a key: %v, %v", l, r)
	}
	p.PSK, p.Cert, p.CAs, p.Revocation = Secret{}, labCredential(t, dir, "here"), []Authority{labTrust(t, dir)}, RevocationStrict
	conn = sub(connMessage(&p, esp.Kernel), "beta")
	l, r := sub(conn, "local-1"), sub(conn, "remote-1")
	if str(l, "auth") != "pubkey" || str(l, "id") != "here" || !slices.Equal(list(l, "certs"), []string{string(p.Cert.Certificate().Raw)}) {
		t.Errorf("this host: %s as %s", str(l, "auth"), str(l, "id"))
	}
	if str(r, "auth") != "pubkey" || str(r, "id") != "beta" || !slices.Equal(list(r, "cacerts"), []string{string(p.CAs[0].Certificate().Raw)}) || str(r, "revocation") != "strict" {
		t.Errorf("the peer: %s as %s, revocation %s", str(r, "auth"), str(r, "id"), str(r, "revocation"))
	}
	if str(conn, "send_certreq") != "yes" {
		t.Error("no certificate request (RFC 7146 3.1 b)")
	}
	p.CAs[0].CRLURIs, p.CAs[0].OCSPURIs = []string{"http://192.0.2.1/ca.crl"}, []string{"http://192.0.2.1/"}
	a := sub(authorityMessage("beta", 0, &p.CAs[0]), "ironwarp-beta/1")
	if str(a, "cacert") == "" || len(list(a, "crl_uris")) != 1 || len(list(a, "ocsp_uris")) != 1 {
		t.Errorf("the authority: %v, %v", list(a, "crl_uris"), list(a, "ocsp_uris"))
	}
}

func TestPrivateKeyGoesToCharonOnlyInItsOwnMessage(t *testing.T) {
	dir := labAuthority(t, "here")
	p := testPeer("beta", 2)
	p.PSK, p.Cert, p.CAs = Secret{}, labCredential(t, dir, "here"), []Authority{labTrust(t, dir)}
	raw, err := p.Cert.key.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	d := string(raw)
	m, err := keyMessage(p.Cert)
	if err != nil || !strings.Contains(str(m, "data"), d) {
		t.Errorf("load-key has no key: %v", err)
	}
	if text := connMessage(&p, esp.Kernel).String(); strings.Contains(text, d) {
		t.Error("load-conn has the key")
	}
}

func TestRefusalsOfCommandsNameThePlugin(t *testing.T) {
	p := testPeer("beta", 2)
	for reason, want := range map[string]error{
		"invalid value for: esp_proposals, config discarded": ErrPluginMissing,
		"invalid value for: proposals, config discarded":     ErrPluginMissing,
		"parsing ECDSA private key failed":                   ErrPluginMissing,
		"parsing X509 certificate failed":                    ErrPluginMissing,
		"something new":                                      nil,
	} {
		err := explainRefusal(&p, &CommandError{Command: "load-conn", Name: "connection beta", Reason: reason})
		var refused *CommandError
		if !errors.As(err, &refused) || errors.Is(err, ErrPluginMissing) != (want != nil) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", reason, err)
		}
	}
	if err := explainRefusal(&p, nil); err != nil {
		t.Error(err)
	}
}
