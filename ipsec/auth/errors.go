package auth

import "errors"

// What can be wrong with a certificate, the peer's or this host's own.
var (
	ErrCertExpired   = errors.New("the certificate has expired")
	ErrCertNotYet    = errors.New("the certificate is not valid yet")
	ErrCertRevoked   = errors.New("the certificate was revoked")
	ErrCertUntrusted = errors.New("the certificate is of another authority")
	ErrCertIdentity  = errors.New("the certificate is not of the expected identity")
	ErrCertStatus    = errors.New("whether the certificate was revoked is not known")
	// ErrKeyMismatch means that a private key is not that of the certificate.
	ErrKeyMismatch = errors.New("the private key is not that of the certificate")
	// ErrNotAuthority means that a certificate is not an authority's.
	ErrNotAuthority = errors.New("the certificate is not an authority's")
)
