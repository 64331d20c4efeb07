package ipsectest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// mustProfile returns a built-in profile; ESP proposals replace its own.
func mustProfile(t *testing.T, name string, esp ...string) *profile.Profile {
	t.Helper()
	p, err := profile.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(esp) > 0 {
		p.ESP = esp
	}
	return p
}

// live returns the peer's IKE SA and its first installed child.
func live(t *testing.T, h *host) (charon.SA, charon.Child) {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sa := range sas {
		for _, c := range sa.Children {
			if c.IsInstalled() {
				return sa, c
			}
		}
	}
	t.Fatalf("no child is installed: %+v", sas)
	return charon.SA{}, charon.Child{}
}

// algorithms are those of the child, as charon lists them.
func algorithms(c charon.Child) string {
	s := c.Encryption
	if c.Integrity != "" {
		s += " " + c.Integrity
	}
	return s
}

func TestProfilesCarryTrafficInESPOnly(t *testing.T) {
	for _, tc := range []struct {
		profile, esp string
		version      int
		want         string // algorithms
	}{
		{"rfc7146", "", 2, "AES_GCM_16-128"},
		{"rfc7146", "aes128-sha1-modp2048", 2, "AES_CBC-128 HMAC_SHA1_96"},
		{"rfc7146-null", "", 2, "NULL HMAC_SHA2_256_128"},
		{"rfc3723", "", 1, "AES_CTR-128 AES_XCBC_96"},
		{"rfc3723", "3des-sha1-modp2048", 1, "3DES_CBC HMAC_SHA1_96"},
		{"rfc3723-null", "", 1, "NULL AES_XCBC_96"},
		{"rfc3723-aggressive", "", 1, "AES_CTR-128 AES_XCBC_96"},
	} {
		t.Run(tc.profile+" "+tc.esp, func(t *testing.T) {
			p := newPair(t, lab.Config{Charon: "i_dont_care_about_security_and_use_aggressive_mode_psk = yes"})
			p.addWith(t, func(_ *host, c *pad.Peer) {
				c.Profile = mustProfile(t, tc.profile, strings.Fields(tc.esp)...)
			})
			p.beta.echo(t, nil)
			wire := captureWith(t, p.beta, lab.CaptureOptions{NullESP: strings.HasSuffix(tc.profile, "-null")})
			k := talk(p.alpha.mustDial(t, p.beta))
			k.moves(t, 20)
			k.end(t)
			if c := counted(t, wire); c.Clear(port) != 0 || c.ESP < 20 {
				t.Errorf("on the wire: %v", c)
			}
			sa, child := live(t, p.alpha)
			if sa.Version != tc.version || algorithms(child) != tc.want || child.Mode != "TUNNEL" {
				t.Errorf("IKEv%d, %s, %s; want IKEv%d, %s", sa.Version, algorithms(child), child.Mode, tc.version, tc.want)
			}
			if sa.RemoteID != "beta" || sa.LocalID != "alpha" {
				t.Errorf("the IKE SA is between %q and %q", sa.LocalID, sa.RemoteID)
			}
		})
	}
}

func TestTransportModeNeedsADataPlaneThatHasIt(t *testing.T) {
	p := newPair(t, lab.Config{})
	c := p.peerOf(p.alpha)
	c.Profile = mustProfile(t, "rfc7146")
	c.Profile.Mode = profile.Transport
	p.awaitCharon(t)
	err := p.alpha.m.AddPeer(t.Context(), c)
	if p.alpha.m.DaemonStatus().DataPlane != esp.Userland {
		if err != nil {
			t.Fatal(err)
		}
		t.Skip("this host's kernel has ESP: TestMatrix in integration/ikematrix has transport mode")
	}
	if !errors.Is(err, esp.ErrCannot) || !strings.Contains(err.Error(), "tunnel") {
		t.Errorf("transport mode over userland ESP: %v", err)
	}
	// The peer is refused, and still guarded.
	if st, err := p.alpha.m.PeerStatus("beta"); err != nil || !st.Guarded || st.Loaded {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestTripleDESGetsFreshKeysBeforeItsLimitAndTheStreamStays(t *testing.T) {
	for _, name := range []string{"rfc3723", "rfc7146"} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, lab.Config{})
			const limit = 100_000
			p.addWith(t, func(_ *host, c *pad.Peer) {
				c.Profile = mustProfile(t, name, "3des-sha1-modp2048")
				c.Profile.RekeyBytes = limit
			})
			p.beta.echo(t, nil)
			conn := p.alpha.mustDial(t, p.beta)
			line := strings.Repeat("x", 1000) + "\n"
			before, first := live(t, p.alpha)
			if before.Encryption == "" || first.Encryption != "3DES_CBC" {
				t.Fatalf("the child has %s", first.Encryption)
			}
			// Up to the limit, and then not a byte until the keys are fresh: the old SA ends a
			// tenth later.
			for carriesMore(t, p.alpha, first, limit) {
				for range 3 {
					if err := ping(conn, line); err != nil {
						t.Fatal(err)
					}
				}
			}
			eventually(t, "fresh keys are counted", func() bool {
				st, err := p.alpha.m.PeerStatus("beta")
				return err == nil && st.Counters.Rekeys > 0 && st.Counters.Outages == 0
			})
			for range 20 {
				if err := ping(conn, line); err != nil {
					t.Fatal(err)
				}
			}
			_, now := live(t, p.alpha)
			if now.SPIOut == first.SPIOut || now.Encryption != "3DES_CBC" {
				t.Errorf("after %d bytes: SPI %s, before %s; %s", limit, now.SPIOut, first.SPIOut, now.Encryption)
			}
			if now.BytesOut > limit*11/10 {
				t.Errorf("a key was used for %d bytes, the limit is %d", now.BytesOut, limit)
			}
		})
	}
}

