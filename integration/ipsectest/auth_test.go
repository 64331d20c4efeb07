package ipsectest

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pki"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// allowAggressive is the setting without which strongSwan does not answer in aggressive
// mode with pre-shared keys.
const allowAggressive = "i_dont_care_about_security_and_use_aggressive_mode_psk = yes"

// noCurves configures strongSwan without its plugin openssl: no elliptic curves.
const noCurves = "load = random nonce aes sha1 sha2 hmac kdf gmp pem pkcs1 x509 constraints pubkey kernel-libipsec kernel-netlink socket-default vici"

// impatient configures strongSwan to repeat a packet only once.
const impatient = "retransmit_tries = 2\nretransmit_timeout = 1"

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	dir  string
	name string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: filepath.Join(t.TempDir(), "pki"), name: name}
	if _, err := pki.Init(a.dir, pki.Options{Name: name}); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue makes a certificate; without names it is for the request's name.
func (a *authority) issue(r pki.Request) *auth.Credential {
	a.t.Helper()
	got, err := pki.Issue(a.dir, r)
	if err != nil {
		a.t.Fatal(err)
	}
	c, err := auth.LoadCredential(got.CertFile, got.KeyFile)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *authority) trusted() auth.Authority {
	a.t.Helper()
	got, err := auth.LoadAuthority(filepath.Join(a.dir, "ca.pem"))
	if err != nil {
		a.t.Fatal(err)
	}
	return got
}

func (a *authority) crl() string { return filepath.Join(a.dir, "ca.crl") }

// withCertificates makes a peer's setting one with certificates.
func (a *authority) withCertificates(h *host, c *pad.Peer) {
	a.t.Helper()
	c.PSK = auth.Secret{}
	c.Cert = a.issue(pki.Request{Name: h.Name()})
	c.CAs = []auth.Authority{a.trusted()}
}

func TestCertificatesAuthenticateBothHosts(t *testing.T) {
	for _, tc := range []struct {
		name, profile string
		key           pki.KeyType
		ids           func(h *host) string
	}{
		{"IKEv2 with names", "rfc7146", pki.ECDSA, func(h *host) string { return h.Name() + ".example.org" }},
		{"IKEv2 with addresses", "rfc7146", pki.ECDSA, func(h *host) string { return h.at().String() }},
		{"IKEv2 with user names and RSA", "rfc7146", pki.RSA, func(h *host) string { return h.Name() + "@example.org" }},
		{"IKEv1 with names", "rfc3723", pki.ECDSA, func(h *host) string { return h.Name() }},
		{"IKEv1 with user names and RSA", "rfc3723", pki.RSA, func(h *host) string { return h.Name() + "@example.org" }},
		{"aggressive IKEv1", "rfc3723-aggressive", pki.ECDSA, func(h *host) string { return h.Name() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			ca := newAuthority(t, "lab")
			p.addWith(t, func(h *host, c *pad.Peer) {
				c.Profile = mustProfile(t, tc.profile)
				c.LocalID, c.RemoteID = tc.ids(h), tc.ids(p.other(h))
				ca.withCertificates(h, c)
				c.Cert = ca.issue(pki.Request{Name: h.Name() + "-x", SANs: []string{c.LocalID}, Key: tc.key})
			})
			p.beta.echo(t, nil)
			wire := capture(t, p.beta)
			k := talk(p.alpha.mustDial(t, p.beta))
			k.moves(t, 20)
			k.end(t)
			if c := counted(t, wire); c.Clear(port) != 0 || c.ESP < 20 {
				t.Errorf("on the wire: %v", c)
			}
			if sa, _ := live(t, p.alpha); sa.RemoteID != tc.ids(p.beta) || sa.LocalID != tc.ids(p.alpha) {
				t.Errorf("IKE authenticated %q and %q", sa.LocalID, sa.RemoteID)
			}
		})
	}
}

