package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// KeyType is the algorithm of a private key.
type KeyType string

const (
	// ECDSA is P-256, the default.
	ECDSA KeyType = "ecdsa"
	// RSA has 3072 bits, as strong as P-256 (SP 800-57 5.6). IKEv1 peers may want
	// it.
	RSA KeyType = "rsa"
)

const rsaBits = 3072

func newKey(t KeyType) (crypto.Signer, error) {
	switch t {
	case "", ECDSA:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RSA:
		return rsa.GenerateKey(rand.Reader, rsaBits)
	}
	return nil, fmt.Errorf("key type %q: want %s or %s", t, ECDSA, RSA)
}

func saveKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a private key: %w", err)
	}
	return save(path, "PRIVATE KEY", der, 0o600)
}

func save(path, kind string, der []byte, mode os.FileMode) error {
	return writeNew(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// writeNew writes a new file, whole or not at all, and never replaces one.
func writeNew(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func loadKey(path string) (crypto.Signer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s has no private key", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// The parser's words may quote what it has read.
		return nil, fmt.Errorf("%s has no private key that can be read", path)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s has a private key that cannot sign", path)
	}
	return signer, nil
}

func loadCerts(path string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	certs, err := ParseCertificates(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return certs, nil
}

// ParseCertificates reads the certificates of a PEM text, in their order; what
// else is in it is passed over. It is an error if there is none, or one that is
// malformed.
func ParseCertificates(b []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("there is no certificate (PEM, CERTIFICATE) in it")
	}
	return certs, nil
}

func keyID(k crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode a public key: %w", err)
	}
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, fmt.Errorf("encode a public key: %w", err)
	}
	id := sha1.Sum(info.Key.RightAlign())
	return id[:], nil
}

func samePublicKey(a, b crypto.PublicKey) bool {
	x, err1 := x509.MarshalPKIXPublicKey(a)
	y, err2 := x509.MarshalPKIXPublicKey(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
