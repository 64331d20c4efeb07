// Package authtest makes credentials for tests.
package authtest

import (
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pki"
)

// Authority makes an authority, and certificates for names, in a directory.
func Authority(t *testing.T, names ...string) (dir string) {
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

// Credential reads what Authority has made for a name.
func Credential(t *testing.T, dir, name string) *auth.Credential {
	t.Helper()
	c, err := auth.LoadCredential(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Trust reads the authority that Authority has made.
func Trust(t *testing.T, dir string) auth.Authority {
	t.Helper()
	a, err := auth.LoadAuthority(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}
