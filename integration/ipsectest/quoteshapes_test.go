package ipsectest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// inlet is a tun device through which a test gives packets to a host. One with a name
// as userland ESP's brings what ESP has carried, as charon does.
type inlet struct{ f *os.File }

const decrypted = "ipsec7"

func newInlet(t *testing.T, h *lab.Host, name string) inlet {
	t.Helper()
	var d inlet
	err := h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		d.f = os.NewFile(uintptr(fd), "tun")
		ifr, err := unix.NewIfreq(name)
		if err == nil {
			ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.f.Close() })
	sh(t, h, "ip link set "+name+" up && sysctl -qw net.ipv4.conf."+name+".rp_filter=0")
	return d
}

func (d inlet) write(t *testing.T, packet []byte) {
	t.Helper()
	if _, err := d.f.Write(packet); err != nil {
		t.Fatal(err)
	}
}

// options puts IPv4 options into a packet (RFC 791 section 3.1).
func options(packet []byte, o ...byte) []byte {
	p := slices.Insert(slices.Clone(packet), 20, o...)
	p[0] = byte(0x45 + len(o)/4)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	return fixChecksum(p)
}

// fixChecksum computes the checksum of an IPv4 header again.
func fixChecksum(p []byte) []byte {
	n := int(p[0]&15) * 4
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], sum(p[:n]))
	return p
}

func ttl(p []byte, n byte) []byte {
	if p[0]>>4 == 6 {
		p[7] = n
		return p
	}
	p[8] = n
	return fixChecksum(p)
}

// firstFragment makes a packet look like the first of several.
func firstFragment(p []byte) []byte {
	if p[0]>>4 == 6 {
		return extension(p, 44, 0, 0, 1, 0, 0, 7, 7)
	}
	p = p[:20+(len(p)-20)/8*8]
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[6], p[7] = 0x20, 0
	return fixChecksum(p)
}

// extension puts an IPv6 extension header into a packet, without its first byte
// (RFC 8200 section 4).
func extension(p []byte, kind byte, rest ...byte) []byte {
	p = slices.Clone(p)
	next := p[6]
	p[6] = kind
	p = slices.Insert(p, 40, append([]byte{next}, rest...)...)
	if kind == 44 {
		p = p[:48+(len(p)-48)/8*8]
	}
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	return p
}

// quotable are packets that a kernel answers by ICMP, for various reasons. They have
// come to a host from its peer; the address elsewhere is behind the host, nowhere does
// not exist.
var quotable = []struct {
	what   string
	v6     bool
	proto  transport.Protocol // UDP by default
	hidden bool               // the ports are not where they are looked for
	packet func(s quotedScene) []byte
}{
	{what: "no socket", packet: func(s quotedScene) []byte { return s.udp(s.here) }},
	{what: "no socket, IP options", hidden: true, packet: func(s quotedScene) []byte { return options(s.udp(s.here), 1, 1, 1, 0) }},
	{what: "wrong IP options", hidden: true, packet: func(s quotedScene) []byte { return options(s.udp(s.here), 7, 7, 2, 0, 0, 0, 0, 0) }},
	{what: "reassembly takes too long", packet: func(s quotedScene) []byte { return firstFragment(s.udp(s.here)) }},
	{what: "forwarded, the time to live is over", packet: func(s quotedScene) []byte { return ttl(s.udp(s.elsewhere), 1) }},
	{what: "forwarded, too big", packet: func(s quotedScene) []byte { return whole(s.udp(s.elsewhere)) }},
	{what: "forwarded, no route", packet: func(s quotedScene) []byte { return s.udp(s.nowhere) }},
	{what: "no such protocol", proto: transport.ProtoSCTP, packet: func(s quotedScene) []byte { return s.sctp(s.here) }},
	{what: "no socket", v6: true, packet: func(s quotedScene) []byte { return s.udp(s.here) }},
	{what: "no socket, destination options", v6: true, hidden: true, packet: func(s quotedScene) []byte { return extension(s.udp(s.here), 60, 0, 1, 4, 0, 0, 0, 0) }},
	{what: "no socket, hop-by-hop options", v6: true, hidden: true, packet: func(s quotedScene) []byte { return extension(s.udp(s.here), 0, 0, 1, 4, 0, 0, 0, 0) }},
	{what: "an unknown option", v6: true, hidden: true, packet: func(s quotedScene) []byte { return extension(s.udp(s.here), 60, 0, 0xbe, 4, 0, 0, 0, 0) }},
	{what: "reassembly takes too long", v6: true, packet: func(s quotedScene) []byte { return firstFragment(s.udp(s.here)) }},
	{what: "reassembly of options takes too long", v6: true, hidden: true, packet: func(s quotedScene) []byte {
		return firstFragment(extension(s.udp(s.here), 60, 0, 1, 4, 0, 0, 0, 0))
	}},
	{what: "no such protocol", v6: true, proto: transport.ProtoSCTP, packet: func(s quotedScene) []byte { return s.sctp(s.here) }},
}

