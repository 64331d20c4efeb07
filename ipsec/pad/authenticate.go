package pad

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// checkIdentities checks both identities and what the IKE mode makes of them.
func (p *Peer) checkIdentities() []error {
	var faults []error
	for _, id := range []struct{ what, id string }{{"local", p.LocalID}, {"remote", p.RemoteID}} {
		if err := auth.CheckIdentity(id.id); err != nil {
			faults = append(faults, fmt.Errorf("%s identity %q: %w", id.what, id.id, err))
		} else if _, notAddr := netip.ParseAddr(id.id); notAddr == nil && p.Profile.Aggressive {
			faults = append(faults, fmt.Errorf("%s identity %q: aggressive mode is for names only, as main mode serves addresses better: set host names or user@host, or choose another profile than %q (RFC 3723 2.3.3)", id.what, id.id, p.Profile.Name))
		}
	}
	if p.LocalID == p.RemoteID && p.LocalID != "" {
		faults = append(faults, fmt.Errorf("local and remote identity are both %q: each host needs its own", p.LocalID))
	}
	return faults
}

// checkAuth checks how the hosts authenticate each other.
func (p *Peer) checkAuth() []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	_, err := auth.ParseRevocation(string(p.Revocation))
	faults = append(faults, err)
	switch {
	case p.PSK.IsZero() && p.Cert == nil:
		fault("the pre-shared key is missing, and there is no certificate instead")
	case !p.PSK.IsZero() && p.Cert != nil:
		fault("there are a pre-shared key and a certificate: choose one")
	case p.Cert == nil && len(p.CAs) > 0:
		fault("there is an authority, but this host has no certificate: both ends authenticate in the same way")
	case p.Cert != nil && len(p.CAs) == 0:
		fault("the authority that issued the peer's certificate is missing")
	}
	for _, a := range p.CAs {
		faults = append(faults, a.Validate())
	}
	if p.Cert != nil && !slices.ContainsFunc(p.Cert.Identities(), func(id string) bool { return auth.SameIdentity(id, p.LocalID) }) {
		fault("%w: this host's identity is %q, and its certificate (%v) is for %s: set the local identity to one of these, or issue another certificate (RFC 3723 2.3.3)",
			auth.ErrCertIdentity, p.LocalID, p.Cert.Certificate().Subject, orNone(p.Cert.Identities()))
	}
	return faults
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "no identity at all"
	}
	return strings.Join(list, ", ")
}

// KeyClash is not nil if strongSwan would confuse the pre-shared keys of two peers:
// it looks them up by the identities of both hosts, and in IKEv1's main
// mode, where these come too late, by the addresses (RFC 2409 5.4).
func (p *Peer) KeyClash(o *Peer) error {
	if p.Cert != nil || o.Cert != nil || p.PSK.Equal(o.PSK) || p.Name == o.Name {
		return nil
	}
	mainMode := func(p *Peer) bool { return p.Profile.Version == 1 && !p.Profile.Aggressive }
	switch {
	case auth.SameIdentity(p.LocalID, o.LocalID) && auth.SameIdentity(p.RemoteID, o.RemoteID):
		return fmt.Errorf("peers %s and %s have the same identities (%s and %s) and different pre-shared keys: give both the same key", o.Name, p.Name, p.LocalID, p.RemoteID)
	case mainMode(p) && mainMode(o) && p.Local == o.Local && p.Remote == o.Remote:
		return fmt.Errorf("peers %s and %s have the same addresses (%v and %v) and different pre-shared keys, and IKEv1's main mode finds a key by the addresses: give both the same key, or use IKEv2 (RFC 2409 5.4)", o.Name, p.Name, p.Local, p.Remote)
	}
	return nil
}

// AskedRevocation is what charon is asked for. Where every authority has a place to
// ask, "ifuri" is "strict": charon's own "ifuri" accepts a certificate if it
// finds none, for whatever reason.
func (p *Peer) AskedRevocation() auth.Revocation {
	if p.Revocation == auth.RevocationIfURI && !slices.ContainsFunc(p.CAs, func(a auth.Authority) bool { return len(a.CRLURIs)+len(a.OCSPURIs) == 0 }) {
		return auth.RevocationStrict
	}
	return p.Revocation
}

// AsksForStatus reports whether a place is known where the status of certificates can
// be asked for.
func (p *Peer) AsksForStatus() bool {
	return slices.ContainsFunc(p.CAs, func(a auth.Authority) bool { return len(a.CRLURIs)+len(a.OCSPURIs) > 0 })
}
