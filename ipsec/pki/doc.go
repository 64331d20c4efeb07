// Package pki makes a small certificate authority for a lab: an authority, host
// certificates for IKE with their private keys, and a revocation list. It is
// files in one directory, made with the standard library alone.
//
//	DIR/ca.pem    the authority's certificate
//	DIR/ca.key    its private key, mode 0600
//	DIR/ca.crl    its revocation list, in DER (RFC 5280 4.2.1.13)
//	DIR/NAME.pem  a host's certificate
//	DIR/NAME.key  its private key, mode 0600
//
// It is not for production, see Warning: the authority's key lies in a plain
// file beside what it has signed, and hosts get keys that somebody else made.
package pki

// Warning is what a program has to show whoever makes an authority with this
// package.
const Warning = "This authority is for labs and tests, never for production: its private key lies unencrypted in a file, " +
	"it made the hosts' private keys itself, and nobody watches over what it signs. In production take the certificates of your organisation's authority."
