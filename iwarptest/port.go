package iwarptest

import (
	"net"
	"testing"
)

// FreePort is a TCP port of 127.0.0.1 that nobody listens on.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// FreeUDPPort is a UDP port of 127.0.0.1 that nobody uses.
func FreeUDPPort(t testing.TB) uint16 {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return uint16(c.LocalAddr().(*net.UDPAddr).Port)
}
