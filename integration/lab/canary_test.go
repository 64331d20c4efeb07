package lab

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// bare is an IP packet without its frame.
func bare(frame []byte) []byte { return frame[14:] }

// icmp is an ICMP message that quotes a packet.
func icmp(kind, code byte, quote []byte) []byte {
	return append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, quote...)
}

func TestCanaryIsFoundWhereverItWasCut(t *testing.T) {
	c := NewCanary()
	f := newFinder(c)
	text := c.Bytes(64)
	if string(text[8:16]) != string(c) || c == NewCanary() {
		t.Fatalf("%q is filled with as %q", c, text)
	}
	noise := make([]byte, 1<<20)
	source := rand.NewChaCha8([32]byte{1})
	source.Read(noise)
	if at := f.in(noise); at >= 0 {
		t.Errorf("found in noise at %d", at)
	}
	for from := range 8 {
		for at := range 17 {
			b := make([]byte, 40)
			copy(b[at:], text[from:from+8])
			if got := f.in(b); got != at {
				t.Errorf("8 bytes of it from byte %d, put at %d, are found at %d", from, at, got)
			}
			b[at] = 0
			if got := f.in(b); got >= 0 {
				t.Errorf("7 bytes of it are found at %d", got)
			}
		}
	}
}

// TestCanaryIsFoundInEveryKindOfPacket puts it wherever a leak may put it, and checks
// that the same packets are no fault when they are encrypted or harmless.
func TestCanaryIsFoundInEveryKindOfPacket(t *testing.T) {
	canary := NewCanary()
	text := canary.Bytes(100)[3:] // as a segment's end may cut it
	inUDP := bare(ip4(17, 0, udp(40000, 9899, text...)...))
	esp := bare(ip4(17, 0, udp(4500, 4500, 0xc1, 2, 3, 4, 5, 6, 7, 8)...))
	for _, tc := range []struct {
		name  string
		frame []byte
		found bool
		kind  string // of which nobody expects it, "" if it is expected
	}{
		{"TCP of the link", ip4(6, 0, ports(40000, 7471, text...)...), true, "1 tcp port 7471"},
		{"UDP of another port", ip4(17, 0, udp(40000, 53, text...)...), true, "1 udp port 53"},
		{"a port unreachable's quote", ip4(1, 0, icmp(3, 3, inUDP)...), true, "1 ICMP type 3 code 3 quoting udp port 9899"},
		{"a quote that has 8 bytes of it", ip4(1, 0, icmp(3, 3, inUDP[:36])...), true, "1 ICMP type 3 code 3 quoting udp port 9899"},
		{"a quote cut before it", ip4(1, 0, icmp(3, 3, inUDP[:28])...), false, "1 ICMP type 3 code 3 quoting udp port 9899"},
		{"a time exceeded's quote of a fragment", ip4(1, 0, icmp(11, 1, bare(ip4(17, 100, text...)))...), true, "1 ICMP type 11 code 1 quoting udp fragment"},
		{"a quote in IPv6", ip6(58, icmp(1, 4, bare(ip6(17, udp(40000, 9899, text...)...)))...), true, "1 ICMPv6 type 1 code 4 quoting udp port 9899"},
		{"a packet too big's quote", ip6(58, icmp(2, 0, bare(ip6(6, ports(7471, 40000, text...)...)))...), true, "1 ICMPv6 type 2 code 0 quoting tcp port 7471"},
		{"a quote of a quote", ip4(1, 0, icmp(3, 1, bare(ip4(1, 0, icmp(3, 3, inUDP)...)))...), true, "1 ICMP type 3 code 1 quoting ICMP type 3 code 3"},
		{"a first fragment", ip4(17, 0x2000, udp(40000, 9899, text...)...), true, "1 udp port 9899"},
		{"a later fragment", ip4(132, 100, text...), true, "1 sctp fragment"},
		{"a later fragment of IPv6", ip6(44, append([]byte{6, 0, 0, 9, 0, 0, 0, 1}, text...)...), true, "1 tcp fragment"},
		{"an echo request", ip4(1, 0, icmp(8, 0, text)...), true, "1 ICMP type 8 code 0"},
		{"a fragment of ICMP", ip4(1, 100, text...), true, "1 ICMP fragment"},
		{"IP in IP", ip4(4, 0, inUDP...), true, "1 IP protocol 4"},
		{"GRE", ip6(47, text...), true, "1 IP protocol 47"},
		{"a frame that is not IP", ether(0x88cc, text...), true, "1 EtherType 0x88cc"},
		{"a header that is wrong", ether(0x0800, append([]byte{0x4f, 0}, text[:30]...)...), true, "1 IP that cannot be read"},
		{"a VLAN", ether(0x8100, append([]byte{0, 1}, ip4(17, 0, udp(40000, 53, text...)...)[12:]...)...), true, "1 udp port 53"},
		{"ARP", ether(0x0806, text...), true, ""},
		{"ESP that does not encrypt", ip4(50, 0, text...), true, ""},
		{"ESP in UDP that does not encrypt", ip4(17, 0, udp(4500, 4500, append([]byte{1, 2, 3, 4}, text...)...)...), true, ""},
		{"IKE", ip4(17, 0, udp(500, 500, text...)...), true, ""},

		{"an error that quotes ESP", ip4(1, 0, icmp(3, 3, esp)...), false, ""},
		{"an error that quotes IKE", ip4(1, 0, icmp(3, 3, bare(ip4(17, 0, udp(500, 500, 1)...)))...), false, ""},
		{"an error that quotes nothing", ip4(1, 0, icmp(3, 3, nil)...), false, "1 ICMP type 3 code 3"},
		{"a redirect", ip6(58, icmp(137, 0, make([]byte, 32))...), false, "1 ICMPv6 type 137 code 0"},
		{"ARP of the kernel", ether(0x0806, make([]byte, 28)...), false, ""},
		{"a neighbour solicitation", ip6(58, icmp(135, 0, make([]byte, 16))...), false, ""},
		{"a multicast listener report", ip6(0, append([]byte{58, 0, 5, 2, 0, 0, 1, 0}, icmp(143, 0, make([]byte, 20))...)...), false, ""},
		{"IGMP", ip4(2, 0, make([]byte, 8)...), false, ""},
	} {
		c := newCounts(canary)
		c.add(tc.frame, len(tc.frame))
		faults := strings.Join(c.Faults(CaptureOptions{}), "\n")
		if (len(c.Canary) == 1) != tc.found || strings.Contains(faults, "have the canary") != tc.found {
			t.Errorf("%s: the canary is found in %v; faults %q", tc.name, c.Canary, faults)
		}
		if c.Unknown() != tc.kind || tc.kind != "" && !strings.Contains(faults, "nobody expects: "+tc.kind) {
			t.Errorf("%s: unknown is %q; faults %q", tc.name, c.Unknown(), faults)
		}
	}
}

