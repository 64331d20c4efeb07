package ipsec

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pki"
)

// labAuthority makes an authority and certificates for names.
func labAuthority(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "pki")
	if _, err := pki.Init(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if _, err := pki.Issue(dir, pki.Request{Name: n}); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func labCredential(t *testing.T, dir, name string) *Credential {
	t.Helper()
	c, err := LoadCredential(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func labTrust(t *testing.T, dir string) Authority {
	t.Helper()
	a, err := LoadAuthority(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func file(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPrivateKeyIsNeverShown(t *testing.T) {
	dir := labAuthority(t, "here")
	c := labCredential(t, dir, "here")
	block, _ := pem.Decode(file(t, filepath.Join(dir, "here.key")))
	key := c.key.(*ecdsa.PrivateKey)
	d, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	decimal := new(big.Int).SetBytes(d).String()
	leaks := []string{hex.EncodeToString(d), strings.ToUpper(hex.EncodeToString(d)), decimal, string(d),
		base64.StdEncoding.EncodeToString(block.Bytes)[40:80], strings.Trim(fmt.Sprint(d), "[]")}

	peer := testPeer("beta", 2)
	peer.Cert, peer.PSK, peer.LocalID, peer.CAs = c, Secret{}, "here", []Authority{labTrust(t, dir)}
	hidden := struct{ peer Peer }{peer} // package fmt does not call methods of what it cannot export
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("text", "cred", c, "peer", peer, "hidden", hidden)
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "cred", c, "peer", peer, "hidden", hidden, "in", []*Credential{c})
	shown := []string{log.String(), c.String()}
	js, err := json.Marshal(map[string]any{"c": c, "p": peer})
	if err != nil {
		t.Fatal(err)
	}
	ym, err := yaml.Marshal(struct{ C *Credential }{c})
	if err != nil {
		t.Fatal(err)
	}
	shown = append(shown, string(js), string(ym))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		shown = append(shown, fmt.Sprintf(verb, c), fmt.Sprintf(verb, *c), fmt.Sprintf(verb, peer), fmt.Sprintf(verb, &peer), fmt.Sprintf(verb, hidden), fmt.Sprintf(verb, []any{c, peer}))
	}
	for _, text := range shown {
		for _, leak := range leaks {
			if strings.Contains(text, leak) {
				t.Errorf("the private key is in %.200q", text)
			}
		}
	}
	// The search can find something: the same with a bare key.
	if bare := fmt.Sprintf("%v", key); !strings.Contains(bare, decimal) {
		t.Errorf("the control shows no key: %s", bare)
	}
}

func TestSecretIsNotShownInsideOfUnexportedFields(t *testing.T) {
	const key = "correct-horse-battery"
	s, err := NewSecret([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	hidden := struct {
		cfg  Peer
		list []Secret
		by   map[string]Secret
	}{Peer{Name: "beta", PSK: s}, []Secret{s}, map[string]Secret{"x": s}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		for _, text := range []string{fmt.Sprintf(verb, hidden), fmt.Sprintf(verb, &hidden)} {
			for _, leak := range []string{key, hex.EncodeToString([]byte(key)), strings.Trim(fmt.Sprint([]byte(key)), "[]")} {
				if strings.Contains(text, leak) {
					t.Errorf("%s shows the key: %s", verb, text)
				}
			}
		}
	}
	control := struct{ b []byte }{[]byte(key)}
	if !strings.Contains(fmt.Sprintf("%s", control), key) {
		t.Error("the control shows no key")
	}
}

func TestCredentialsAreCheckedBeforeTheyAreBelieved(t *testing.T) {
	dir := labAuthority(t, "here", "there")
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, content []byte) string {
		if err := os.WriteFile(at(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	open := write("open.key", file(t, at("here.key")))
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Replace(file(t, at("here.key")), []byte("\nM"), []byte("\nN"), 1)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, cert, key string
		kind            error
		words           string
	}{
		{"a key that others can read", at("here.pem"), open, ErrSecretFile, "chmod 0600"},
		{"another's key", at("here.pem"), at("there.key"), ErrKeyMismatch, "CN=here"},
		{"the authority's certificate", at("ca.pem"), at("ca.key"), ErrCredential, "the host's own comes first"},
		{"a key for a certificate", at("here.key"), at("here.key"), ErrCredential, "no certificate"},
		{"a certificate for a key", at("here.pem"), write("cert.key", file(t, at("here.pem"))), ErrCredential, "no private key"},
		{"a damaged key", at("here.pem"), write("damaged.key", damaged), ErrCredential, "damaged or encrypted"},
		{"an encrypted key", at("here.pem"), write("enc.key", pemOf("ENCRYPTED PRIVATE KEY", []byte("x"))), ErrCredential, "-nodes"},
		{"an Ed25519 key", at("here.pem"), write("ed.key", pkcs8(t, edKey)), ErrCredential, "ECDSA and RSA"},
		{"a small RSA key", at("here.pem"), write("small.key", pkcs8(t, small)), ErrCredential, "at least 2048"},
		{"no file", at("none.pem"), at("here.key"), os.ErrNotExist, "none.pem"},
		{"an issuer that is none", write("chain.pem", append(file(t, at("here.pem")), file(t, at("there.pem"))...)), at("here.key"), ErrCredential, "not followed by its issuer"},
	} {
		_, err := LoadCredential(tc.cert, tc.key)
		if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.kind, tc.words)
		}
	}
	if _, err := LoadAuthority(at("here.pem")); !errors.Is(err, ErrNotAuthority) || !errors.Is(err, ErrCredential) {
		t.Errorf("a host's certificate as an authority: %v", err)
	}
	if _, err := NewAuthority(append(file(t, at("ca.pem")), file(t, at("ca.pem"))...)); err == nil {
		t.Error("two authorities in one file were taken")
	}
	c := labCredential(t, dir, "here")
	if !slices.Equal(c.Identities(), []string{"here"}) {
		t.Errorf("identities %v", c.Identities())
	}
	if err := c.CheckTime(time.Now()); err != nil {
		t.Errorf("now: %v", err)
	}
	if err := c.CheckTime(time.Now().Add(91 * 24 * time.Hour)); !errors.Is(err, ErrCertExpired) {
		t.Errorf("in 91 days: %v", err)
	}
	if err := c.CheckTime(time.Now().Add(-time.Hour)); !errors.Is(err, ErrCertNotYet) {
		t.Errorf("an hour ago: %v", err)
	}
}

func pemOf(kind string, b []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})
}

func pkcs8(t *testing.T, k crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("PRIVATE KEY", der)
}

func TestPrivateKeysOfAllEncodingsAreRead(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		key crypto.Signer
		pem []byte
	}{
		"SEC 1":       {ec, pemOf("EC PRIVATE KEY", sec1)},
		"PKCS #8":     {ec, pkcs8(t, ec)},
		"PKCS #1":     {rs, pemOf("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rs))},
		"PKCS #8 RSA": {rs, pkcs8(t, rs)},
	} {
		c, err := NewCredential(selfSigned(t, tc.key, false, nil), tc.pem)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m, err := keyMessage(c); err != nil || charon.Str(m, "data") == "" {
			t.Errorf("%s for charon: %v", name, err)
		}
	}
}

func selfSigned(t *testing.T, k crypto.Signer, ca bool, keyID []byte) []byte {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: ca, BasicConstraintsValid: true, DNSNames: []string{"x"}, SubjectKeyId: keyID}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", der)
}

func TestAuthorityWhoseListStrongSwanWouldPassOverIsRefused(t *testing.T) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// An id of another kind than the SHA-1 of the key, such as RFC 7093's.
	a, err := NewAuthority(selfSigned(t, k, true, []byte("another kind of id!!")))
	if err != nil {
		t.Fatal(err)
	}
	a.OCSPURIs = []string{"http://192.0.2.1/"}
	if err := a.validate(); err != nil {
		t.Errorf("with OCSP: %v", err)
	}
	a.CRLURIs = []string{"http://192.0.2.1/ca.crl"}
	if err := a.validate(); !errors.Is(err, ErrCredential) || !strings.Contains(err.Error(), "never read the CRL") {
		t.Errorf("with a list: %v", err)
	}
	good := labTrust(t, labAuthority(t))
	good.CRLURIs = []string{"http://192.0.2.1/ca.crl", "file:///etc/ca.crl"}
	if err := good.validate(); err != nil {
		t.Errorf("an authority of package pki: %v", err)
	}
	for _, uri := range []string{"192.0.2.1/ca.crl", "http:///x", "ftp://192.0.2.1/x", "http://a b/", "://"} {
		good.CRLURIs = []string{uri}
		if err := good.validate(); !errors.Is(err, ErrCredential) || !strings.Contains(err.Error(), "http") {
			t.Errorf("list at %q: %v", uri, err)
		}
	}
}

func TestPeerWithCertificateIsChecked(t *testing.T) {
	dir := labAuthority(t, "here", "there")
	for _, tc := range []struct {
		name   string
		change func(*Peer)
		kind   error
		words  string
	}{
		{"a key as well", func(p *Peer) { p.PSK = GenerateSecret() }, nil, "choose one"},
		{"no authority", func(p *Peer) { p.CAs = nil }, nil, "authority that issued"},
		{"an empty authority", func(p *Peer) { p.CAs = []Authority{{}} }, ErrCredential, "without a certificate"},
		{"an identity that is not in it", func(p *Peer) { p.LocalID = "elsewhere" }, ErrCertIdentity, `"elsewhere"`},
		{"an address that is not in it", func(p *Peer) { p.LocalID = "" }, ErrCertIdentity, "for here"},
		{"an authority and a key", func(p *Peer) { p.Cert, p.PSK = nil, GenerateSecret() }, nil, "no certificate"},
	} {
		p := testPeer("beta", 2)
		p.PSK, p.Cert, p.CAs = Secret{}, labCredential(t, dir, "here"), []Authority{labTrust(t, dir)}
		tc.change(&p)
		_, err := p.withDefaults()
		if err == nil || !strings.Contains(err.Error(), tc.words) || tc.kind != nil && !errors.Is(err, tc.kind) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
	p := testPeer("beta", 2)
	p.PSK, p.Cert, p.CAs = Secret{}, labCredential(t, dir, "here"), []Authority{labTrust(t, dir)}
	p, err := p.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if p.revocation() != RevocationIfURI {
		t.Errorf("without a place to ask: %s", p.revocation())
	}
	p.CAs[0].CRLURIs = []string{"http://192.0.2.1/ca.crl"}
	if p.revocation() != RevocationStrict {
		t.Errorf("with a place to ask: %s, and charon would accept what it could not ask about", p.revocation())
	}
	p.Revocation = RevocationRelaxed
	if p.revocation() != RevocationRelaxed {
		t.Errorf("relaxed turned into %s", p.revocation())
	}
}
