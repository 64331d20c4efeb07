package ikematrix

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// names maps a proposal's words to those of strongSwan's lists where they differ.
var names = map[string]string{
	"aes128": "AES_CBC-128", "aes256": "AES_CBC-256", "3des": "3DES_CBC", "null": "NULL",
	"aes128ctr": "AES_CTR-128", "aes128gcm16": "AES_GCM_16-128", "aes256gcm16": "AES_GCM_16-256",
	"chacha20poly1305": "CHACHA20_POLY1305", "aes128gmac": "NULL_AES_GMAC-128",
	"sha1": "HMAC_SHA1_96", "sha256": "HMAC_SHA2_256_128", "sha384": "HMAC_SHA2_384_192", "aesxcbc": "AES_XCBC_96",
	"modp2048": "MODP_2048", "modp3072": "MODP_3072", "modp4096": "MODP_4096", "modp6144": "MODP_6144", "modp8192": "MODP_8192",
	"ecp224": "ECP_224", "ecp256": "ECP_256", "ecp384": "ECP_384", "ecp521": "ECP_521", "curve25519": "CURVE_25519", "curve448": "CURVE_448",
}

func agreed(sa *charon.SA, c *charon.Child) *Agreed {
	join := func(parts ...string) string {
		var some []string
		for _, p := range parts {
			if p != "" {
				some = append(some, p)
			}
		}
		return strings.Join(some, "/")
	}
	return &Agreed{Version: sa.Version, IKE: join(sa.Encryption, sa.Integrity, sa.DHGroup), ESP: join(c.Encryption, c.Integrity),
		PFS: c.DHGroup, Mode: strings.ToLower(c.Mode), ESN: c.ESN, Encap: c.Encap}
}

// check compares what was agreed on to what the case asks for. returned: the child had
// an exchange of its own; the first child of an IKEv2 SA has none, and so no PFS.
func (a *Agreed) check(c *Case, plane esp.Plane, returned bool) error {
	want := Agreed{Version: 1, Mode: c.Mode, ESN: c.ESN == on && plane == esp.Kernel, Encap: plane == esp.Userland}
	if c.Exchange == ikeV2 {
		want.Version = 2
	}
	want.IKE, want.ESP, want.PFS = a.IKE, a.ESP, a.PFS
	if c.Whole == "" {
		suite := strings.Split(c.Suite, "-")
		want.IKE = names[suite[0]]
		if !strings.HasPrefix(suite[len(suite)-1], "prf") {
			want.IKE += "/" + names[suite[1]]
		}
		want.IKE += "/" + names[c.Group]
		var esp []string
		for _, t := range strings.Split(c.ESP, "-") {
			esp = append(esp, names[t])
		}
		want.ESP = strings.Join(esp, "/")
		switch {
		case c.PFS != on:
			want.PFS = ""
		case returned || c.Exchange != ikeV2:
			want.PFS = names[c.Group]
		}
	}
	if *a != want {
		return fmt.Errorf("agreed on %+v, want %+v", *a, want)
	}
	return nil
}

// checkIdentities checks whom IKE has authenticated.
func checkIdentities(sa *charon.SA, local, remote string) error {
	if sa.LocalID != local || sa.RemoteID != remote {
		return fmt.Errorf("IKE authenticated %q as %q here, and %q as the peer %q", sa.LocalID, local, sa.RemoteID, remote)
	}
	return nil
}
