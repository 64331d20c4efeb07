package profile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Clause is a line of a profile and what the RFCs say of it.
type Clause struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	RFC     string `json:"rfc,omitempty"`   // such as "RFC 7146 2.2"; "": it is nobody's rule
	Level   string `json:"level,omitempty"` // MUST, SHOULD, MAY, MUST NOT, ...
	Text    string `json:"text"`            // what it says
}

const (
	must      = "MUST"
	mustNot   = "MUST NOT"
	should    = "SHOULD"
	shouldNot = "SHOULD NOT"
	may       = "MAY"
)

// The built-in profiles. A line's setting is that of a field of Profile; ike and
// esp lines add up, best first.
var (
	rfc7146 = []Clause{
		{"ike_version", "2", "RFC 7146 3", should, "IKEv2 is supported, and recommended where both ends have it"},
		{"mode", "tunnel", "RFC 3723 2.3.2", must, "ESP in tunnel mode; transport mode MAY be implemented"},
		{"ike", "aes128gcm16-prfsha256-ecp256", "RFC 7146 2.2", should, "AES-GCM, which can protect IKEv2 itself too (RFC 5282)"},
		{"ike", "aes256gcm16-prfsha384-ecp384", "RFC 7146 4", should, "algorithms of comparable strength go together"},
		{"ike", "aes128gcm16-prfsha256-modp2048", "RFC 7146 3.2", should, "a DH group of at least 2048 bits in all proposals"},
		{"ike", "aes256gcm16-prfsha384-modp3072", "RFC 7146 3.2", should, "a DH group of at least 2048 bits in all proposals"},
		{"ike", "aes128-sha256-ecp256", "RFC 7146 2.2", must, "AES-CBC with 128-bit keys"},
		{"ike", "aes128-sha256-modp2048", "RFC 7146 3.2", should, "a DH group of at least 2048 bits in all proposals"},
		{"ike", "aes256-sha384-modp3072", "RFC 7146 4", should, "algorithms of comparable strength go together"},
		{"esp", "aes128gcm16-ecp256", "RFC 7146 2.2", should, "AES-GCM with 128-bit keys"},
		{"esp", "aes256gcm16-ecp384", "RFC 7146 2.2", may, "AES-GCM with other key sizes"},
		{"esp", "aes128gcm16-modp2048", "RFC 7146 2.2", should, "AES-GCM with 128-bit keys"},
		{"esp", "aes256gcm16-modp3072", "RFC 7146 2.2", may, "AES-GCM with other key sizes"},
		{"esp", "aes128-sha256-ecp256", "RFC 7146 2.2", must, "AES-CBC with 128-bit keys"},
		{"esp", "aes128-sha256-modp2048", "RFC 7146 2.2", must, "AES-CBC with 128-bit keys"},
		{"esp", "aes256-sha384-modp3072", "RFC 7146 2.2", may, "AES-CBC with other key sizes"},
		{"esp", "aes128-sha1-modp2048", "RFC 7146 2.1", must, "HMAC-SHA1-96"},
		{"pfs", "yes", "RFC 7146 3.2", must, "perfect forward secrecy in CREATE_CHILD_SA"},
		{"esn", "yes", "RFC 7146 2", should, "extended sequence numbers for all traffic; here where the data plane has them"},
		{"replay_window", "1024", "RFC 7146 2", must, "per-packet replay protection"},
		{"ike_rekey", "4h", "RFC 7296 2.8", may, "fresh keys at the discretion of each end"},
		{"child_rekey", "1h", "RFC 3723 5.4", must, "fresh keys before sequence numbers run out"},
		{"rekey_bytes", "0", "RFC 7146 2.2", may, "blocks of 128 bits need no limit of bytes"},
		{"dpd_delay", "10s", "RFC 7296 2.4", should, "a peer that is silent is asked for a sign of life"},
	}

	rfc3723 = []Clause{
		{"ike_version", "1", "RFC 3723 2.3.3", must, "IKE with the IPsec DOI"},
		{"aggressive", "no", "RFC 3723 2.3.3", must, "main mode; aggressive mode SHOULD be supported and is an explicit choice"},
		{"mode", "tunnel", "RFC 3723 2.3.2", must, "ESP in tunnel mode; transport mode MAY be implemented"},
		{"ike", "aes128-sha256-modp2048", "RFC 7146 3.2", should, "a DH group of at least 2048 bits in all proposals"},
		{"ike", "aes128-sha1-modp2048", "RFC 7146 3.2", should, "a DH group of at least 2048 bits in all proposals"},
		{"ike", "3des-sha1-modp2048", "RFC 7146 3", should, "3DES with HMAC-SHA1; groups of 1024 bits are NOT RECOMMENDED and not offered"},
		{"esp", "aes128ctr-aesxcbc-modp2048", "RFC 3723 2.3.4", should, "AES-CTR with AES-XCBC is the preferred offer"},
		{"esp", "aes128-sha256-modp2048", "RFC 7146 2.2", must, "AES-CBC with 128-bit keys"},
		{"esp", "aes128-sha1-modp2048", "RFC 7146 2.2", must, "AES-CBC with 128-bit keys, HMAC-SHA1-96"},
		{"esp", "3des-sha1-modp2048", "RFC 3723 2.3.1", must, "3DES-CBC with HMAC-SHA1; RFC 7146 2.2 has made 3DES a MAY"},
		{"pfs", "yes", "RFC 7146 3.2", must, "perfect forward secrecy in quick mode, with the group of phase 1 (RFC 3723 2.3.4)"},
		{"esn", "yes", "RFC 7146 2", must, "extended sequence numbers for ESPv2 (RFC 4304); here where the data plane has them"},
		{"replay_window", "1024", "RFC 3723 2.3.1", must, "per-packet replay protection"},
		{"ike_rekey", "4h", "RFC 3723 2.3.4", may, "IKEv1 authenticates anew"},
		{"child_rekey", "1h", "RFC 3723 5.4", must, "fresh keys before sequence numbers run out"},
		{"rekey_bytes", "2684354560", "RFC 7146 2.2", should, "3DES: 2.5 GiB, and the old key ends before 3 GiB, a tenth of the birthday bound"},
		{"dpd_delay", "10s", "RFC 3706", may, "a peer that is silent is asked for a sign of life"},
	}

	// rules hold for every profile.
	rules = []Clause{
		{"manual_keys", "never", "RFC 7146 3", mustNot, "manual keying is not used with any version of IPsec"},
		{"integrity", "always", "RFC 3723 2.3.1", must, "data origin authentication and integrity for each packet"},
		{"identities", "address, fqdn, user_fqdn", "RFC 7146 3.1", must, "addresses and FQDN; USER_FQDN SHOULD be supported"},
		{"id_key_id", "never", "RFC 7146 3.1", mustNot, "ID_KEY_ID is not used"},
		{"id_subnet_range_dn", "never", "RFC 7146 3.1", shouldNot, "subnets, ranges and distinguished names are not identities"},
		{"selectors", "one address each", "RFC 3723 2.3.3", should, "phase 2 identities are single addresses, never subnets or ranges"},
		{"psk", "yes", "RFC 7146 3.1", must, "authentication by pre-shared key"},
		{"certificates", "yes", "RFC 7146 3.1", may, "authentication by digital signature"},
		{"certificate_request", "yes", "RFC 7146 3.1", should, "the authority is named in a certificate request"},
		{"revocation", "crl, ocsp", "RFC 7146 3.1", should, "certificates are checked by CRL or OCSP"},
		{"phase_2_delete", "streams stay", "RFC 7146 3", shouldNot, "a delete is no reason to tear the connection down"},
	}

	nullESP = []Clause{
		{"esp", "aes128gmac-modp2048", "RFC 7146 2.1", should, "AES-GMAC with 128-bit keys: integrity alone; not in userland ESP"},
		{"esp", "null-sha256-modp2048", "RFC 7146 2.2", must, "NULL encryption: data origin authentication and integrity, no confidentiality"},
		{"esp", "null-sha1-modp2048", "RFC 7146 2.1", must, "HMAC-SHA1-96"},
	}
	nullESP1 = []Clause{
		{"esp", "null-aesxcbc-modp2048", "RFC 3723 2.3.1", should, "AES-XCBC with NULL encryption"},
		{"esp", "null-sha256-modp2048", "RFC 3723 2.3.1", must, "NULL encryption: data origin authentication and integrity, no confidentiality"},
		{"esp", "null-sha1-modp2048", "RFC 3723 2.3.1", must, "HMAC-SHA1"},
	}
)