func TestHeadersThatAreQuotedCountAtTheirPorts(t *testing.T) {
	c := newCounts(NewCanary())
	for _, quote := range [][]byte{
		bare(ip4(6, 0, ports(40000, 7471, 0, 0, 0, 0)...)),
		bare(ip4(17, 0, udp(40000, 9899)...)),
		bare(ip4(132, 0, ports(7471, 7471, 0, 0, 0, 0)...)),
	} {
		f := ip4(1, 0, icmp(3, 3, quote)...)
		c.add(f, len(f))
	}
	if c.Clear(7471) != 1 || c.ClearOf(transport.ProtoUDP, 9899) != 1 || c.ClearOf(transport.ProtoSCTP, 7471) != 1 || c.Other != 3 {
		t.Errorf("%+v", c)
	}
}

// TestJudgeIsAsStrictAsTheTestSays checks what the options change, and that packets
// which the capture missed are a fault.
func TestJudgeIsAsStrictAsTheTestSays(t *testing.T) {
	canary := NewCanary()
	count := func(frames ...[]byte) Counts {
		c := newCounts(canary)
		for _, f := range frames {
			c.add(f, len(f))
		}
		return c
	}
	text := canary.Bytes(40)
	clear, quoted := ip4(6, 0, ports(40000, 7472, 1, 2, 3, 4)...), ip4(1, 0, icmp(3, 3, bare(ip4(6, 0, ports(40000, 7472, 1, 2, 3, 4)...)))...)
	esp, null := ip4(50, 0, 1, 2, 3, 4, 5, 6, 7, 8), ip4(50, 0, text...)
	allow := CaptureOptions{Allow: []string{PortKind(transport.ProtoTCP, 7472)}}
	missed := count(esp)
	missed.Dropped = 1
	cut := count(clear)
	long := ip4(6, 0, ports(40000, 7472, make([]byte, 2000)...)...)
	cut.add(long[:1564], len(long))
	cut.add(ip4(50, 0, make([]byte, 1500)...)[:64], 1534)
	for _, tc := range []struct {
		name string
		c    Counts
		o    CaptureOptions
		want string // in the faults, "" for none
	}{
		{"ESP", count(esp), CaptureOptions{}, ""},
		{"clear", count(clear), CaptureOptions{}, "nobody expects"},
		{"clear, allowed", count(clear, quoted), allow, ""},
		{"clear, allowed, longer than what was looked at", cut, allow, "have the canary behind that: 1 tcp port 7472"},
		{"clear, allowed, with the canary", count(ip4(6, 0, ports(40000, 7472, text...)...)), allow, "have the canary"},
		{"another port", count(ip4(6, 0, ports(40000, 7471)...)), allow, "nobody expects"},
		{"the same port of UDP", count(ip4(17, 0, udp(40000, 7472)...)), allow, "nobody expects"},
		{"NULL ESP that nobody said", count(null), CaptureOptions{}, "have the canary"},
		{"NULL ESP", count(null, esp), CaptureOptions{NullESP: true}, ""},
		{"NULL ESP and a leak", count(null, ip4(1, 0, icmp(8, 0, text)...)), CaptureOptions{NullESP: true}, "have the canary"},
		{"NULL ESP whose canary is not there", count(esp), CaptureOptions{NullESP: true}, "proves nothing"},
		{"missed packets", missed, CaptureOptions{}, "missed 1 packets"},
	} {
		faults := strings.Join(tc.c.Faults(tc.o), "\n")
		if (faults == "") != (tc.want == "") || !strings.Contains(faults, tc.want) {
			t.Errorf("%s: faults %q, want %q", tc.name, faults, tc.want)
		}
	}
}

