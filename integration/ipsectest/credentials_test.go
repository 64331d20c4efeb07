package ipsectest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pki"
)

// loaded counts what a host's strongSwan has loaded over its socket.
func loaded(t *testing.T, h *host) map[string]int {
	t.Helper()
	n := map[string]int{}
	for cmd, key := range map[string]string{"get-conns": "conns", "get-shared": "keys", "get-keys": "keys", "get-authorities": "authorities"} {
		if all, ok := charonCall(t, h, cmd).Get(key).([]string); ok && len(all) > 0 {
			n[cmd] = len(all)
		}
	}
	if c := charonCerts(t, h); c > 0 {
		n["certificates"] = c
	}
	return n
}

func charonCerts(t *testing.T, h *host) int {
	t.Helper()
	s := charonSession(t, h)
	defer s.Close()
	n := 0
	for _, err := range s.CallStreaming(t.Context(), "list-certs", "list-cert", nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

func TestCredentialsGoWithTheirPeer(t *testing.T) {
	p := newPair(t, lab.Config{})
	ca := newAuthority(t, "lab")
	m := p.alpha.m
	var first pad.Peer
	p.addWith(t, func(h *host, c *pad.Peer) {
		ca.withCertificates(h, c)
		if h == p.alpha {
			first = *c
		}
	})
	third := first // with the same certificate, as is usual
	third.Name, third.RemoteID, third.Remote = "third", "third", netip.MustParseAddr("10.99.0.77")
	if err := m.AddPeer(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	want := func(what string, want map[string]int) {
		t.Helper()
		if got := loaded(t, p.alpha); !maps.Equal(got, want) {
			t.Errorf("%s strongSwan has %v, want %v", what, got, want)
		}
	}
	want("with two peers", map[string]int{"get-conns": 2, "get-keys": 1, "get-authorities": 2, "certificates": 2})
	if err := m.RemovePeer(t.Context(), "third"); err != nil {
		t.Fatal(err)
	}
	want("with one", map[string]int{"get-conns": 1, "get-keys": 1, "get-authorities": 1, "certificates": 2})
	p.beta.echo(t, nil)
	if err := ping(p.alpha.mustDial(t, p.beta), "still there\n"); err != nil {
		t.Error(err)
	}
	withKey := first
	withKey.Cert, withKey.CAs, withKey.PSK = nil, nil, p.key
	if err := m.AddPeer(t.Context(), withKey); err != nil {
		t.Fatal(err)
	}
	got := loaded(t, p.alpha)
	if got["get-keys"] != 0 || got["get-authorities"] != 0 || got["get-shared"] != 1 {
		t.Errorf("with a pre-shared key instead strongSwan has %v", got)
	}
	if err := m.AddPeer(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	want("back with certificates", map[string]int{"get-conns": 1, "get-keys": 1, "get-authorities": 1, "certificates": 2})
	if err := m.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	want("without peers", map[string]int{})
}

func TestCredentialsOfOthersStay(t *testing.T) {
	p := newPair(t, lab.Config{})
	ca := newAuthority(t, "lab")
	charonCall(t, p.alpha, "load-shared", "id", "somebody-else", "type", "IKE", "data", "0123456789abcdef")
	p.addWith(t, func(h *host, c *pad.Peer) { ca.withCertificates(h, c) })
	if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if got := loaded(t, p.alpha); got["get-shared"] != 1 || got["get-keys"] != 0 || got["get-conns"] != 0 {
		t.Errorf("strongSwan has %v, want somebody else's key and none of ours", got)
	}
}

func TestMissingPluginsAreNamedBeforeAnythingIsAccepted(t *testing.T) {
	for plugin, load := range map[string]string{
		"revocation": "random nonce aes sha1 sha2 hmac kdf gmp openssl pem pkcs1 x509 constraints pubkey curl",
		"x509":       "random nonce aes sha1 sha2 hmac kdf gmp openssl pem pkcs1 revocation constraints pubkey curl",
		"curl":       "random nonce aes sha1 sha2 hmac kdf gmp openssl pem pkcs1 x509 revocation constraints pubkey",
	} {
		t.Run(plugin, func(t *testing.T) {
			p := newPair(t, lab.Config{Charon: "load = " + load + " kernel-libipsec kernel-netlink socket-default vici"})
			p.awaitCharon(t)
			ca := newAuthority(t, "lab")
			c := p.peerOf(p.alpha)
			ca.withCertificates(p.alpha, &c)
			c.CAs[0].CRLURIs = []string{"file://" + ca.crl()}
			err := p.alpha.m.AddPeer(t.Context(), c)
			if !errors.Is(err, negotiation.ErrPluginMissing) || !strings.Contains(err.Error(), plugin) || !strings.Contains(err.Error(), "install") {
				t.Errorf("without plugin %s: %v", plugin, err)
			}
			if st, err := p.alpha.m.PeerStatus("beta"); err != nil || !st.Guarded || st.Loaded {
				t.Errorf("status %+v, %v", st, err)
			}
		})
	}
}

func TestCertificateOfAnIntermediateAuthorityIsTrustedThroughItsRoot(t *testing.T) {
	for _, profile := range []string{"rfc7146", "rfc3723"} {
		t.Run(profile, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			root := issue(t, nil, x509.Certificate{Subject: pkix.Name{CommonName: "root"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign})
			trusted, err := auth.NewAuthority(root.pem)
			if err != nil {
				t.Fatal(err)
			}
			p.addWith(t, func(h *host, c *pad.Peer) {
				c.Profile, c.PSK, c.CAs = mustProfile(t, profile), auth.Secret{}, []auth.Authority{trusted}
				middle := issue(t, root, x509.Certificate{Subject: pkix.Name{CommonName: "between " + h.Name()}, IsCA: true, KeyUsage: x509.KeyUsageCertSign})
				leaf := issue(t, middle, x509.Certificate{Subject: pkix.Name{CommonName: h.Name()}, DNSNames: []string{h.Name()}, KeyUsage: x509.KeyUsageDigitalSignature})
				key, err := x509.MarshalPKCS8PrivateKey(leaf.key)
				if err != nil {
					t.Fatal(err)
				}
				if c.Cert, err = auth.NewCredential(append(leaf.pem, middle.pem...), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})); err != nil {
					t.Fatal(err)
				}
			})
			p.beta.echo(t, nil)
			if err := ping(p.alpha.mustDial(t, p.beta), "through another\n"); err != nil {
				t.Error(err)
			}
		})
	}
}

// With ironwarp on both hosts this is refused when the peer is added; by hand it is
// possible.
func TestCertificateThatIsNotForThePeersIdentityIsExplained(t *testing.T) {
	for profile, want := range map[string]struct {
		kind  error
		words string
	}{
		"rfc7146": {auth.ErrCertIdentity, `no certificate for identity "beta"`},
		"rfc3723": {negotiation.ErrAuthFailed, "its own certificate is not for its identity"}, // beta itself gives up
	} {
		t.Run(profile, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			ca := newAuthority(t, "lab")
			version, ike, esp := "2", "aes128-sha256-ecp256", "aes128gcm16-ecp256"
			if profile == "rfc3723" {
				version, ike, esp = "1", "aes128-sha256-modp2048", "aes128-sha1-modp2048"
			}
			c := p.peerOf(p.alpha)
			c.Profile = mustProfile(t, profile)
			ca.withCertificates(p.alpha, &c)
			if err := p.alpha.m.AddPeer(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			p.awaitCharon(t)
			gamma := ca.issue(pki.Request{Name: "gamma"})
			child := message(t, "local_ts", []string{p.beta.Addr().String() + "/32[6/7471]"}, "remote_ts", []string{p.alpha.Addr().String() + "/32[6]"}, "esp_proposals", []string{esp})
			conn := message(t, "version", version, "local_addrs", []string{p.beta.Addr().String()}, "remote_addrs", []string{p.alpha.Addr().String()},
				"proposals", []string{ike}, "send_cert", "always",
				"local-1", message(t, "auth", "pubkey", "id", "beta", "certs", []string{string(gamma.Certificate().Raw)}),
				"remote-1", message(t, "auth", "pubkey", "id", "alpha"), "children", message(t, "alpha-in", child))
			for cmd, m := range map[string]*vici.Message{
				"load-key":       message(t, "type", "any", "data", string(ca.file("gamma.key"))),
				"load-authority": message(t, "lab", message(t, "cacert", string(ca.file("ca.pem")))),
				"load-conn":      message(t, "alpha", conn),
			} {
				if err := viciCall(t, p.beta, cmd, m); err != nil {
					t.Fatalf("%s: %v", cmd, err)
				}
			}
			if _, err := p.alpha.dial(t, p.beta); !errors.Is(err, want.kind) || !strings.Contains(err.Error(), want.words) {
				t.Errorf("dialling: %v, want %v with %q", err, want.kind, want.words)
			}
		})
	}
}

// issued is a certificate with its key.
type issued struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// issue makes a certificate; without an issuer it signs itself.
func issue(t *testing.T, by *issued, c x509.Certificate) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = &issued{cert: &c, key: key}
	}
	c.SerialNumber, c.NotBefore, c.NotAfter, c.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Minute), time.Now().Add(time.Hour), true
	der, err := x509.CreateCertificate(rand.Reader, &c, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}
