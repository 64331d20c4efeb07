package negotiation

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/auth/authtest"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

// The words are those of charon 5.9.8; integration/ipsectest provokes most of
// them.
func TestCharonsWordsAreExplained(t *testing.T) {
	dir := authtest.Authority(t, "here")
	cert := func(p *pad.Peer) {
		p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
	}
	by := func(name string) func(*pad.Peer) {
		return func(p *pad.Peer) { p.Profile = padtest.Profile(t, name) }
	}
	stamp := func(d time.Duration) string { return time.Now().Add(d).Format(charonTime) }
	const established = "IKE_SA beta[1] established between 192.0.2.1[here]...198.51.100.2[beta]"
	for _, tc := range []struct {
		name   string
		change func(*pad.Peer)
		log    string
		kinds  []error
		words  string
	}{
		{"main mode, another key", by("rfc3723"), "invalid HASH_V1 payload length, decryption failed?\ncould not decrypt payloads\ngiving up after 5 retransmits", []error{ErrAuthFailed}, "keys differ"},
		{"main mode, another identity", by("rfc3723"), "parsed ID_PROT response 0 [ KE No NAT-D NAT-D ]\nreceived AUTHENTICATION_FAILED error notify", []error{ErrAuthFailed}, "keys are the same"},
		{"aggressive mode, another key", by("rfc3723-aggressive"), "parsed AGGRESSIVE response 0 [ SA KE No ID ]\ncalculated HASH does not match HASH payload", []error{ErrAuthFailed}, "keys differ"},
		{"aggressive mode, refused", by("rfc3723-aggressive"), "generating AGGRESSIVE request 0 [ SA KE No ID ]\nreceived AUTHENTICATION_FAILED error notify", []error{ErrAggressiveRefused, ErrAuthFailed}, "strongswan.conf"},
		{"a certificate there, a key here, IKEv1", by("rfc3723"), "received INVALID_KE_PAYLOAD error notify", []error{ErrAuthFailed}, "it has certificates"},
		{"quick mode, another port", by("rfc3723"), established + "\nreceived INVALID_ID_INFORMATION error notify", []error{ErrTrafficSelectors}, "7471"},
		{"IKEv2, another port", nil, established + "\nreceived TS_UNACCEPTABLE notify, no CHILD_SA built", []error{ErrTrafficSelectors}, "7471"},
		{"a partition's label", func(p *pad.Peer) {
			p.Links = []pad.Link{{Protocol: transport.ProtoTCP, Port: 7480, Name: "lab", Label: "u:r:t"}}
		}, established + "\nreceived TS_UNACCEPTABLE notify, no CHILD_SA built", []error{ErrTrafficSelectors}, `of partition lab between 198.51.100.2 and 192.0.2.1 with the label "u:r:t"`},
		{"no IKE proposal", nil, "received NO_PROPOSAL_CHOSEN notify error", []error{ErrNoProposal}, "IKE proposals"},
		{"no ESP proposal", nil, established + "\nreceived NO_PROPOSAL_CHOSEN notify, no CHILD_SA built", []error{ErrNoProposal}, "ESP proposals"},
		{"another child, no ESP proposal", nil, "generating CREATE_CHILD_SA request 2 [ SA No KE TSi TSr ]\nreceived NO_PROPOSAL_CHOSEN notify, no CHILD_SA built", []error{ErrNoProposal}, "ESP proposals"},
		{"silence", nil, "retransmit 5 of request with message ID 0\ngiving up after 5 retransmits", []error{ErrUnreachable}, "500 and 4500"},
		{"silence on port 4500", nil, "parsed IKE_SA_INIT response 0 [ SA KE No ]\ngiving up after 5 retransmits", []error{ErrUnreachable}, "drop UDP port 4500"},
		{"no route", nil, "error writing to socket: Network is unreachable", []error{ErrUnreachable}, "no route"},
		{"no plugin for a DH group", nil, "configured DH group ECP_256 not supported", []error{ErrPluginMissing}, "ECP_256"},
		{"no plugin for a cipher", nil, "ENCRYPTION_ALGORITHM 3DES_CBC (key size 0) not supported!\nkey derivation failed", []error{ErrPluginMissing}, "3DES_CBC"},
		{"no plugin for ESP", nil, established + "\nfailed to create ESP context: unsupported encryption algorithm AES_CTR", []error{ErrPluginMissing}, "AES_CTR"},
		{"the kernel refuses", nil, established + "\nunable to install inbound and outbound IPsec SA (SAD) in kernel", []error{esp.ErrCannot}, "doctor"},
		{"the key was cleared", nil, "no shared key found for 'here' - 'beta'", []error{ErrAuthFailed}, "loaded again"},
		{"the private key was cleared", cert, "no private key found for 'here'", []error{ErrAuthFailed}, "loaded again"},
		{"another identity in the peer's answer", nil, "constraint check failed: identity 'beta' required \nselected peer config 'beta' unacceptable: constraint checking failed", []error{ErrAuthFailed}, "local_id there"},
		{"a certificate without the name", cert, "received end entity cert \"CN=gamma\"\nconstraint check failed: identity 'beta' required ", []error{auth.ErrCertIdentity, ErrAuthFailed}, "subject alternative name"},
		{"a certificate without the name, IKEv1", cert, "IDir 'CN=gamma' does not match to 'beta'", []error{auth.ErrCertIdentity, ErrAuthFailed}, "CN=gamma"},
		{"no certificate for the name", cert, "received end entity cert \"CN=gamma\"\nno trusted ECDSA public key found for 'beta'", []error{auth.ErrCertIdentity}, `"beta"`},
		{"expired", cert, "subject certificate invalid (valid from " + stamp(-2*time.Hour) + " to " + stamp(-time.Hour) + ")\nno trusted ECDSA public key found for 'beta'", []error{auth.ErrCertExpired, ErrAuthFailed}, "issue another one"},
		{"not valid yet", cert, "subject certificate invalid (valid from " + stamp(time.Hour) + " to " + stamp(2*time.Hour) + ")\nno trusted ECDSA public key found for 'beta'", []error{auth.ErrCertNotYet, ErrClock, ErrAuthFailed}, "clock"},
		{"revoked", cert, "certificate was revoked on Nov 21 08:06:52 UTC 2026, reason: unspecified\nno trusted ECDSA public key found for 'beta'", []error{auth.ErrCertRevoked, ErrAuthFailed}, "08:06:52"},
		{"expired, and an older one was revoked", cert, "received end entity cert \"CN=new\"\n  using certificate \"CN=new\"\n  using trusted ca certificate \"CN=lab\"\nsubject certificate invalid (valid from " + stamp(-2*time.Hour) + " to " + stamp(-time.Hour) + ")\n" +
			"  using certificate \"CN=old\"\nchecking certificate status of \"CN=old\"\ncertificate was revoked on Nov 21 08:06:52 UTC 2026, reason: unspecified\nno trusted ECDSA public key found for 'beta'", []error{auth.ErrCertExpired}, "CN=new"},
		{"another authority", cert, "no issuer certificate found for \"CN=x\"\n  issuer is \"CN=CA 002\"\nno trusted ECDSA public key found for 'beta'", []error{auth.ErrCertUntrusted}, "CN=CA 002"},
		{"another peer's authority", cert, "  using trusted ca certificate \"CN=CA 002\"\nconstraint check failed: peer not authenticated by CA 'CN=CA 001'", []error{auth.ErrCertUntrusted}, "CN=CA 002"},
		{"a list that has run out", cert, "  fetching crl from 'http://192.0.2.9/ca.crl' ...\n  crl is stale: since Nov 20 00:00:00 2026\nconstraint check failed: RULE_CRL_VALIDATION is STALE, but requires at least GOOD", []error{auth.ErrCertStatus}, "run out"},
		{"a list that cannot be had", cert, "  fetching crl from 'http://192.0.2.9/ca.crl' ...\ncrl fetching failed\nconstraint check failed: RULE_CRL_VALIDATION is FAILED, but requires at least GOOD", []error{auth.ErrCertStatus}, "http://192.0.2.9/ca.crl"},
		{"a responder that is silent", cert, "  requesting ocsp status from 'http://192.0.2.9/' ...\nocsp request to http://192.0.2.9/ failed\nconstraint check failed: RULE_CRL_VALIDATION is FAILED, but requires at least GOOD", []error{auth.ErrCertStatus}, "http://192.0.2.9/"},
		{"our certificate is refused", cert, "received AUTHENTICATION_FAILED notify error", []error{ErrAuthFailed}, "its clock is wrong"},
		{"nothing known", nil, "something new", []error{ErrFailed}, ""},
	} {
		p := padtest.Peer("beta", 2)
		if tc.change != nil {
			tc.change(&p)
		}
		err := Explain(&p, "beta-out", "establishing CHILD_SA 'beta-out' failed", strings.Split(tc.log, "\n"))
		var n *Error
		if !errors.As(err, &n) || n.Peer != "beta" {
			t.Fatalf("%s: %v", tc.name, err)
		}
		for _, kind := range tc.kinds {
			if !errors.Is(err, kind) {
				t.Errorf("%s: %v\nis not %q", tc.name, err, kind)
			}
		}
		if !strings.Contains(n.Advice, tc.words) || n.Advice == "" && tc.words != "" {
			t.Errorf("%s: %v\nhas no %q", tc.name, err, tc.words)
		}
	}
}

