package lab

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

func ether(kind uint16, payload ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 12), kind), payload...)
}

func ip4(proto byte, fragment uint16, payload ...byte) []byte {
	h := make([]byte, 20)
	h[0], h[9] = 0x45, proto
	binary.BigEndian.PutUint16(h[6:], fragment)
	return ether(0x0800, append(h, payload...)...)
}

func ip6(next byte, payload ...byte) []byte {
	h := make([]byte, 40)
	h[0], h[6] = 0x60, next
	return ether(0x86dd, append(h, payload...)...)
}

func ports(src, dst uint16, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst), rest...)
}

func udp(src, dst uint16, body ...byte) []byte {
	return append(ports(src, dst, 0, 0, 0, 0), body...)
}

func TestEveryKindOfPacketIsCountedAsWhatItIs(t *testing.T) {
	for _, tc := range []struct {
		name  string
		frame []byte
		want  Counts
		clear int // of port 7471
	}{
		{"ESP", ip4(50, 0, 1, 2, 3, 4), Counts{ESP: 1}, 0},
		{"ESP over IPv6", ip6(50, 1, 2, 3, 4), Counts{ESP: 1}, 0},
		{"ESP in UDP", ip4(17, 0, udp(4500, 4500, 0xc1, 2, 3, 4, 5)...), Counts{ESP: 1}, 0},
		{"ESP in UDP from another port, as behind NAT", ip4(17, 0, udp(31000, 4500, 0xc1, 2, 3, 4, 5)...), Counts{ESP: 1}, 0},
		{"IKE", ip4(17, 0, udp(500, 500, 1, 2, 3, 4)...), Counts{IKE: 1}, 0},
		{"IKE on 4500", ip4(17, 0, udp(4500, 4500, 0, 0, 0, 0, 9)...), Counts{IKE: 1}, 0},
		{"NAT keepalive", ip4(17, 0, udp(4500, 4500, 0xff)...), Counts{IKE: 1}, 0},
		{"IKE over IPv6", ip6(17, udp(500, 500, 1)...), Counts{IKE: 1}, 0},
		{"other UDP", ip4(17, 0, udp(53, 7471, 1)...), Counts{Other: 1}, 0},
		{"clear TCP to the port", ip4(6, 0, ports(40000, 7471)...), Counts{Other: 1}, 1},
		{"clear TCP from the port", ip4(6, 0, ports(7471, 40000)...), Counts{Other: 1}, 1},
		{"clear TCP from port to port", ip4(6, 0, ports(7471, 7471)...), Counts{Other: 1}, 1},
		{"clear TCP over IPv6", ip6(6, ports(7471, 40000)...), Counts{Other: 1}, 1},
		{"clear TCP behind extension headers", ip6(0, append([]byte{60, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0}, ports(1, 7471)...)...), Counts{Other: 1}, 1},
		{"clear TCP in a VLAN", ether(0x8100, append([]byte{0, 1}, ip4(6, 0, ports(1, 7471)...)[12:]...)...), Counts{Other: 1}, 1},
		{"first fragment of clear TCP", ip4(6, 0x2000, ports(1, 7471)...), Counts{Other: 1}, 1},
		{"later fragment of clear TCP", ip4(6, 100, 1, 2, 3, 4), Counts{Other: 1, Fragments: 1}, 1},
		{"later fragment of clear TCP over IPv6", ip6(44, 6, 0, 1, 0, 0, 0, 0, 1, 9, 9, 9, 9), Counts{Other: 1, Fragments: 1}, 1},
		{"clear TCP of another port", ip4(6, 0, ports(22, 40000)...), Counts{Other: 1}, 0},
		{"ARP", ether(0x0806, 1, 2, 3), Counts{Other: 1}, 0},
		{"half a header", ip4(6, 0)[:20], Counts{Other: 1}, 0},
		{"nothing", nil, Counts{Other: 1}, 0},
	} {
		c := newCounts(NewCanary())
		c.add(tc.frame, len(tc.frame))
		if c.ESP != tc.want.ESP || c.IKE != tc.want.IKE || c.Other != tc.want.Other || c.Fragments != tc.want.Fragments || c.Clear(7471) != tc.clear {
			t.Errorf("%s: %+v, clear %d", tc.name, c, c.Clear(7471))
		}
	}
}

