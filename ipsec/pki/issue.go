package pki

import (
	"cmp"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"
)

// Request is what a host's certificate is to have.
type Request struct {
	// Name is the common name and the name of the files.
	Name string
	// SANs are the host's IKE identities, which have to be in the certificate (RFC
	// 3723 2.3.3): addresses, host names, user@host. Default: Name.
	SANs []string
	Key  KeyType // default ECDSA
	// Life is how long it is valid; default 90 days. A negative one makes a
	// certificate that has expired, for tests.
	Life time.Duration
	// NotBefore is when it becomes valid; default now, less five minutes.
	NotBefore time.Time
	// CRLURIs and OCSPURIs are written into the certificate: where its revocation
	// can be asked for.
	CRLURIs, OCSPURIs []string
}

// Issued is a certificate that was issued.
type Issued struct {
	CertFile string
	KeyFile  string // mode 0600
	Serial   string // hexadecimal
	NotAfter time.Time
}

// Issue makes a private key and a certificate in dir, see CA.Issue. It fails as that
// does, and as Open does.
func Issue(dir string, r Request) (Issued, error) {
	ca, err := Open(dir)
	if err != nil {
		return Issued{}, err
	}
	return ca.Issue(r)
}

// Issue makes a private key and a certificate for a host. It replaces nothing:
// if there are files of that name already the error is fs.ErrExist.
func (ca *CA) Issue(r Request) (Issued, error) {
	fail := func(err error) (Issued, error) {
		return Issued{}, fmt.Errorf("issue a certificate for %q in %s: %w", r.Name, ca.dir, err)
	}
	certFile, keyFile, err := ca.files(r.Name)
	if err != nil {
		return fail(err)
	}
	template, err := ca.template(r)
	if err != nil {
		return fail(err)
	}
	key, err := newKey(r.Key)
	if err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return fail(err)
	}
	if err := saveKey(keyFile, key); err != nil {
		return fail(err)
	}
	if err := save(certFile, "CERTIFICATE", der, 0o644); err != nil {
		return fail(errors.Join(err, os.Remove(keyFile)))
	}
	return Issued{CertFile: certFile, KeyFile: keyFile, Serial: template.SerialNumber.Text(16), NotAfter: template.NotAfter}, nil
}

func (ca *CA) template(r Request) (*x509.Certificate, error) {
	now := ca.now()
	r.Life = cmp.Or(r.Life, defaultHostLife)
	c := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: r.Name},
		NotBefore:             r.NotBefore,
		NotAfter:              now.Add(r.Life),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		CRLDistributionPoints: r.CRLURIs,
		OCSPServer:            r.OCSPURIs,
	}
	if c.NotBefore.IsZero() {
		c.NotBefore = now.Add(-clockSlack)
	} else if r.NotBefore.After(now) {
		c.NotAfter = r.NotBefore.Add(r.Life)
	}
	if !c.NotAfter.After(c.NotBefore) {
		c.NotBefore = c.NotAfter.Add(-clockSlack)
	}
	if c.NotAfter.After(ca.cert.NotAfter) {
		return nil, fmt.Errorf("it would end on %s, after the authority itself (%s)", c.NotAfter.Format(time.DateOnly), ca.cert.NotAfter.Format(time.DateOnly))
	}
	if len(r.SANs) == 0 {
		r.SANs = []string{r.Name}
	}
	for _, san := range r.SANs {
		if err := addSAN(c, san); err != nil {
			return nil, err
		}
	}
	return c, nil
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

func addSAN(c *x509.Certificate, san string) error {
	if a, err := netip.ParseAddr(san); err == nil {
		if a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("%w: %s is no host's address", ErrName, san)
		}
		c.IPAddresses = append(c.IPAddresses, net.IP(a.Unmap().AsSlice()))
		return nil
	}
	if strings.Contains(san, "@") {
		if a, err := mail.ParseAddress(san); err != nil || a.Address != san {
			return fmt.Errorf("%w: %q is not of the form user@host", ErrName, san)
		}
		c.EmailAddresses = append(c.EmailAddresses, san)
		return nil
	}
	if !hostName.MatchString(san) {
		return fmt.Errorf("%w: %q is neither an address nor a host name nor user@host", ErrName, san)
	}
	c.DNSNames = append(c.DNSNames, san)
	return nil
}
