package ipsec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrProfile tells that a Profile was refused.
var ErrProfile = errors.New("IPsec profile refused")

// Profile is how IKE and ESP are done with a peer: data that DefaultProfile
// fills in as RFC 7146 wants it, and Validate checks against what RFC 3723 and
// RFC 7146 forbid.
type Profile struct {
	// Name is for people.
	Name string `json:"name" yaml:"name"`

	// Version of IKE: 1 (RFC 2409) or 2 (RFC 7296, recommended by RFC 7146 3).
	Version int `json:"ike_version" yaml:"ike_version"`

	// Aggressive is IKEv1's aggressive mode: names instead of addresses identify
	// the hosts, and an eavesdropper can guess at the pre-shared key offline. Only
	// with FQDN and USER_FQDN identities (RFC 3723 2.3.3).
	Aggressive bool `json:"aggressive,omitempty" yaml:"aggressive"`

	// IKE proposals in strongSwan's notation, best first. All of them carry a DH
	// group of 2048 bits or a curve of 256 bits at least (RFC 7146 3.2).
	IKE []string `json:"ike" yaml:"ike"`

	// ESP proposals, best first. Each has integrity (RFC 3723 2.3.1: per-packet
	// data origin authentication, integrity and replay protection MUST be used),
	// and a DH group if PFS is on.
	ESP []string `json:"esp" yaml:"esp"`

	// PFS asks for a fresh DH exchange per child (RFC 7146 3.2: MUST be
	// implemented, for CREATE_CHILD_SA as well). Without it the DH groups are
	// left out of the ESP proposals.
	PFS bool `json:"pfs" yaml:"pfs"`

	// ESN offers extended sequence numbers where the data plane has them (RFC
	// 3723 5.4: 32 bits run out within minutes at 10 Gbit/s). Userland ESP has
	// none.
	ESN bool `json:"esn" yaml:"esn"`

	// ReplayWindow is in packets (RFC 3723 2.3.1: replay protection MUST be used).
	ReplayWindow int `json:"replay_window" yaml:"replay_window"`

	// Mode is tunnel, which MUST be there, or transport, which MAY (RFC 3723
	// 2.3.2). Userland ESP has tunnel mode only.
	Mode Mode `json:"mode" yaml:"mode"`

	// IKERekey and ChildRekey are when fresh keys are made; the old ones end a
	// tenth later.
	IKERekey   time.Duration `json:"ike_rekey" yaml:"ike_rekey"`
	ChildRekey time.Duration `json:"child_rekey" yaml:"child_rekey"`

	// RekeyBytes makes fresh keys after that many bytes, 0 for no such limit.
	// Ciphers of 64-bit blocks must have one (RFC 7146 2.2: 3 GiB for 3DES).
	RekeyBytes uint64 `json:"rekey_bytes" yaml:"rekey_bytes"`

	// DPDDelay is after how much silence an IKE SA asks for a sign of life.
	DPDDelay time.Duration `json:"dpd_delay" yaml:"dpd_delay"`
}

// DefaultProfile is the profile of RFC 7146 with IKEv2. IKEv2 is what its
// section 3 recommends where both ends have it; manual keying does not exist
// here (section 3: MUST NOT be used).
func DefaultProfile() *Profile {
	return &Profile{
		Name:    "rfc7146",
		Version: 2,
		IKE: []string{
			// AES-GCM protects IKEv2 itself as well: RFC 7146 2.2, RFC 5282.
			"aes128gcm16-prfsha256-ecp256",
			"aes256gcm16-prfsha384-ecp384",
			"aes128gcm16-prfsha256-modp2048", // at least 2048 bits SHOULD be offered: RFC 7146 3.2
			"aes256gcm16-prfsha384-modp3072",
			"aes128-sha256-ecp256", // AES-CBC MUST: RFC 7146 2.2
			"aes128-sha256-modp2048",
			"aes256-sha384-modp3072",
		},
		ESP: []string{
			"aes128gcm16-ecp256", // AES-GCM with 128-bit keys SHOULD: RFC 7146 2.2
			"aes256gcm16-ecp384",
			"aes128gcm16-modp2048",
			"aes256gcm16-modp3072",
			"aes128-sha256-ecp256", // AES-CBC with 128-bit keys MUST: RFC 7146 2.2
			"aes128-sha256-modp2048",
			"aes256-sha384-modp3072",
			"aes128-sha1-modp2048", // HMAC-SHA1-96 MUST: RFC 7146 2.1
		},
		PFS:          true,
		ESN:          true,
		ReplayWindow: 1024,
		IKERekey:     4 * time.Hour,
		ChildRekey:   time.Hour,
		DPDDelay:     10 * time.Second,
	}
}

