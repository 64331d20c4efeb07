package ipsec

import (
	"errors"
	"fmt"
	"net/mail"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

// CheckIdentity allows the identification types of RFC 7146 3.1 e and f: an
// address, ID_FQDN and ID_RFC822_ADDR (in IKEv1 ID_USER_FQDN). ID_KEY_ID must
// not be used, distinguished names should not, subnets and ranges are too broad.
func CheckIdentity(id string) error {
	switch {
	case id == "":
		return errors.New("it is empty")
	case strings.HasPrefix(id, "@"):
		return errors.New("a name goes without @; ID_KEY_ID must not be used (RFC 7146 3.1)")
	case strings.ContainsAny(id, "%*"):
		return errors.New("a wildcard is no identity")
	case strings.Contains(id, "="):
		return errors.New("distinguished names should not be used (RFC 7146 3.1)")
	case strings.ContainsAny(id, "/: ,") && !isAddr(id):
		return errors.New("an address, a host name or user@host is needed; subnets, ranges and key ids are not possible (RFC 7146 3.1)")
	}
	if a, err := netip.ParseAddr(id); err == nil {
		if a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" { // strongSwan takes 0.0.0.0 for anybody
			return errors.New("it is not one host's address, and would stand for any")
		}
		return nil
	}
	if strings.Contains(id, "@") {
		if a, err := mail.ParseAddress(id); err != nil || a.Address != id {
			return errors.New("not of the form user@host")
		}
		return nil
	}
	if !hostName.MatchString(id) {
		return errors.New("an address, a host name or user@host is needed")
	}
	return nil
}

func isAddr(s string) bool { a, err := netip.ParseAddr(s); return err == nil && a.Zone() == "" }

// checkIdentities checks both identities and what the IKE mode makes of them.
func (p *Peer) checkIdentities() []error {
	var faults []error
	for _, id := range []struct{ what, id string }{{"local", p.LocalID}, {"remote", p.RemoteID}} {
		if err := CheckIdentity(id.id); err != nil {
			faults = append(faults, fmt.Errorf("%s identity %q: %w", id.what, id.id, err))
		} else if p.Profile.Aggressive && isAddr(id.id) {
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
	if _, err := ParseRevocation(string(p.Revocation)); err != nil {
		faults = append(faults, err)
	}
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
		faults = append(faults, nonNil(a.validate())...)
	}
	if p.Cert != nil && !slices.ContainsFunc(p.Cert.Identities(), func(id string) bool { return sameID(id, p.LocalID) }) {
		fault("%w: this host's identity is %q, and its certificate (%v) is for %s: set the local identity to one of these, or issue another certificate (RFC 3723 2.3.3)",
			ErrCertIdentity, p.LocalID, p.Cert.Certificate().Subject, orNone(p.Cert.Identities()))
	}
	return faults
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "no identity at all"
	}
	return strings.Join(list, ", ")
}

// warn logs what is allowed and dangerous all the same. Keys that strongSwan
// would confuse are no reason to refuse a peer, which would leave it without a
// guard, and a rotation passes through that state.
func (m *Manager) warn(p *Peer) {
	for _, w := range p.Profile.Warnings() {
		m.cfg.Logger.Warn(w, "peer", p.Name, "profile", p.Profile.Name)
	}
	for _, o := range m.allPeers() {
		o.mu.Lock()
		cfg := o.cfg
		o.mu.Unlock()
		if err := p.keyClash(&cfg); err != nil {
			m.cfg.Logger.Warn("one of two peers cannot authenticate", "peer", p.Name, "err", err)
		}
	}
}

// keyClash tells whether strongSwan would confuse the pre-shared keys of two
// peers: it looks them up by the identities of both hosts, and in IKEv1's main
// mode, where these come too late, by the addresses (RFC 2409 5.4).
func (p *Peer) keyClash(o *Peer) error {
	if p.Cert != nil || o.Cert != nil || p.PSK.Equal(o.PSK) || p.Name == o.Name {
		return nil
	}
	mainMode := func(p *Peer) bool { return p.Profile.Version == 1 && !p.Profile.Aggressive }
	switch {
	case sameID(p.LocalID, o.LocalID) && sameID(p.RemoteID, o.RemoteID):
		return fmt.Errorf("peers %s and %s have the same identities (%s and %s) and different pre-shared keys: give both the same key", o.Name, p.Name, p.LocalID, p.RemoteID)
	case mainMode(p) && mainMode(o) && p.Local == o.Local && p.Remote == o.Remote:
		return fmt.Errorf("peers %s and %s have the same addresses (%v and %v) and different pre-shared keys, and IKEv1's main mode finds a key by the addresses: give both the same key, or use IKEv2 (RFC 2409 5.4)", o.Name, p.Name, p.Local, p.Remote)
	}
	return nil
}
