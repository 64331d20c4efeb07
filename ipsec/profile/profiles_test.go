package profile

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func named(t *testing.T, name string) *Profile {
	t.Helper()
	p, err := ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBuiltInProfilesAreValidAndEveryLineHasItsClause(t *testing.T) {
	for _, name := range Names() {
		p := named(t, name)
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		lines := map[string]int{}
		for _, c := range p.Clauses() {
			lines[c.Setting]++
			if c.Setting == "" || c.Value == "" || c.Level == "" || c.Text == "" || !strings.HasPrefix(c.RFC, "RFC ") {
				t.Errorf("%s: a line without its clause: %+v", name, c)
			}
		}
		if lines["ike"] != len(p.IKE) || lines["esp"] != len(p.ESP) || lines["replay_window"] != 1 || lines["manual_keys"] != 1 {
			t.Errorf("%s: lines %v", name, lines)
		}
	}
	if p := named(t, ""); p.Name != "rfc7146" {
		t.Errorf("the default is %s", p.Name)
	}
	_, err := ByName("rfc2401")
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "rfc3723") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestOwnLinesOfAProfileClaimNoClause(t *testing.T) {
	p := Default()
	p.ESP = []string{"chacha20poly1305-ecp256", "aes128gcm16-ecp256"}
	p.ChildRekey = 90 * time.Minute
	for _, c := range p.Clauses() {
		own := c.Value == "chacha20poly1305-ecp256" || c.Value == "1h30m"
		if own != (c.RFC == "") {
			t.Errorf("%+v", c)
		}
	}
}

func TestProfilesOfferWhatTheRFCsDemand(t *testing.T) {
	old := named(t, "rfc3723")
	if old.Version != 1 || old.Aggressive || !old.PFS || old.Mode != Tunnel {
		t.Errorf("rfc3723 is %+v", old)
	}
	// RFC 3723 2.3.1 and 2.3.4, with the groups of RFC 7146 3.2.
	for _, want := range []string{"aes128ctr-aesxcbc-modp2048", "aes128-sha1-modp2048", "3des-sha1-modp2048"} {
		if !slices.Contains(old.ESP, want) {
			t.Errorf("rfc3723 does not offer %s", want)
		}
	}
	if life := old.LifeBytes(); life == 0 || life > MaxSmallBlockBytes {
		t.Errorf("3DES keys live for %d bytes", life)
	}
	aggressive := named(t, "rfc3723-aggressive")
	if !aggressive.Aggressive || len(aggressive.Warnings()) != 1 || !strings.Contains(aggressive.Warnings()[0], "offline") {
		t.Errorf("aggressive mode without a warning: %v", aggressive.Warnings())
	}
	for _, name := range []string{"rfc7146-null", "rfc3723-null"} {
		p := named(t, name)
		if len(p.Warnings()) != 1 || !strings.Contains(p.Warnings()[0], "NO CONFIDENTIALITY") {
			t.Errorf("%s without a warning: %v", name, p.Warnings())
		}
		for _, e := range p.ESP {
			if prop, err := parseProposal(e); err != nil || !prop.null {
				t.Errorf("%s encrypts with %s", name, e)
			}
		}
	}
	for _, name := range []string{"rfc7146", "rfc3723"} {
		if w := named(t, name).Warnings(); len(w) != 0 {
			t.Errorf("%s warns: %v", name, w)
		}
	}
}

func TestProfileIsOfferedAsTheDataPlaneAndTheIKEVersionTakeIt(t *testing.T) {
	null := named(t, "rfc7146-null")
	if got := null.ESPFor(esp.Userland); slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "gmac") }) {
		t.Errorf("userland ESP is offered GMAC, which it has not: %v", got)
	}
	if got := null.ESPFor(esp.Kernel); got[0] != "aes128gmac-modp2048-esn-noesn" {
		t.Errorf("the kernel is offered %v", got)
	}
	// An IKEv1 transform has either kind of sequence numbers (RFC 4304).
	if got := named(t, "rfc3723").ESPFor(esp.Kernel)[:2]; !slices.Equal(got, []string{"aes128ctr-aesxcbc-modp2048-esn", "aes128ctr-aesxcbc-modp2048"}) {
		t.Errorf("IKEv1: %v", got)
	}
	p := Default()
	p.Mode = Transport
	if err := p.Fits(esp.Userland); !errors.Is(err, esp.ErrCannot) || !strings.Contains(err.Error(), "transport") {
		t.Errorf("transport mode over userland ESP: %v", err)
	}
	if err := p.Fits(esp.Kernel); err != nil {
		t.Errorf("transport mode over the kernel's ESP: %v", err)
	}
	p = Default()
	p.ESP = []string{"aes128gmac-ecp256"}
	if err := p.Fits(esp.Userland); !errors.Is(err, esp.ErrCannot) {
		t.Errorf("GMAC alone over userland ESP: %v", err)
	}
}
