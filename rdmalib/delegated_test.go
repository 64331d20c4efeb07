package rdmalib

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/delegate"
)

// delegated is a program whose daemon has some terms.
func delegated(t *testing.T, terms delegate.Terms) *delegate.Client {
	t.Helper()
	served := make(chan struct{})
	c, err := delegate.New(t.Context(), func(context.Context) (*net.UnixConn, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		var ends [2]*net.UnixConn
		for i, fd := range fds {
			f := os.NewFile(uintptr(fd), "")
			conn, err := net.FileConn(f)
			f.Close()
			if err != nil {
				return nil, err
			}
			ends[i] = conn.(*net.UnixConn)
		}
		s := delegate.NewServing(ends[1], nil, new(delegate.Account))
		go func() {
			defer close(served)
			s.Tell(terms)
			_ = s.Run(context.Background(), func() bool { return false })
		}()
		return ends[0], nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-served
	})
	return c
}

func TestWhereAProgramMayListen(t *testing.T) {
	some := []delegate.Ports{{Low: 18432, High: 18433}, {Low: 20000, High: 20000}}
	for _, tc := range []struct {
		name  string
		terms delegate.Terms
		at    string
		want  []uint16
		words string // of the refusal
	}{
		{"one of its ports", delegate.Terms{Ports: some, Listen: true}, "0.0.0.0:18433", []uint16{18433}, ""},
		{"any", delegate.Terms{Ports: some, Listen: true}, "192.0.2.1:0", []uint16{18432, 18433, 20000}, ""},
		{"any of none", delegate.Terms{Listen: true}, "[::]:0", nil, "none of those"},
		{"another's", delegate.Terms{Ports: some, Listen: true}, "0.0.0.0:18434", nil, "port 18434 is none of those at which others may reach programs of yours (18432 to 18433, 20000)"},
		{"it may not", delegate.Terms{Account: "alice", Ports: some}, "0.0.0.0:18433", nil, "ULP alice takes no connections: `ironwarp ulp set --listen alice`"},
		{"within the host", delegate.Terms{}, "127.0.0.1:18434", []uint16{18434}, ""},
		{"within the host, by IPv6", delegate.Terms{}, "[::1]:0", []uint16{0}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, ports := Delegated(delegated(t, tc.terms), transport.TCP)
			got, err := ports(netip.MustParseAddrPort(tc.at))
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if (err == nil) != (tc.words == "") || err != nil && (!errors.Is(err, transport.ErrNotProtected) || !strings.Contains(err.Error(), tc.words)) {
				t.Errorf("%v, want %q", err, tc.words)
			}
		})
	}
}