// TestLiveCanariesAreFound has the kernel itself quote, cut and send a canary, as
// it does with what it decrypts. A capture that permits none of it finds each.
func TestLiveCanariesAreFound(t *testing.T) {
	l := Start(t, Config{NoCharon: true})
	a, b := l.Host("alpha"), l.Host("beta")
	send := func(to netip.AddrPort, text []byte) {
		err := a.Do(func() error {
			c, err := net.Dial("udp", to.String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	text := func(n int) []byte { return l.Canary().Bytes(n) }
	port := func(proto transport.Protocol) string { return PortKind(proto, 9899) }
	for _, tc := range []struct {
		name string
		send func()
		want []string // the kinds in which it is found, in any order
	}{
		{"UDP of a port where nobody listens", func() { send(netip.AddrPortFrom(b.Addr(), 9899), text(1000)) },
			[]string{port(transport.ProtoUDP), "ICMP type 3 code 3 quoting " + port(transport.ProtoUDP)}},
		{"the same over IPv6", func() { send(netip.AddrPortFrom(b.Addr6(), 9899), text(1000)) },
			[]string{port(transport.ProtoUDP), "ICMPv6 type 1 code 4 quoting " + port(transport.ProtoUDP)}},
		{"fragments of the kernel", func() { send(netip.AddrPortFrom(b.Addr(), 9899), text(4000)) },
			[]string{port(transport.ProtoUDP), "udp fragment", "ICMP type 3 code 3 quoting " + port(transport.ProtoUDP)}},
		{"a frame that is no IP", func() {
			if err := b.sendFrame(0, 0x88cc, text(30)); err != nil {
				t.Fatal(err)
			}
		}, []string{"EtherType 0x88cc"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := b.Capture(t.Context(), CaptureOptions{Unjudged: "a control: the canary is sent in clear"})
			if err != nil {
				t.Fatal(err)
			}
			tc.send()
			counts, err := c.Count()
			for late := time.Now().Add(startTimeout); err == nil && len(counts.Canary) < len(tc.want) && time.Now().Before(late); counts, err = c.Count() {
			}
			if counts, err = c.Stop(); err != nil {
				t.Fatal(err)
			}
			t.Log(counts)
			for _, kind := range tc.want {
				if !strings.Contains(counts.Leaked(), " "+kind) {
					t.Errorf("not found in %q: %v", kind, counts.Leaked())
				}
			}
			if faults := strings.Join(counts.Faults(CaptureOptions{}), "\n"); !strings.Contains(faults, "have the canary") || !strings.Contains(faults, "nobody expects") {
				t.Errorf("a strict judge finds only: %q", faults)
			}
			if c.Faults() != nil {
				t.Errorf("a capture that is not judged has faults %v", c.Faults())
			}
		})
	}
}

// TestCaptureThatEndsEarlyIsAFault ends tcpdump behind the capture's back.
func TestCaptureThatEndsEarlyIsAFault(t *testing.T) {
	l := Start(t, Config{NoCharon: true})
	c, err := l.Host("beta").Capture(t.Context(), CaptureOptions{Unjudged: "a control"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if k, err := c.Stop(); err == nil || len(c.Faults()) == 0 {
		t.Errorf("%v, faults %v", k, c.Faults())
	}
	l.Host("beta").captures = nil // its fault was wanted
}

func FuzzPacketsAreClassified(f *testing.F) {
	for _, frame := range [][]byte{ip4(1, 0, icmp(3, 3, bare(ip4(6, 0, ports(1, 2)...)))...), ip6(44, 17, 0, 1, 0, 0, 0, 0, 5, 9, 9), ether(0x8100, 0, 1)} {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		c := newCounts("abcdefgh")
		c.add(frame, len(frame))
		if c.ESP+c.IKE+c.Other != 1 || c.String() == "" {
			t.Errorf("%+v", c)
		}
		if found := len(c.Canary) > 0; found != bytes.Contains(frame, []byte("abcdefgh")) && !containsRotation(frame) {
			t.Errorf("found %v in %q", found, frame)
		}
	})
}

func containsRotation(b []byte) bool {
	for i := range 8 {
		if bytes.Contains(b, append([]byte("abcdefgh")[i:], "abcdefgh"[:i]...)) {
			return true
		}
	}
	return false
}
