package iwarptest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports of tests are below those that Linux gives away by itself, to whoever connects
// or listens at port 0.
const (
	firstPort = 10000
	pastPorts = 32768
)

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on. No other test of this
// host gets it before t has ended.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	return freePort(t, "tcp", firstPort, pastPorts, func(addr string) (io.Closer, error) { return net.Listen("tcp", addr) })
}

// FreeUDPPort is FreePort for UDP.
func FreeUDPPort(t testing.TB) uint16 {
	t.Helper()
	return freePort(t, "udp", firstPort, pastPorts, func(addr string) (io.Closer, error) { return net.ListenPacket("udp", addr) })
}

// freePort draws a port. It reserves it by the name of an abstract Unix socket, which one
// process holds at a time and which disappears with it.
func freePort(t testing.TB, network string, first, past int, listen func(addr string) (io.Closer, error)) uint16 {
	t.Helper()
	n := past - first
	at := rand.IntN(n)
	for i := range n {
		port := first + (at+i)%n
		taken, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@ironwarp-test-%s-%d", network, port)})
		if err != nil {
			continue
		}
		l, err := listen(fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			taken.Close()
			continue
		}
		l.Close()
		t.Cleanup(func() { taken.Close() })
		return uint16(port)
	}
	t.Fatalf("no %s port from %d to %d is free", network, first, past-1)
	return 0
}
