package iwarptest

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"
)

// TestPortIsNobodyElses until the test that was given it has ended: not another test's,
// nor one of those that the kernel gives to whoever asks for any.
func TestPortIsNobodyElses(t *testing.T) {
	for network, free := range map[string]func(testing.TB) uint16{"tcp": FreePort, "udp": FreeUDPPort} {
		data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		if err != nil {
			t.Skip(err)
		}
		var low, high uint16
		if _, err := fmt.Sscan(string(data), &low, &high); err != nil {
			t.Fatal(err)
		}
		if p := free(t); low >= pastPorts && p >= low && p <= high {
			t.Errorf("%s port %d is one that the kernel gives away, %d to %d", network, p, low, high)
		}
	}
	first := int(FreePort(t))
	listen := func(addr string) (io.Closer, error) { return net.Listen("tcp", addr) }
	draw := func(t *testing.T) uint16 { return freePort(t, "a test", first, first+2, listen) }
	t.Run("two", func(t *testing.T) {
		if a, b := draw(t), draw(t); a == b {
			t.Errorf("port %d was given twice", a)
		}
	})
	t.Run("again", func(t *testing.T) {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if p := draw(t); int(p) != first+1 {
			t.Errorf("port %d was given, which somebody listens on", p)
		}
	})
}
