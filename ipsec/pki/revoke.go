package pki

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"
)

// ErrRevoked means that a certificate was revoked before.
var ErrRevoked = errors.New("the certificate is revoked already")

// CRL is a revocation list.
type CRL struct {
	File       string
	Number     string
	NextUpdate time.Time // after which it is stale: write a new one before
	Serials    []string  // revoked ones, hexadecimal
}

// Revoke revokes the certificate of a host and writes a new revocation list. The host's
// files stay. It fails as CA.Revoke does, and as Open does.
func Revoke(dir, name string) (CRL, error) {
	ca, err := Open(dir)
	if err != nil {
		return CRL{}, err
	}
	return ca.Revoke(name)
}

// Revoke revokes the certificate of a host and writes a new revocation list. It fails
// with ErrRevoked where it was revoked before, where the host has no certificate of
// this authority, and with the file system's error.
func (ca *CA) Revoke(name string) (CRL, error) {
	fail := func(err error) (CRL, error) {
		return CRL{}, fmt.Errorf("revoke the certificate of %q in %s: %w", name, ca.dir, err)
	}
	certFile, _, err := ca.files(name)
	if err != nil {
		return fail(err)
	}
	certs, err := loadCerts(certFile)
	if err != nil {
		return fail(err)
	}
	if err := certs[0].CheckSignatureFrom(ca.cert); err != nil {
		return fail(fmt.Errorf("%s is not of this authority: %w", certFile, err))
	}
	list, err := ca.loadCRL()
	if err != nil {
		return fail(err)
	}
	for _, e := range list.RevokedCertificateEntries {
		if e.SerialNumber.Cmp(certs[0].SerialNumber) == 0 {
			return fail(fmt.Errorf("%w since %s", ErrRevoked, e.RevocationTime.Format(time.RFC3339)))
		}
	}
	entries := append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: certs[0].SerialNumber, RevocationTime: ca.now()})
	if err := ca.writeCRL(entries, new(big.Int).Add(list.Number, big.NewInt(1))); err != nil {
		return fail(err)
	}
	return ca.CRL()
}

// Refresh writes the revocation list anew, before the old one gets stale. It fails with
// the file system's error, and where the list is none.
func (ca *CA) Refresh() (CRL, error) {
	list, err := ca.loadCRL()
	if err != nil {
		return CRL{}, fmt.Errorf("renew the revocation list in %s: %w", ca.dir, err)
	}
	if err := ca.writeCRL(list.RevokedCertificateEntries, new(big.Int).Add(list.Number, big.NewInt(1))); err != nil {
		return CRL{}, fmt.Errorf("renew the revocation list in %s: %w", ca.dir, err)
	}
	return ca.CRL()
}

// CRL reads the revocation list. It fails with the file system's error, and where the
// list is none.
func (ca *CA) CRL() (CRL, error) {
	list, err := ca.loadCRL()
	if err != nil {
		return CRL{}, fmt.Errorf("read the revocation list in %s: %w", ca.dir, err)
	}
	c := CRL{File: ca.CRLFile(), Number: list.Number.String(), NextUpdate: list.NextUpdate}
	for _, e := range list.RevokedCertificateEntries {
		c.Serials = append(c.Serials, e.SerialNumber.Text(16))
	}
	return c, nil
}

func (ca *CA) loadCRL() (*x509.RevocationList, error) {
	b, err := os.ReadFile(ca.CRLFile())
	if err != nil {
		return nil, err
	}
	list, err := x509.ParseRevocationList(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ca.CRLFile(), err)
	}
	if err := list.CheckSignatureFrom(ca.cert); err != nil {
		return nil, fmt.Errorf("%s is not of this authority: %w", ca.CRLFile(), err)
	}
	return list, nil
}

// writeCRL replaces the revocation list in one step, so that a reader sees
// either the old or the new one.
func (ca *CA) writeCRL(entries []x509.RevocationListEntry, number *big.Int) error {
	now := ca.now()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number:                    number,
		ThisUpdate:                now.Add(-clockSlack),
		NextUpdate:                now.Add(defaultCRLLife),
		RevokedCertificateEntries: entries,
	}, ca.cert, ca.key)
	if err != nil {
		return fmt.Errorf("sign the revocation list: %w", err)
	}
	fresh := ca.CRLFile() + ".new"
	if err := os.Remove(fresh); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := writeNew(fresh, der, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, ca.CRLFile())
}