// builtins are the named profiles, the default one first.
func builtins() []builtin {
	return []builtin{
		{"rfc7146", rfc7146},
		{"rfc7146-null", withESP(rfc7146, nullESP)},
		{"rfc3723", rfc3723},
		{"rfc3723-null", withESP(rfc3723, nullESP1)},
		{"rfc3723-aggressive", with(rfc3723, Clause{"aggressive", "yes", "RFC 3723 2.3.3", should, "aggressive mode, with names as identities only"})},
	}
}

type builtin struct {
	name  string
	lines []Clause
}

// withESP replaces the ESP proposals; no cipher of 64-bit blocks is left then.
func withESP(lines, esp []Clause) []Clause {
	at := slices.IndexFunc(lines, func(c Clause) bool { return c.Setting == "esp" })
	out := append(slices.Clone(lines[:at]), esp...)
	for _, c := range lines[at:] {
		if c.Setting != "esp" {
			out = append(out, c)
		}
	}
	return with(out, Clause{"rekey_bytes", "0", "RFC 7146 2.2", may, "blocks of 128 bits, or none, need no limit of bytes"})
}

// with replaces the line of one setting.
func with(lines []Clause, c Clause) []Clause {
	out := slices.Clone(lines)
	out[slices.IndexFunc(out, func(o Clause) bool { return o.Setting == c.Setting })] = c
	return out
}