// quotedScene is where a packet goes, and what is in it.
type quotedScene struct {
	peer, here, elsewhere, nowhere netip.Addr
	port                           uint16
	body                           []byte
}

func (s quotedScene) udp(to netip.Addr) []byte {
	return datagram{from: netip.AddrPortFrom(s.peer, 4711), to: netip.AddrPortFrom(to, s.port), data: s.body}.packet()
}

func (s quotedScene) sctp(to netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 4711), s.port)
	return header(s.peer, to, unix.IPPROTO_SCTP, append(b, s.body...))
}

// whole forbids to fragment a packet.
func whole(p []byte) []byte {
	p[6] |= 0x40
	return fixChecksum(p)
}

// TestEveryAnswerThatQuotesTheLinkIsStopped provokes each answer of a kernel to what
// ESP has brought: with the guard, without it, and for another port, whose answers the
// guard lets pass.
func TestEveryAnswerThatQuotesTheLinkIsStopped(t *testing.T) {
	l := lab.Start(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}, NoCharon: true})
	alpha, beta, gamma := &host{Host: l.Host("alpha")}, &host{Host: l.Host("beta")}, l.Host("gamma")
	unlimited(t, alpha.Host)
	sh(t, alpha.Host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.ipfrag_time=1 net.ipv6.ip6frag_time=1 && ip route add unreachable 198.51.100.0/24 && "+
		fmt.Sprintf("ip route add %v dev wire0 mtu lock 600", gamma.Addr()))
	in := newInlet(t, alpha.Host, decrypted)
	wire := record(t, beta)
	for _, q := range quotable {
		t.Run(map[bool]string{false: "IPv4 ", true: "IPv6 "}[q.v6]+q.what, func(t *testing.T) {
			if q.proto == transport.ProtoSCTP && lab.KernelSCTP() == nil {
				t.Skip("this kernel has SCTP, and answers in its own way")
			}
			alpha.v6, beta.v6 = q.v6, q.v6
			k := pad.Link{Protocol: transport.ProtoUDP, Port: udpPort}
			if q.proto != 0 {
				k = pad.Link{Protocol: q.proto, Port: port}
			}
			spec := guard.Spec{NetNS: alpha.NetNS(), Remote: beta.at(), Protocol: k.Protocol, Port: k.Port, DataPlane: esp.Userland}
			if err := guard.Install(spec); err != nil {
				t.Fatal(err)
			}
			answered := func(port uint16) int {
				t.Helper()
				c := newPattern()
				s := quotedScene{peer: beta.at(), here: alpha.at(), elsewhere: gamma.Addr(), nowhere: netip.MustParseAddr("198.51.100.7"), port: port, body: c.fill(1000)}
				before := answers(t, alpha)
				tries := 0
				eventually(t, "the kernel has answered", func() bool {
					if tries%500 == 0 { // it reports that there is no route only once in a while
						in.write(t, q.packet(s))
					}
					tries++
					return answers(t, alpha) > before
				})
				return c.in(t, wire)
			}
			if n := answered(k.Port); n != 0 {
				t.Errorf("the link is quoted, %d times", n)
			}
			if n := answered(k.Port + 1); (n == 0) != q.hidden {
				t.Errorf("a packet of another port is quoted %d times", n)
			}
			dropGuardTable(t, alpha.Host)
			if answered(k.Port) == 0 {
				t.Error("without the guard nothing is quoted: the check cannot fail")
			}
		})
	}
}

