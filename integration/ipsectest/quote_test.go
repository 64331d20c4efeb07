package ipsectest

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/transport"
)

// pattern is a random text that fills the payload of what ESP carries, so that
// any 64 bytes of it show where it has leaked.
type pattern []byte

func newPattern() pattern {
	b := make([]byte, 16)
	rand.Read(b)
	return pattern(hex.EncodeToString(b))
}

// fill is n bytes of the repeated canary.
func (c pattern) fill(n int) []byte { return bytes.Repeat(c, n/len(c)+1)[:n] }

// in counts the canary in all packets that a capture has recorded.
func (c pattern) in(t *testing.T, wire *recording) int {
	t.Helper()
	if _, err := wire.Count(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(wire.file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(data, c)
}

// recording is a capture to a file, in which a test looks for its own canaries, some of
// which have to be there.
type recording struct {
	*lab.Capture
	file string
}

func record(t *testing.T, h *host) *recording {
	t.Helper()
	r := &recording{file: filepath.Join(t.TempDir(), "wire.pcap")}
	r.Capture = captureWith(t, h, lab.CaptureOptions{File: r.file, SnapLen: 1 << 16, Unjudged: "the test has canaries of its own, of which some have to be found"})
	return r
}

// unlimited lets a host answer every packet by ICMP: by default kernels answer only a
// few in a second.
func unlimited(t *testing.T, h *lab.Host) {
	t.Helper()
	sh(t, h, "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 && sysctl -qw net.ipv4.icmp_msgs_per_sec=100000 net.ipv4.icmp_msgs_burst=10000 2>/dev/null; true")
}

// datagramSocket is an unconnected one.
func datagramSocket(t *testing.T, h *lab.Host, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestKernelDoesNotQuoteWhatESPCarried closes the socket of one end while the SA is up
// and the other end goes on sending, as when a daemon is killed. The kernel answers
// each packet that it has decrypted by ICMP, which quotes it. In the end the guard is
// removed: then the canary is on the wire.
func TestKernelDoesNotQuoteWhatESPCarried(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			row(t, "SCTP in UDP, "+f.name+": what came by ESP for a socket that is gone is not quoted in clear, at either end")
			p := newPair(t, lab.Config{})
			p.kind = transport.SCTPUDP
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			p.addPeers(t)
			for _, h := range []*host{p.alpha, p.beta} {
				unlimited(t, h.Host)
			}
			dialled := netip.AddrPortFrom(p.beta.at(), udpPort)
			if err := p.alpha.m.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoUDP, Remote: dialled}); err != nil {
				t.Fatal(err)
			}
			// try makes from send to a host's port on which nothing listens.
			try := func(wire *recording, from *net.UDPConn, h *host, to netip.AddrPort) int {
				t.Helper()
				c := newPattern()
				before := unanswered(t, h)
				eventually(t, "the kernel of "+h.Name()+" has answered ten datagrams", func() bool {
					if _, err := from.WriteToUDPAddrPort(c.fill(1000), to); err != nil {
						t.Logf("sending to %v: %v", to, err)
					}
					return unanswered(t, h) >= before+10
				})
				return c.in(t, wire)
			}
			ends := func() (n int) {
				t.Helper()
				wire := record(t, p.beta)
				a := datagramSocket(t, p.alpha.Host, netip.AddrPortFrom(p.alpha.at(), 0))
				n = try(wire, a, p.beta, dialled) // the end that was dialled is killed
				b := datagramSocket(t, p.beta.Host, dialled)
				at := a.LocalAddr().(*net.UDPAddr).AddrPort()
				a.Close()
				n += try(wire, b, p.alpha, netip.AddrPortFrom(p.alpha.at(), at.Port())) // the end that has dialled
				b.Close()
				if k := counted(t, wire.Capture); k.ESP == 0 {
					t.Errorf("no datagram was in ESP: %v", k)
				}
				return n
			}
			if n := ends(); n != 0 {
				t.Errorf("what ESP carried is quoted on the wire, %d times", n)
			}
			for _, h := range []*host{p.alpha, p.beta} {
				h.stop() // it would restore the table
				dropGuardTable(t, h.Host)
			}
			if ends() == 0 {
				t.Error("without the guard nothing is quoted: the check cannot fail")
			}
		})
	}
}

// unanswered counts the datagrams that came to a host for no socket.
func unanswered(t *testing.T, h *host) uint64 {
	t.Helper()
	if h.v6 {
		return counter(t, h, "/proc/net/snmp6", "Udp6NoPorts")
	}
	return counter(t, h, "/proc/net/snmp", "Udp", "NoPorts")
}

// counter reads a counter of the network: a line of its name and value, or one
// of names and one of values below it.
func counter(t *testing.T, h *host, file string, names ...string) (n uint64) {
	t.Helper()
	out, err := h.Run(t.Context(), "cat", file)
	if err != nil {
		t.Fatal(err)
	}
	var head []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && len(names) == 1 && f[0] == names[0]:
			n, err = strconv.ParseUint(f[1], 10, 64)
		case len(names) < 2 || f[0] != names[0]+":":
		case head == nil:
			head = f
		default:
			n, err = strconv.ParseUint(f[slices.Index(head, names[1])], 10, 64)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// dropGuardTable removes the part of all of a host's guards that stops ICMP from
// quoting what ESP carried.
func dropGuardTable(t *testing.T, h *lab.Host) {
	t.Helper()
	changeTables(t, h, func(c *nftables.Conn, table *nftables.Table) {
		c.AddTable(table) // so that its absence is no error
		c.DelTable(table)
	})
}

// changeTables changes nf_tables on a host.
func changeTables(t *testing.T, h *lab.Host, change func(c *nftables.Conn, guard *nftables.Table)) {
	t.Helper()
	err := h.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		change(c, &nftables.Table{Name: "ironwarp-guard", Family: nftables.TableFamilyINet})
		return c.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
}