// Default is rfc7146, with IKEv2.
func Default() *Profile { return builtins()[0].profile() }

// ByName returns a built-in profile, "" being the default one. The error
// wraps ErrRefused and lists the names.
func ByName(name string) (*Profile, error) {
	for i, b := range builtins() {
		if name == b.name || name == "" && i == 0 {
			return b.profile(), nil
		}
	}
	return nil, fmt.Errorf("%w: there is no profile %q: %s are built in", ErrRefused, name, strings.Join(Names(), ", "))
}

// Names lists the built-in profiles, the default one first.
func Names() []string {
	var names []string
	for _, b := range builtins() {
		names = append(names, b.name)
	}
	return names
}

// profile reads the lines. A test reads all of them.
func (b builtin) profile() *Profile {
	p := &Profile{Name: b.name}
	for _, c := range b.lines {
		if err := p.set(c.Setting, c.Value); err != nil {
			panic("ipsec: a profile of our own: " + err.Error())
		}
	}
	return p
}

func (p *Profile) set(setting, value string) (err error) {
	switch setting {
	case "ike":
		p.IKE = append(p.IKE, value)
	case "esp":
		p.ESP = append(p.ESP, value)
	case "ike_version":
		p.Version, err = strconv.Atoi(value)
	case "mode":
		p.Mode, err = ParseMode(value)
	case "aggressive":
		p.Aggressive = value == "yes"
	case "pfs":
		p.PFS = value == "yes"
	case "esn":
		p.ESN = value == "yes"
	case "replay_window":
		p.ReplayWindow, err = strconv.Atoi(value)
	case "rekey_bytes":
		p.RekeyBytes, err = strconv.ParseUint(value, 10, 64)
	case "ike_rekey":
		p.IKERekey, err = time.ParseDuration(value)
	case "child_rekey":
		p.ChildRekey, err = time.ParseDuration(value)
	case "dpd_delay":
		p.DPDDelay, err = time.ParseDuration(value)
	default:
		err = fmt.Errorf("unknown setting %q", setting)
	}
	return err
}

// Clauses lists the profile's settings with what the RFCs say of each, and the
// rules that hold for every profile. A line that is in no built-in profile has
// no clause of its own.
func (p *Profile) Clauses() []Clause {
	known := map[[2]string]Clause{}
	for _, b := range builtins() {
		for _, c := range b.lines {
			at := [2]string{c.Setting, c.Value}
			if _, there := known[at]; !there || b.name == p.Name {
				known[at] = c
			}
		}
	}
	var out []Clause
	add := func(setting, value string) {
		c, ok := known[[2]string{setting, value}]
		if !ok {
			c = Clause{Setting: setting, Value: value, Text: "a choice of this profile's own"}
		}
		out = append(out, c)
	}
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	add("ike_version", strconv.Itoa(p.Version))
	if p.Version == 1 {
		add("aggressive", yes(p.Aggressive))
	}
	add("mode", p.Mode.String())
	for _, v := range p.IKE {
		add("ike", v)
	}
	for _, v := range p.ESP {
		add("esp", v)
	}
	add("pfs", yes(p.PFS))
	add("esn", yes(p.ESN))
	add("replay_window", strconv.Itoa(p.ReplayWindow))
	add("ike_rekey", shortDuration(p.IKERekey))
	add("child_rekey", shortDuration(p.ChildRekey))
	add("rekey_bytes", strconv.FormatUint(p.RekeyBytes, 10))
	add("dpd_delay", shortDuration(p.DPDDelay))
	return append(out, rules...)
}

// shortDuration writes 4h0m0s as 4h.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
