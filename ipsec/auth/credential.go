package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pki"
)

// ErrCredential means that a certificate, private key or authority was refused.
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

// ParseRevocation reads "strict", "ifuri" or "relaxed"; an empty string is ifuri. It
// fails at any other.
func ParseRevocation(s string) (Revocation, error) {
	switch r := Revocation(s); r {
	case "":
		return RevocationIfURI, nil
	case RevocationStrict, RevocationIfURI, RevocationRelaxed:
		return r, nil
	}
	return "", fmt.Errorf("revocation %q: want strict, ifuri or relaxed", s)
}

// Credential is a host's certificate, with those of intermediate authorities,
// and the private key. No way of formatting, logging or encoding it shows the
// key.
type Credential struct {
	chain []*x509.Certificate // the host's own first
	key   crypto.Signer
}

// NewCredential takes a certificate (PEM; those of intermediate authorities may
// follow it) and its private key (PEM, not encrypted: PKCS #8, PKCS #1 or SEC 1).
// Keys are ECDSA on P-256, P-384 or P-521, or RSA with 2048 bits or more. The
// error wraps ErrCredential.
func NewCredential(certPEM, keyPEM []byte) (*Credential, error) {
	chain, err := parseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	if err := checkKey(key.Public()); err != nil {
		return nil, err
	}
	if chain[0].IsCA {
		return nil, fmt.Errorf("%w: the first certificate, of %v, is an authority's; the host's own comes first", ErrCredential, chain[0].Subject)
	}
	if pub, ok := chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("%w: %w of %v", ErrCredential, ErrKeyMismatch, chain[0].Subject)
	}
	for i, c := range chain[1:] {
		if err := chain[i].CheckSignatureFrom(c); err != nil {
			return nil, fmt.Errorf("%w: the certificate of %v is not followed by its issuer's: %w", ErrCredential, chain[i].Subject, err)
		}
	}
	return &Credential{chain: chain, key: key}, nil
}

// LoadCredential is NewCredential with files. That of the key has mode 0600 or
// less and belongs to this user or root (RFC 3723 2.3.3: access to a private key
// must be suitably restricted), else the error wraps ErrSecretFile.
func LoadCredential(certFile, keyFile string) (*Credential, error) {
	cert, err := readLimited(certFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	f, err := OpenPrivate(keyFile, "private key")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, maxPEMBytes))
	if err != nil {
		return nil, fmt.Errorf("read the private key: %w", err)
	}
	defer clear(key)
	c, err := NewCredential(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", certFile, keyFile, err)
	}
	return c, nil
}

// Certificate is the host's own.
func (c *Credential) Certificate() *x509.Certificate { return c.chain[0] }

// Intermediates are the certificates of intermediate authorities, the host's own
// issuer first.
func (c *Credential) Intermediates() []*x509.Certificate { return c.chain[1:] }

// Reveal returns the private key for handing it to strongSwan, and its type in the
// words of VICI. It is the only way to get at it. The encodings, SEC 1 and PKCS #1, are
// those that need the fewest plugins. It fails with ErrCredential where there is no
// such encoding of the key.
func (c *Credential) Reveal() (kind string, der []byte, err error) {
	switch k := c.key.(type) {
	case *ecdsa.PrivateKey:
		if der, err = x509.MarshalECPrivateKey(k); err != nil {
			return "", nil, fmt.Errorf("%w: the private key cannot be encoded", ErrCredential)
		}
		return "ecdsa", der, nil
	case *rsa.PrivateKey:
		return "rsa", x509.MarshalPKCS1PrivateKey(k), nil
	}
	return "", nil, checkKey(c.key.Public())
}

// CheckTime checks whether the certificates are valid at a time: the error wraps
// ErrCertExpired or ErrCertNotYet. LoadCredential does not look at it, so that a
// peer is guarded even if nothing can be said to it any longer.
func (c *Credential) CheckTime(at time.Time) error {
	for _, cert := range c.chain {
		switch {
		case at.After(cert.NotAfter):
			return fmt.Errorf("%w: that of %v was valid until %s, and the clock says %s: issue another one", ErrCertExpired, cert.Subject, cert.NotAfter.Format(time.RFC3339), at.Format(time.RFC3339))
		case at.Before(cert.NotBefore):
			return fmt.Errorf("%w: that of %v becomes valid on %s, and the clock says %s: set the clock that is wrong, here or at the authority", ErrCertNotYet, cert.Subject, cert.NotBefore.Format(time.RFC3339), at.Format(time.RFC3339))
		}
	}
	return nil
}

// Identities lists the IKE identities that the certificate is good for.
func (c *Credential) Identities() []string { return identities(c.chain[0]) }

// Equal reports whether two credentials are the same.
func (c *Credential) Equal(o *Credential) bool {
	if c == nil || o == nil {
		return c == o
	}
	return slices.EqualFunc(c.chain, o.chain, (*x509.Certificate).Equal)
}

// String says whose certificate it is.
func (c *Credential) String() string {
	if c == nil || len(c.chain) == 0 {
		return "no credential"
	}
	return fmt.Sprintf("certificate of %v, key %s", c.chain[0].Subject, redacted)
}

// GoString does not show the key.
func (c *Credential) GoString() string { return c.String() }

