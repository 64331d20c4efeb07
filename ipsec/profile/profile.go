package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// ErrRefused means that a Profile was refused.
var ErrRefused = errors.New("IPsec profile refused")

// Profile is how IKE and ESP are done with a peer: data that ByName fills
// in as the RFCs want it, and Validate checks against what RFC 3723 and RFC 7146
// forbid.
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

	// RekeyBytes makes fresh keys after that many bytes, 0 for no such limit; the
	// old ones end a tenth later. Ciphers of 64-bit blocks must have one that ends
	// them before MaxSmallBlockBytes.
	RekeyBytes uint64 `json:"rekey_bytes" yaml:"rekey_bytes"`

	// DPDDelay is after how much silence an IKE SA asks for a sign of life.
	DPDDelay time.Duration `json:"dpd_delay" yaml:"dpd_delay"`
}

// MaxSmallBlockBytes is how much a key for 64-bit blocks (3DES) may encrypt: 3
// GiB, a tenth of the birthday bound (RFC 7146 2.2).
const MaxSmallBlockBytes = 3 << 30

// Validate checks the profile against the RFCs. The error wraps ErrRefused and
// names every fault, with the clause.
func (p *Profile) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	switch {
	case p.Version != 1 && p.Version != 2:
		fault("IKE version %d: it is 1 or 2; without IKE keys would be manual, which must not be (RFC 7146 3)", p.Version)
	case len(p.IKE) == 0:
		fault("no IKE proposal: without IKE keys would be manual, which must not be (RFC 7146 3)")
	}
	if p.Aggressive && p.Version != 1 {
		fault("aggressive mode with IKEv%d: only IKEv1 has modes (RFC 7146 3)", p.Version)
	}
	if p.Mode > Transport {
		fault("%v: ESP has tunnel and transport mode (RFC 3723 2.3.2)", p.Mode)
	}
	if len(p.ESP) == 0 {
		fault("no ESP proposal")
	}
	for _, text := range p.IKE {
		if err := p.checkIKE(text); err != nil {
			fault("IKE proposal %s: %w", text, err)
		}
	}
	for _, text := range p.ESP {
		if err := p.checkESP(text); err != nil {
			fault("ESP proposal %s: %w", text, err)
		}
	}
	if g := groups(p.IKE); p.Aggressive && len(g) > 1 {
		fault("IKE proposals with %s: aggressive mode sends its key exchange with the offer, so that all of them have one DH group (RFC 2409 5)", strings.Join(g, " and "))
	}
	if g := groups(p.ESP); p.Version == 1 && p.PFS && len(g) > 1 {
		fault("ESP proposals with %s: quick mode sends its key exchange with the offer, so that all of them have one DH group (RFC 2409 5.5)", strings.Join(g, " and "))
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
		return fmt.Errorf("%w: profile %q: %w", ErrRefused, p.Name, errors.Join(faults...))
	}
	return nil
}

// Warnings returns what the RFCs allow and a reader should know all the same; none
// for most profiles.
func (p *Profile) Warnings() []string {
	var out []string
	if p.Aggressive {
		out = append(out, "AGGRESSIVE MODE: the identities go in clear, and whoever records one handshake can guess at the pre-shared key offline, for ever. "+
			"Use IKEv2 or main mode; if you cannot, use certificates or a generated key of 32 random bytes (RFC 3723 5.8.2)")
	}
	for _, text := range p.ESP {
		if prop, err := parseProposal(text); err == nil && prop.null {
			out = append(out, "NO CONFIDENTIALITY: ESP proposal "+text+" protects against change, not against reading along (RFC 7146 2.2)")
			break
		}
	}
	return out
}

// Clone returns a copy that shares nothing with the profile.
func (p *Profile) Clone() *Profile {
	c := *p
	c.IKE, c.ESP = slices.Clone(p.IKE), slices.Clone(p.ESP)
	return &c
}

func (p *Profile) checkIKE(text string) error {
	prop, err := parseProposal(text)
	switch {
	case err != nil:
		return err
	case prop.null || !prop.has(kindCipher) && !prop.has(kindAEAD):
		return errors.New("it does not encrypt: IKE must")
	case p.Version == 1 && prop.has(kindAEAD):
		return errors.New("IKEv1 has no combined modes for itself (RFC 5282 1)")
	case p.Version == 1 && prop.has(kindPRF):
		return errors.New("IKEv1 negotiates no prf: it follows from the hash (RFC 2409 4)")
	case p.Version == 1 && prop.only2 != "":
		return fmt.Errorf("%s is for IKEv2 only", prop.only2)
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
	case p.Version == 1 && prop.only2 != "":
		return fmt.Errorf("%s is for IKEv2 only", prop.only2)
	case p.PFS && !prop.has(kindDH):
		return errors.New("it has no DH group, and PFS is on (RFC 7146 3.2)")
	case prop.smallBlock && (p.RekeyBytes == 0 || p.LifeBytes() > MaxSmallBlockBytes):
		return fmt.Errorf("its cipher has 64-bit blocks: rekey_bytes of at most %d is needed, so that the key ends a tenth later before 3 GiB (RFC 7146 2.2)",
			uint64(MaxSmallBlockBytes)*10/11)
	}
	return nil
}

// LifeBytes is when the old key ends, 0 for never.
func (p *Profile) LifeBytes() uint64 { return p.RekeyBytes + p.RekeyBytes/10 }

// ESPFor returns the ESP proposals as a data plane takes them.
func (p *Profile) ESPFor(d esp.Plane) []string {
	var out []string
	for _, text := range p.ESP {
		var tokens []string
		usable := true
		for _, t := range strings.Split(text, "-") {
			a := algorithms[t]
			if a.kind == kindDH && !p.PFS || a.kind == kindESN {
				continue
			}
			usable = usable && (d.Offers().Kernel || !a.kernel)
			tokens = append(tokens, t)
		}
		base := strings.Join(tokens, "-")
		switch {
		case !usable:
		case !p.ESN || !d.Offers().ESN:
			out = append(out, base)
		case p.Version == 1: // an IKEv1 transform says one or the other (RFC 4304)
			out = append(out, base+"-esn", base)
		default:
			out = append(out, base+"-esn-noesn")
		}
	}
	return slices.Compact(out)
}

// Fits is nil where a data plane can do what the profile wants, and fails with
// esp.ErrCannot where it can't.
func (p *Profile) Fits(d esp.Plane) error {
	switch {
	case p.Mode == Transport && !d.Offers().Transport:
		return fmt.Errorf("%w: profile %q wants transport mode, and %v has tunnel mode only: set the mode to tunnel on both hosts, or use the kernel's ESP", esp.ErrCannot, p.Name, d)
	case len(p.ESPFor(d)) == 0:
		return fmt.Errorf("%w: profile %q offers %s, and %v has none of it: choose another profile, or use the kernel's ESP", esp.ErrCannot, p.Name, strings.Join(p.ESP, ", "), d)
	}
	return nil
}

// groups lists the different DH groups of proposals.
func groups(proposals []string) []string {
	var out []string
	for _, text := range proposals {
		for _, t := range strings.Split(text, "-") {
			if algorithms[t].kind == kindDH && !slices.Contains(out, t) {
				out = append(out, t)
			}
		}
	}
	return out
}
