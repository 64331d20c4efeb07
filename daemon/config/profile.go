package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// Profile is an IPsec profile of the configuration: a built-in one with changes.
type Profile struct {
	*profile.Profile
	Base   string
	Origin Pos
}

// ProfileNames lists the built-in profiles, then those of the configuration.
func (c *Config) ProfileNames() []string {
	names := profile.Names()
	for _, p := range c.IPsec.Profiles {
		names = append(names, p.Name)
	}
	return names
}

// ProfileByName returns a profile of the configuration or a built-in one; "" is
// the default. The error lists the names.
func (c *Config) ProfileByName(name string) (*profile.Profile, error) {
	for _, p := range c.IPsec.Profiles {
		if p.Name == name {
			cp := *p.Profile
			cp.IKE, cp.ESP = slices.Clone(p.IKE), slices.Clone(p.ESP)
			return &cp, nil
		}
	}
	p, err := profile.ByName(name)
	if err != nil {
		return nil, fmt.Errorf("there is no profile %q; allowed: %s", name, strings.Join(c.ProfileNames(), ", "))
	}
	return p, nil
}

// profiles reads ipsec: profiles, a mapping of names to settings.
func (d *decoder) profiles(n ast.Node) []Profile {
	var out []Profile
	d.entries(n, "profiles", func(name *ast.StringNode, v ast.Node) {
		if err := checkName(name.Value, MaxProfileName); err != nil {
			d.fail(name, fmt.Sprintf("profile name %q %s", name.Value, err), "")
			return
		}
		if slices.Contains(profile.Names(), name.Value) {
			d.fail(name, fmt.Sprintf("profile %s is built in", name.Value), "choose another name, and set base: "+name.Value)
			return
		}
		if p, ok := d.profile(name, v); ok {
			out = append(out, p)
		}
	})
	return out
}

func (d *decoder) profile(name *ast.StringNode, n ast.Node) (Profile, bool) {
	faults := len(d.errs)
	out := Profile{Origin: d.pos(name)}
	what := "profile " + name.Value
	// The base is read first, wherever it is written: the rest changes it.
	d.onlyKey(n, "base", d.enum("base", func(s string) { out.Base = s }, profile.Names()...))
	base, err := profile.ByName(out.Base)
	if err != nil {
		d.fail(n, fmt.Sprintf("%s: %v", what, err), "")
		return out, false
	}
	p := base
	p.Name, out.Profile = name.Value, p
	seconds := func(key string, dst *time.Duration) func(ast.Node) {
		return d.duration(key, time.Second, MaxRekey, func(v time.Duration) { *dst = v })
	}
	d.mapping(n, what, fields{
		"base":          func(ast.Node) {},
		"ike_version":   d.integer("ike_version", 1, 2, func(v uint64) { p.Version = int(v) }),
		"aggressive":    d.boolean("aggressive", &p.Aggressive),
		"ike":           d.strings("ike", &p.IKE, nil),
		"esp":           d.strings("esp", &p.ESP, nil),
		"pfs":           d.boolean("pfs", &p.PFS),
		"esn":           d.boolean("esn", &p.ESN),
		"replay_window": d.integer("replay_window", 0, 1<<16, func(v uint64) { p.ReplayWindow = int(v) }),
		"mode":          d.enum("mode", func(s string) { p.Mode, _ = profile.ParseMode(s) }, profile.Tunnel.String(), profile.Transport.String()),
		"ike_rekey":     seconds("ike_rekey", &p.IKERekey),
		"child_rekey":   seconds("child_rekey", &p.ChildRekey),
		"rekey_bytes":   d.size("rekey_bytes", 1<<20, func(v int64) { p.RekeyBytes = uint64(v) }),
		"dpd_delay":     seconds("dpd_delay", &p.DPDDelay),
	})
	if len(d.errs) > faults {
		return out, false
	}
	if err := p.Validate(); err != nil {
		for _, fault := range reasons(err) {
			d.errs = append(d.errs, &Error{Pos: out.Origin, Msg: fmt.Sprintf("profile %s is refused: %s", name.Value, fault)})
		}
		return out, false
	}
	return out, true
}

// reasons are the single faults in an error of Profile.Validate.
func reasons(err error) []string {
	var joined interface{ Unwrap() []error }
	for errors.As(err, &joined) {
		list := joined.Unwrap()
		err = list[len(list)-1]
		if errors.Is(list[0], profile.ErrRefused) && len(list) > 1 {
			continue
		}
		var out []string
		for _, e := range list {
			out = append(out, e.Error())
		}
		return out
	}
	return []string{err.Error()}
}

// resolve finds the profile of a peer and puts the peer's own choices into it.
// A fault is the peer's, or, with at, that of the profile's name.
func (c *Config) resolve(p *Peer) (at Pos, msg, fix string) {
	at = p.Origin
	r, err := c.ProfileByName(p.Profile)
	if err != nil {
		if p.profileAt != (Pos{}) {
			at = p.profileAt
		}
		return at, fmt.Sprintf("profile is %q", p.Profile), "allowed: " + joinWords(c.ProfileNames()) + ", and what ipsec: profiles: in the main file names"
	}
	if p.Mode != "" {
		// The word was checked when it was read.
		r.Mode, _ = profile.ParseMode(p.Mode)
	}
	p.Resolved = r
	switch {
	case r.Mode == profile.Transport && c.IPsec.DataPlane == "userland":
		return at, fmt.Sprintf("peer %s has transport mode and this host userland ESP", p.Name), "userland ESP has tunnel mode only: set mode: tunnel, or use a kernel with ESP"
	case r.Version == 1 && p.ChildSAs > 1:
		return at, fmt.Sprintf("peer %s has child_sas: %d and the profile %s with IKEv1", p.Name, p.ChildSAs, r.Name), "IKEv1 has one child SA per direction, since its selectors have no port ranges (RFC 2407 4.6.2): remove child_sas, or take a profile with IKEv2"
	case r.Aggressive && (addressID(p.LocalID) || addressID(cmp.Or(p.RemoteID, p.Host))):
		return at, fmt.Sprintf("peer %s has the profile %s with aggressive mode but addresses as identities", p.Name, r.Name), "aggressive mode is for names: set local_id and remote_id to host names or user@host, or take a profile without it (RFC 3723 2.3.3)"
	}
	return at, "", ""
}

// addressID reports whether an IKE identity is an address, as the default is.
func addressID(id string) bool {
	_, err := netip.ParseAddr(id)
	return id == "" || err == nil
}
