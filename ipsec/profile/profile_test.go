package profile

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func TestDefaultProfileIsValidAndHasWhatTheRFCsDemand(t *testing.T) {
	p := Default()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	userland := p.ESPFor(esp.Userland)
	// RFC 7146: AES-CBC with 128-bit keys MUST, HMAC-SHA1-96 MUST, AES-GCM SHOULD.
	for _, want := range []string{"aes128gcm16-ecp256", "aes128-sha256-ecp256", "aes128-sha1-modp2048"} {
		if !slices.Contains(userland, want) {
			t.Errorf("%s is not offered: %v", want, userland)
		}
	}
	for _, e := range p.ESPFor(esp.Kernel) {
		if !strings.HasSuffix(e, "-esn-noesn") {
			t.Errorf("the kernel's proposal %s has no extended sequence numbers", e)
		}
	}
	p.PFS = false
	if got := p.ESPFor(esp.Userland); !slices.Contains(got, "aes128gcm16") || strings.Contains(strings.Join(got, " "), "ecp") {
		t.Errorf("without PFS: %v", got)
	}
}

func TestProfileRefusesWhatTheRFCsForbid(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Profile)
		words  string
	}{
		{"no integrity", func(p *Profile) { p.ESP = []string{"aes128-modp2048"} }, "RFC 3723 2.3.1"},
		{"null without integrity", func(p *Profile) { p.ESP = []string{"null-modp2048"} }, "RFC 3723 2.3.1"},
		{"integrity without a cipher", func(p *Profile) { p.ESP = []string{"sha256-modp2048"} }, "no cipher"},
		{"no replay window", func(p *Profile) { p.ReplayWindow = 0 }, "RFC 3723 2.3.1"},
		{"a negative replay window", func(p *Profile) { p.ReplayWindow = -1 }, "replay"},
		{"a tiny replay window", func(p *Profile) { p.ReplayWindow = 8 }, "at least 32"},
		{"a small DH group", func(p *Profile) { p.IKE = []string{"aes128-sha256-modp1024"} }, "RFC 7146 3.2"},
		{"a small PFS group", func(p *Profile) { p.ESP = []string{"aes128-sha256-modp1536"} }, "RFC 7146 3.2"},
		{"no DH group in IKE", func(p *Profile) { p.IKE = []string{"aes128-sha256"} }, "no DH group"},
		{"no PFS group", func(p *Profile) { p.ESP = []string{"aes128gcm16"} }, "PFS"},
		{"DES", func(p *Profile) { p.ESP = []string{"des-sha1-modp2048"} }, "RFC 3723 2.3.1"},
		{"MD5", func(p *Profile) { p.ESP = []string{"aes128-md5-modp2048"} }, "RFC 3723 5.5"},
		{"3DES for ever", func(p *Profile) { p.ESP = []string{"3des-sha1-modp2048"} }, "RFC 7146 2.2"},
		{"3DES for 4 GiB", func(p *Profile) { p.ESP, p.RekeyBytes = []string{"3des-sha1-modp2048"}, 4<<30 }, "3 GiB"},
		{"3DES that ends after 3.3 GiB", func(p *Profile) { p.ESP, p.RekeyBytes = []string{"3des-sha1-modp2048"}, 3<<30 }, "3 GiB"},
		{"manual keys", func(p *Profile) { p.Version = 0 }, "manual, which must not be (RFC 7146 3)"},
		{"IKEv3", func(p *Profile) { p.Version = 3 }, "it is 1 or 2"},
		{"an unknown mode", func(p *Profile) { p.Mode = 7 }, "tunnel and transport"},
		{"aggressive IKEv2", func(p *Profile) { p.Aggressive = true }, "only IKEv1 has modes"},
		{"IKE in clear", func(p *Profile) { p.IKE = []string{"null-sha256-modp2048"} }, "does not encrypt"},
		{"GMAC for IKE", func(p *Profile) { p.IKE = []string{"aes128gmac-prfsha256-modp2048"} }, "does not encrypt"},
		{"IKE without integrity", func(p *Profile) { p.IKE = []string{"aes128-modp2048"} }, "no integrity"},
		{"IKE with GCM but no prf", func(p *Profile) { p.IKE = []string{"aes128gcm16-modp2048"} }, "prf"},
		{"no IKE proposal", func(p *Profile) { p.IKE = nil }, "no IKE proposal"},
		{"no ESP proposal", func(p *Profile) { p.ESP = nil }, "no ESP proposal"},
		{"an unknown word", func(p *Profile) { p.ESP = []string{"rot13-sha1-modp2048"} }, "rot13"},
		{"null as an alternative", func(p *Profile) { p.ESP = []string{"aes128-null-sha1-modp2048"} }, "choice to the peer"},
		{"GCM beside CBC", func(p *Profile) { p.ESP = []string{"aes128gcm16-aes128-sha1-modp2048"} }, "mixes"},
		{"a prf for ESP", func(p *Profile) { p.ESP = []string{"aes128gcm16-prfsha256-modp2048"} }, "prf"},
		{"esn for IKE", func(p *Profile) { p.IKE = []string{"aes128-sha256-modp2048-esn"} }, "esn"},
		{"never rekeyed", func(p *Profile) { p.ChildRekey = 0 }, "RFC 3723 5.4"},
		{"no DPD", func(p *Profile) { p.DPDDelay = 0 }, "DPD"},
	} {
		p := Default()
		tc.change(p)
		if err := p.Validate(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
}

// Each algorithm that is not to be is refused in IKE and in ESP, on whatever place of
// the list it stands (RFC 7146 3.2, RFC 3723 2.3.1 and 5.5).
func TestWeakAlgorithmsAreRefusedWhereverTheyStand(t *testing.T) {
	for weak, words := range map[string]string{
		"aes128-sha1-modp768": "RFC 7146 3.2", "aes128-sha1-modp1024": "RFC 7146 3.2", "aes128-sha1-modp1536": "RFC 7146 3.2", "aes128-sha1-ecp192": "RFC 7146 3.2",
		"des-sha1-modp2048": "RFC 3723 2.3.1", "aes128-md5-modp2048": "RFC 3723 5.5", "aes128-sha1-prfmd5-modp2048": "RFC 3723 5.5",
		"aes128-sha1-modp1024-modp2048": "RFC 7146 3.2", "aes128-sha1-md5-modp2048": "RFC 3723 5.5", "aes128-des-sha1-modp2048": "RFC 3723 2.3.1",
	} {
		for place := range 3 {
			for _, list := range []func(*Profile) *[]string{func(p *Profile) *[]string { return &p.IKE }, func(p *Profile) *[]string { return &p.ESP }} {
				p := Default()
				l := list(p)
				*l = slices.Insert(*l, place, weak)
				if err := p.Validate(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), words) {
					t.Errorf("%s as number %d of %v: error %v, want one with %q", weak, place, *l, err, words)
				}
			}
		}
	}
}

