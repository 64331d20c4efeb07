package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// chooser is a Protector that wants certain local ports.
type chooser struct {
	fake
	lo, hi uint16
	err    error
}

func (c *chooser) LocalPorts(context.Context, Flow) (lo, hi uint16, err error) {
	return c.lo, c.hi, c.err
}

func TestDialBindsAPortOfTheRangeThatTheProtectorAsksFor(t *testing.T) {
	l := listen(t, &Config{Protector: LoopbackOnly()})
	c := &chooser{lo: 61440, hi: 62463} // outside the kernel's own range of ephemeral ports
	var mu sync.Mutex
	prepared := map[uint16]int{}
	c.prepare = func(_ context.Context, f Flow) error {
		mu.Lock()
		defer mu.Unlock()
		prepared[f.Local.Port()]++
		return nil
	}
	for _, cfg := range []*Config{
		{Protector: c},
		{Protector: c, Local: netip.MustParseAddr("127.0.0.1")},
		{Protector: PerPeer(func(netip.Addr) (Protector, error) { return c, nil })},
	} {
		for range 20 {
			conn, err := Dial(t.Context(), l.Addr(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if p := conn.Flow().Local.Port(); p < c.lo || p > c.hi {
				t.Errorf("local port %d, %d to %d are wanted", p, c.lo, c.hi)
			}
			conn.Close()
		}
	}
	if prepared[c.lo] != 60 {
		t.Errorf("Prepare was asked about these local ports: %v", prepared)
	}
}

func TestDialOverIPv6BindsAPortOfTheRange(t *testing.T) {
	l, err := Listen(t.Context(), netip.MustParseAddrPort("[::1]:0"), &Config{Protector: LoopbackOnly()})
	if err != nil {
		t.Skip("no IPv6 loopback here: ", err)
	}
	defer l.Close()
	conn, err := Dial(t.Context(), l.Addr(), &Config{Protector: &chooser{lo: 50000, hi: 50511}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if p := conn.Flow().Local.Port(); p < 50000 || p > 50511 {
		t.Errorf("local port %d", p)
	}
}

func TestDialPassesOverPortsThatAreTakenAndSaysWhenNoneIsLeft(t *testing.T) {
	l := listen(t, &Config{Protector: LoopbackOnly()})
	const lo, hi = 61000, 61003
	for port := uint16(lo); port < hi; port++ {
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)))
		if err != nil {
			t.Skip("a port that the test wants is taken: ", err)
		}
		defer ln.Close()
	}
	cfg := &Config{Protector: &chooser{lo: lo, hi: hi}, Local: netip.MustParseAddr("127.0.0.1")}
	conn, err := Dial(t.Context(), l.Addr(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if p := conn.Flow().Local.Port(); p != hi {
		t.Errorf("local port %d, only %d was free", p, hi)
	}
	_, err = Dial(t.Context(), l.Addr(), cfg)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "61000 to 61003") {
		t.Errorf("with all ports taken: %v", err)
	}
	conn.NetConn().(*net.TCPConn).SetLinger(0) // the port is to be free again at once
	conn.Close()
}

func TestDialFailsWhereTheProtectorNamesNoPorts(t *testing.T) {
	l := listen(t, &Config{Protector: LoopbackOnly()})
	broken := errors.New("no lane")
	for _, c := range []*chooser{{err: broken}, {lo: 9, hi: 3}, {hi: 3}} {
		conn, err := Dial(t.Context(), l.Addr(), &Config{Protector: c})
		if err == nil {
			conn.Close()
			t.Errorf("ports %d to %d, %v: dialled", c.lo, c.hi, c.err)
		}
		if c.err != nil && !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	}
}

func TestDialPreparesAgainWhenTheSAWentBeforeTheFirstPacket(t *testing.T) {
	l := listen(t, &Config{Protector: LoopbackOnly()})
	for _, tc := range []struct {
		name  string
		after int // how many times Prepare is asked until the guard lets packets pass
		err   error
	}{
		{"it comes back", 4, nil},
		{"it never does", 1 << 30, syscall.EPERM},
	} {
		t.Run(tc.name, func(t *testing.T) {
			prepared := 0
			c := &chooser{lo: 52000, hi: 52999}
			c.prepare = func(context.Context, Flow) error { prepared++; return nil }
			d := net.Dialer{Control: func(string, string, syscall.RawConn) error {
				if prepared < tc.after {
					return os.NewSyscallError("connect", syscall.EPERM)
				}
				return nil
			}}
			nc, err := connect(t.Context(), func() (net.Conn, error) { return d.DialContext(t.Context(), "tcp", l.Addr().String()) }, Flow{Protocol: ProtoTCP, Remote: l.Addr()}, c)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if err == nil {
				nc.Close()
			} else if !strings.Contains(err.Error(), "guard") {
				t.Errorf("the error does not say who refused: %v", err)
			}
			if prepared < min(tc.after, 5) {
				t.Errorf("Prepare was asked %d times", prepared)
			}
		})
	}
}