// attempt is a pair whose beta cannot be reached, and the reason.
type attempt struct {
	name    string
	change  func(t *testing.T, p *pair, h *host, c *pad.Peer)
	charon  string // of both hosts' strongswan.conf
	after   func(p *pair)
	kinds   []error
	notKind error
	advice  []string
}

func (a *attempt) run(t *testing.T, profile string) {
	t.Helper()
	p := newPair(t, lab.Config{Charon: a.charon})
	p.addWith(t, func(h *host, c *pad.Peer) {
		c.Profile = mustProfile(t, profile)
		if a.change != nil {
			a.change(t, p, h, c)
		}
	})
	if a.after != nil {
		a.after(p)
	}
	p.beta.echo(t, nil)
	wire := capture(t, p.beta)
	_, err := p.alpha.dial(t, p.beta)
	var n *negotiation.Error
	if !errors.As(err, &n) {
		t.Fatalf("dialling: %v, want a NegotiationError", err)
	}
	for _, kind := range a.kinds {
		if !errors.Is(err, kind) {
			t.Errorf("%v\nis not %q; strongSwan said:\n%s", err, kind, strings.Join(n.Log, "\n"))
		}
	}
	for _, words := range a.advice {
		if !strings.Contains(n.Advice, words) {
			t.Errorf("%v\nhas no %q", err, words)
		}
	}
	if c := counted(t, wire); c.Clear(port) != 0 {
		t.Errorf("clear packets on the wire: %v", c)
	}
	if strings.Contains(err.Error(), string(p.key.Reveal())) {
		t.Error("the error has the key")
	}
}

func onBeta(f func(c *pad.Peer)) func(*testing.T, *pair, *host, *pad.Peer) {
	return func(_ *testing.T, p *pair, h *host, c *pad.Peer) {
		if h == p.beta {
			f(c)
		}
	}
}

func onAlpha(f func(c *pad.Peer)) func(*testing.T, *pair, *host, *pad.Peer) {
	return func(_ *testing.T, p *pair, h *host, c *pad.Peer) {
		if h == p.alpha {
			f(c)
		}
	}
}