// TestForwardedQuotesOfTheLinkAreStopped makes the guarded host forward answers of a
// host behind it: ICMP of all kinds, quotes of all shapes, whole and in fragments.
func TestForwardedQuotesOfTheLinkAreStopped(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := lab.Start(t, lab.Config{NoCharon: true})
			alpha, beta := &host{Host: l.Host("alpha"), v6: f.v6}, &host{Host: l.Host("beta"), v6: f.v6}
			sh(t, alpha.Host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
			in := newInlet(t, alpha.Host, "behind0")
			wire := record(t, beta)
			spec := alpha.specOf(beta, transport.SCTPUDP, esp.Userland)
			behind := netip.MustParseAddr("10.77.0.1")
			proto, kinds, echo := byte(unix.IPPROTO_ICMP), []byte{3, 4, 5, 11, 12, 31, 40}, byte(8)
			if f.v6 {
				behind = netip.MustParseAddr("fd77::1")
				proto, kinds, echo = unix.IPPROTO_ICMPV6, []byte{1, 2, 3, 4, 100, 127, 137}, 128
			}
			s := quotedScene{peer: beta.at(), here: behind, elsewhere: behind, nowhere: behind}
			message := func(kind byte, quote []byte) []byte {
				m := []byte{kind, 1, 0, 0, 0, 0, 0, 0}
				if kind == 137 { // target and destination, and the quote is an option
					m = append(append(append(m, behind.AsSlice()...), behind.AsSlice()...), 4, byte((8+len(quote))/8), 0, 0, 0, 0, 0, 0)
				}
				m = append(m, quote...)
				if f.v6 {
					return ip(behind, beta.at(), proto, 2, m)
				}
				binary.BigEndian.PutUint16(m[2:], sum(m))
				return header(behind, beta.at(), proto, m)
			}
			// forwards waits until an echo request is forwarded: before the packets of a try, so
			// that none is lost while addresses are resolved, and after them, as what is
			// forwarded stays in order.
			forwards := func() {
				t.Helper()
				mark, tries := newPattern(), 0
				eventually(t, "an echo request is forwarded", func() bool {
					if tries%500 == 0 {
						in.write(t, message(echo, mark))
					}
					tries++
					return mark.in(t, wire) > 0
				})
			}
			// try forwards packets that carry a canary, and returns how many got through.
			try := func(port uint16, packets func(s quotedScene) [][]byte) int {
				t.Helper()
				c := newPattern()
				s := s
				s.port, s.body = port, c.fill(400)
				forwards()
				for _, p := range packets(s) {
					in.write(t, p)
				}
				forwards()
				return c.in(t, wire)
			}
			shapes := map[string]func(s quotedScene) [][]byte{}
			for _, kind := range kinds {
				shapes[fmt.Sprintf("type %d", kind)] = func(s quotedScene) [][]byte { return [][]byte{message(kind, s.udp(behind))} }
			}
			// Packets to the peer are quoted as well; from 6.9 on Linux itself checks their
			// quotes against XFRM's policies.
			const fromHere = "sent to the peer"
			shapes[fromHere] = func(s quotedScene) [][]byte {
				d := datagram{from: netip.AddrPortFrom(behind, s.port), to: netip.AddrPortFrom(beta.at(), 4711), data: s.body}
				return [][]byte{message(kinds[0], d.packet())}
			}
			hidden := map[string]bool{"type 137": true}
			for _, q := range quotable {
				if q.v6 == f.v6 && q.proto == 0 {
					shapes[q.what] = func(s quotedScene) [][]byte { return [][]byte{message(kinds[0], q.packet(s))} }
					hidden[q.what] = q.hidden
				}
			}
			shapes["a later fragment is quoted"] = func(s quotedScene) [][]byte {
				p := firstFragment(s.udp(behind))
				if f.v6 { // the offset, in bytes; in IPv4 in eights
					p[40+3] += 8
				} else {
					p[7]++
					p = fixChecksum(p)
				}
				return [][]byte{message(kinds[0], p)}
			}
			hidden["a later fragment is quoted"] = true
			shapes["in fragments"] = func(s quotedScene) [][]byte { return fragments(message(kinds[0], s.udp(behind)), 8) }
			hidden["in fragments"] = true
			for what, packets := range shapes {
				if err := guard.Install(spec); err != nil {
					t.Fatal(err)
				}
				if n := try(udpPort, packets); n != 0 {
					t.Errorf("%s: the link is quoted, %d times", what, n)
				}
				if n := try(udpPort+1, packets); (n == 0) != hidden[what] {
					t.Errorf("%s: a packet of another port is quoted %d times", what, n)
				}
				dropGuardTable(t, alpha.Host)
				if try(udpPort, packets) == 0 && what != fromHere {
					t.Errorf("%s: without the guard nothing is quoted: the check cannot fail", what)
				}
			}
		})
	}
}

