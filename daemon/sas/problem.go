package sas

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// reasons are what can be wrong with IPsec, the most special first, and what
// to do where the error itself does not say.
var reasons = []struct {
	kind   error
	reason string
	fix    string
}{
	{ipsec.ErrBlocked, api.ReasonBlocked, "`ironwarp block ls` says why and until when; `ironwarp block rm` ends it"},
	{ipsec.ErrNotBlocked, api.ReasonBlocked, "`ironwarp block ls` lists who is"},
	{guard.ErrNoBlock, api.ReasonGuard, "load it with `modprobe nf_tables`; until then the daemon itself refuses the peer's streams"},
	{pad.ErrWrongIdentity, api.ReasonIdentity, "compare the remote_id here with the local_id there; whoever has the address but not the identity gets nothing"},
	{pad.ErrGateway, api.ReasonGateway, "ESP has to end at the peer itself (RFC 5042 5.4.5); if this gateway is meant to be trusted, say so with gateway: in the peer's file"},
	{pad.ErrLabel, api.ReasonLabel, "the partition needs the same label on both hosts; `ironwarp sa ls` shows the label of each SA"},
	{pad.ErrLabelIKEv1, api.ReasonLabel, "take a profile with IKEv2 for the peer, on both hosts, or a partition without a label"},
	{pad.ErrNotCovered, api.ReasonNotCovered, "an SA is brought up by the stream that needs it; `ironwarp sa ls` shows what there is"},
	{negotiation.ErrClock, api.ReasonClock, "set the clocks of both hosts, by NTP best, and look at the certificates' dates with `openssl x509 -noout -dates -in FILE`"},
	{auth.ErrCertExpired, api.ReasonCertExpired, "issue a new certificate, replace the file, and run `ironwarp reload`"},
	{auth.ErrCertNotYet, api.ReasonCertNotYet, "compare the clocks of both hosts; else wait, or issue a certificate that is valid now"},
	{auth.ErrCertRevoked, api.ReasonCertRevoked, "the host with this certificate needs a new one from the authority, unless it was revoked for a reason"},
	{auth.ErrCertUntrusted, api.ReasonCertUntrusted, "ca_files have to name the authority that issued the other host's certificate, on both hosts"},
	{auth.ErrCertIdentity, api.ReasonCertIdentity, "the identity (local_id there, remote_id here; the address by default) has to be among the certificate's subject alternative names"},
	{auth.ErrCertStatus, api.ReasonCertStatus, "make the revocation list or OCSP responder reachable, or say revocation: relaxed, with which a revoked certificate may go unnoticed"},
	{negotiation.ErrAggressiveRefused, api.ReasonNegotiation, "take a profile without aggressive mode on both hosts"},
	{esp.ErrCannot, api.ReasonDataPlane, "choose another profile or mode; `ironwarp doctor` says what this host's ESP can do"},
	{negotiation.ErrPluginMissing, api.ReasonStrongSwan, "install libstrongswan-standard-plugins, libstrongswan-extra-plugins and libcharon-extra-plugins, then restart strongSwan"},
	{negotiation.ErrNoProposal, api.ReasonNoProposal, "compare profile and mode of the peer on both hosts"},
	{negotiation.ErrAuthFailed, api.ReasonAuthFailed, "compare the secrets or certificates and the identities on both hosts"},
	{negotiation.ErrTrafficSelectors, api.ReasonSelectors, "compare addresses, ports, transport and child_sas of the peer on both hosts"},
	{negotiation.ErrUnreachable, api.ReasonUnreachable, "is the host up, does strongSwan run there, and do firewalls let UDP 500 and 4500 through?"},
	{negotiation.ErrUnloaded, api.ReasonStrongSwan, "it is loaded again; whatever runs swanctl while the daemon runs does this"},
	{negotiation.ErrFailed, api.ReasonNegotiation, "strongSwan's log on both hosts says more"},
	{auth.ErrSecretFile, api.ReasonSecret, "both hosts need the same secret, in a file of mode 0600; then run `ironwarp reload`"},
	{auth.ErrSecretShort, api.ReasonSecret, "make a longer one with `ironwarp peer rotate-secret --generate-psk`, on one host, and bring it to the other"},
	{auth.ErrKeyMismatch, api.ReasonCredential, "cert_file and key_file have to belong together; then run `ironwarp reload`"},
	{auth.ErrNotAuthority, api.ReasonCredential, "ca_files have to name the authority that issued the peer's certificate; then run `ironwarp reload`"},
	{auth.ErrCredential, api.ReasonCredential, "correct the files (cert_file, key_file of mode 0600, ca_files), then run `ironwarp reload`"},
	{profile.ErrRefused, api.ReasonProfile, "choose another profile, or correct it under ipsec: profiles:, then run `ironwarp reload`"},
	{guard.ErrLeaks, api.ReasonGuard, "`ironwarp doctor` lists the holes in the guard; until they are closed nothing is sent to this peer"},
	{guard.ErrUntested, api.ReasonGuard, "is there a route to the peer? See `ip route get` with its address; the test is made as soon as there is one"},
	{guard.ErrNoIPv6, api.ReasonGuard, "use IPv4 addresses for this peer, or a kernel with ESP"},
	{esp.ErrNoKernel, api.ReasonDataPlane, "`ironwarp doctor` says how to have userland ESP"},
	{fs.ErrNotExist, api.ReasonCredential, "psk_file, cert_file, key_file and ca_files have to name files that exist; then run `ironwarp reload`"},
	{fs.ErrPermission, api.ReasonCredential, "the daemon has to be allowed to read psk_file, cert_file, key_file and ca_files; it runs as root best"},
	{ipsec.ErrNotConnected, api.ReasonStrongSwan, "`ironwarp doctor` says what is missing"},
	{ipsec.ErrNotSupervised, api.ReasonStrongSwan, "start the daemon again; its log says why the IPsec manager has ended"},
}

