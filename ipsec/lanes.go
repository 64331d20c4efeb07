package ipsec

import "github.com/ironwarp/ironwarp/transport"

// selectors are those of a child: any port of the host that dials, the link's
// port of the one that is dialled.
func (p Peer) selectors(r role) (local, remote Selector) {
	if r == dialler {
		return HostSelector(p.Local, transport.ProtoTCP, 0), HostSelector(p.Remote, transport.ProtoTCP, p.Port)
	}
	return HostSelector(p.Local, transport.ProtoTCP, p.Port), HostSelector(p.Remote, transport.ProtoTCP, 0)
}

func (p Peer) outName() string { return p.Name + "-out" }
func (p Peer) inName() string  { return p.Name + "-in" }
