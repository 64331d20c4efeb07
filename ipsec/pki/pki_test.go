package pki

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func newCA(t *testing.T, o Options) *CA {
	t.Helper()
	ca, err := Init(filepath.Join(t.TempDir(), "pki"), o)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestIssuedCertificateHasTheIdentitiesAndTheAuthorityBehindIt(t *testing.T) {
	ca := newCA(t, Options{})
	got, err := Issue(ca.dir, Request{Name: "beta", SANs: []string{"beta.example.org", "192.0.2.7", "2001:db8::7", "admin@example.org"}, CRLURIs: []string{"http://192.0.2.1/ca.crl"}})
	if err != nil {
		t.Fatal(err)
	}
	certs, err := loadCerts(got.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	c := certs[0]
	if !slices.Equal(c.DNSNames, []string{"beta.example.org"}) || !slices.Equal(c.EmailAddresses, []string{"admin@example.org"}) || len(c.IPAddresses) != 2 {
		t.Errorf("names %v, mail %v, addresses %v", c.DNSNames, c.EmailAddresses, c.IPAddresses)
	}
	if !slices.Equal(c.CRLDistributionPoints, []string{"http://192.0.2.1/ca.crl"}) {
		t.Errorf("revocation lists at %v", c.CRLDistributionPoints)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	for _, name := range []string{"beta.example.org", "192.0.2.7", "2001:db8::7"} {
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: "gamma.example.org"}); err == nil {
		t.Error("it passes for another host")
	}
	key, err := loadKey(got.KeyFile)
	if err != nil || !samePublicKey(c.PublicKey, key.Public()) {
		t.Errorf("the key is not the certificate's: %v", err)
	}
	if left := time.Until(got.NotAfter); left < 89*24*time.Hour || left > 90*24*time.Hour {
		t.Errorf("it is valid for another %v", left)
	}
}

func TestKeyFilesAreForTheirOwnerAlone(t *testing.T) {
	ca := newCA(t, Options{})
	got, err := ca.Issue(Request{Name: "beta"})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{got.KeyFile, filepath.Join(ca.dir, caKey)} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	if st, err := os.Stat(ca.dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", st.Mode(), err)
	}
}

func TestNothingIsEverReplaced(t *testing.T) {
	ca := newCA(t, Options{})
	if _, err := ca.Issue(Request{Name: "beta"}); err != nil {
		t.Fatal(err)
	}
	before := contents(t, ca.dir)
	if _, err := Init(ca.dir, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second authority: %v", err)
	}
	if _, err := ca.Issue(Request{Name: "beta"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second certificate: %v", err)
	}
	if after := contents(t, ca.dir); !slices.Equal(before, after) {
		t.Error("files changed all the same")
	}
	// A certificate without its key is not overwritten either, and leaves no key.
	if err := os.Remove(filepath.Join(ca.dir, "beta.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Issue(Request{Name: "beta"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a certificate: %v", err)
	}
	if _, err := os.Stat(filepath.Join(ca.dir, "beta.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key without a certificate was left: %v", err)
	}
}

func contents(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Name()+"\n"+string(b))
	}
	return all
}

func TestRevokedCertificatesAreInTheList(t *testing.T) {
	ca := newCA(t, Options{})
	beta, err := ca.Issue(Request{Name: "beta"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Issue(Request{Name: "gamma"}); err != nil {
		t.Fatal(err)
	}
	if l, err := ca.CRL(); err != nil || len(l.Serials) != 0 || l.Number != "1" {
		t.Errorf("a new authority's list: %+v, %v", l, err)
	}
	l, err := Revoke(ca.dir, "beta")
	if err != nil || !slices.Equal(l.Serials, []string{beta.Serial}) || l.Number != "2" {
		t.Errorf("after revoking beta (%s): %+v, %v", beta.Serial, l, err)
	}
	if _, err := ca.Revoke("beta"); !errors.Is(err, ErrRevoked) {
		t.Errorf("revoking it again: %v", err)
	}
	if _, err := ca.Revoke("delta"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("revoking what was never issued: %v", err)
	}
	if l, err := ca.Refresh(); err != nil || len(l.Serials) != 1 || l.Number != "3" {
		t.Errorf("renewed: %+v, %v", l, err)
	}
	other := newCA(t, Options{})
	if err := os.WriteFile(filepath.Join(ca.dir, "alien.pem"), readFile(t, other.CertFile()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Revoke("alien"); err == nil {
		t.Error("a certificate of another authority was revoked")
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	ca := newCA(t, Options{Life: time.Hour})
	for _, tc := range []struct {
		what, words string
		r           Request
	}{
		{"a path", "letters", Request{Name: "../beta", Life: time.Minute}},
		{"no name", "letters", Request{Life: time.Minute}},
		{"the authority's own name", "not ca", Request{Name: "ca", Life: time.Minute}},
		{"a subnet", "192.0.2.0/24", Request{Name: "beta", SANs: []string{"192.0.2.0/24"}, Life: time.Minute}},
		{"a wildcard", "*.example.org", Request{Name: "beta", SANs: []string{"*.example.org"}, Life: time.Minute}},
		{"any address", "0.0.0.0", Request{Name: "beta", SANs: []string{"0.0.0.0"}, Life: time.Minute}},
		{"half a mail address", "user@host", Request{Name: "beta", SANs: []string{"beta@"}, Life: time.Minute}},
		{"a life beyond the authority's", "after the authority", Request{Name: "beta"}},
		{"an unknown key type", "dsa", Request{Name: "beta", Key: "dsa", Life: time.Minute}},
	} {
		if _, err := ca.Issue(tc.r); err == nil || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: %v, want an error with %q", tc.what, err, tc.words)
		}
	}
	if n := len(contents(t, ca.dir)); n != 3 {
		t.Errorf("%d files are there, want the authority's 3", n)
	}
}

func TestKeyTypes(t *testing.T) {
	ca := newCA(t, Options{})
	if _, ok := ca.key.(*ecdsa.PrivateKey); !ok {
		t.Errorf("the default is %T", ca.key)
	}
	got, err := ca.Issue(Request{Name: "beta", Key: RSA})
	if err != nil {
		t.Fatal(err)
	}
	key, err := loadKey(got.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if k, ok := key.(*rsa.PrivateKey); !ok || k.N.BitLen() != 3072 {
		t.Errorf("an RSA key is %T", key)
	}
}

func TestDamagedAuthoritiesAreNotOpened(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no authority: %v", err)
	}
	for what, damage := range map[string]func(dir string) error{
		"no key":             func(dir string) error { return os.Remove(filepath.Join(dir, caKey)) },
		"a key of rubbish":   func(dir string) error { return os.WriteFile(filepath.Join(dir, caKey), []byte("rubbish"), 0o600) },
		"another's key":      func(dir string) error { return swapKey(t, dir) },
		"rubbish for a cert": func(dir string) error { return os.WriteFile(filepath.Join(dir, caFile), []byte("rubbish"), 0o600) },
	} {
		ca := newCA(t, Options{})
		if err := damage(ca.dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(ca.dir); err == nil {
			t.Errorf("%s: it was opened", what)
		}
	}
	ca := newCA(t, Options{})
	if _, err := ca.Issue(Request{Name: "beta"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca.CRLFile(), readFile(t, newCA(t, Options{}).CRLFile()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Revoke("beta"); err == nil {
		t.Error("another authority's revocation list was carried on")
	}
}

func swapKey(t *testing.T, dir string) error {
	other := newCA(t, Options{})
	return os.Rename(filepath.Join(other.dir, caKey), filepath.Join(dir, caKey))
}

func TestLivesForTests(t *testing.T) {
	ca := newCA(t, Options{})
	expired, err := ca.Issue(Request{Name: "old", Life: -time.Hour})
	if err != nil || !expired.NotAfter.Before(time.Now()) {
		t.Errorf("expired: %+v, %v", expired, err)
	}
	early, err := ca.Issue(Request{Name: "early", NotBefore: time.Now().Add(time.Hour), Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := loadCerts(early.CertFile); err != nil || !c[0].NotBefore.After(time.Now()) || !c[0].NotAfter.After(c[0].NotBefore) {
		t.Errorf("early: %v", err)
	}
}
