package secrets

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"os"
	"strings"
	"testing"
)

// needle is one form of a secret.
type needle struct {
	what string
	b    []byte
}

// forms are the ways in which bytes could have been written: as they are, in hex, and
// in base64 at any offset, with a line end anywhere.
func forms(what string, secret []byte) []needle {
	h := hex.EncodeToString(secret)
	var pairs []string
	for i := 0; i < 16; i += 2 {
		pairs = append(pairs, h[i:i+2])
	}
	out := []needle{
		{what, secret},
		{what + " in hex", []byte(h[:32])}, {what + " in hex", []byte(strings.ToUpper(h[:32]))},
		{what + " in hex with colons", []byte(strings.Join(pairs, ":"))},
	}
	for shift := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), secret...))
		// The ends depend on what is beside them. Of the rest, a line end can split only one
		// half.
		text = text[4 : len(text)-4]
		half := len(text) / 2
		for _, part := range []string{text[:half], text[half:]} {
			out = append(out, needle{what + " in base64", []byte(part)}, needle{what + " in base64", []byte(strings.NewReplacer("+", "-", "/", "_").Replace(part))})
		}
	}
	return out
}

// pskNeedles are those of a secret's file.
func pskNeedles(t *testing.T, what, file string) []needle {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.TrimSpace(data)
	out := forms(what, text)
	raw, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(raw) != 32 {
		t.Fatalf("%s is not 32 bytes in base64", file)
	}
	return append(out, forms(what+", decoded", raw)...)
}

// keyNeedles are those of the private scalar in a key's file.
func keyNeedles(t *testing.T, what, file string) []needle {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatalf("%s has no PEM block", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("%s is a %T", file, key)
	}
	scalar, err := ec.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return forms(what, scalar)
}

// TestNeedlesAreFoundInWhatTheyAreMadeOf is the control for the forms: the secrets' own
// files have them.
func TestNeedlesAreFoundInWhatTheyAreMadeOf(t *testing.T) {
	h := newHaystack()
	dir := t.TempDir()
	psk, key := makeSecrets(t, dir)
	for _, f := range []string{psk, key} {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		h.add("files", f, data)
		h.add("files", f+" in hex", []byte(hex.EncodeToString(data)))
		h.add("files", f+" in base64", []byte(base64.StdEncoding.EncodeToString(append([]byte("x"), data...))))
	}
	for _, where := range []string{psk, psk + " in hex", psk + " in base64"} {
		if !h.holds(where, pskNeedles(t, "secret", psk)) {
			t.Errorf("the secret is not found in %s", where)
		}
	}
	if !h.holds(key, keyNeedles(t, "private key", key)) {
		t.Errorf("the private key is not found in %s", key)
	}
}
