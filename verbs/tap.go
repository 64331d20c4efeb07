package verbs

import (
	"net/netip"

	"github.com/ironwarp/ironwarp/ddp/tap"
	"github.com/ironwarp/ironwarp/transport"
)

// Tap is where the streams of the device can be watched, those that others hand to Adopt excepted.
func (d *Device) Tap() *tap.Tap { return &d.tap }

// link is a TCP connection as it is shown to those who watch.
func (d *Device) link(c *transport.Conn) *tap.Link {
	f := c.Flow()
	return &tap.Link{Tap: &d.tap, Protocol: tap.TCP, Local: f.Local, Remote: f.Remote, Peer: string(c.Protection().Peer())}
}

// linkOf is an association as it is shown to those who watch, by its first path.
func (d *Device) linkOf(a *transport.Assoc) *tap.Link {
	f := a.Flow()
	local, peer := a.Ports()
	l := &tap.Link{Tap: &d.tap, Protocol: tap.SCTP, Local: netip.AddrPortFrom(f.Local.Addr(), local), Remote: netip.AddrPortFrom(f.Remote.Addr(), peer), Peer: string(a.Protection().Peer())}
	if f.Protocol == transport.ProtoUDP {
		l.Protocol, l.LocalUDP, l.RemoteUDP = tap.SCTPUDP, f.Local.Port(), f.Remote.Port()
	}
	return l
}