// fragments cuts a packet, the first piece with n bytes after its header.
func fragments(p []byte, n int) [][]byte {
	if p[0]>>4 == 6 {
		head := p[:40:40]
		piece := func(offset int, more byte, data []byte) []byte {
			q := append(append(head, p[6], 0, byte(offset>>8), byte(offset)|more, 0, 0, 7, 7), data...)
			q = slices.Clone(q)
			q[6] = 44
			binary.BigEndian.PutUint16(q[4:], uint16(8+len(data)))
			return q
		}
		return [][]byte{piece(0, 1, p[40:40+n]), piece(n, 0, p[40+n:])}
	}
	piece := func(offset int, flags byte, data []byte) []byte {
		q := append(slices.Clone(p[:20]), data...)
		binary.BigEndian.PutUint16(q[2:], uint16(len(q)))
		binary.BigEndian.PutUint16(q[6:], uint16(offset/8))
		q[6] |= flags
		return fixChecksum(q)
	}
	return [][]byte{piece(0, 0x20, p[20:20+n]), piece(n, 0, p[20+n:])}
}

// answers counts the ICMP messages that a host was to send.
func answers(t *testing.T, h *host) uint64 {
	t.Helper()
	if h.v6 {
		// Neighbour solicitations are sent all the time.
		return counter(t, h, "/proc/net/snmp6", "Icmp6OutDestUnreachs") + counter(t, h, "/proc/net/snmp6", "Icmp6OutTimeExcds") + counter(t, h, "/proc/net/snmp6", "Icmp6OutParmProblems")
	}
	return counter(t, h, "/proc/net/snmp", "Icmp", "OutMsgs")
}

// TestWhatESPCarriedIsNotForwarded lets a packet of the link come out of the tun for an
// address that this host does not have, as when its own was removed. In IPv6 the
// policies alone stop it.
func TestWhatESPCarriedIsNotForwarded(t *testing.T) {
	l := lab.Start(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}, NoCharon: true})
	alpha, beta := &host{Host: l.Host("alpha")}, &host{Host: l.Host("beta")}
	sh(t, alpha.Host, "sysctl -qw net.ipv4.ip_forward=1")
	in := newInlet(t, alpha.Host, decrypted)
	if err := guard.Install(alpha.specOf(beta, transport.SCTPUDP, esp.Userland)); err != nil {
		t.Fatal(err)
	}
	wire := record(t, alpha)
	forwarded := func(port uint16) int {
		t.Helper()
		text, last := newPattern(), newPattern()
		s := quotedScene{peer: beta.at(), elsewhere: l.Host("gamma").Addr(), port: port, body: text.fill(400)}
		in.write(t, s.udp(s.elsewhere))
		s.port, s.body = udpPort+2, last.fill(400)
		in.write(t, s.udp(s.elsewhere))
		eventually(t, "a packet of another port is forwarded", func() bool { return last.in(t, wire) > 0 })
		return text.in(t, wire)
	}
	if n := forwarded(udpPort); n != 0 {
		t.Errorf("a packet of the link is forwarded in clear, %d times", n)
	}
	if forwarded(udpPort+1) == 0 {
		t.Error("another port's is not forwarded")
	}
	dropGuardTable(t, alpha.Host)
	if forwarded(udpPort) == 0 {
		t.Error("without the table nothing is forwarded: the check cannot fail")
	}
}

// TestFragmentsOfWhatESPCarriedAreNotForwarded lets the link's packets come out of the
// tun in fragments, of which the later ones have no ports.
func TestFragmentsOfWhatESPCarriedAreNotForwarded(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := newRouter(t, f.v6, esp.Userland)
			carried, clear := newInlet(t, r.alpha.Host, decrypted), newInlet(t, r.alpha.Host, "behind0")
			r.stops(t, carried.write)
			if r.forwarded(t, clear.write, r.beta.at()) == 0 {
				t.Error("what came in clear is not forwarded: that is none of the guard's business")
			}
			r.forwardsWithoutTable(t, carried.write)
		})
	}
}