func TestIKEv1ProfileRefusesWhatIKEv1DoesNotHave(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Profile)
		words  string
	}{
		{"AES-GCM for IKE itself", func(p *Profile) { p.IKE = []string{"aes128gcm16-prfsha256-modp2048"} }, "RFC 5282"},
		{"a prf", func(p *Profile) { p.IKE = []string{"aes128-sha256-prfsha256-modp2048"} }, "no prf"},
		{"curve25519", func(p *Profile) { p.IKE = []string{"aes128-sha256-curve25519"} }, "IKEv2 only"},
		{"ChaCha20", func(p *Profile) { p.ESP = []string{"chacha20poly1305-modp2048"} }, "IKEv2 only"},
		{"two PFS groups", func(p *Profile) { p.ESP = []string{"aes128-sha1-modp2048", "aes128-sha1-modp3072"} }, "quick mode"},
		{"two groups in aggressive mode", func(p *Profile) {
			p.Aggressive, p.IKE = true, []string{"aes128-sha1-modp2048", "aes128-sha1-modp3072"}
		}, "aggressive mode sends"},
		{"a 1024-bit group", func(p *Profile) { p.IKE = []string{"3des-sha1-modp1024"} }, "RFC 7146 3.2"},
		{"3DES without a limit", func(p *Profile) { p.RekeyBytes = 0 }, "RFC 7146 2.2"},
	} {
		p := named(t, "rfc3723")
		tc.change(p)
		if err := p.Validate(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.words)
		}
	}
	// In main mode the groups of phase 1 may differ: the responder chooses before
	// the key exchange.
	p := named(t, "rfc3723")
	p.IKE = []string{"aes128-sha1-modp2048", "aes128-sha1-modp3072"}
	if err := p.Validate(); err != nil {
		t.Errorf("two groups in main mode: %v", err)
	}
}

func TestProfileAllowsWhatTheRFCsLeaveOpen(t *testing.T) {
	for _, esp := range []string{"null-sha1-modp2048", "aes128gmac-modp2048", "aes128ctr-aesxcbc-modp2048", "chacha20poly1305-curve25519", "aes256gcm16-ecp384-esn-noesn"} {
		p := Default()
		p.ESP = []string{esp}
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", esp, err)
		}
	}
	p := Default()
	p.ESP, p.RekeyBytes, p.ChildRekey = []string{"3des-sha1-modp2048"}, 5<<29, time.Hour
	if err := p.Validate(); err != nil {
		t.Errorf("3DES with 2.5 GiB: %v", err)
	}
}

// Whatever is left out or added for a data plane, no algorithm is offered that the profile
// does not name.
func TestNothingIsOfferedButWhatTheProfileNames(t *testing.T) {
	for _, name := range Names() {
		for _, plane := range []esp.Plane{esp.Userland, esp.Kernel} {
			for _, pfs := range []bool{true, false} {
				p := named(t, name)
				p.PFS = pfs
				for _, offer := range p.ESPFor(plane) {
					all := strings.Split(offer, "-")
					all = slices.DeleteFunc(all, func(s string) bool { return s == "esn" || s == "noesn" })
					if !slices.ContainsFunc(p.ESP, func(s string) bool {
						own := strings.Split(s, "-")
						own = slices.DeleteFunc(own, func(s string) bool { return !pfs && algorithms[s].kind == kindDH })
						return slices.Equal(own, all)
					}) {
						t.Errorf("%s, %v, PFS %v: %s is offered, the profile has %v", name, plane, pfs, offer, p.ESP)
					}
				}
			}
		}
	}
}
