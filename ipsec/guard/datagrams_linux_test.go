package guard

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/internal/nsdo/nsdotest"
	"github.com/ironwarp/ironwarp/transport"
)

// TestGuardOfUDPStaysWhileSocketsAreConnected: what is connected by a port of the link is ended
// before its guard goes, and sends nothing from then on; a socket of another port, and one that
// is not connected, are left alone.
func TestGuardOfUDPStaysWhileSocketsAreConnected(t *testing.T) {
	nsdotest.Connected(t, "127.0.0.1:7471", func(_, _ *net.TCPConn) error {
		peer := netip.MustParseAddr("127.0.0.1")
		g := Spec{Remote: peer, Protocol: transport.ProtoUDP, Port: 18432, Size: 16}
		at := func(port int) *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
		var failed error
		open := func(local, remote *net.UDPAddr) (c *net.UDPConn) {
			var err error
			if remote == nil {
				c, err = net.ListenUDP("udp", local)
			} else {
				c, err = net.DialUDP("udp", local, remote)
			}
			if err != nil {
				failed = errors.Join(failed, err)
				return nil
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		listener := open(at(18440), nil)
		first, last, taken := open(nil, at(18432)), open(nil, at(18447)), open(at(18441), at(40000))
		before, behind := open(nil, at(18431)), open(nil, at(18448))
		if failed != nil {
			return failed
		}
		if err := Install(g); err != nil {
			return err
		}
		var held *HeldError
		err := removeBy(g, func(LinkSocket) error { return syscall.EOPNOTSUPP })
		if !errors.As(err, &held) || len(held.Sockets) != 3 || !strings.Contains(err.Error(), "udp from 127.0.0.1") {
			t.Errorf("sockets that cannot be ended: %v", err)
		}
		proc, err := datagramSockets(g)
		if err != nil || len(proc) != 3 || proc[0].State != "ESTABLISHED" || proc[0].Orphan {
			t.Errorf("by /proc: %v, %v", proc, err)
		}
		if err := Remove(g); err != nil {
			t.Errorf("sockets that can be: %v", err)
		}
		for name, c := range map[string]*net.UDPConn{"of the first port": first, "of the last port": last, "of one that is listened at": taken} {
			// The first error is that of the end.
			_, err1 := c.Write([]byte{1})
			if _, err2 := c.Write([]byte{1}); err1 == nil || err2 == nil {
				t.Errorf("the socket %s sends: %v, %v", name, err1, err2)
			}
		}
		for name, c := range map[string]*net.UDPConn{"before the block": before, "behind it": behind} {
			if _, err := c.Write([]byte{1}); err != nil {
				t.Errorf("the socket %s has ended: %v", name, err)
			}
		}
		if _, err := listener.WriteTo([]byte{1}, at(40001)); err != nil {
			t.Errorf("a socket that is not connected has ended: %v", err)
		}
		return nil
	})
}

// TestDatagramSocketsAreRead as Linux 6.18 prints them, on a host whose memory has the least significant byte first.
func TestDatagramSocketsAreRead(t *testing.T) {
	a, ok := hexAddrPort("0100007F:4800")
	b, ok6 := hexAddrPort("000000000000000000000000010000FF:1F90")
	if want := netip.MustParseAddrPort("127.0.0.1:18432"); binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && (!ok || a != want) {
		t.Errorf("%v", a)
	}
	if !ok6 || !b.Addr().Is6() || b.Port() != 8080 {
		t.Errorf("%v", b)
	}
	for _, s := range []string{"", "0100007F", "0100007:1", "0100007F:12345", "01007F:1", ":"} {
		if _, ok := hexAddrPort(s); ok {
			t.Errorf("%q is taken for an address", s)
		}
	}
	if got := parseDatagramSockets(Spec{Remote: netip.MustParseAddr("127.0.0.1"), Port: 1}, "  sl  local_address rem_address\n 1: x y 01 0:0 0:0 0 0 0 7\n"); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
