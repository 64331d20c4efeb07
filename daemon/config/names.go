package config

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// CheckHostName fails if a text cannot be the DNS name of a peer: at least two labels of letters, digits and
// dashes, of which the last is no number (RFC 1123 2.1). A single label is a name in each domain that a resolver
// searches. The error is the reason.
func CheckHostName(s string) error {
	labels := strings.Split(s, ".")
	if len(s) > MaxHostName || len(labels) < 2 {
		return errors.New("is no host name with a domain, such as beta.example")
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return errors.New("is no host name: it has a label that is empty, too long, or begins or ends with a dash")
		}
		for i := range len(l) {
			if c := l[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
				return errors.New("is no host name: allowed are letters, digits, dashes and dots")
			}
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return errors.New("is neither an IP address nor a host name")
	}
	return nil
}

// discard are addresses to which nothing is ever sent (RFC 6666). A peer whose name has no address yet stands at one of
// them, which its name determines.
var discard = netip.MustParsePrefix("100::/64")

func placeholder(host string) netip.Addr {
	a, sum := discard.Addr().As16(), sha256.Sum256([]byte(host))
	copy(a[8:], sum[:8])
	return netip.AddrFrom16(a)
}

// SetHost declares a peer by a DNS name.
func (p *Peer) SetHost(host string) {
	p.Host, p.Address = strings.ToLower(host), placeholder(strings.ToLower(host))
}

// Unresolved reports whether the peer is declared by a name for which no address is known.
func (p Peer) Unresolved() bool { return p.Host != "" && discard.Contains(p.Address) }

// peerAddress reads the address of a peer, or its name.
func (d *decoder) peerAddress(p *Peer) func(ast.Node) {
	return func(n ast.Node) {
		if s, ok := n.(*ast.StringNode); ok && CheckHostName(s.Value) == nil {
			p.SetHost(s.Value)
			return
		}
		d.addr("address", func(a netip.Addr) { p.Address = a })(n)
	}
}

// hostFault is fault for a peer that is declared by a name.
func (p *Peer) hostFault() (msg, fix string) {
	switch {
	case p.Host == "":
	case p.Protection != ProtectIPsec:
		return fmt.Sprintf("peer %s has the name %s as its address, and nothing authenticates it", p.Name, p.Host), "names are for protection: ipsec: whoever answers for the name says where it is, and IKE who is there"
	case len(p.Multihoming)+len(p.Paths) > 0:
		return fmt.Sprintf("peer %s has the name %s as its address, and further ones", p.Name, p.Host), "declare a peer of several addresses by addresses"
	case p.Gateway.IsValid():
		return fmt.Sprintf("peer %s has the name %s as its address, and a gateway", p.Name, p.Host), "declare a peer behind a gateway by its address"
	}
	return "", ""
}

// CheckAnswer fails if an answer to the name of a peer cannot be the address of another host. The error is the reason.
func CheckAnswer(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return errors.New("it is no address")
	case a.IsLoopback():
		return errors.New("it is on this host")
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("it is not that of one host")
	case a.Zone() != "" || a.IsLinkLocalUnicast():
		return errors.New("it is valid on one link alone")
	case discard.Contains(a):
		return errors.New("nothing is ever sent there (RFC 6666)")
	}
	return nil
}

// CheckAddressOf fails if a peer that is declared by a name cannot be at an address of the answer. The error is the
// reason.
func (c *Config) CheckAddressOf(p Peer, a netip.Addr) error {
	if err := CheckAnswer(a); err != nil {
		return err
	}
	if p.LocalAddress.IsValid() && p.LocalAddress.Is4() != a.Is4() {
		return fmt.Errorf("this host meets the peer from %s, which is of the other family", p.LocalAddress)
	}
	if p.LocalAddress == a {
		return errors.New("it is this host's own")
	}
	forms := (guard.Spec{Remote: a}).Addresses()
	for _, q := range c.Peers {
		if q.Name == p.Name {
			continue
		}
		for _, pair := range q.Pairs() {
			if slices.ContainsFunc((guard.Spec{Remote: pair.Address}).Addresses(), func(f netip.Addr) bool { return slices.Contains(forms, f) }) {
				return fmt.Errorf("it is that of peer %s", q.Name)
			}
		}
	}
	return nil
}

// WithAddress is the configuration with a peer, which is declared by a name, at an address. It fails as CheckAddressOf
// does, and with ErrNotFound.
func (c *Config) WithAddress(peer string, a netip.Addr) (*Config, error) {
	i := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.Name == peer && p.Host != "" })
	if i < 0 {
		return nil, ErrNotFound
	}
	if err := c.CheckAddressOf(c.Peers[i], a); err != nil {
		return nil, err
	}
	next := *c
	next.Peers = slices.Clone(c.Peers)
	next.Peers[i].Address = a
	return &next, nil
}

// namesFile has the addresses of peers that are declared by names.
func namesFile(stateDir string) string { return filepath.Join(stateDir, "names.json") }

// SaveAddresses writes down at which addresses the peers are that are declared by names, for Load. It fails with
// the file system's error.
func (c *Config) SaveAddresses() error {
	at := map[string]netip.Addr{}
	for _, p := range c.Peers {
		if p.Host != "" && !p.Unresolved() {
			at[p.Host] = p.Address
		}
	}
	return wholefile.WriteJSON(namesFile(c.StateDir), at)
}

// findAddresses gives the peers that are declared by names the addresses that were written down. What is not there, or
// cannot be, leaves a peer without an address until its name is looked up.
func (c *Config) findAddresses() {
	if !slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.Host != "" }) {
		return
	}
	at := map[string]netip.Addr{}
	data, err := readFile(namesFile(c.StateDir))
	if err != nil || json.Unmarshal(data, &at) != nil {
		return
	}
	for i := range c.Peers {
		p := &c.Peers[i]
		if a := at[p.Host]; p.Host != "" && c.CheckAddressOf(*p, a) == nil {
			p.Address = a
		}
	}
}

// namesHint says what becomes of a host name in a setting that is an address.
func namesHint(what string) string {
	if what == "address" {
		return "of a peer with one address a host name with its domain will do, such as beta.example"
	}
	return "host names are not looked up"
}
