package ike

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// What charon is told of the authentication of a peer: a pre-shared key, or
// certificates. Names in charon begin with "ironwarp-" and the peer's name.

func secretName(peer string) string { return "ironwarp-" + peer }

func authorityName(peer string, i int) string { return authorityPrefix(peer) + strconv.Itoa(i+1) }

// authorityPrefix has a character that no peer's name has.
func authorityPrefix(peer string) string { return "ironwarp-" + peer + "/" }

// sharedMessage is load-shared. The peer alone owns the key: charon's IKEv2 tries
// every key that belongs to either of the two identities, so that one which
// belonged to this host's as well would let its peer pass for any other.
func sharedMessage(p *pad.Peer) *vici.Message {
	return charon.Section("id", secretName(p.Name), "type", "IKE", "data", string(p.PSK.Reveal()), "owners", []string{p.RemoteID})
}

// keyMessage is load-key.
func keyMessage(c *auth.Credential) (*vici.Message, error) {
	kind, der, err := c.Reveal()
	if err != nil {
		return nil, err
	}
	return charon.Section("type", kind, "data", string(der)), nil
}

// authorityMessage is load-authority.
func authorityMessage(peer string, i int, a *auth.Authority) *vici.Message {
	return charon.Section(authorityName(peer, i), charon.Section("cacert", string(a.Certificate().Raw), "crl_uris", a.CRLURIs, "ocsp_uris", a.OCSPURIs))
}

// authSections are how this host and the peer authenticate, in load-conn. The
// peer's certificate has to come from one of the peer's own authorities, not
// from any that charon trusts, and has to be for the peer's identity.
func authSections(p *pad.Peer) (local, remote *vici.Message) {
	if p.Cert == nil {
		return charon.Section("auth", "psk", "id", p.LocalID), charon.Section("auth", "psk", "id", p.RemoteID)
	}
	var cas []string
	for _, a := range p.CAs {
		cas = append(cas, string(a.Certificate().Raw))
	}
	return charon.Section("auth", "pubkey", "id", p.LocalID, "certs", []string{string(p.Cert.Certificate().Raw)}),
		charon.Section("auth", "pubkey", "id", p.RemoteID, "cacerts", cas, "revocation", string(p.AskedRevocation()))
}

// Load hands a peer's credentials and connection to charon. It fails with esp.ErrCannot
// where the data plane can't do what the profile wants, with
// negotiation.ErrPluginMissing where strongSwan lacks one, and as charon.Conn.Call
// does.
func (l *Session) Load(ctx context.Context, p *pad.Peer) error {
	if err := p.Profile.Fits(l.Status.DataPlane); err != nil {
		return fmt.Errorf("peer %s: %w", p.Name, err)
	}
	if err := l.hasPlugins(p); err != nil {
		return err
	}
	if err := l.loadAuth(ctx, p); err != nil {
		return negotiation.ExplainRefusal(p, err)
	}
	_, err := l.ask(ctx, "load-conn", "connection "+p.Name, connMessage(p, l.Status.DataPlane))
	return negotiation.ExplainRefusal(p, err)
}

func (l *Session) loadAuth(ctx context.Context, p *pad.Peer) error {
	if p.Cert == nil {
		_, err := l.ask(ctx, "load-shared", "the key of "+p.Name, sharedMessage(p))
		return errors.Join(err, l.dropCert(ctx, p.Name, nil))
	}
	m, err := keyMessage(p.Cert)
	if err != nil {
		return err
	}
	answer, err := l.ask(ctx, "load-key", "the private key for "+p.Name, m)
	if err != nil {
		return err
	}
	for _, c := range p.Cert.Intermediates() {
		if _, err := l.ask(ctx, "load-cert", "the intermediate authority's certificate for "+p.Name, charon.Section("type", "X509", "flag", "CA", "data", string(c.Raw))); err != nil {
			return err
		}
	}
	for i := range p.CAs {
		if _, err := l.ask(ctx, "load-authority", "the authority of "+p.Name, authorityMessage(p.Name, i, &p.CAs[i])); err != nil {
			return err
		}
	}
	// Revocation lists and answers are read afresh now, not when they get stale.
	if _, err := l.ask(ctx, "flush-certs", "cached revocation lists", charon.Section()); err != nil {
		return err
	}
	if err := l.dropShared(ctx, p.Name); err != nil {
		return err
	}
	return l.dropCert(ctx, p.Name, &usedCert{key: charon.Str(answer, "id"), authorities: len(p.CAs)})
}

