package ipsectest

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
)

// mustProfile returns a built-in profile; ESP proposals replace its own.
func mustProfile(t *testing.T, name string, esp ...string) *ipsec.Profile {
	t.Helper()
	p, err := ipsec.ProfileByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if len(esp) > 0 {
		p.ESP = esp
	}
	return p
}

// changed adds the peers with a change on each host.
func (p *pair) changed(t *testing.T, change func(h *host, c *ipsec.Peer)) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		c := p.peerOf(h)
		change(h, &c)
		if err := h.m.AddPeer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitCharon(t)
}

// live returns the peer's IKE SA and its first installed child.
func live(t *testing.T, h *host) (ipsec.SA, ipsec.Child) {
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
	return ipsec.SA{}, ipsec.Child{}
}

// algorithms are those of the child, as charon lists them.
func algorithms(c ipsec.Child) string {
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
			p.changed(t, func(_ *host, c *ipsec.Peer) {
				c.Profile = mustProfile(t, tc.profile, strings.Fields(tc.esp)...)
			})
			p.beta.echo(t, nil)
			wire := capture(t, p.beta)
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
