package negotiation

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// Explain turns charon's words about a failed attempt into what they mean
// here and what to do. An IKE peer that refuses says as little as possible; what
// charon has found itself comes first, since it is exact.
func Explain(p *pad.Peer, child, reason string, log []string) error {
	e := &Error{Peer: p.Name, Child: child, Kind: ErrFailed, Log: append(log, reason)}
	p = p.Only(child)
	w := words(e.Log)
	for _, explain := range []func(*pad.Peer, words) (string, error){ownSide, peersCertificate, peersIdentity, peersRefusal, noAnswer} {
		if advice, kind := explain(p, w); kind != nil {
			e.Kind, e.Advice = kind, advice
			break
		}
	}
	return e
}

// words are lines that charon has logged of an attempt.
type words []string

func (w words) said(any ...string) bool { return w.line(any...) != "" }

// line returns the first line that has one of the texts.
func (w words) line(any ...string) string {
	for _, l := range w {
		for _, text := range any {
			if strings.Contains(l, text) {
				return l
			}
		}
	}
	return ""
}

// quoted returns what a line with the text has in quotes, or "".
func (w words) quoted(text string) string {
	if m := inQuotes.FindStringSubmatch(w.line(text)); m != nil {
		return cmp.Or(m[1], m[2])
	}
	return ""
}

// aboutReceived leaves out what is about other certificates than the one that
// the peer has sent: charon goes on to those that it knows by the same name.
func (w words) aboutReceived() words {
	const using = "using certificate "
	sent := w.quoted("received end entity cert")
	if sent == "" {
		return w
	}
	var out words
	other := false
	for _, l := range w {
		switch {
		case strings.Contains(l, using):
			other = !strings.Contains(l, `"`+sent+`"`)
		case strings.Contains(l, "constraint check failed"), strings.Contains(l, "no trusted"), strings.Contains(l, "authentication of"):
			other = false
		}
		if !other {
			out = append(out, l)
		}
	}
	return out
}

var (
	inQuotes = regexp.MustCompile(`"([^"]*)"|'([^']*)'`)
	// unsupported is what charon says of algorithms that no plugin of its own has.
	unsupported = regexp.MustCompile(`(?m)^.*(not supported!|DH group \S+ not supported|unsupported (encryption|integrity|AEAD) algorithm).*$`)
	validity    = regexp.MustCompile(`valid from (.+) to (.+)\)`)
)

// charonTime is how charon writes a time, in local time.
const charonTime = "Jan 02 15:04:05 2006"

func now() string { return time.Now().Format(time.RFC3339) }

// ownSide is what this host lacks.
func ownSide(p *pad.Peer, w words) (string, error) {
	switch {
	case w.said("unable to install", "unable to add SAD", "unable to add policy", "received netlink error", "unsupported by the kernel"):
		return "this host could not install the SA: its data plane lacks ESP, an algorithm of the profile or the mode; `ironwarp doctor` tells, and charon's log has the kernel's words", esp.ErrCannot
	case unsupported.MatchString(strings.Join(w, "\n")):
		return fmt.Sprintf("strongSwan has no plugin for an algorithm of profile %q (%s): install libstrongswan-standard-plugins and libstrongswan-extra-plugins, or choose other algorithms",
			p.Profile.Name, unsupported.FindString(strings.Join(w, "\n"))), ErrPluginMissing
	case w.said("CHILD_SA config '") && w.said("' not found"):
		return "strongSwan does not have the connection any longer, perhaps by `swanctl --load-all`: it is loaded again", ErrUnloaded
	case w.said("no private key found"):
		return "strongSwan does not have this host's private key any longer, perhaps by `swanctl --load-creds --clear`: it is loaded again", ErrAuthFailed
	case p.Cert != nil && w.refused():
		// The peer does not say why; what is wrong with our own certificate can be
		// seen from here.
		if err := p.Cert.CheckTime(time.Now()); err != nil {
			kind := auth.ErrCertExpired
			if errors.Is(err, auth.ErrCertNotYet) {
				kind = auth.ErrCertNotYet
			}
			return fmt.Sprintf("the peer refused this host's own certificate: %v", err), kind
		}
	}
	return "", nil
}

// refused reports whether the peer has said that authentication failed.
func (w words) refused() bool { return w.said("received AUTHENTICATION_FAILED") }

