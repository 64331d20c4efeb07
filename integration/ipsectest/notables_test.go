package ipsectest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// tablelessVar starts the test program as one for which the kernel has no nf_tables:
// its netlink socket for them is refused, as by a kernel without them. The program
// installs, probes or removes a guard, and prints the result.
const tablelessVar = "IRONWARP_IPSECTEST_TABLELESS"

func tableless() int {
	// if (nr == socket && args[2] == NETLINK_NETFILTER && args[0] == AF_NETLINK) return EPROTONOSUPPORT
	const nr, arg0, arg2 = 0, 16, 32
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_NETLINK, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.NETLINK_NETFILTER, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		fmt.Println(errno)
		return 1
	}
	f := strings.Split(os.Getenv(tablelessVar), ",")
	g := guard.Spec{Remote: netip.MustParseAddr(f[1]), Protocol: transport.ProtoUDP, Port: udpPort, DataPlane: esp.Userland}
	var err error
	switch f[0] {
	case "install":
		err = guard.Install(g)
	case "check":
		var holes []guard.Hole
		if err = guard.Probe(g); err == nil {
			holes, err = guard.Holes(g)
		}
		if len(holes) > 0 {
			err = fmt.Errorf("%v", holes)
		}
	case "remove":
		err = guard.Remove(g)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestWithoutTablesNoICMPErrorGoesToThePeer simulates a kernel without nf_tables, whose
// guard cannot see what is quoted: it stops all errors to the peer, and no other ICMP.
// A guard that later finds nf_tables lets the rest pass.
func TestWithoutTablesNoICMPErrorGoesToThePeer(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := lab.Start(t, lab.Config{NoCharon: true})
			alpha, beta := &host{Host: l.Host("alpha"), v6: f.v6}, &host{Host: l.Host("beta"), v6: f.v6}
			unlimited(t, alpha.Host)
			sh(t, alpha.Host, "sysctl -qw net.ipv4.ipfrag_time=1 net.ipv6.ip6frag_time=1")
			in := newInlet(t, alpha.Host, decrypted)
			wire := record(t, beta)
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			tryGuard := func(what string) error {
				cmd := alpha.Command(t.Context(), exe)
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%v", tablelessVar, what, beta.at()))
				out, err := cmd.CombinedOutput()
				if err != nil {
					return fmt.Errorf("%s: %w: %s", what, err, out)
				}
				return nil
			}
			// leaks counts the answers that quote a port, of those to each packet for this host.
			leaks := func(port uint16) int {
				t.Helper()
				c := newPattern()
				s := quotedScene{peer: beta.at(), here: alpha.at(), port: port, body: c.fill(400)}
				seen := func() uint64 { return stat(t, alpha, "XfrmOutPolBlock") + answers(t, alpha) }
				before := seen()
				for _, q := range quotable {
					if q.v6 != f.v6 || q.proto != 0 || strings.HasPrefix(q.what, "forwarded") {
						continue
					}
					in.write(t, q.packet(s))
					eventually(t, q.what+": the kernel has answered, or was to", func() bool { return seen() > before })
					before = seen()
				}
				return c.in(t, wire)
			}
			if leaks(udpPort) == 0 {
				t.Fatal("without a guard nothing is quoted: the check cannot fail")
			}
			if err := tryGuard("install"); err != nil {
				t.Fatal(err)
			}
			if err := tryGuard("check"); err != nil {
				t.Error(err)
			}
			if n := leaks(udpPort); n != 0 {
				t.Errorf("the link is quoted, %d times", n)
			}
			echoed(t, alpha, beta.at())
			echoed(t, beta, alpha.at())
			sh(t, alpha.Host, "ip xfrm policy flush")
			if err := tryGuard("check"); err == nil {
				t.Error("a guard that was flushed is called whole")
			}
			if err := tryGuard("install"); err != nil {
				t.Fatal(err)
			}
			spec := alpha.specOf(beta, transport.SCTPUDP, esp.Userland)
			if err := guard.Install(spec); err != nil { // with nf_tables
				t.Fatal(err)
			}
			if n := leaks(udpPort); n != 0 {
				t.Errorf("with nf_tables the link is quoted, %d times", n)
			}
			if leaks(udpPort+1) == 0 {
				t.Error("with nf_tables errors of other ports do not pass")
			}
			if err := guard.Remove(spec); err != nil {
				t.Fatal(err)
			}
			if err := tryGuard("install"); err != nil {
				t.Fatal(err)
			}
			if err := tryGuard("remove"); err != nil {
				t.Fatal(err)
			}
			if n := guardSize(t, alpha); n != 0 {
				t.Errorf("%d policies are left", n)
			}
		})
	}
}

// echoed waits for the answer to an ICMP echo request.
func echoed(t *testing.T, h *host, to netip.Addr) {
	t.Helper()
	network, request, reply := "ip4:icmp", []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}, byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0, 0, 0, 0}, 129
	}
	err := h.Do(func() error {
		c, err := net.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(request); err != nil {
			return err
		}
		b := make([]byte, 2048)
		for b[0] = ^reply; b[0] != reply; {
			if _, _, err := c.(*net.IPConn).ReadFrom(b); err != nil { // without the header of IPv4
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("an echo from %s to %v: %v", h.Name(), to, err)
	}
}
