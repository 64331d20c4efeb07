package pad

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// Peer is a host to have SAs with.
type Peer struct {
	// Name is unique on this host: letters, digits, dot, underscore and hyphen.
	// It names the connection in charon, and its children NAME-out and NAME-in, with
	// the protocol behind it if that is not TCP: NAME-out-udp; those of blocks with the
	// first port: NAME-out-tcp18432.
	Name string
	// Local and Remote are the hosts' addresses, of one family.
	Local, Remote netip.Addr
	// LocalID and RemoteID are IKE identities: an address, a fully qualified name
	// or user@name (RFC 7146 3.1 e, f). Default: the addresses.
	LocalID, RemoteID string
	// Port is the link's TCP port, the same on both hosts, if Links is nil.
	Port uint16
	// Links are the ports that carry streams, one of each protocol at most beside blocks. The
	// SAs of the first come up before they are needed, unless OnDemand says
	// otherwise, those of the others when a flow needs them. Nil: TCP with Port.
	Links []Link
	// Standing is the TCP port of one more link, whose flows programs dial that know nothing of
	// this: its SAs are up at all times, one per direction. 0: there is none.
	Standing uint16
	// Blocks are more links, of programs as a rule: their SAs come up when a flow needs them.
	Blocks []Link
	// Profile is how; nil is profile.Default.
	Profile *profile.Profile
	// PSK is the pre-shared key; the zero Secret means certificates. It and Cert
	// exclude each other.
	PSK auth.Secret
	// Cert is this host's certificate and private key; nil means a PSK.
	Cert *auth.Credential
	// CAs may have issued the peer's certificate; at least one is needed with Cert.
	CAs []auth.Authority
	// Revocation is how certain it has to be that the peer's certificate was not
	// revoked. Default: RevocationIfURI.
	Revocation auth.Revocation
	// Gateway is an address other than Remote at which the ESP of this peer's flows
	// may end (RFC 5042 5.4.5: end-to-end is what protects; this is the exception
	// that somebody has to ask for). The zero Addr: no such exception.
	Gateway netip.Addr
	// Children is how many child SAs there are per direction, a power of two from 1
	// to MaxChildren, so that kernels spread them over CPUs. Default: 1.
	Children int
	// IdleReap ends children that had no traffic for that long while their streams
	// are idle; traffic brings them back. 0: never.
	IdleReap time.Duration
	// OnDemand leaves the SA down until a flow needs it. Otherwise one attempt to
	// bring it up is made when the peer is added and when charon has restarted,
	// which shows early what is wrong, and corrects a peer that still believes in SAs
	// of our former life.
	OnDemand bool
}

var peerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// WithDefaults sets what was left out. It fails where something is wrong or does not go
// together.
func (p Peer) WithDefaults() (Peer, error) {
	p.Local, p.Remote = p.Local.Unmap(), p.Remote.Unmap()
	if p.LocalID == "" && p.Local.IsValid() {
		p.LocalID = p.Local.String()
	}
	if p.RemoteID == "" && p.Remote.IsValid() {
		p.RemoteID = p.Remote.String()
	}
	if p.Profile == nil {
		p.Profile = profile.Default()
	}
	p.Profile = p.Profile.Clone()
	p.Links, p.Blocks = normal(p.Links), normal(p.Blocks)
	p.Revocation = cmp.Or(p.Revocation, auth.RevocationIfURI)
	p.Gateway = p.Gateway.Unmap()
	p.Children = cmp.Or(p.Children, 1)
	return p, p.validate()
}

func normal(links []Link) []Link {
	links = slices.Clone(links)
	for i := range links {
		links[i] = links[i].Normal()
	}
	return links
}

func (p Peer) validate() error {
	var faults []error
	if !peerName.MatchString(p.Name) {
		faults = append(faults, fmt.Errorf("name %q: 1 to 63 letters, digits, dots, underscores and hyphens are possible", p.Name))
	}
	for what, a := range map[string]netip.Addr{"local": p.Local, "remote": p.Remote} {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			faults = append(faults, fmt.Errorf("%s address %q: one host's address without a zone is needed", what, a))
		} else if a.IsLoopback() {
			faults = append(faults, fmt.Errorf("%s address %v: the loopback needs no IPsec", what, a))
		}
	}
	if p.Local.IsValid() && p.Remote.IsValid() && p.Local.BitLen() != p.Remote.BitLen() {
		faults = append(faults, fmt.Errorf("local address %v and remote address %v are of different families", p.Local, p.Remote))
	}
	if p.Local == p.Remote && p.Local.IsValid() {
		faults = append(faults, fmt.Errorf("local and remote address are both %v", p.Local))
	}
	faults = append(faults, p.checkLinks()...)
	faults = append(faults, p.checkIdentities()...)
	faults = append(faults, p.checkAuth()...)
	faults = append(faults, p.checkExtras()...)
	faults = append(faults, p.Profile.Validate())
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("peer %q: %w", p.Name, err)
	}
	return nil
}

// checkExtras checks what is zero with most peers.
func (p *Peer) checkExtras() []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	switch n := p.Children; {
	case n < 1 || n > MaxChildren || n&(n-1) != 0:
		fault("%d child SAs per direction: a power of two from 1 to %d is possible", n, MaxChildren)
	case n > 1 && p.Profile.Version == 1:
		fault("%d child SAs per direction with IKEv1: it has one, since IKEv1's selectors have no port ranges (RFC 2407 4.6.2): use IKEv2", n)
	}
	if p.IdleReap != 0 && p.IdleReap < time.Second {
		fault("idle children end after %v: at least a second, or 0 for never", p.IdleReap)
	}
	switch g := p.Gateway; {
	case g == netip.Addr{}:
	case g.IsUnspecified() || g.IsMulticast() || g.IsLoopback() || g.Zone() != "":
		fault("gateway %v: one host's address is needed", g)
	case p.Remote.IsValid() && g.BitLen() != p.Remote.BitLen():
		fault("gateway %v and remote address %v are of different families", g, p.Remote)
	case g == p.Local || g == p.Remote:
		fault("gateway %v is one of the two hosts: leave it out", g)
	case p.Profile.Mode == profile.Transport:
		fault("gateway %v: transport mode ends at the peer itself; tunnel mode is needed (RFC 4301 4.1)", g)
	}
	return faults
}
