package guard

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/internal/nsdo/nsdotest"
	"github.com/ironwarp/ironwarp/transport"
)

// TestGuardStaysWhileSocketsCannotBeEnded has a kernel that ends no sockets, and
// then the one that there is. A file descriptor of another process would not help:
// what is ended is the socket.
func TestGuardStaysWhileSocketsCannotBeEnded(t *testing.T) {
	nsdotest.Connected(t, "127.0.0.1:7471", func(dialled, _ *net.TCPConn) error {
		twin, err := dialled.File() // as a child process would have it
		if err != nil {
			return err
		}
		defer twin.Close()
		g := Spec{Remote: netip.MustParseAddr("127.0.0.1"), Port: 7471}
		other := g
		other.Port = 7472
		if err := EndSockets(other); err != nil {
			t.Errorf("a link without sockets: %v", err)
		}
		if err := Install(g); err != nil {
			return err
		}
		before, err := List("")
		if err != nil {
			return err
		}
		var held *HeldError
		err = removeBy(g, func(s LinkSocket) error {
			if s.Local.Port() == g.Port {
				return syscall.EOPNOTSUPP // the other one is ended, as far as the kernel says
			}
			return nil
		})
		if !errors.As(err, &held) || len(held.Sockets) != 2 || !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), "stays") || !strings.Contains(err.Error(), "ESTABLISHED") {
			t.Errorf("sockets that cannot be ended: %v", err)
		}
		holes, herr := Holes(g)
		if after, err := List(""); err != nil || herr != nil || len(holes) > 0 || len(before) == 0 || len(after) != len(before) {
			t.Errorf("of the guard's %d policies %d are left: %v, %v", len(before), len(after), holes, errors.Join(err, herr))
		}
		if err := Remove(g); err != nil {
			t.Errorf("sockets that can be: %v", err)
		}
		if after, err := List(""); err != nil || len(after) > 0 {
			t.Errorf("the guard is still there: %v, %v", after, err)
		}
		if left, err := LinkSockets(g); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
		if _, err := dialled.Write([]byte("x")); err == nil {
			t.Error("the connection goes on")
		}
		again, err := net.Dial("tcp", "127.0.0.1:7471") // the listener is everybody's
		if err == nil {
			again.Close()
		}
		return err
	})
}

// TestSocketsAreEndedHoweverSlowTheMachine has no time left when the sockets were listed
// for the first time.
func TestSocketsAreEndedHoweverSlowTheMachine(t *testing.T) {
	nsdotest.Connected(t, "127.0.0.1:7471", func(_, _ *net.TCPConn) error {
		return endSocketsBy(Spec{Remote: netip.MustParseAddr("127.0.0.1"), Port: 7471}, 0, LinkSocket.end)
	})
}

// TestAssociationsOfTheKernelAreRead reads /proc/net/sctp/assocs as Linux 6.1
// writes it.
func TestAssociationsOfTheKernelAreRead(t *testing.T) {
	const text = ` ASSOC     SOCK   STY SST ST HBKT ASSOC-ID TX_QUEUE RX_QUEUE UID INODE LPORT RPORT LADDRS <-> RADDRS HBINT INS OUTS MAXRT T1X T2X RTXC wmema wmemq sndbuf rcvbuf
       0        0 2   1   4  0    5    2048        0       0 0 40000  7471  *10.0.0.1 10.0.1.1 <-> *10.0.0.2 10.0.1.2 	   30000    10    10   10    0    0        0        1        2048   212992   212992
       0        0 2   1   3  0    6       0        0       0 77 7471  41000  *fd99::1 <-> *fd99::2 	   30000    10    10   10    0    0        0        1        0   212992   212992
e5810df9 d77bd006 2   1   3  0       3        0        0       0 10953 50451  7471  127.0.0.1 <-> *127.0.0.1 	    7500    10    10   10    0    0        0        1        0   212992   212992
40370cc7 8e3aef80 2   10  3  0       6        0        0       0 10955 7471  39653  0000:0000:0000:0000:0000:0000:0000:0001 <-> *0000:0000:0000:0000:0000:0000:0000:0001 127.0.0.1 	    7500    10    10   10    0    0        0        1        0   212992   212992
`
	for _, c := range []struct {
		remote string
		port   uint16
		want   string
	}{
		{"10.0.0.2", 7471, "sctp from 10.0.0.1:40000 to 10.0.0.2:7471, SHUTDOWN-PENDING, of no program"},
		{"10.0.1.2", 7471, "sctp from 10.0.0.1:40000 to 10.0.1.2:7471, SHUTDOWN-PENDING, of no program"},
		{"fd99::2", 7471, "sctp from [fd99::1]:7471 to [fd99::2]:41000, ESTABLISHED"},
		{"127.0.0.1", 50451, "sctp from 127.0.0.1:50451 to 127.0.0.1:7471, ESTABLISHED"}, // this and the next: read from a kernel
		{"::1", 7471, "sctp from [::1]:7471 to [::1]:39653, ESTABLISHED"},
		{"10.0.0.3", 7471, ""},
		{"10.0.0.2", 7472, ""},
	} {
		got := ""
		for _, s := range parseAssociations(Spec{Remote: netip.MustParseAddr(c.remote), Protocol: transport.ProtoSCTP, Port: c.port}, text) {
			got += s.String()
		}
		if got != c.want {
			t.Errorf("%s port %d: %q, want %q", c.remote, c.port, got, c.want)
		}
	}
}