// usedCert is what a peer with certificates has in charon.
type usedCert struct {
	key         string // charon's id of the private key
	authorities int
}

// dropCert takes away what a peer had in charon by certificates and no longer
// has. The private key goes when no other peer has it.
func (l *Session) dropCert(ctx context.Context, name string, now *usedCert) error {
	l.certsMu.Lock()
	defer l.certsMu.Unlock()
	before, had := l.certs[name]
	keep := usedCert{}
	if now != nil {
		keep = *now
		if l.certs == nil {
			l.certs = map[string]usedCert{}
		}
		l.certs[name] = keep
	} else {
		delete(l.certs, name)
	}
	if !had && now == nil {
		return nil
	}
	var errs []error
	answer, err := l.ask(ctx, "get-authorities", "authorities", charon.Section())
	if err != nil {
		return err
	}
	var wanted []string
	for i := range keep.authorities {
		wanted = append(wanted, authorityName(name, i))
	}
	for _, a := range charon.List(answer, "authorities") {
		if strings.HasPrefix(a, authorityPrefix(name)) && !slices.Contains(wanted, a) {
			_, err := l.ask(ctx, "unload-authority", "the authority of "+name, charon.Section("name", a))
			errs = append(errs, notFound(err))
		}
	}
	inUse := false
	for _, u := range l.certs {
		inUse = inUse || u.key == before.key
	}
	if before.key != "" && !inUse {
		_, err := l.ask(ctx, "unload-key", "the private key for "+name, charon.Section("id", before.key))
		errs = append(errs, notFound(err))
	}
	return errors.Join(errs...)
}

func (l *Session) dropShared(ctx context.Context, name string) error {
	_, err := l.ask(ctx, "unload-shared", "the key of "+name, charon.Section("id", secretName(name)))
	return notFound(err)
}

// Unload takes a peer's connection and credentials away again. What is not there
// is no error.
func (l *Session) Unload(ctx context.Context, name string) error {
	_, err := l.ask(ctx, "unload-conn", "connection "+name, charon.Section("name", name))
	l.certsMu.Lock()
	_, had := l.certs[name]
	l.certsMu.Unlock()
	err = errors.Join(notFound(err), l.dropShared(ctx, name), l.dropCert(ctx, name, nil))
	if had {
		err = errors.Join(err, l.clearCerts(ctx))
	}
	return err
}

// clearCerts removes certificates from charon, which cannot be removed one by
// one: only when charon has no connection and no credential left that might need
// them, whoever loaded it.
func (l *Session) clearCerts(ctx context.Context) error {
	left, err := l.Holdings(ctx, false)
	if err != nil || len(left.conns)+len(left.shared)+len(left.keys)+len(left.authorities) > 0 {
		return err
	}
	_, err = l.ask(ctx, "clear-creds", "certificates", charon.Section())
	return err
}

func notFound(err error) error {
	if charon.Refused(err, "not found") {
		return nil
	}
	return err
}

// hasPlugins is nil if charon has what certificates need. Without the
// revocation plugin it would accept revoked ones and say nothing.
func (l *Session) hasPlugins(p *pad.Peer) error {
	if p.Cert == nil || len(l.Status.Plugins) == 0 {
		return nil
	}
	need := []string{"x509", "pubkey", "pem", "constraints"}
	why := map[string]string{"curl": "libcurl fetches revocation lists and asks OCSP responders"}
	if p.Revocation != auth.RevocationRelaxed || p.AsksForStatus() {
		need = append(need, "revocation")
	}
	if p.AsksForStatus() {
		need = append(need, "curl")
	}
	for _, n := range need {
		if !slices.Contains(l.Status.Plugins, n) {
			reason := why[n]
			if reason == "" {
				reason = "certificates need it"
			}
			return fmt.Errorf("peer %s: %w: %s (%s): install libstrongswan-standard-plugins and libstrongswan-extra-plugins, look for a `load =` line in strongswan.conf that leaves it out, and restart strongSwan",
				p.Name, negotiation.ErrPluginMissing, n, reason)
		}
	}
	return nil
}
