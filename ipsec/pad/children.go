package pad

import (
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// MaxChildren bounds the child SAs of a peer per direction.
const MaxChildren = 16

// A peer with N child SAs per direction splits the dynamic ports (RFC 6335
// section 6) of the host that dials into N blocks. Each block is a power of two
// and aligned to it, so that a kernel's selector (port and mask) expresses it.
const (
	FirstBlockPort = 49152
	blockPorts     = 1<<16 - FirstBlockPort
)

// portBlock is the range of block k of n; with one block it is every port.
func portBlock(k, n int) (lo, hi uint16) {
	if n <= 1 {
		return 0, 65535
	}
	size := blockPorts / n
	lo = uint16(FirstBlockPort + k*size)
	return lo, lo + uint16(size-1)
}

// SplitOf returns the number of blocks into which a peer splits its ports that has this
// one, or 0 if it is no such block.
func SplitOf(s charon.Selector) int {
	if s.AnyPort() {
		return 1
	}
	for n := 2; n <= MaxChildren; n *= 2 {
		for k := range n {
			if lo, hi := portBlock(k, n); lo == s.PortFrom && hi == s.PortTo {
				return n
			}
		}
	}
	return 0
}

// Role is who dials the flows of a child SA.
type Role uint8

const (
	Dialler  Role = iota // this host
	Listener             // the peer
)

// Child is one child SA as it is configured.
type Child struct {
	Name          string // in charon
	Link          Link
	Role          Role
	Local, Remote charon.Selector // what it has to cover
}

// ChildSAs are the child SAs of a peer link by link, those for flows that this
// host dials first.
func (p Peer) ChildSAs() []Child {
	var all []Child
	for _, link := range p.AllLinks() {
		n := max(p.Children, 1)
		if p.Stands(link) {
			n = 1 // who dials takes any port
		}
		for _, r := range []Role{Dialler, Listener} {
			for k := range n {
				name := p.Name + "-out" + p.suffix(link)
				if r == Listener {
					name = p.Name + "-in" + p.suffix(link)
				}
				if n > 1 {
					name = fmt.Sprintf("%s-%d", name, k)
				}
				local, remote := p.selectors(link, r, k, n)
				all = append(all, Child{Name: name, Link: link, Role: r, Local: local, Remote: remote})
			}
		}
	}
	return all
}

// selectors are those of a child: a block of ports of the host that dials, the
// link's ports of the one that is dialled.
func (p Peer) selectors(link Link, r Role, k, n int) (local, remote charon.Selector) {
	lo, hi := portBlock(k, n)
	from := func(s charon.Selector) charon.Selector { s.PortFrom, s.PortTo = lo, hi; return s }
	at := func(a netip.Addr) charon.Selector {
		s := charon.HostSelector(a, link.Protocol, link.Port)
		s.PortTo = link.Last()
		return s
	}
	if r == Dialler {
		return from(charon.HostSelector(p.Local, link.Protocol, 0)), at(p.Remote)
	}
	return at(p.Local), from(charon.HostSelector(p.Remote, link.Protocol, 0))
}
