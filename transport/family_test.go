package transport_test

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

// Two listeners on all addresses of IPv4 and of IPv6 may have one port, if each says that it is for its family alone.
func TestListenersOfOneFamily(t *testing.T) {
	cfg := &transport.Config{Protector: transport.LoopbackOnly(), OneFamily: true}
	four, err := transport.Listen(t.Context(), netip.MustParseAddrPort("0.0.0.0:0"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer four.Close()
	six, err := transport.Listen(t.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), four.Addr().Port()), cfg)
	if err != nil {
		t.Fatalf("beside %v: %v", four.Addr(), err)
	}
	defer six.Close()
	for _, to := range []string{"127.0.0.1", "::1"} {
		c, err := transport.Dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(to), four.Addr().Port()), cfg)
		if err != nil {
			t.Errorf("%s: %v", to, err)
			continue
		}
		c.Close()
	}
}