// Validate checks the profile against the RFCs. The error wraps ErrProfile and
// names every fault, with the clause.
func (p *Profile) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(p.IKE) == 0 {
		fault("no IKE proposal")
	}
	if len(p.ESP) == 0 {
		fault("no ESP proposal")
	}
	for _, text := range p.IKE {
		if err := checkIKE(text); err != nil {
			fault("IKE proposal %s: %w", text, err)
		}
	}
	for _, text := range p.ESP {
		if err := p.checkESP(text); err != nil {
			fault("ESP proposal %s: %w", text, err)
		}
	}
	switch {
	case p.ReplayWindow <= 0:
		fault("a replay window of %d: replay protection must be used (RFC 3723 2.3.1)", p.ReplayWindow)
	case p.ReplayWindow < 32 || p.ReplayWindow > 4096:
		fault("a replay window of %d packets: 32 to 4096 are possible (RFC 4303 3.4.3: at least 32)", p.ReplayWindow)
	}
	if p.IKERekey < time.Minute || p.ChildRekey < time.Minute {
		fault("rekeying after %v (IKE) and %v (ESP): at least a minute each, and not never (RFC 3723 5.4)", p.IKERekey, p.ChildRekey)
	}
	if p.DPDDelay < time.Second {
		fault("a DPD delay of %v: at least a second", p.DPDDelay)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: profile %q: %w", ErrProfile, p.Name, errors.Join(faults...))
	}
	return nil
}

func (p *Profile) clone() *Profile {
	c := *p
	c.IKE, c.ESP = slices.Clone(p.IKE), slices.Clone(p.ESP)
	return &c
}

func checkIKE(text string) error {
	prop, err := parseProposal(text)
	switch {
	case err != nil:
		return err
	case prop.null || !prop.has(kindCipher) && !prop.has(kindAEAD):
		return errors.New("it does not encrypt: IKE must")
	case !prop.has(kindAEAD) && !prop.has(kindIntegrity):
		return errors.New("it has no integrity")
	case prop.has(kindAEAD) && !prop.has(kindPRF):
		return errors.New("it has no prf, which a proposal with AES-GCM needs")
	case !prop.has(kindDH):
		return errors.New("it has no DH group")
	case prop.has(kindESN):
		return errors.New("esn belongs in an ESP proposal")
	}
	return nil
}

func (p *Profile) checkESP(text string) error {
	prop, err := parseProposal(text)
	switch {
	case err != nil:
		return err
	case !prop.has(kindAEAD) && !prop.has(kindIntegrity):
		return errors.New("it has no integrity, which must be used (RFC 3723 2.3.1)")
	case !prop.has(kindAEAD) && !prop.has(kindCipher):
		return errors.New("it has no cipher; null with integrity is a choice (RFC 7146 2.2)")
	case prop.has(kindAEAD) && (prop.has(kindIntegrity) || prop.has(kindCipher)):
		return errors.New("it mixes a combined mode with a cipher or an integrity algorithm")
	case prop.has(kindPRF):
		return errors.New("a prf belongs in an IKE proposal")
	case p.PFS && !prop.has(kindDH):
		return errors.New("it has no DH group, and PFS is on (RFC 7146 3.2)")
	case prop.smallBlock && (p.RekeyBytes == 0 || p.RekeyBytes > maxSmallBlockBytes):
		return fmt.Errorf("its cipher has 64-bit blocks: rekey_bytes of at most %d (3 GiB) is needed (RFC 7146 2.2)", uint64(maxSmallBlockBytes))
	}
	return nil
}

// espFor returns the ESP proposals as a data plane takes them.
func (p *Profile) espFor(d DataPlane) []string {
	var out []string
	for _, text := range p.ESP {
		var tokens []string
		for _, t := range strings.Split(text, "-") {
			a := algorithms[t]
			if a.kind == kindDH && !p.PFS || a.kind == kindESN {
				continue
			}
			tokens = append(tokens, t)
		}
		base := strings.Join(tokens, "-")
		if p.ESN && d == DataPlaneKernel {
			out = append(out, base+"-esn-noesn")
		} else {
			out = append(out, base)
		}
	}
	return slices.Compact(out)
}

// maxSmallBlockBytes is a tenth of the birthday bound of 64-bit blocks: RFC 7146
// 2.2.
const maxSmallBlockBytes = 3 << 30
