package pki

import (
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// ErrName means that a host's name is not fit to be a file's.
var ErrName = errors.New("name refused")

const (
	caFile  = "ca.pem"
	caKey   = "ca.key"
	crlFile = "ca.crl"

	defaultCALife   = 10 * 365 * 24 * time.Hour
	defaultHostLife = 90 * 24 * time.Hour
	defaultCRLLife  = 30 * 24 * time.Hour
	// clockSlack is how far into the past certificates are valid: the clocks of
	// a lab's hosts differ.
	clockSlack = 5 * time.Minute
)

// Options of an authority. The zero value is useful.
type Options struct {
	Name string        // common name; default "IronWarp lab CA"
	Key  KeyType       // default ECDSA
	Life time.Duration // of the certificate; default 10 years
	// Now replaces the clock, default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	o.Name, o.Life = cmp.Or(o.Name, "IronWarp lab CA"), cmp.Or(o.Life, defaultCALife)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// CA is an authority in a directory. Two processes must not write to one at the
// same time.
type CA struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	now  func() time.Time
}

// Init makes an authority in dir, which it creates with mode 0700 if need be,
// and an empty revocation list. It replaces nothing: if there is an authority
// already the error is fs.ErrExist.
func Init(dir string, o Options) (*CA, error) {
	o = o.withDefaults()
	ca := &CA{dir: dir, now: o.Now}
	if o.Life < 0 {
		return nil, fmt.Errorf("make an authority in %s: a life of %v is none", dir, o.Life)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	key, err := newKey(o.Key)
	if err != nil {
		return nil, fmt.Errorf("make an authority in %s: %w", dir, err)
	}
	now := o.Now()
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: o.Name},
		NotBefore:             now.Add(-clockSlack),
		NotAfter:              now.Add(o.Life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	// By SHA-1 (RFC 5280 4.2.1.2 method 1), which is no matter of security here:
	// strongSwan finds the revocation list of an authority by such an id only.
	if template.SubjectKeyId, err = keyID(key.Public()); err != nil {
		return nil, fmt.Errorf("make an authority in %s: %w", dir, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make an authority in %s: %w", dir, err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make an authority in %s: %w", dir, err)
	}
	ca.key = key
	if err := saveKey(filepath.Join(dir, caKey), key); err != nil {
		return nil, fmt.Errorf("make an authority in %s: %w", dir, err)
	}
	if err := save(filepath.Join(dir, caFile), "CERTIFICATE", der, 0o644); err != nil {
		return nil, fmt.Errorf("make an authority in %s: %w", dir, errors.Join(err, os.Remove(filepath.Join(dir, caKey))))
	}
	return ca, ca.writeCRL(nil, big.NewInt(1))
}

// Open reads an authority that Init made; the error is fs.ErrNotExist where there
// is none.
func Open(dir string) (*CA, error) {
	certs, err := loadCerts(filepath.Join(dir, caFile))
	if err != nil {
		return nil, fmt.Errorf("open the authority in %s: %w", dir, err)
	}
	key, err := loadKey(filepath.Join(dir, caKey))
	if err != nil {
		return nil, fmt.Errorf("open the authority in %s: %w", dir, err)
	}
	if !samePublicKey(certs[0].PublicKey, key.Public()) {
		return nil, fmt.Errorf("open the authority in %s: %s is not the key of %s", dir, caKey, caFile)
	}
	return &CA{dir: dir, cert: certs[0], key: key, now: time.Now}, nil
}

// Certificate is the authority's.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// CertFile is the path of the authority's certificate.
func (ca *CA) CertFile() string { return filepath.Join(ca.dir, caFile) }

// CRLFile is the path of the revocation list.
func (ca *CA) CRLFile() string { return filepath.Join(ca.dir, crlFile) }

var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// files of a host.
func (ca *CA) files(name string) (cert, key string, err error) {
	if !fileName.MatchString(name) || name == "ca" {
		return "", "", fmt.Errorf("%w: %q: 1 to 63 letters, digits, dots, underscores, hyphens and @ are possible, but not ca", ErrName, name)
	}
	return filepath.Join(ca.dir, name+".pem"), filepath.Join(ca.dir, name+".key"), nil
}

// serial draws a serial number of 127 random bits, positive (RFC 5280 4.1.2.2).
func serial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}
