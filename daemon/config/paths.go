package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// Addresses is a further pair of addresses of the associations that the kernel's SCTP has
// with a peer (multihoming).
type Addresses struct {
	Address      netip.Addr // of the peer
	LocalAddress netip.Addr // of this host
}

// Path is a further path of the sessions with a peer, beside that by its first addresses.
type Path struct {
	Name string // unique among the peer's; the text of Address if the file has none
	Addresses
	Port      uint16    // of TCP and SCTP; the peer's if the file has none
	UDPPort   uint16    // the peer's for SCTP in UDP; 0 if it is not used
	Transport Transport // the peer's if the file has none
}

// ViaPath is the peer as one of its paths reaches it, at a single pair of addresses.
func (p Peer) ViaPath(q Path) Peer {
	p.Address, p.LocalAddress, p.Port, p.UDPPort, p.Transport = q.Address, q.LocalAddress, q.Port, q.UDPPort, q.Transport
	p.Multihoming, p.Paths = nil, nil
	return p
}

// AllPaths are the paths of sessions with the peer: by its first addresses, then the others.
func (p Peer) AllPaths() []Path {
	first := Path{Name: p.Address.String(), Addresses: Addresses{p.Address, p.LocalAddress}, Port: p.Port, UDPPort: p.UDPPort, Transport: p.Transport}
	if !first.Transport.Has(transport.SCTPUDP) {
		first.UDPPort = 0
	}
	return append([]Path{first}, p.Paths...)
}

// Pair is a pair of addresses of a peer, which has guards and an IKE connection of its own.
type Pair struct {
	Connection   string // name of the IKE connection
	Path         string // name of the path that goes by it
	Address      netip.Addr
	LocalAddress netip.Addr // zero: the one that the route to Address uses
	Links        []pad.Link
	ISCSIPort    uint16      // of TCP, beside Links; 0: none
	Programs     []PortBlock // beside both
	Partitions   []pad.Link  // those of the peer's partitions and of NVMe, beside all of these
}

// AllLinks are Links, that of iSCSI and those of Programs.
func (q Pair) AllLinks() []pad.Link {
	p := pad.Peer{Links: q.Links, Standing: q.ISCSIPort, Blocks: q.Blocks()}
	return p.AllLinks()
}

// Blocks are Programs as links, and those of partitions.
func (q Pair) Blocks() []pad.Link { return append(blockLinks(q.Programs), q.Partitions...) }

// Pairs are all of the peer's, the first one first. The name of a connection does not
// change when another path comes or goes.
func (p Peer) Pairs() []Pair {
	first := p.Address.String()
	out := []Pair{{p.Name, first, p.Address, p.LocalAddress, p.Links(), p.ISCSIPort, p.Programs, p.linksOfPartitions(true)}}
	for i, q := range p.Multihoming {
		out = append(out, Pair{fmt.Sprintf("%s.path%d", p.Name, i+2), first, q.Address, q.LocalAddress, p.Links(), 0, nil, p.linksOfPartitions(false)})
	}
	for _, q := range p.Paths {
		out = append(out, Pair{p.Name + "." + connectionPart(q.Name), q.Name, q.Address, q.LocalAddress, p.ViaPath(q).Links(), p.ISCSIPort, p.Programs, p.ViaPath(q).linksOfPartitions(true)})
	}
	return out
}

// connectionPart is the name of a path, or its address, as names of IKE connections have it.
func connectionPart(name string) string {
	const most = 30 // with a peer's name less than the 63 bytes of a connection's
	s := strings.ReplaceAll(name, ":", "-")
	if len(s) > most {
		sum := sha256.Sum256([]byte(s))
		s = s[:most-9] + "-" + hex.EncodeToString(sum[:4])
	}
	return s
}

// IKEConnections are the names of the peer's IKE connections.
func (p Peer) IKEConnections() (names []string) {
	for _, q := range p.Pairs() {
		names = append(names, q.Connection)
	}
	return names
}

// GuardedLinks are the links with an address that the kernel guards.
func (c *Config) GuardedLinks(a netip.Addr) (links []pad.Link) {
	for _, p := range c.Peers {
		for _, q := range p.Pairs() {
			if p.Protection == ProtectIPsec && q.Address == a {
				links = append(links, q.AllLinks()...)
			}
		}
	}
	return links
}

// HasAddress reports whether an address is one of the peer's.
func (p Peer) HasAddress(a netip.Addr) bool {
	return slices.ContainsFunc(p.Pairs(), func(q Pair) bool { return q.Address == a })
}

