package ipsec

import (
	"fmt"

	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// A peer with N child SAs per direction splits the dynamic ports (RFC 6335
// section 6) of the host that dials into N blocks. Each block is a power of two
// and aligned to it, so that a kernel's selector (port and mask) expresses it.
const (
	firstLanePort = 49152
	lanePorts     = 1<<16 - firstLanePort
)

// portBlock is the range of block k of n; with one block it is every port.
func portBlock(k, n int) (lo, hi uint16) {
	if n <= 1 {
		return 0, 65535
	}
	size := lanePorts / n
	lo = uint16(firstLanePort + k*size)
	return lo, lo + uint16(size-1)
}

// splitOf tells into how many blocks a peer splits its ports that has this one;
// 0: it is no such block.
func splitOf(s charon.Selector) int {
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

// laneSpec is one child SA as it is configured.
type laneSpec struct {
	child         string
	link          Link
	role          role
	local, remote charon.Selector
}

// laneSpecs are the children of a peer link by link, those for flows that this
// host dials first.
func (p Peer) laneSpecs() []laneSpec {
	var specs []laneSpec
	n := max(p.Children, 1)
	for _, link := range p.links() {
		for _, r := range []role{dialler, listener} {
			for k := range n {
				name := p.outName()
				if r == listener {
					name = p.inName()
				}
				name += link.suffix()
				if n > 1 {
					name = fmt.Sprintf("%s-%d", name, k)
				}
				local, remote := p.selectors(link, r, k)
				specs = append(specs, laneSpec{child: name, link: link, role: r, local: local, remote: remote})
			}
		}
	}
	return specs
}

// selectors are those of a child: a block of ports of the host that dials, the
// link's port of the one that is dialled.
func (p Peer) selectors(link Link, r role, k int) (local, remote charon.Selector) {
	lo, hi := portBlock(k, p.Children)
	from := func(s charon.Selector) charon.Selector { s.PortFrom, s.PortTo = lo, hi; return s }
	if r == dialler {
		return from(charon.HostSelector(p.Local, link.Protocol, 0)), charon.HostSelector(p.Remote, link.Protocol, link.Port)
	}
	return charon.HostSelector(p.Local, link.Protocol, link.Port), from(charon.HostSelector(p.Remote, link.Protocol, 0))
}

func (p Peer) outName() string { return p.Name + "-out" }
func (p Peer) inName() string  { return p.Name + "-in" }
