package ikematrix

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// Case is a row of the matrix: a way to have an SA. Fields are strings, so that a case
// can be incomplete: "" is open.
type Case struct {
	Exchange string `json:"ike"`      // of phase 1
	Auth     string `json:"auth"`     // of both hosts
	Identity string `json:"identity"` // type of both hosts' identities
	Suite    string `json:"suite"`    // IKE's algorithms without the group
	Group    string `json:"group"`    // DH group, of PFS as well
	ESP      string `json:"esp"`      // algorithms without the group
	PFS      string `json:"pfs"`
	ESN      string `json:"esn"`
	Mode     string `json:"mode"`
	Network  string `json:"network"`
	// Charon is how strongSwan is set up, where that is unusual.
	Charon string `json:"charon,omitempty"`
	// Whole takes the profile's own proposals instead of Suite, Group and ESP.
	Whole string `json:"whole,omitempty"`
}

// Values of a Case.
const (
	ikeV2      = "IKEv2"
	main1      = "IKEv1 main"
	aggressive = "IKEv1 aggressive"

	psk   = "PSK"
	rsa   = "RSA"
	ecdsa = "ECDSA"

	address  = "address"
	fqdn     = "FQDN"
	userFQDN = "USER_FQDN"
	keyID    = "KEY_ID"
	subnet   = "subnet"

	on  = "on"
	off = "off"

	modeTunnel    = "tunnel"
	modeTransport = "transport"

	ipv4 = "IPv4"
	ipv6 = "IPv6"

	// careless lets strongSwan use aggressive mode with a PSK, which it refuses by
	// default: the hash from which a PSK can be guessed goes out in clear.
	careless = "aggressive PSK allowed"
	// strict is strongSwan's default, where the plan would otherwise be careless.
	strict = "aggressive PSK not allowed"
	// noOpenSSL is without the plugin openssl, which has most of the algorithms.
	noOpenSSL = "without plugin openssl"
)

// ProfileName is the name of the built-in profile that the case is made of.
func (c *Case) ProfileName() string {
	if c.Whole != "" {
		return c.Whole
	}
	name := "rfc3723"
	if c.Exchange == ikeV2 {
		name = "rfc7146"
	}
	switch {
	case c.null():
		name += "-null"
	case c.Exchange == aggressive:
		name += "-aggressive"
	}
	return name
}

// null reports whether ESP does not encrypt.
func (c *Case) null() bool {
	return strings.HasPrefix(c.ESP, "null-") || strings.HasSuffix(c.ESP, "gmac") || strings.HasSuffix(c.Whole, "-null")
}

// profile makes the profile that asks for exactly this case.
func (c *Case) profile() (*profile.Profile, error) {
	p, err := profile.ByName(c.ProfileName())
	if err != nil {
		return nil, err
	}
	p.Aggressive = c.Exchange == aggressive
	p.PFS, p.ESN = c.PFS == on, c.ESN == on
	if p.Mode, err = profile.ParseMode(c.Mode); err != nil {
		return nil, err
	}
	if c.Whole != "" {
		return p, nil
	}
	p.IKE = []string{c.Suite + "-" + c.Group}
	p.ESP = []string{c.ESP}
	if p.PFS {
		p.ESP[0] += "-" + c.Group
	}
	if strings.HasPrefix(c.ESP, "3des") {
		p.RekeyBytes = 1 << 30
	}
	p.IKERekey, p.ChildRekey = 4*time.Hour, time.Hour
	return p, nil
}

// What follows a host's name in its identities.
const (
	domain     = ".lab.example"
	mailDomain = "@lab.example"
)

// identities are the hosts' names for each other.
func (c *Case) identities(alpha, beta string) (a, b string) {
	switch c.Identity {
	case fqdn:
		return "alpha" + domain, "beta" + domain
	case userFQDN:
		return "alpha" + mailDomain, "beta" + mailDomain
	case keyID:
		return "@#616c706861", "@#62657461"
	case subnet:
		return alpha + "/24", beta + "/24"
	}
	return alpha, beta
}

// Name is a line without spaces.
func (c *Case) Name() string {
	what := c.Suite + "-" + c.Group + "/" + c.ESP
	if c.Whole != "" {
		what = c.Whole
	}
	parts := []string{c.Exchange, c.Auth, c.Identity, what}
	for _, f := range []struct{ is, name string }{{c.PFS, "pfs"}, {c.ESN, "esn"}} {
		if f.is == on {
			parts = append(parts, f.name)
		}
	}
	parts = append(parts, c.Mode, c.Network)
	if c.Charon != "" {
		parts = append(parts, c.Charon)
	}
	return strings.ReplaceAll(strings.Join(parts, ","), " ", "-")
}

func (c *Case) String() string { return fmt.Sprintf("%s, profile %s", c.Name(), c.ProfileName()) }