func TestOwnExpiredCertificateIsNamedWhenThePeerRefuses(t *testing.T) {
	dir := authtest.Authority(t, "here")
	p := padtest.Peer("beta", 2)
	p.PSK, p.Cert, p.CAs = auth.Secret{}, authtest.Credential(t, dir, "here"), []auth.Authority{authtest.Trust(t, dir)}
	p.Cert.Certificate().NotAfter = time.Now().Add(-time.Hour)
	err := Explain(&p, "beta-out", "failed", []string{"received AUTHENTICATION_FAILED notify error"})
	if !errors.Is(err, auth.ErrCertExpired) || !strings.Contains(err.Error(), "this host's own certificate") {
		t.Errorf("%v", err)
	}
}

func TestRefusalsOfCommandsNameThePlugin(t *testing.T) {
	p := padtest.Peer("beta", 2)
	for reason, want := range map[string]error{
		"invalid value for: esp_proposals, config discarded": ErrPluginMissing,
		"invalid value for: proposals, config discarded":     ErrPluginMissing,
		"parsing ECDSA private key failed":                   ErrPluginMissing,
		"parsing X509 certificate failed":                    ErrPluginMissing,
		"something new":                                      nil,
	} {
		err := ExplainRefusal(&p, &charon.CommandError{Command: "load-conn", Name: "connection beta", Reason: reason})
		var refused *charon.CommandError
		if !errors.As(err, &refused) || errors.Is(err, ErrPluginMissing) != (want != nil) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", reason, err)
		}
	}
	if err := ExplainRefusal(&p, nil); err != nil {
		t.Error(err)
	}
}