func TestClearPacketsOfSCTPLinksAreCounted(t *testing.T) {
	later := func(b []byte, id byte) []byte { b[14+5] = id; return b }
	for _, tc := range []struct {
		name      string
		frames    [][]byte
		udp, sctp int // of ports 9899 and 7471
		ike, esp  int
	}{
		{"SCTP in UDP, both ways", [][]byte{ip4(17, 0, udp(40000, 9899, 1)...), ip6(17, udp(9899, 40000, 1)...)}, 2, 0, 0, 0},
		{"SCTP of the kernel", [][]byte{ip4(132, 0, ports(40000, 7471)...), ip6(132, ports(7471, 7471)...)}, 0, 2, 0, 0},
		{"other ports", [][]byte{ip4(17, 0, udp(53, 7471, 1)...), ip4(132, 0, ports(9899, 1)...)}, 0, 0, 0, 0},
		{"ESP and IKE in UDP", [][]byte{ip4(17, 0, udp(4500, 4500, 1, 2, 3, 4)...), ip4(17, 0, udp(500, 500, 1)...)}, 0, 0, 1, 1},
		{"a datagram in fragments", [][]byte{later(ip4(17, 0x2000, udp(1, 9899, 1)...), 7), later(ip4(17, 100, 1, 2, 3, 4), 7)}, 2, 0, 0, 0},
		{"fragments of IKE", [][]byte{later(ip4(17, 0x2000, udp(500, 500, 1)...), 7), later(ip4(17, 100, 1, 2, 3, 4), 7)}, 0, 0, 2, 0},
		{"a fragment of another datagram", [][]byte{later(ip4(17, 0x2000, udp(500, 500, 1)...), 7), later(ip4(17, 100, 1, 2, 3, 4), 8)}, 1, 0, 1, 0},
		{"fragments of IKE over IPv6", [][]byte{ip6(44, append([]byte{17, 0, 0, 1, 0, 0, 0, 5}, udp(500, 500, 1)...)...), ip6(44, 17, 0, 1, 0, 0, 0, 0, 5, 9, 9)}, 0, 0, 2, 0},
		{"a fragment of SCTP", [][]byte{ip4(132, 100, 1, 2, 3, 4)}, 0, 1, 0, 0},
		{"half a header", [][]byte{ip4(17, 0, 1, 2), ip4(132, 0, 1, 2)}, 1, 1, 0, 0},
	} {
		c := newCounts(NewCanary())
		for _, f := range tc.frames {
			c.add(f, len(f))
		}
		udp, sctp := c.ClearOf(transport.ProtoUDP, 9899), c.ClearOf(transport.ProtoSCTP, 7471)
		if udp != tc.udp || sctp != tc.sctp || c.IKE != tc.ike || c.ESP != tc.esp || c.Clear(7471) != 0 {
			t.Errorf("%s: %d UDP, %d SCTP; %v", tc.name, udp, sctp, c)
		}
	}
}

func TestCountsAddUp(t *testing.T) {
	sum, other := newCounts(NewCanary()), newCounts(NewCanary())
	for _, c := range []*Counts{&sum, &other} {
		c.add(ip4(132, 0, ports(40000, 7471, 0, 0, 0, 0)...), 0)
		c.add(ip4(50, 0, 1, 2, 3, 4), 0)
		c.Packets, c.Bytes, c.Dropped = 2, 100, 1
	}
	sum.Add(other)
	if sum.Packets != 4 || sum.Bytes != 200 || sum.Dropped != 2 || sum.ESP != 2 || sum.ClearOf(transport.ProtoSCTP, 7471) != 2 || other.ClearOf(transport.ProtoSCTP, 7471) != 1 ||
		sum.Kinds[Kind{What: "sctp port 7471"}] != 2 {
		t.Errorf("%+v", sum)
	}
}

func pcap(order binary.AppendByteOrder, frames ...[]byte) []byte {
	b := order.AppendUint32(nil, pcapMicro)
	b = append(b, make([]byte, 16)...)
	b = order.AppendUint32(b, linkEthernet)
	for _, f := range frames {
		b = append(b, make([]byte, 8)...)
		b = order.AppendUint32(b, uint32(len(f)))
		b = order.AppendUint32(b, uint32(len(f)+1000)) // cut off by the snapshot length
		b = append(b, f...)
	}
	return b
}

func countPcap(b []byte) (Counts, error) {
	c := newCounts(NewCanary())
	return c, readPcap(bytes.NewReader(b), c.add)
}

func TestCapturesOfBothByteOrdersAndUnfinishedOnes(t *testing.T) {
	frames := [][]byte{ip4(50, 0, 1, 2, 3, 4), ip4(6, 0, ports(7471, 1)...)}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		whole := pcap(order, frames...)
		c, err := countPcap(whole)
		if err != nil || c.Packets != 2 || c.ESP != 1 || c.Clear(7471) != 1 || c.Bytes != len(frames[0])+len(frames[1])+2000 {
			t.Errorf("%v: %+v, %v", order, c, err)
		}
		if c, err := countPcap(whole[:len(whole)-5]); err != nil || c.Packets != 1 {
			t.Errorf("%v, cut within the second packet: %+v, %v", order, c, err)
		}
	}
}

func TestWhatIsNoCaptureIsRefused(t *testing.T) {
	huge := append(pcap(binary.LittleEndian), bytes.Repeat([]byte{0xff}, 16)...)
	for _, content := range []string{"", "short", "not a capture file at all, but long enough", string(huge)} {
		if c, err := countPcap([]byte(content)); err == nil {
			t.Errorf("%q is counted as %v", content, c)
		}
	}
}

func TestDroppedPacketsAreReadFromTcpdump(t *testing.T) {
	n, ok := parseDropped("10 packets captured\n12 packets received by filter\n3 packets dropped by kernel\n2 packets dropped by interface\n")
	if n != 5 || !ok {
		t.Errorf("%d, %v", n, ok)
	}
	if _, ok := parseDropped("tcpdump: no suitable device found"); ok {
		t.Error("a message without the line is believed")
	}
}
