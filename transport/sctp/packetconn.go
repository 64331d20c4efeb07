package sctp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// packetConn is a carrier without a kernel: it sends and reads packets one by one, and has
// one address.
type packetConn struct {
	conn net.PacketConn
	at   netip.AddrPort
}

func newPacketConn(conn net.PacketConn) (packetConn, error) {
	at, ok := udpAddrPort(conn.LocalAddr())
	if !ok {
		return packetConn{}, fmt.Errorf("its address %v is no *net.UDPAddr", conn.LocalAddr())
	}
	return packetConn{conn, at}, nil
}

func udpAddrPort(a net.Addr) (netip.AddrPort, bool) {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), true
}

func (k packetConn) send(to netip.AddrPort, s *sender) (first error) {
	s.refused = 0
	at := net.UDPAddrFromAddrPort(to)
	for _, p := range s.batch.packets {
		if _, err := k.conn.WriteTo(p, at); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (k packetConn) read(r *demux) error {
	b := make([]byte, readBufferSize)
	for {
		n, addr, err := k.conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if from, ok := udpAddrPort(addr); ok {
			r.now = r.e.now()
			r.packet(from, packet(b[:n]))
			r.finish()
		}
	}
}

func (k packetConn) local() netip.AddrPort              { return k.at }
func (k packetConn) recvBuffer() int                    { return socketBuffer }
func (k packetConn) mtu(netip.Addr, netip.AddrPort) int { return 0 }
func (k packetConn) close()                             { k.conn.Close() }