// peersCertificate is what charon has found wrong with the peer's certificate.
func peersCertificate(p *pad.Peer, w words) (string, error) {
	if p.Cert == nil {
		return "", nil
	}
	w = w.aboutReceived()
	whose := fmt.Sprintf("the certificate of peer %s (%s)", p.Name, cmp.Or(w.quoted("received end entity cert"), p.RemoteID))
	switch {
	case w.said("certificate was revoked on"):
		return fmt.Sprintf("%s was revoked; the authority says: %s. Issue another one there, with a new key", whose, w.line("certificate was revoked on")), auth.ErrCertRevoked
	case w.said("certificate invalid (valid from"):
		return outOfTime(whose, w.line("certificate invalid (valid from"))
	case w.said("peer not authenticated by CA"):
		return fmt.Sprintf("%s was issued by %s, which strongSwan trusts for another peer, and this peer has to have one of %s", whose, orUnknown(w.quoted("trusted ca certificate")), authorities(p)), auth.ErrCertUntrusted
	case w.said("no issuer certificate found", "is not trusted", "reached end of incomplete trust chain"):
		return fmt.Sprintf("%s was issued by %s, and here the peer has to have one of %s: add that authority to the peer's, if it is the right one, or issue the certificate there anew", whose, orUnknown(w.quoted("issuer is")), authorities(p)), auth.ErrCertUntrusted
	case w.said("RULE_CRL_VALIDATION is", "RULE_OCSP_VALIDATION is", "certificate status is unknown"):
		return noStatus(p, whose, w)
	case w.said("invalid signature", "signature verification failed", "signature validation failed"):
		return fmt.Sprintf("the peer has shown %s, and not proved to have its private key; look at the certificate and key files there", whose), ErrAuthFailed
	}
	return "", nil
}

// outOfTime explains charon's line about a certificate that is not valid now.
func outOfTime(whose, line string) (string, error) {
	kind := auth.ErrCertExpired
	m := validity.FindStringSubmatch(line)
	if m == nil {
		return whose + " is not valid now: " + line, kind
	}
	if from, err := time.ParseInLocation(charonTime, m[1], time.Local); err == nil && from.After(time.Now()) {
		return fmt.Sprintf("%s becomes valid only on %s, and this host's clock says %s: set the clock that is wrong, here or at the authority (timedatectl, chronyc tracking)", whose, m[1], now()), auth.ErrCertNotYet
	}
	return fmt.Sprintf("%s (or its authority's) was valid until %s, and this host's clock says %s: issue another one there; if the clock is wrong, set it (timedatectl, chronyc tracking)", whose, m[2], now()), kind
}

func noStatus(p *pad.Peer, whose string, w words) (string, error) {
	var why string
	switch {
	case w.said("crl is stale", "ocsp response is stale"):
		why = "the authority's list or answer has run out (" + strings.TrimSpace(w.line("is stale")) + "; this host's clock says " + now() + "): have it renewed there (`ironwarp pki revoke` and the authority's own tools write it anew), or set the clock"
	case w.said("crl is not valid"):
		why = "the authority's list is not valid yet (" + strings.TrimSpace(w.line("crl is not valid")) + "; this host's clock says " + now() + "): set the clock that is wrong"
	case w.said("crl fetching failed", "ocsp request to"):
		why = "strongSwan could not reach " + orUnknown(cmp.Or(w.quoted("fetching crl from"), w.quoted("requesting ocsp status from"))) + ": is it up, can this host reach it outside IPsec, may charon read it (AppArmor), is the plugin curl loaded?"
	case w.said("crl response verification failed", "ocsp response verification failed", "parsing failed"):
		why = "what was fetched is not signed by the authority, or is no list in DER"
	case !p.AsksForStatus():
		why = "neither the peer's authority nor its certificate names a CRL or an OCSP responder: set crl_uris or ocsp_uris, or choose another revocation policy"
	default:
		why = "neither list nor responder knows it"
	}
	return fmt.Sprintf("the policy is %q, and whether %s was revoked is not known: %s", p.Revocation, whose, why), auth.ErrCertStatus
}