func TestFailedIKEIsExplained(t *testing.T) {
	stranger := netip.MustParseAddr("10.99.0.77")
	for profile, attempts := range map[string][]attempt{
		"rfc7146": {
			{name: "keys differ", change: onBeta(func(c *pad.Peer) { c.PSK = auth.GenerateSecret() }), kinds: []error{negotiation.ErrAuthFailed}, advice: []string{"keys differ", `"alpha"`, `"beta"`}},
			{name: "the peer expects somebody else", change: onBeta(func(c *pad.Peer) { c.RemoteID = "gamma" }), kinds: []error{negotiation.ErrAuthFailed}, advice: []string{"other identities"}},
			{name: "no common IKE proposal", change: onBeta(func(c *pad.Peer) { c.Profile.IKE = []string{"aes256-sha512-modp4096"} }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"IKE proposals"}},
			{name: "no common ESP proposal", change: onBeta(func(c *pad.Peer) { c.Profile.ESP = []string{"aes256-sha512-modp2048"} }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"IKE is fine", "ESP proposals"}},
			{name: "the peer has another port", change: onBeta(func(c *pad.Peer) { c.Port++ }), kinds: []error{negotiation.ErrTrafficSelectors}, advice: []string{"another port than 7471"}},
			{name: "the peer does not know us", change: onBeta(func(c *pad.Peer) { c.Remote = stranger }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"does not know 10.99.0.1"}},
			{name: "the peer speaks IKEv1", change: onBeta(func(c *pad.Peer) { c.Profile, _ = profile.ByName("rfc3723") }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"does not speak IKEv2"}},
			{name: "the peer is down", charon: impatient, after: func(p *pair) { p.beta.KillCharon() }, kinds: []error{negotiation.ErrUnreachable}, advice: []string{"UDP ports 500 and 4500", "10.99.0.2"}},
			{name: "an algorithm without a plugin", charon: noCurves, change: onAlpha(func(c *pad.Peer) { c.Profile.IKE = []string{"aes128-sha256-ecp256"} }), kinds: []error{negotiation.ErrPluginMissing}, advice: []string{"libstrongswan-extra-plugins"}},
		},
		"rfc3723": {
			{name: "keys differ", charon: impatient, change: onBeta(func(c *pad.Peer) { c.PSK = auth.GenerateSecret() }), kinds: []error{negotiation.ErrAuthFailed}, advice: []string{"keys differ"}},
			{name: "the peer expects somebody else", change: onBeta(func(c *pad.Peer) { c.RemoteID = "gamma" }), kinds: []error{negotiation.ErrAuthFailed}, advice: []string{"keys are the same", `remote_id has to be "alpha"`}},
			{name: "the peer is somebody else", change: onAlpha(func(c *pad.Peer) { c.RemoteID = "gamma" }), kinds: []error{negotiation.ErrAuthFailed}, advice: []string{`says that it is "beta"`, `expected to be "gamma"`}},
			{name: "no common IKE proposal", change: onBeta(func(c *pad.Peer) { c.Profile.IKE = []string{"aes256-sha512-modp4096"} }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"IKE proposals"}},
			{name: "no common ESP proposal", change: onBeta(func(c *pad.Peer) { c.Profile.ESP = []string{"aes256-sha512-modp2048"} }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"IKE is fine", "ESP proposals"}},
			{name: "the peer has another port", change: onBeta(func(c *pad.Peer) { c.Port++ }), kinds: []error{negotiation.ErrTrafficSelectors}, advice: []string{"another port than 7471"}},
			{name: "the peer speaks IKEv2", change: onBeta(func(c *pad.Peer) { c.Profile, _ = profile.ByName("rfc7146") }), kinds: []error{negotiation.ErrNoProposal}, advice: []string{"does not speak IKEv1"}},
		},
		"rfc3723-aggressive": {
			{name: "keys differ", charon: allowAggressive, change: onBeta(func(c *pad.Peer) { c.PSK = auth.GenerateSecret() }), kinds: []error{negotiation.ErrAuthFailed}, notKind: negotiation.ErrAggressiveRefused, advice: []string{"keys differ"}},
			{name: "the peer expects somebody else", charon: allowAggressive, change: onBeta(func(c *pad.Peer) { c.RemoteID = "gamma" }), kinds: []error{negotiation.ErrAggressiveRefused}, advice: []string{`remote_id has to be "alpha"`}},
			{name: "the peer's strongSwan allows none", kinds: []error{negotiation.ErrAggressiveRefused, negotiation.ErrAuthFailed}, advice: []string{"i_dont_care_about_security_and_use_aggressive_mode_psk"}},
			{name: "the peer has main mode", charon: allowAggressive, change: onBeta(func(c *pad.Peer) { c.Profile.Aggressive = false }), kinds: []error{negotiation.ErrAggressiveRefused}, advice: []string{"not configured for aggressive mode"}},
		},
	} {
		for _, a := range attempts {
			t.Run(profile+": "+a.name, func(t *testing.T) { a.run(t, profile) })
		}
	}
}