// Format does not write the key, whatever the verb.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue does not show the key.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalText does not show the key. It does not fail.
func (c *Credential) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Authority is who may have issued the peer's certificate, and where to ask
// whether it was revoked.
type Authority struct {
	// CRLURIs are where the authority's revocation list is: http, https or file
	// URIs. strongSwan reads them, not this process.
	CRLURIs []string
	// OCSPURIs are those of OCSP responders, http or https.
	OCSPURIs []string

	cert *x509.Certificate
}

// NewAuthority takes an authority's certificate (PEM). Its URIs are the caller's
// to set. The error wraps ErrCredential.
func NewAuthority(caPEM []byte) (Authority, error) {
	certs, err := parseCertificates(caPEM)
	switch {
	case err != nil:
		return Authority{}, err
	case len(certs) > 1:
		return Authority{}, fmt.Errorf("%w: %d certificates: one file has one authority", ErrCredential, len(certs))
	case !certs[0].IsCA:
		return Authority{}, fmt.Errorf("%w: %w, but of %v; the file of the authority that issued it is needed", ErrCredential, ErrNotAuthority, certs[0].Subject)
	}
	if err := checkKey(certs[0].PublicKey); err != nil {
		return Authority{}, err
	}
	return Authority{cert: certs[0]}, nil
}

// LoadAuthority is NewAuthority with a file. It fails as that does, and where the file
// can't be read.
func LoadAuthority(caFile string) (Authority, error) {
	b, err := readLimited(caFile)
	if err != nil {
		return Authority{}, fmt.Errorf("read the authority's certificate: %w", err)
	}
	a, err := NewAuthority(b)
	if err != nil {
		return Authority{}, fmt.Errorf("%s: %w", caFile, err)
	}
	return a, nil
}

// Certificate is the authority's; nil of the zero Authority.
func (a Authority) Certificate() *x509.Certificate { return a.cert }

// Validate checks the URIs, and whether strongSwan would ever ask them. It fails with
// ErrCredential.
func (a Authority) Validate() error {
	if a.cert == nil {
		return fmt.Errorf("%w: an authority without a certificate", ErrCredential)
	}
	if len(a.CRLURIs) > 0 && !a.findable() {
		return fmt.Errorf("%w: strongSwan would never read the CRL URIs of authority %v, since its certificate's subject key id is not the SHA-1 of its key: have the URI put into the hosts' certificates, or use OCSP", ErrCredential, a.cert.Subject)
	}
	for _, list := range []struct {
		what    string
		uris    []string
		schemes []string
	}{{"CRL", a.CRLURIs, []string{"http", "https", "file"}}, {"OCSP", a.OCSPURIs, []string{"http", "https"}}} {
		for _, text := range list.uris {
			u, err := url.Parse(text)
			if err != nil || !slices.Contains(list.schemes, u.Scheme) || u.Scheme != "file" && u.Host == "" || strings.ContainsAny(text, " \t\r\n") {
				return fmt.Errorf("%w: %s URI %q: want one of %s", ErrCredential, list.what, text, strings.Join(list.schemes, ", "))
			}
		}
	}
	return nil
}

// findable reports whether strongSwan applies CRLURIs to the authority. It looks
// for them by the certificate's key id, and compares that with the SHA-1 of the
// key (RFC 5280 4.2.1.2 method 1); with another id it passes over the list and
// says nothing.
func (a Authority) findable() bool {
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	if _, err := asn1.Unmarshal(a.cert.RawSubjectPublicKeyInfo, &info); err != nil {
		return false
	}
	id := sha1.Sum(info.Key.RightAlign())
	return bytes.Equal(id[:], a.cert.SubjectKeyId)
}

// identities lists the subject alternative names that can be IKE identities.
func identities(c *x509.Certificate) []string {
	out := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, a.Unmap().String())
		}
	}
	return append(out, c.EmailAddresses...)
}

// maxPEMBytes keeps a wrong file out of memory.
const maxPEMBytes = 1 << 20

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxPEMBytes))
}

func parseCertificates(b []byte) ([]*x509.Certificate, error) {
	certs, err := pki.ParseCertificates(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCredential, err)
	}
	return certs, nil
}

// parseKey never passes on a parser's words, which may quote what it has read.
func parseKey(b []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "ENCRYPTED PRIVATE KEY":
			return nil, fmt.Errorf("%w: the private key is encrypted, and nobody is there to type a password: openssl pkcs8 -in OLD -out NEW -nodes", ErrCredential)
		default:
			continue
		}
		signer, ok := key.(crypto.Signer)
		if err != nil || !ok || bytes.Contains(b, []byte("Proc-Type: 4,ENCRYPTED")) {
			return nil, fmt.Errorf("%w: the private key (PEM, %s) cannot be read: it is damaged or encrypted", ErrCredential, block.Type)
		}
		return signer, nil
	}
	return nil, fmt.Errorf("%w: there is no private key (PEM, PRIVATE KEY) in it", ErrCredential)
}

// checkKey allows what strongSwan can use with IKEv1 and IKEv2, and what is as
// strong as the smallest DH group (RFC 7146 4).
func checkKey(k crypto.PublicKey) error {
	switch k := k.(type) {
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize >= 256 {
			return nil
		}
		return fmt.Errorf("%w: an ECDSA key on %s: P-256, P-384 and P-521 are possible", ErrCredential, k.Curve.Params().Name)
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 {
			return nil
		}
		return fmt.Errorf("%w: an RSA key of %d bits: at least 2048 are needed (RFC 7146 4)", ErrCredential, k.N.BitLen())
	}
	return fmt.Errorf("%w: a key of type %T: ECDSA and RSA are possible", ErrCredential, k)
}
