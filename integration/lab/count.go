package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/transport"
)

// Counts says what kinds of packets a capture holds.
type Counts struct {
	Packets int // all of them
	Bytes   int // on the wire
	ESP     int // protocol 50, or UDP port 4500 with an SPI (RFC 3948 2.1)
	IKE     int // UDP port 500, UDP port 4500 with the non-ESP marker, keepalives (RFC 3948 2.2, 2.3)
	Other   int // everything else: ARP, neighbour discovery, ... and all clear traffic
	Dropped int // packets that tcpdump missed; only Capture.Stop knows
	// Fragments of TCP that carry no ports; Clear counts them for every port.
	Fragments int
	// ClearTCP is the number of TCP packets outside ESP, by each of their ports.
	ClearTCP map[uint16]int
	// Of UDP beside IKE and ESP, and of SCTP, the same: what SCTP links would leave.
	FragmentsUDP, FragmentsSCTP int
	ClearUDP, ClearSCTP         map[uint16]int

	// guarded are the datagrams, by their identification, whose first fragment was
	// IKE or ESP in UDP.
	guarded map[uint32]bool
}

// Clear is the number of packets of a TCP port that crossed the wire outside
// ESP.
func (c Counts) Clear(port uint16) int { return c.ClearOf(transport.ProtoTCP, port) }

// ClearOf is Clear for a port of TCP, UDP or SCTP.
func (c Counts) ClearOf(p transport.Protocol, port uint16) int {
	switch p {
	case transport.ProtoUDP:
		return c.ClearUDP[port] + c.FragmentsUDP
	case transport.ProtoSCTP:
		return c.ClearSCTP[port] + c.FragmentsSCTP
	}
	return c.ClearTCP[port] + c.Fragments
}

// String is a line for people.
func (c Counts) String() string {
	s := fmt.Sprintf("%d packets: %d ESP, %d IKE, %d other", c.Packets, c.ESP, c.IKE, c.Other)
	for _, of := range []struct {
		name  string
		ports map[uint16]int
	}{{"TCP", c.ClearTCP}, {"UDP", c.ClearUDP}, {"SCTP", c.ClearSCTP}} {
		var clear []string
		for _, p := range slices.Sorted(maps.Keys(of.ports)) {
			clear = append(clear, fmt.Sprintf("%d:%d", p, of.ports[p]))
		}
		if len(clear) > 0 {
			s += fmt.Sprintf("; clear %s by port: %s", of.name, strings.Join(clear, " "))
		}
	}
	if c.Dropped > 0 {
		s += fmt.Sprintf("; %d missed", c.Dropped)
	}
	return s
}

// Add adds what another capture holds.
func (c *Counts) Add(o Counts) {
	c.Packets += o.Packets
	c.Bytes += o.Bytes
	c.ESP += o.ESP
	c.IKE += o.IKE
	c.Other += o.Other
	c.Dropped += o.Dropped
	c.Fragments += o.Fragments
	c.FragmentsUDP += o.FragmentsUDP
	c.FragmentsSCTP += o.FragmentsSCTP
	for _, by := range [][2]map[uint16]int{{c.ClearTCP, o.ClearTCP}, {c.ClearUDP, o.ClearUDP}, {c.ClearSCTP, o.ClearSCTP}} {
		for port, n := range by[1] {
			by[0][port] += n
		}
	}
}

// CountFile counts the packets of a pcap file of Ethernet frames. A last packet
// that is not complete yet, as in a running capture, is left out.
func CountFile(path string) (Counts, error) {
	c := newCounts()
	f, err := os.Open(path)
	if err != nil {
		return c, fmt.Errorf("count packets: %w", err)
	}
	defer f.Close()
	if err := c.read(bufio.NewReaderSize(f, 1<<20)); err != nil {
		return c, fmt.Errorf("count packets of %s: %w", path, err)
	}
	return c, nil
}

func newCounts() Counts {
	return Counts{ClearTCP: map[uint16]int{}, ClearUDP: map[uint16]int{}, ClearSCTP: map[uint16]int{}, guarded: map[uint32]bool{}}
}

func (c *Counts) read(r io.Reader) error {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("not a pcap file: %w", err)
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch binary.LittleEndian.Uint32(head[:]) {
	case pcapMicro, pcapNano:
	case bits.ReverseBytes32(pcapMicro), bits.ReverseBytes32(pcapNano):
		order = binary.BigEndian
	default:
		return fmt.Errorf("not a pcap file: it begins with %x", head[:4])
	}
	if link := order.Uint32(head[20:]) & 0xffff; link != linkEthernet {
		return fmt.Errorf("link type %d, only Ethernet is understood", link)
	}
	var rec [16]byte
	frame := make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			return atEnd(err)
		}
		captured, onWire := order.Uint32(rec[8:]), order.Uint32(rec[12:])
		if captured > maxFrame {
			return fmt.Errorf("a packet of %d bytes: the file is damaged", captured)
		}
		if _, err := io.ReadFull(r, frame[:captured]); err != nil {
			return atEnd(err)
		}
		if captured >= 14 && binary.BigEndian.Uint16(frame[12:]) == markerType {
			continue
		}
		c.Packets++
		c.Bytes += int(onWire)
		c.add(frame[:captured])
	}
}

func atEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func (c *Counts) add(frame []byte) {
	p := parseIP(frame)
	whole := !p.later && len(p.payload) >= 4 // it has its ports
	switch p.proto {
	case protoESP:
		c.ESP++
		return
	case protoUDP:
		if c.addGuarded(p) {
			return
		}
		count(c.ClearUDP, &c.FragmentsUDP, p.payload, whole)
	case protoTCP:
		count(c.ClearTCP, &c.Fragments, p.payload, whole)
	case protoSCTP:
		count(c.ClearSCTP, &c.FragmentsSCTP, p.payload, whole)
	}
	c.Other++
}

// addGuarded counts a UDP packet if it is IKE or ESP, whole or in part.
func (c *Counts) addGuarded(p ipPacket) bool {
	if p.later {
		if c.guarded[p.id] {
			c.IKE++ // IKE with certificates; ESP in UDP is cut before it is encrypted
		}
		return c.guarded[p.id]
	}
	if len(p.payload) < 8 {
		return false
	}
	src, dst, body := binary.BigEndian.Uint16(p.payload), binary.BigEndian.Uint16(p.payload[2:]), p.payload[8:]
	switch {
	case src == 500 || dst == 500:
		c.IKE++
	case src != 4500 && dst != 4500:
		return false
	case len(body) < 4 || binary.BigEndian.Uint32(body) == 0:
		c.IKE++
	default:
		c.ESP++
	}
	if p.first {
		c.guarded[p.id] = true
	}
	return true
}

// count counts a packet at both of its ports, or as a fragment if it has none.
func count(ports map[uint16]int, fragments *int, p []byte, whole bool) {
	if !whole {
		*fragments++
		return
	}
	src, dst := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	ports[src]++
	if dst != src {
		ports[dst]++
	}
}

// ipPacket is what an IP packet says of itself. Its protocol is 0 for frames that
// are not IP.
type ipPacket struct {
	proto   uint8
	first   bool   // the first of several fragments
	later   bool   // a fragment that is not the first
	id      uint32 // of the datagram, if it is in fragments
	payload []byte // behind the IP header and its extensions
}

func parseIP(f []byte) ipPacket {
	if len(f) < 14 {
		return ipPacket{}
	}
	kind, p := binary.BigEndian.Uint16(f[12:]), f[14:]
	for kind == 0x8100 && len(p) >= 4 { // VLAN tags
		kind, p = binary.BigEndian.Uint16(p[2:]), p[4:]
	}
	switch {
	case kind == 0x0800 && len(p) >= 20:
		n := int(p[0]&15) * 4
		if n < 20 || n > len(p) {
			return ipPacket{}
		}
		cut := binary.BigEndian.Uint16(p[6:])
		later := cut&0x1fff != 0
		return ipPacket{proto: p[9], later: later, first: !later && cut&0x2000 != 0, id: uint32(binary.BigEndian.Uint16(p[4:])), payload: p[n:]}
	case kind == 0x86dd && len(p) >= 40:
		return parseIP6(p[6], p[40:])
	}
	return ipPacket{}
}

func parseIP6(next uint8, p []byte) ipPacket {
	pkt := ipPacket{}
	for {
		switch next {
		case 0, 43, 60: // hop-by-hop, routing, destination options
			if len(p) < 8 || len(p) < int(p[1])*8+8 {
				return ipPacket{}
			}
			next, p = p[0], p[int(p[1])*8+8:]
		case 44: // fragment
			if len(p) < 8 {
				return ipPacket{}
			}
			cut := binary.BigEndian.Uint16(p[2:])
			pkt.later = pkt.later || cut&0xfff8 != 0
			pkt.first = !pkt.later && cut&1 != 0
			pkt.id = binary.BigEndian.Uint32(p[4:])
			next, p = p[0], p[8:]
			if pkt.later {
				pkt.proto, pkt.payload = next, p
				return pkt
			}
		default:
			pkt.proto, pkt.payload = next, p
			return pkt
		}
	}
}

const (
	protoTCP = 6
	protoUDP = 17
	protoESP = 50
	// protoSCTP is that of the kernel's; in UDP it is UDP.
	protoSCTP = 132

	pcapMicro    = 0xa1b2c3d4
	pcapNano     = 0xa1b23c4d
	linkEthernet = 1
	maxFrame     = 1 << 18 // tcpdump's own limit of a snapshot
)
