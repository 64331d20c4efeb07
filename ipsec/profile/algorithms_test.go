package profile

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func TestEveryTokenOfAProposalHasItsNameInCharon(t *testing.T) {
	// As `swanctl --list-algs` of strongSwan 5.9.8 has them.
	for token, want := range map[string]string{
		"aes128": "AES_CBC", "aes256ctr": "AES_CTR", "aes256gcm16": "AES_GCM_16", "3des": "3DES_CBC", "null": "NULL",
		"chacha20poly1305": "CHACHA20_POLY1305", "sha1": "HMAC_SHA1_96", "sha256": "HMAC_SHA2_256_128", "sha384": "HMAC_SHA2_384_192",
		"sha512": "HMAC_SHA2_512_256", "aesxcbc": "AES_XCBC_96", "prfsha1": "PRF_HMAC_SHA1", "prfsha256": "PRF_HMAC_SHA2_256",
		"prfaesxcbc": "PRF_AES128_XCBC", "modp2048": "MODP_2048", "ecp384": "ECP_384", "curve25519": "CURVE_25519",
		"aes128gmac": "", "esn": "", "noesn": "",
	} {
		if got := charonName(token); got != want {
			t.Errorf("%s: %q, want %q", token, got, want)
		}
	}
	for token, a := range algorithms {
		if a.forbidden == "" && a.kind != kindESN && !a.kernel && charonName(token) == "" {
			t.Errorf("%s has no name", token)
		}
	}
}

func TestLackingAlgorithmsAreNamed(t *testing.T) {
	p := Default()
	p.IKE = []string{"aes128gcm16-prfsha256-ecp256", "aes128-sha256-modp2048"}
	p.ESP = []string{"aes128gcm16-modp2048", "aes128-sha256-modp2048"}
	all := Algorithms{}
	for _, n := range []string{"AES_GCM_16", "PRF_HMAC_SHA2_256", "ECP_256", "AES_CBC", "HMAC_SHA2_256_128", "MODP_2048"} {
		all[n] = true
	}
	without := func(names ...string) Algorithms {
		some := Algorithms{}
		for n := range all {
			some[n] = !slices.Contains(names, n)
		}
		return some
	}
	for _, tc := range []struct {
		has    Algorithms
		plane  esp.Plane
		lacks  []string
		usable bool
	}{
		{all, esp.Userland, nil, true},
		{without("ECP_256"), esp.Userland, []string{"ecp256"}, true},
		{without("AES_GCM_16"), esp.Userland, []string{"aes128gcm16"}, true},
		{without("AES_GCM_16", "AES_CBC"), esp.Userland, []string{"aes128gcm16", "aes128"}, false},
		{without("MODP_2048"), esp.Kernel, []string{"modp2048"}, false},
		{Algorithms{}, esp.Kernel, []string{"aes128gcm16", "prfsha256", "ecp256", "aes128", "sha256", "modp2048"}, false},
	} {
		lacks, usable := tc.has.Lacks(p, tc.plane)
		if !slices.Equal(lacks, tc.lacks) || usable != tc.usable {
			t.Errorf("%v: lacks %v, usable %v, want %v, %v", tc.has, lacks, usable, tc.lacks, tc.usable)
		}
	}
}