// Problem turns an error of the IPsec manager about a peer into one with advice.
func Problem(peer string, err error) *api.Error {
	what := strings.TrimPrefix(err.Error(), fmt.Sprintf("peer %q: ", peer))
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the protection of peer %s is not in place: %s", peer, what), Fix: "`ironwarp doctor` says what is missing"}
	if reason, fix := AdviceOf(err); reason != "" {
		e.Reason, e.Fix = reason, fix
	}
	switch e.Reason {
	case api.ReasonSecret, api.ReasonCredential, api.ReasonProfile:
		e.Code = api.CodeInvalid
		e.Message = fmt.Sprintf("peer %s: %s", peer, what)
	}
	var neg *negotiation.Error
	var de *charon.Error
	switch {
	case errors.As(err, &neg):
		e.Message = fmt.Sprintf("no IPsec SA with peer %s: %v", peer, neg.Kind)
		if e.Reason == "" {
			e.Reason = api.ReasonNegotiation
		}
		if neg.Advice != "" {
			e.Fix = neg.Advice
		}
		if errors.Is(neg.Kind, negotiation.ErrFailed) && len(neg.Log) > 0 {
			e.Message += "; strongSwan says: " + neg.Log[len(neg.Log)-1]
		}
	case errors.As(err, &de):
		e.Reason = api.ReasonStrongSwan
		bare := *de
		bare.Advice = ""
		e.Message = bare.Error()
		if de.Advice != "" {
			e.Fix = de.Advice + "; `ironwarp doctor` says what is missing"
		}
	}
	if e.Code == api.CodeUnavailable {
		if !strings.HasSuffix(e.Fix, "?") && !strings.HasSuffix(e.Fix, ".") {
			e.Fix += "."
		}
		e.Fix += " Streams to it wait; the daemon keeps trying"
	}
	return e
}

// AdviceOf is the reason of an error of the IPsec manager and what to do about it,
// "" if it is none.
func AdviceOf(err error) (reason, fix string) {
	for _, r := range reasons {
		if errors.Is(err, r.kind) {
			return r.reason, r.fix
		}
	}
	return "", ""
}
