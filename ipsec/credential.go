package ipsec

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// ErrCredential tells that a certificate, private key or authority was refused.
var ErrCredential = errors.New("credential refused")

// Revocation is how certain it has to be that the peer's certificate was not
// revoked (RFC 7146 3.1 b).
type Revocation string

const (
	// RevocationStrict wants fresh word of an OCSP responder or a CRL, always.
	RevocationStrict Revocation = "strict"
	// RevocationIfURI wants it if the authority or the certificate names a place
	// where it is to be had.
	RevocationIfURI Revocation = "ifuri"
	// RevocationRelaxed refuses only what is known to be revoked: who can cut this
	// host off from the responder can go on using a revoked certificate.
	RevocationRelaxed Revocation = "relaxed"
)

// Credential is a host's certificate, with those of intermediate authorities,
// and the private key. No way of formatting, logging or encoding it shows the
// key.
type Credential struct {
	chain []*x509.Certificate // the host's own first
	key   crypto.Signer
}

// Authority is who may have issued the peer's certificate, and where to ask
// whether it was revoked.
type Authority struct {
	// CRLURIs are where the authority's revocation list is: http, https or file
	// URIs.
	CRLURIs []string
	// OCSPURIs are those of OCSP responders.
	OCSPURIs []string

	cert *x509.Certificate
}

// Certificate is the host's own.
func (c *Credential) Certificate() *x509.Certificate { return c.chain[0] }

// Certificate is the authority's.
func (a Authority) Certificate() *x509.Certificate { return a.cert }

// String tells whose certificate it is.
func (c *Credential) String() string {
	if c == nil || len(c.chain) == 0 {
		return "no credential"
	}
	return fmt.Sprintf("certificate of %v, key %s", c.chain[0].Subject, redacted)
}

// GoString does not tell the key.
func (c *Credential) GoString() string { return c.String() }

// Format does not write the key, whatever the verb.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue does not tell the key.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText does not tell the key.
func (c *Credential) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// LoadCredential reads a certificate (PEM; those of intermediate authorities may
// follow it) and its private key (PEM, PKCS #8, PKCS #1 or SEC 1, not encrypted)
// from a file of mode 0600 or less. The error wraps ErrCredential.
func LoadCredential(certFile, keyFile string) (*Credential, error) {
	return nil, fmt.Errorf("%w: %s, %s", ErrCredential, certFile, keyFile)
}

// LoadAuthority reads an authority's certificate (PEM). Its URIs are the
// caller's to set.
func LoadAuthority(caFile string) (Authority, error) {
	return Authority{}, fmt.Errorf("%w: %s", ErrCredential, caFile)
}