// peersIdentity is what charon has found wrong with the identity or the key that
// the peer has used.
func peersIdentity(p *pad.Peer, w words) (string, error) {
	switch {
	case p.Cert != nil && strings.Contains(w.quoted("does not match to"), "="):
		return fmt.Sprintf("the peer calls itself %q, which is its certificate's subject and no identity here: issue one there with %q as subject alternative name, and set that as local_id", w.quoted("does not match to"), p.RemoteID), auth.ErrCertIdentity
	case w.said("does not match to"):
		return fmt.Sprintf("the peer says that it is %q, and here it is expected to be %q: compare local_id there with remote_id here", w.quoted("does not match to"), p.RemoteID), ErrAuthFailed
	case w.said("constraint check failed: identity", "constraint check failed: EAP identity"):
		if p.Cert != nil {
			return fmt.Sprintf("the peer's certificate is not for identity %q, so that the peer has used another one: issue one there with that name or address as subject alternative name", p.RemoteID), auth.ErrCertIdentity
		}
		return fmt.Sprintf("the peer has another identity than %q: compare local_id there with remote_id here", p.RemoteID), ErrAuthFailed
	case w.said("no trusted") && w.said("public key found for"):
		return fmt.Sprintf("the peer has no certificate for identity %q of %s: issue one there with that name or address as subject alternative name", orUnknown(w.quoted("public key found for")), authorities(p)), auth.ErrCertIdentity
	case w.said("no shared key found"):
		return "strongSwan does not have the pre-shared key any longer, perhaps by `swanctl --load-creds --clear`: it is loaded again", ErrAuthFailed
	case w.said("MAC mismatched", "calculated HASH does not match", "decryption failed", "could not decrypt payloads"):
		return fmt.Sprintf("the pre-shared keys differ: what the peer answers does not fit the key that this host has for %s; copy the key of one host to the other and run `ironwarp reload`", p.Name), ErrAuthFailed
	case w.said("constraint requires", "peer config") && w.said("unacceptable", "constraint requires"):
		return "the peer authenticates in another way: " + otherMethod(p), ErrAuthFailed
	}
	return "", nil
}

// peersRefusal is what the peer has said.
func peersRefusal(p *pad.Peer, w words) (string, error) {
	phase2 := w.said("established between", "QUICK_MODE", "CREATE_CHILD_SA", "parsed IKE_AUTH response")
	ids := fmt.Sprintf("there remote_id has to be %q and local_id %q", p.LocalID, p.RemoteID)
	switch {
	case w.refused() && p.Profile.Aggressive && !w.said("parsed AGGRESSIVE response"):
		return fmt.Sprintf("the peer is not configured for aggressive mode with this host's identity (%s), or its strongSwan allows none with pre-shared keys: "+
			"it needs i_dont_care_about_security_and_use_aggressive_mode_psk = yes in the charon section of strongswan.conf. IKEv2 (profile %s) needs nothing of that kind", ids, profile.Default().Name), ErrAggressiveRefused
	case w.refused() && p.Cert != nil:
		return fmt.Sprintf("the peer refused this host's certificate: it trusts another authority than %q, could not learn whether the certificate was revoked, its clock is wrong, its own certificate is not for its identity, or it has a pre-shared key or other identities for this host (%s). Its own log says which: journalctl -u strongswan there",
			p.Cert.Certificate().Issuer, ids), ErrAuthFailed
	case w.refused() && p.Profile.Version == 1:
		return fmt.Sprintf("the pre-shared keys are the same, but the peer does not know this host by its identity in main mode: %s, and the profile the same", ids), ErrAuthFailed
	case w.refused():
		return fmt.Sprintf("the pre-shared keys differ, the peer expects other identities (%s), or it has certificates for this host; compare both hosts' peer settings. Its own log says which: journalctl -u strongswan there", ids), ErrAuthFailed
	case w.said("INVALID_KE_PAYLOAD error notify", "INVALID_KEY_INFORMATION") && p.Profile.Version == 1:
		return "the peer could not make keys for this host: it has no pre-shared key for these addresses and identities (" + ids + "), or " + otherMethod(p), ErrAuthFailed
	case w.said("TS_UNACCEPT") && p.AllLinks()[0].Label != "":
		k := p.AllLinks()[0]
		return fmt.Sprintf("the peer does not have %v between %v and %v with %s, or does not let this host be a member of it; compare the partition's port, label and members on both hosts: IKE lets nobody see which of them differs",
			k, p.Remote, p.Local, pad.LabelWords(k.Label)), ErrTrafficSelectors
	case w.said("TS_UNACCEPT", "INVALID_ID_INFORMATION", "N(INVAL_ID)"):
		return fmt.Sprintf("the peer does not have %s between %v and %v as its link to this host; compare the ports, transports and addresses on both hosts", p.AllLinks()[0].Words(), p.Remote, p.Local), ErrTrafficSelectors
	case w.said("NO_PROPOSAL_CHOSEN", "NO_PROP") && phase2:
		return fmt.Sprintf("IKE is fine, but the peer takes none of the ESP proposals of profile %q (%s), wants another mode than %v, PFS with another group, or has no ESP at all; compare the profiles, and run `ironwarp doctor` there",
			p.Profile.Name, strings.Join(p.Profile.ESP, ", "), p.Profile.Mode), ErrNoProposal
	case w.said("NO_PROPOSAL_CHOSEN", "NO_PROP", "INVALID_KE_PAYLOAD", "INVALID_MAJOR_VERSION"):
		return fmt.Sprintf("the peer takes none of the IKE proposals of profile %q, does not speak IKEv%d with this host, or does not know %v as a peer; compare the profiles, and add this host as a peer there",
			p.Profile.Name, p.Profile.Version, p.Local), ErrNoProposal
	case w.said("INVAL_SYN", "INVALID_SYNTAX", "PAYLOAD_MALFORMED"):
		return "the peer could not decrypt what this host has sent: the pre-shared keys differ", ErrAuthFailed
	}
	return "", nil
}