// carriesMore reports whether a child has the same keys, no fresh ones are on their
// way, and fewer bytes than a limit went out.
func carriesMore(t *testing.T, h *host, first charon.Child, limit uint64) bool {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sa := range sas {
		for _, c := range sa.Children {
			if c.UniqueID == first.UniqueID && c.IsInstalled() {
				return c.BytesOut < limit
			}
		}
	}
	return false
}

func TestIKEv1AuthenticatesAnewUnderALiveStream(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addWith(t, func(_ *host, c *pad.Peer) { c.Profile = mustProfile(t, "rfc3723") })
	p.beta.echo(t, nil)
	wire := capture(t, p.beta)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 20)
	before, _ := live(t, p.alpha)
	charonCall(t, p.alpha, "rekey", "ike", "beta") // with IKEv1 that is an authentication
	eventually(t, "there is another IKE SA, and one only", func() bool {
		sas, err := p.alpha.m.SAs(t.Context())
		return err == nil && len(sas) == 1 && sas[0].UniqueID != before.UniqueID && sas[0].State == "ESTABLISHED"
	})
	k.moves(t, 50)
	k.end(t)
	if sa, child := live(t, p.alpha); sa.RemoteID != "beta" || !child.IsInstalled() {
		t.Errorf("afterwards: %+v", sa)
	}
	if c := counted(t, wire); c.Clear(port) != 0 {
		t.Errorf("clear packets on the wire: %v", c)
	}
}

// charonCall makes a call to a host's strongSwan for which ironwarp has no command.
// Values are strings.
func charonCall(t *testing.T, h *host, cmd string, kv ...string) *vici.Message {
	t.Helper()
	s := charonSession(t, h)
	defer s.Close()
	m := vici.NewMessage()
	for i := 0; i+1 < len(kv); i += 2 {
		if err := m.Set(kv[i], kv[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := s.Call(t.Context(), cmd, m)
	if err != nil {
		t.Fatalf("strongSwan on %s: %s: %v", h.Name(), cmd, err)
	}
	return answer
}

func charonSession(t *testing.T, h *host) *vici.Session {
	t.Helper()
	s, err := vici.NewSession(vici.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.ViciSocket())
	}))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// With IKEv1 strongSwan silently makes another child, where IKEv2 refuses a second one.
func TestIKEv1ChildrenThatAreTooManyEndAndTheStreamStays(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addWith(t, func(_ *host, c *pad.Peer) { c.Profile = mustProfile(t, "rfc3723") })
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 20)
	_, first := live(t, p.alpha)
	charonCall(t, p.alpha, "initiate", "ike", "beta", "child", "beta-out", "timeout", "60000")
	eventually(t, "another child is there, and one only", func() bool {
		if installed(t, p.alpha, "beta-out") != 1 {
			return false
		}
		_, now := live(t, p.alpha)
		return now.UniqueID != first.UniqueID
	})
	k.moves(t, 50)
	k.end(t)
}

// The control of TestTripleDESGetsFreshKeysBeforeItsLimitAndTheStreamStays: without a limit the keys stay.
func TestControlWithoutALimitOfBytesTheKeysStay(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addWith(t, func(_ *host, c *pad.Peer) { c.Profile = mustProfile(t, "rfc3723", "aes128-sha1-modp2048") })
	p.beta.echo(t, nil)
	conn := p.alpha.mustDial(t, p.beta)
	line := strings.Repeat("x", 1000) + "\n"
	stale := func() uint64 {
		st, err := p.alpha.m.PeerStatus("beta")
		if err != nil {
			t.Fatal(err)
		}
		return st.Counters.Stale
	}
	for {
		before := stale()
		_, first := live(t, p.alpha)
		for carriesMore(t, p.alpha, first, 150_000) {
			if err := ping(conn, line); err != nil {
				t.Fatal(err)
			}
		}
		if stale() != before {
			continue // nothing had come back on it for too long, which is no matter of its bytes
		}
		if _, now := live(t, p.alpha); now.SPIOut != first.SPIOut || now.BytesOut < 150_000 {
			t.Errorf("after %d bytes: SPI %s, before %s", now.BytesOut, now.SPIOut, first.SPIOut)
		}
		return
	}
}
