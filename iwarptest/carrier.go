package iwarptest

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

// SCTPInUDP returns a Config for both ends of SCTP in UDP within this host, with a free
// UDP port at addr, a loopback address.
func SCTPInUDP(t testing.TB, addr netip.Addr) *transport.Config {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
}