func TestFailedCertificatesAreExplained(t *testing.T) {
	for _, profile := range []string{"rfc7146", "rfc3723"} {
		ca, other := newAuthority(t, "lab"), newAuthority(t, "somebody's")
		for i, c := range []struct {
			name   string
			change func(h *host, c *pad.Peer)
			beta   func(h *host, c *pad.Peer)
			alpha  func(h *host, c *pad.Peer)
			kinds  []error
			advice []string
		}{
			{name: "the peer's has expired", beta: func(_ *host, c *pad.Peer) { c.Cert = ca.issue(pki.Request{Name: c.LocalID, Life: -time.Hour}) },
				kinds: []error{auth.ErrCertExpired, negotiation.ErrAuthFailed}, advice: []string{"was valid until", "clock says"}},
			{name: "the peer's is not valid yet", beta: func(_ *host, c *pad.Peer) {
				c.Cert = ca.issue(pki.Request{Name: c.LocalID, NotBefore: time.Now().Add(time.Hour)})
			}, kinds: []error{auth.ErrCertNotYet, negotiation.ErrClock}, advice: []string{"becomes valid only on", "clock says"}},
			{name: "our own has expired", alpha: func(_ *host, c *pad.Peer) { c.Cert = ca.issue(pki.Request{Name: c.LocalID, Life: -time.Hour}) },
				kinds: []error{auth.ErrCertExpired, negotiation.ErrAuthFailed}, advice: []string{"this host's own certificate", "issue another one"}},
			{name: "the peer's is of another authority", beta: func(_ *host, c *pad.Peer) { c.Cert = other.issue(pki.Request{Name: c.LocalID}) },
				kinds: []error{auth.ErrCertUntrusted}, advice: []string{"somebody's", `"CN=lab"`}},
			{name: "the peer's is of the authority of a third host", beta: func(_ *host, c *pad.Peer) { c.Cert = other.issue(pki.Request{Name: c.LocalID}) },
				alpha: func(h *host, c *pad.Peer) {
					c.Cert = ca.issue(pki.Request{Name: c.LocalID})
					third := *c
					third.Name, third.RemoteID, third.Remote, third.CAs = "third", "third", netip.MustParseAddr("10.99.0.77"), []auth.Authority{other.trusted()}
					if err := h.m.AddPeer(t.Context(), third); err != nil {
						t.Fatal(err)
					}
				}, kinds: []error{auth.ErrCertUntrusted}, advice: []string{"for another peer", `"CN=lab"`}},
			{name: "our own is of another authority", alpha: func(_ *host, c *pad.Peer) { c.Cert = other.issue(pki.Request{Name: c.LocalID}) },
				kinds: []error{negotiation.ErrAuthFailed}, advice: []string{"trusts another authority than", "somebody's"}},
			{name: "the peer's was revoked", beta: func(_ *host, c *pad.Peer) {
				c.Cert = ca.issue(pki.Request{Name: "revoked", SANs: []string{c.LocalID}})
				if _, err := pki.Revoke(ca.dir, "revoked"); err != nil {
					t.Fatal(err)
				}
			}, change: func(_ *host, c *pad.Peer) { c.CAs[0].CRLURIs = []string{"file://" + ca.crl()} },
				kinds: []error{auth.ErrCertRevoked, negotiation.ErrAuthFailed}, advice: []string{"was revoked"}},
			{name: "the list cannot be had", alpha: func(_ *host, c *pad.Peer) { c.CAs[0].CRLURIs = []string{"file://" + ca.crl() + ".none"} },
				kinds: []error{auth.ErrCertStatus}, advice: []string{"could not reach", "ca.crl.none"}},
			{name: "nobody to ask", alpha: func(_ *host, c *pad.Peer) { c.Revocation = auth.RevocationStrict },
				kinds: []error{auth.ErrCertStatus}, advice: []string{"names a CRL or an OCSP responder"}},
			{name: "the peer is somebody else", beta: func(_ *host, c *pad.Peer) { c.LocalID = "gamma"; c.Cert = ca.issue(pki.Request{Name: "gamma"}) },
				kinds: []error{negotiation.ErrAuthFailed}},
			{name: "the peer has a key", beta: func(_ *host, c *pad.Peer) { c.Cert, c.CAs, c.PSK = nil, nil, auth.GenerateSecret() },
				kinds: []error{negotiation.ErrAuthFailed}},
			{name: "we have a key", alpha: func(_ *host, c *pad.Peer) { c.Cert, c.CAs, c.PSK = nil, nil, auth.GenerateSecret() },
				kinds: []error{negotiation.ErrAuthFailed}},
		} {
			_ = i
			a := attempt{kinds: c.kinds, advice: c.advice, change: func(t *testing.T, p *pair, h *host, peer *pad.Peer) {
				ca.t, other.t = t, t
				peer.PSK = auth.Secret{}
				ca.fresh()
				other.fresh()
				peer.CAs = []auth.Authority{ca.trusted()}
				peer.Cert = nil
				switch {
				case h == p.alpha && c.alpha != nil:
					c.alpha(h, peer)
				case h == p.beta && c.beta != nil:
					c.beta(h, peer)
				}
				if peer.Cert == nil && peer.PSK.IsZero() {
					peer.Cert = ca.issue(pki.Request{Name: h.Name()})
				}
				if c.change != nil {
					c.change(h, peer)
				}
			}}
			t.Run(profile+": "+c.name, func(t *testing.T) { a.run(t, profile) })
		}
	}
}

