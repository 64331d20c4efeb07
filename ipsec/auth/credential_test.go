package auth_test

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

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/auth/authtest"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

func file(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPrivateKeyIsNeverShown(t *testing.T) {
	dir := authtest.Authority(t, "here")
	c := authtest.Credential(t, dir, "here")
	block, _ := pem.Decode(file(t, filepath.Join(dir, "here.key")))
	_, der, err := c.Reveal()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	d, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	decimal := new(big.Int).SetBytes(d).String()
	leaks := []string{hex.EncodeToString(d), strings.ToUpper(hex.EncodeToString(d)), decimal, string(d),
		base64.StdEncoding.EncodeToString(block.Bytes)[40:80], strings.Trim(fmt.Sprint(d), "[]")}

	peer := pad.Peer{Name: "beta", Cert: c, LocalID: "here", CAs: []auth.Authority{authtest.Trust(t, dir)}}
	hidden := struct{ peer pad.Peer }{peer} // package fmt does not call methods of what it cannot export
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("text", "cred", c, "peer", peer, "hidden", hidden)
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "cred", c, "peer", peer, "hidden", hidden, "in", []*auth.Credential{c})
	shown := []string{log.String(), c.String()}
	js, err := json.Marshal(map[string]any{"c": c, "p": peer})
	if err != nil {
		t.Fatal(err)
	}
	ym, err := yaml.Marshal(struct{ C *auth.Credential }{c})
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
	s, err := auth.NewSecret([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	hidden := struct {
		cfg  pad.Peer
		list []auth.Secret
		by   map[string]auth.Secret
	}{pad.Peer{Name: "beta", PSK: s}, []auth.Secret{s}, map[string]auth.Secret{"x": s}}
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
	dir := authtest.Authority(t, "here", "there")
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
		{"a key that others can read", at("here.pem"), open, auth.ErrSecretFile, "chmod 0600"},
		{"another's key", at("here.pem"), at("there.key"), auth.ErrKeyMismatch, "CN=here"},
		{"the authority's certificate", at("ca.pem"), at("ca.key"), auth.ErrCredential, "the host's own comes first"},
		{"a key for a certificate", at("here.key"), at("here.key"), auth.ErrCredential, "no certificate"},
		{"a certificate for a key", at("here.pem"), write("cert.key", file(t, at("here.pem"))), auth.ErrCredential, "no private key"},
		{"a damaged key", at("here.pem"), write("damaged.key", damaged), auth.ErrCredential, "damaged or encrypted"},
		{"an encrypted key", at("here.pem"), write("enc.key", pemOf("ENCRYPTED PRIVATE KEY", []byte("x"))), auth.ErrCredential, "-nodes"},
		{"an Ed25519 key", at("here.pem"), write("ed.key", pkcs8(t, edKey)), auth.ErrCredential, "ECDSA and RSA"},
		{"a small RSA key", at("here.pem"), write("small.key", pkcs8(t, small)), auth.ErrCredential, "at least 2048"},
		{"no file", at("none.pem"), at("here.key"), os.ErrNotExist, "none.pem"},
		{"an issuer that is none", write("chain.pem", append(file(t, at("here.pem")), file(t, at("there.pem"))...)), at("here.key"), auth.ErrCredential, "not followed by its issuer"},
	} {
		_, err := auth.LoadCredential(tc.cert, tc.key)
		if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.kind, tc.words)
		}
	}
	if _, err := auth.LoadAuthority(at("here.pem")); !errors.Is(err, auth.ErrNotAuthority) || !errors.Is(err, auth.ErrCredential) {
		t.Errorf("a host's certificate as an authority: %v", err)
	}
	if _, err := auth.NewAuthority(append(file(t, at("ca.pem")), file(t, at("ca.pem"))...)); err == nil {
		t.Error("two authorities in one file were taken")
	}
	c := authtest.Credential(t, dir, "here")
	if !slices.Equal(c.Identities(), []string{"here"}) {
		t.Errorf("identities %v", c.Identities())
	}
	if err := c.CheckTime(time.Now()); err != nil {
		t.Errorf("now: %v", err)
	}
	if err := c.CheckTime(time.Now().Add(91 * 24 * time.Hour)); !errors.Is(err, auth.ErrCertExpired) {
		t.Errorf("in 91 days: %v", err)
	}
	if err := c.CheckTime(time.Now().Add(-time.Hour)); !errors.Is(err, auth.ErrCertNotYet) {
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
	pkcs1 := x509.MarshalPKCS1PrivateKey(rs)
	for name, tc := range map[string]struct {
		key   crypto.Signer
		pem   []byte
		plain []byte // as strongSwan takes it
	}{
		"SEC 1":       {ec, pemOf("EC PRIVATE KEY", sec1), sec1},
		"PKCS #8":     {ec, pkcs8(t, ec), sec1},
		"PKCS #1":     {rs, pemOf("RSA PRIVATE KEY", pkcs1), pkcs1},
		"PKCS #8 RSA": {rs, pkcs8(t, rs), pkcs1},
	} {
		c, err := auth.NewCredential(selfSigned(t, tc.key, false, nil), tc.pem)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, der, err := c.Reveal(); err != nil || !bytes.Equal(der, tc.plain) {
			t.Errorf("%s for strongSwan: %x, %v, want %x", name, der, err, tc.plain)
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
	a, err := auth.NewAuthority(selfSigned(t, k, true, []byte("another kind of id!!")))
	if err != nil {
		t.Fatal(err)
	}
	a.OCSPURIs = []string{"http://192.0.2.1/"}
	if err := a.Validate(); err != nil {
		t.Errorf("with OCSP: %v", err)
	}
	a.CRLURIs = []string{"http://192.0.2.1/ca.crl"}
	if err := a.Validate(); !errors.Is(err, auth.ErrCredential) || !strings.Contains(err.Error(), "never read the CRL") {
		t.Errorf("with a list: %v", err)
	}
	good := authtest.Trust(t, authtest.Authority(t))
	good.CRLURIs = []string{"http://192.0.2.1/ca.crl", "file:///etc/ca.crl"}
	if err := good.Validate(); err != nil {
		t.Errorf("an authority of package pki: %v", err)
	}
	for _, uri := range []string{"192.0.2.1/ca.crl", "http:///x", "ftp://192.0.2.1/x", "http://a b/", "://"} {
		good.CRLURIs = []string{uri}
		if err := good.Validate(); !errors.Is(err, auth.ErrCredential) || !strings.Contains(err.Error(), "http") {
			t.Errorf("list at %q: %v", uri, err)
		}
	}
}