// has reports whether streams by one of the peer's paths may have a carrier.
func (p Peer) has(k transport.Kind) bool {
	return slices.ContainsFunc(p.AllPaths(), func(q Path) bool { return cmp.Or(q.Transport, p.Transport).Has(k) })
}

// SessionStreams are the streams of one session with the peer.
func (p Peer) SessionStreams() int { return p.Connections * (1 + len(p.Paths)) }

// sctpLocalAddresses are the sets of addresses at which the kernel's SCTP awaits the peer.
func (p Peer) sctpLocalAddresses() (sets [][]netip.Addr) {
	for i, q := range p.AllPaths() {
		if q.Transport != TransportSCTP || !q.LocalAddress.IsValid() {
			continue
		}
		set := []netip.Addr{q.LocalAddress}
		if i == 0 {
			for _, m := range p.Multihoming {
				set = append(set, m.LocalAddress)
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// addresses reads the keys of a pair of addresses, and more, in a mapping of a list.
func (d *decoder) addresses(n ast.Node, what string, to *Addresses, more fields) bool {
	f := fields{
		"address":       d.addr("address", func(a netip.Addr) { to.Address = a }),
		"local_address": d.addr("local_address", func(a netip.Addr) { to.LocalAddress = a }),
	}
	for key, read := range more {
		f[key] = read
	}
	faults := len(d.errs)
	d.mapping(n, what, f)
	if len(d.errs) > faults {
		return false
	}
	if !to.Address.IsValid() || !to.LocalAddress.IsValid() {
		d.fail(n, what+" without address or local_address", "give both: the peer's further address, and the one of this host that reaches it")
		return false
	}
	return true
}

// peerMultihoming reads multihoming, a list of mappings.
func (d *decoder) peerMultihoming(dst *[]Addresses) func(ast.Node) {
	return func(n ast.Node) {
		d.sequence(n, "multihoming", func(n ast.Node) {
			var q Addresses
			if d.addresses(n, "a pair of addresses", &q, nil) {
				*dst = append(*dst, q)
			}
		})
	}
}

// peerPaths reads paths, a list of mappings.
func (d *decoder) peerPaths(dst *[]Path) func(ast.Node) {
	return func(n ast.Node) {
		d.sequence(n, "paths", func(n ast.Node) {
			var q Path
			if d.addresses(n, "a path", &q.Addresses, fields{
				"name":      d.str("name of a path", &q.Name, CheckPathName),
				"port":      d.integer("port", 1, 65535, func(v uint64) { q.Port = uint16(v) }),
				"transport": d.enum("transport", func(s string) { q.Transport = Transport(s) }, Transports()...),
			}) {
				*dst = append(*dst, q)
			}
		})
	}
}

// NoPathQueue and NoPathFail are what becomes of I/O while a session has no path.
const (
	NoPathQueue = "queue" // it waits
	NoPathFail  = "fail"  // after a while
)

// NoPaths are the words of no_path, that of the default first.
func NoPaths() []string { return []string{NoPathQueue, NoPathFail} }

// NoPathWords are the values of no_path and fail_after.
func NoPathWords(n rtrs.NoPath) (noPath, failAfter string) {
	if !n.Fail {
		return NoPathQueue, ""
	}
	return NoPathFail, FormatDuration(n.After)
}

// setDefaults fills in what paths have from their peer, and what I/O without one does.
func (p *Peer) setDefaults() {
	if p.NoPath.Fail {
		p.NoPath.After = cmp.Or(p.NoPath.After, DefaultFailAfter)
	}
	for i := range p.Paths {
		q := &p.Paths[i]
		q.Name, q.Transport, q.Port = cmp.Or(q.Name, q.Address.String()), cmp.Or(q.Transport, p.Transport), cmp.Or(q.Port, p.Port)
		if q.Transport.Has(transport.SCTPUDP) {
			q.UDPPort = p.UDPPort
		}
	}
}

// addressesFault is fault for a peer with several pairs of addresses.
func (p *Peer) addressesFault() (msg, fix string) {
	switch {
	case len(p.Multihoming)+len(p.Paths) == 0:
		return "", ""
	case len(p.Multihoming) > 0 && p.Transport != TransportSCTP:
		return fmt.Sprintf("peer %s has multihoming and transport: %s", p.Name, p.Transport), "associations of several addresses need the kernel's SCTP: set transport: sctp, or paths: in place of multihoming:, which every transport has"
	case p.Transport == TransportSCTP && slices.ContainsFunc(p.Paths, func(q Path) bool { return q.Transport == "" }):
		return fmt.Sprintf("peer %s has transport: sctp and paths that say none", p.Name),
			"what was paths: with the kernel's SCTP, further addresses of one association, is multihoming: now: write that; or, for sessions of several paths, say transport: of each path"
	case len(p.Multihoming) > MaxPaths:
		return fmt.Sprintf("peer %s has %d pairs of addresses beside its first", p.Name, len(p.Multihoming)), fmt.Sprintf("allowed: up to %d", MaxPaths)
	case len(p.Paths) > MaxPaths:
		return fmt.Sprintf("peer %s has %d paths beside its first", p.Name, len(p.Paths)), fmt.Sprintf("allowed: up to %d", MaxPaths)
	case !p.LocalAddress.IsValid():
		return fmt.Sprintf("peer %s has several addresses but no local_address", p.Name), "add local_address: and the address of this host that reaches " + p.Address.String()
	case p.Gateway.IsValid():
		return fmt.Sprintf("peer %s has a gateway and several addresses", p.Name), "remove one of the two: a gateway is for one address"
	}
	remote, local, names := []netip.Addr{p.Address}, []netip.Addr{p.LocalAddress}, []string{p.Address.String()}
	pairs := slices.Clone(p.Multihoming)
	for _, q := range p.Paths {
		pairs = append(pairs, q.Addresses)
		a, err := netip.ParseAddr(q.Name)
		switch {
		case err == nil && a != q.Address:
			return fmt.Sprintf("peer %s has a path at %s with the name %s, which is an address", p.Name, q.Address, q.Name), "give it another name, or none: then its address is its name"
		case slices.Contains(names, cmp.Or(q.Name, q.Address.String())):
			return fmt.Sprintf("peer %s has the path %s twice", p.Name, cmp.Or(q.Name, q.Address.String())), "give each path a name and addresses of its own"
		}
		names = append(names, cmp.Or(q.Name, q.Address.String()))
	}
	for _, q := range pairs {
		switch {
		case q.Address.Is4() != q.LocalAddress.Is4():
			return fmt.Sprintf("peer %s mixes IPv4 and IPv6 in a path: address %s, local_address %s", p.Name, q.Address, q.LocalAddress), "use two addresses of one family"
		case q.Address.IsLoopback() != p.Address.IsLoopback():
			return fmt.Sprintf("peer %s is reached at %s and at %s, of which one is on this host", p.Name, p.Address, q.Address), "a peer is here or elsewhere"
		case q.Address == q.LocalAddress:
			return fmt.Sprintf("peer %s has the address %s as its own and as this host's", p.Name, q.Address), "address: is the peer's, local_address: this host's"
		case slices.Contains(remote, q.Address):
			return fmt.Sprintf("peer %s has the address %s twice", p.Name, q.Address), "give each path addresses of its own, at both hosts"
		case slices.Contains(local, q.LocalAddress):
			return fmt.Sprintf("peer %s has the local_address %s twice", p.Name, q.LocalAddress), "give each path addresses of its own, at both hosts"
		}
		remote, local = append(remote, q.Address), append(local, q.LocalAddress)
	}
	return "", ""
}

// checkAddresses finds conflicts between peers with several addresses.
func checkAddresses(c *Config, names map[string]Pos) Errors {
	var errs Errors
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	connections := map[string]*Peer{} // the further ones
	at := map[netip.Addr]*Peer{}      // the first that has it
	sets := map[netip.Addr][]netip.Addr{}
	for i := range c.Peers {
		p := &c.Peers[i]
		for n, name := range p.IKEConnections() {
			if n == 0 {
				continue
			}
			if at, dup := names[name]; dup {
				fail(at, fmt.Sprintf("peer %s has the name of path %d of peer %s", name, n+1, p.Name), "give one of them another name")
			}
			if q := connections[name]; q != nil {
				fail(p.Origin, fmt.Sprintf("paths of peers %s and %s would both be the IKE connection %s", q.Name, p.Name, name), "give one of the paths another name")
			}
			connections[name] = p
		}
		var other *Peer
		for _, mine := range p.sctpLocalAddresses() {
			for _, a := range mine {
				theirs := sets[a]
				if theirs == nil {
					at[a], sets[a] = p, mine
				} else if at[a] != p && (len(mine) != len(theirs) || slices.ContainsFunc(mine, func(a netip.Addr) bool { return !slices.Contains(theirs, a) })) {
					other = at[a]
				}
			}
		}
		if other != nil {
			fail(p.Origin, fmt.Sprintf("peers %s and %s reach this host at some of the same addresses, but not at all of them", other.Name, p.Name),
				"the kernel's SCTP listens at one set of addresses, which each peer learns: give both peers the same local addresses, or addresses that they do not share")
		}
	}
	return errs
}