// fresh removes the hosts' files, so that names can be used again.
func (a *authority) fresh() {
	a.t.Helper()
	files, err := filepath.Glob(filepath.Join(a.dir, "*.*"))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasPrefix(filepath.Base(f), "ca.") {
			if err := os.Remove(f); err != nil {
				a.t.Fatal(err)
			}
		}
	}
}

func TestCRLOverHTTPIsReadAgainOnReload(t *testing.T) {
	p := newPair(t, lab.Config{})
	ca := newAuthority(t, "lab")
	uri := ca.serve(p.alpha, http.FileServer(http.Dir(ca.dir)))
	var alpha pad.Peer
	p.addWith(t, func(h *host, c *pad.Peer) {
		ca.withCertificates(h, c)
		if h == p.alpha {
			c.CAs[0].CRLURIs = []string{uri + "/ca.crl"}
			alpha = *c
		}
	})
	p.beta.echo(t, nil)
	if err := ping(p.alpha.mustDial(t, p.beta), "not revoked\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Revoke(ca.dir, "beta"); err != nil {
		t.Fatal(err)
	}
	if err := p.alpha.m.AddPeer(t.Context(), alpha); err != nil {
		t.Fatal(err)
	}
	if _, err := p.alpha.m.DeleteIKE(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.alpha.dial(t, p.beta); !errors.Is(err, auth.ErrCertRevoked) {
		t.Errorf("dialling a revoked peer: %v", err)
	}
}

// responder answers OCSP requests on a host, for one certificate with a status
// of package ocsp, and returns its URI.
func (a *authority) responder(h *host, c *auth.Credential, status int) string {
	a.t.Helper()
	block, _ := pem.Decode(a.file("ca.key"))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		a.t.Fatal("the authority's key cannot be read")
	}
	ca := a.trusted().Certificate()
	return a.serve(h, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		req, err := ocsp.ParseRequest(body)
		if err != nil {
			http.Error(w, "no OCSP request", http.StatusBadRequest)
			return
		}
		answer := ocsp.Response{Status: ocsp.Unknown, SerialNumber: req.SerialNumber, ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour), IssuerHash: req.HashAlgorithm}
		if req.SerialNumber.Cmp(c.Certificate().SerialNumber) == 0 {
			answer.Status, answer.RevokedAt = status, time.Now().Add(-time.Minute)
		}
		der, err := ocsp.CreateResponse(ca, ca, answer, key.(crypto.Signer))
		if err != nil {
			http.Error(w, "no OCSP response", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/ocsp-response")
		_, _ = w.Write(der)
	}))
}

