package iwarptest

import (
	"net"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

// SCTPInUDP returns a Config for both ends of SCTP in UDP within this host, with a free
// UDP port.
func SCTPInUDP(t testing.TB) *transport.Config {
	t.Helper()
	return &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: FreeUDPPort(t)}
}

// TCPPair returns the two ends of a TCP connection on loopback.
func TCPPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}