// The kernel's ESP marks what it has carried by the packet's secpath, and has a policy
// for what is forwarded.
func TestKernelFragmentsOfWhatESPCarriedAreNotForwarded(t *testing.T) {
	requireKernelESP(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			row(t, "pieces of a packet of the link that the kernel's ESP brings for another host, "+f.name+": not forwarded in clear, and others' are")
			r := newRouter(t, f.v6, esp.Kernel)
			ends := fmt.Sprintf("src %s dst %s", r.beta.at(), r.alpha.at())
			for _, h := range []*host{r.alpha, r.beta} {
				sh(t, h.Host, "ip xfrm state add "+ends+" proto esp spi 0x707 mode tunnel aead 'rfc4106(gcm(aes))' 0x"+strings.Repeat("5a", 20)+" 128")
			}
			any := map[bool]string{false: "0.0.0.0/0", true: "::/0"}[f.v6]
			for h, dir := range map[*host]string{r.beta: "out", r.alpha: "fwd"} {
				sh(t, h.Host, fmt.Sprintf("ip xfrm policy add src %s dst %s dir %s priority 900000 tmpl %s proto esp mode tunnel", any, r.gamma.at(), dir, ends))
			}
			send := rawSender(t, r.beta)
			before := espIn(t, r.alpha)
			r.stops(t, send)
			if espIn(t, r.alpha) == before {
				t.Error("nothing was carried by ESP")
			}
			r.forwardsWithoutTable(t, send)
		})
	}
}

// espIn is how many packets a host's ESP states have seen.
func espIn(t *testing.T, h *host) string {
	t.Helper()
	out, err := h.Run(t.Context(), "sh", "-c", "ip -s xfrm state | grep '(bytes), '")
	if err != nil {
		t.Fatal(err, out)
	}
	return out
}

// rawSender sends packets as they are, as far as a host's policies permit.
func rawSender(t *testing.T, h *host) func(*testing.T, []byte) {
	t.Helper()
	family, to := unix.AF_INET, func(p []byte) unix.Sockaddr { return &unix.SockaddrInet4{Addr: [4]byte(p[16:20])} }
	if h.v6 {
		family, to = unix.AF_INET6, func(p []byte) unix.Sockaddr { return &unix.SockaddrInet6{Addr: [16]byte(p[24:40])} }
	}
	fd := -1
	if err := h.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(t *testing.T, p []byte) {
		t.Helper()
		if err := unix.Sendto(fd, p, 0, to(p)); err != nil {
			t.Fatal(err)
		}
	}
}

// router is a host that forwards to gamma, and has a guard of its link with beta.
type router struct {
	alpha, beta, gamma *host
	wire               *recording
	behind             netip.Addr // beyond beta
}

func newRouter(t *testing.T, v6 bool, plane esp.Plane) *router {
	t.Helper()
	l := lab.Start(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}, NoCharon: true})
	r := &router{alpha: &host{Host: l.Host("alpha"), v6: v6}, beta: &host{Host: l.Host("beta"), v6: v6}, gamma: &host{Host: l.Host("gamma"), v6: v6},
		behind: netip.MustParseAddr(map[bool]string{false: "10.77.0.1", true: "fd77::1"}[v6])}
	sh(t, r.alpha.Host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	if err := guard.Install(r.alpha.specOf(r.beta, transport.SCTPUDP, plane)); err != nil {
		t.Fatal(err)
	}
	r.wire = record(t, r.alpha)
	return r
}

// forwarded sends a packet to the link's port in two fragments, and counts how often
// the second is on the wire.
func (r *router) forwarded(t *testing.T, write func(*testing.T, []byte), from netip.Addr) int {
	t.Helper()
	text, last := newPattern(), newPattern()
	s := quotedScene{peer: from, port: udpPort, body: text.fill(400)}
	packets := fragments(s.udp(r.gamma.at()), 8)
	s = quotedScene{peer: r.behind, port: udpPort + 2, body: last.fill(400)}
	packets = append(packets, s.udp(r.gamma.at()))
	eventually(t, "a packet of somebody else's is forwarded", func() bool {
		for _, p := range packets { // the first ones get lost while neighbours are resolved
			write(t, p)
		}
		return last.in(t, r.wire) > 0
	})
	return text.in(t, r.wire)
}

// stops checks that the link's fragments are not forwarded, and others are.
func (r *router) stops(t *testing.T, write func(*testing.T, []byte)) {
	t.Helper()
	if n := r.forwarded(t, write, r.beta.at()); n != 0 {
		t.Errorf("a piece of the link's packet is forwarded in clear, %d times", n)
	}
	if r.forwarded(t, write, r.behind) == 0 {
		t.Error("another host's are not forwarded")
	}
}

// forwardsWithoutTable is the control.
func (r *router) forwardsWithoutTable(t *testing.T, write func(*testing.T, []byte)) {
	t.Helper()
	dropGuardTable(t, r.alpha.Host)
	if r.forwarded(t, write, r.beta.at()) == 0 {
		t.Error("without the table nothing is forwarded: the check cannot fail")
	}
}