func (a *authority) file(name string) []byte {
	a.t.Helper()
	b, err := os.ReadFile(filepath.Join(a.dir, name))
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

// serve serves HTTP on a host until the test ends, and returns the URI.
func (a *authority) serve(h *host, handler http.Handler) string {
	a.t.Helper()
	ln, err := h.Listen(a.t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		a.t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { _ = srv.Serve(ln); close(done) }()
	a.t.Cleanup(func() { srv.Close(); <-done })
	return "http://" + ln.Addr().String()
}

func TestOCSPResponderDecides(t *testing.T) {
	for _, profile := range []string{"rfc7146", "rfc3723"} {
		for name, status := range map[string]int{"good": ocsp.Good, "revoked": ocsp.Revoked, "unknown": ocsp.Unknown} {
			t.Run(profile+" "+name, func(t *testing.T) {
				p := newPair(t, lab.Config{})
				ca := newAuthority(t, "lab")
				beta := ca.issue(pki.Request{Name: "beta"})
				uri := ca.responder(p.alpha, beta, status)
				p.addWith(t, func(h *host, c *pad.Peer) {
					c.Profile, c.PSK, c.CAs = mustProfile(t, profile), auth.Secret{}, []auth.Authority{ca.trusted()}
					c.Cert = beta
					if h == p.alpha {
						c.Cert = ca.issue(pki.Request{Name: "alpha"})
						c.CAs[0].OCSPURIs = []string{uri}
					}
				})
				p.beta.echo(t, nil)
				c, err := p.alpha.dial(t, p.beta)
				switch {
				case status == ocsp.Revoked && !errors.Is(err, auth.ErrCertRevoked),
					status == ocsp.Unknown && !errors.Is(err, auth.ErrCertStatus),
					status == ocsp.Good && err != nil:
					t.Errorf("dialling: %v", err)
				case err == nil:
					if err := ping(c, "good\n"); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// The control of the tests of revocation: without anywhere to ask, a revoked
// certificate is accepted.
func TestControlARevokedPeerIsAcceptedWhereNobodyIsAsked(t *testing.T) {
	p := newPair(t, lab.Config{})
	ca := newAuthority(t, "lab")
	p.addWith(t, func(h *host, c *pad.Peer) { ca.withCertificates(h, c) })
	if _, err := pki.Revoke(ca.dir, "beta"); err != nil {
		t.Fatal(err)
	}
	p.beta.echo(t, nil)
	if err := ping(p.alpha.mustDial(t, p.beta), "revoked\n"); err != nil {
		t.Error(err)
	}
}

// strongSwan tries every key that either of the two identities owns: a key of
// ours that named this host too would authenticate any peer as any other.
func TestThePeerOfOneKeyCannotAuthenticateAsAnother(t *testing.T) {
	for _, profile := range []string{"rfc7146", "rfc3723", "rfc3723-aggressive"} {
		t.Run(profile, func(t *testing.T) {
			p := newPair(t, lab.Config{Charon: allowAggressive + "\n" + impatient})
			mallory := auth.GenerateSecret()
			p.addWith(t, func(h *host, c *pad.Peer) {
				c.Profile = mustProfile(t, profile)
				if h == p.beta { // it has mallory's key, and claims to be beta
					c.PSK = mallory
					return
				}
				other := *c
				other.Name, other.RemoteID, other.PSK, other.Remote = "mallory", "mallory", mallory, netip.MustParseAddr("10.99.0.77")
				if err := h.m.AddPeer(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			})
			p.alpha.echo(t, nil)
			if c, err := p.beta.dial(t, p.alpha); !errors.Is(err, negotiation.ErrAuthFailed) {
				t.Errorf("dialling as beta with mallory's key: %v, %v", c, err)
			}
			// An honest strongSwan stops here, since the answer is not by its own key; mallory's
			// would go on. What counts is what alpha has accepted.
			if log := string(p.alpha.charonLog(t)); strings.Contains(log, "authentication of 'beta' with pre-shared key successful") || strings.Contains(log, "[beta]") && strings.Contains(log, "established between") {
				t.Errorf("alpha believes that mallory is beta:\n%s", log)
			}
		})
	}
}

func (h *host) charonLog(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(h.CharonLog())
	if err != nil {
		t.Fatal(err)
	}
	return b
}