// noAnswer is silence.
func noAnswer(p *pad.Peer, w words) (string, error) {
	end := p.Remote
	if p.Gateway.IsValid() {
		end = p.Gateway
	}
	switch {
	case !w.said("giving up after", "not responding", "not established after", "etwork is unreachable", "network unreachable", "error writing to socket", "retransmit"):
		return "", nil
	case w.said("etwork is unreachable", "network unreachable", "No route to host"):
		return fmt.Sprintf("this host has no route to %v; look at its addresses and routes", end), ErrUnreachable
	case w.said("parsed IKE_SA_INIT response", "parsed ID_PROT response"):
		return fmt.Sprintf("%v answers on UDP port 500, but not to what came after; does a firewall on the way drop UDP port 4500, or fragments (large certificates)?", end), ErrUnreachable
	}
	return fmt.Sprintf("no answer from %v on UDP ports 500 and 4500; is that host up, does strongSwan run there, does a firewall let IKE and ESP through?", end), ErrUnreachable
}

func otherMethod(p *pad.Peer) string {
	if p.Cert != nil {
		return "it has a pre-shared key for this host, and this host has a certificate for it: choose one on both"
	}
	return "it has certificates for this host, and this host has a pre-shared key for it: choose one on both"
}

// authorities names those of the peer.
func authorities(p *pad.Peer) string {
	var out []string
	for _, a := range p.CAs {
		out = append(out, fmt.Sprintf("%q", a.Certificate().Subject))
	}
	return strings.Join(out, ", ")
}

func orUnknown(s string) string { return cmp.Or(s, "somebody unknown") }

// ExplainRefusal adds to charon's refusal of a command what it means. Another error
// stays as it is.
func ExplainRefusal(p *pad.Peer, err error) error {
	refused, ok := errors.AsType[*charon.CommandError](err)
	if !ok {
		return err
	}
	switch r := refused.Reason; {
	case strings.Contains(r, "invalid value for: proposals"), strings.Contains(r, "invalid value for: esp_proposals"):
		return fmt.Errorf("peer %s: %w: it does not know an algorithm of profile %q: %w", p.Name, ErrPluginMissing, p.Profile.Name, err)
	case strings.HasPrefix(r, "parsing") && strings.HasSuffix(r, "failed"):
		return fmt.Errorf("peer %s: %w: one for such keys and certificates (openssl, pem, pkcs1, x509): %w", p.Name, ErrPluginMissing, err)
	}
	return err
}

// BlameKernel replaces the explanation of a failed attempt where the true cause
// is that nobody on this host does ESP: strongSwan only finds out when it has
// negotiated, and then hears of the peer that there is no proposal left.
func BlameKernel(plane esp.Plane, err error) error {
	n, ok := errors.AsType[*Error](err)
	if plane != esp.Kernel || !ok || !errors.Is(n.Kind, ErrNoProposal) && !errors.Is(n.Kind, esp.ErrCannot) && !errors.Is(n.Kind, ErrFailed) ||
		!errors.Is(esp.ProbeKernel(), esp.ErrNoKernel) {
		return err
	}
	return &Error{Peer: n.Peer, Child: n.Child, Kind: esp.ErrNoKernel, Log: n.Log,
		Advice: "nor has strongSwan loaded its plugin kernel-libipsec, which does ESP in user space; load the kernel's (modprobe esp4 esp6 xfrm_user), or see `ironwarp doctor` for the plugin"}
}
