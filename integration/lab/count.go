package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
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
	// Kinds are those of the other packets.
	Kinds map[Kind]int
	// Canary are the packets in which the canary is readable, ESP and IKE included.
	Canary map[Kind]int
	// Cut are the packets outside ESP that the capture has not looked at to their ends.
	Cut map[Kind]int
	// Fragments of TCP that carry no ports; Clear counts them for every port.
	Fragments int
	// ClearTCP is the number of TCP packets outside ESP, by each of their ports. What
	// ICMP errors quote counts as well.
	ClearTCP map[uint16]int
	// The same for UDP other than IKE and ESP, and for SCTP: what SCTP links would leave.
	FragmentsUDP, FragmentsSCTP int
	ClearUDP, ClearSCTP         map[uint16]int

	// guarded are the datagrams, by their identification, whose first fragment was
	// IKE or ESP in UDP.
	guarded map[uint32]bool
	canary  *finder
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
	if len(c.Kinds) > 0 {
		s += ": " + c.Others()
	}
	if len(c.Canary) > 0 {
		s += "; the canary stands in " + list(c.Canary)
	}
	if c.Dropped > 0 {
		s += fmt.Sprintf("; %d missed", c.Dropped)
	}
	return s
}

// list names kinds and how many packets of each there are.
func list(kinds map[Kind]int) string {
	var all []string
	for _, k := range slices.SortedFunc(maps.Keys(kinds), func(a, b Kind) int { return strings.Compare(a.String(), b.String()) }) {
		all = append(all, fmt.Sprintf("%d %v", kinds[k], k))
	}
	return strings.Join(all, ", ")
}

// Others lists the kinds of the other packets.
func (c Counts) Others() string { return list(c.Kinds) }

// Unknown lists the packets whose kind is neither harmless nor in allow, "" for
// none.
func (c Counts) Unknown(allow ...string) string {
	kinds := maps.Clone(c.Kinds)
	maps.DeleteFunc(kinds, func(k Kind, _ int) bool { return k.known(allow) })
	return list(kinds)
}

// Readable is how many packets of ESP have the canary, including those that ICMP errors
// quote.
func (c Counts) Readable() (n int) {
	for k, m := range c.Canary {
		if k.ofESP() {
			n += m
		}
	}
	return n
}

// Leaked lists the packets outside ESP that have the canary, "" for none.
func (c Counts) Leaked() string {
	kinds := maps.Clone(c.Canary)
	maps.DeleteFunc(kinds, func(k Kind, _ int) bool { return k.ofESP() })
	return list(kinds)
}

// Add adds the counts of another capture.
func (c *Counts) Add(o Counts) { c.change(o, 1) }

// Since is what has been counted since earlier counts of the same capture.
func (c Counts) Since(earlier Counts) Counts {
	c = c.clone()
	c.change(earlier, -1)
	return c
}

func (c *Counts) change(o Counts, sign int) {
	for n, m := range map[*int]int{&c.Packets: o.Packets, &c.Bytes: o.Bytes, &c.ESP: o.ESP, &c.IKE: o.IKE, &c.Other: o.Other, &c.Dropped: o.Dropped,
		&c.Fragments: o.Fragments, &c.FragmentsUDP: o.FragmentsUDP, &c.FragmentsSCTP: o.FragmentsSCTP} {
		*n += sign * m
	}
	changeMap(c.Kinds, o.Kinds, sign)
	changeMap(c.Canary, o.Canary, sign)
	changeMap(c.Cut, o.Cut, sign)
	changeMap(c.ClearTCP, o.ClearTCP, sign)
	changeMap(c.ClearUDP, o.ClearUDP, sign)
	changeMap(c.ClearSCTP, o.ClearSCTP, sign)
}

func changeMap[K comparable](m, o map[K]int, sign int) {
	for k, n := range o {
		if m[k] += sign * n; m[k] == 0 {
			delete(m, k)
		}
	}
}

func newCounts(canary Canary) Counts {
	return Counts{Kinds: map[Kind]int{}, Canary: map[Kind]int{}, Cut: map[Kind]int{}, ClearTCP: map[uint16]int{}, ClearUDP: map[uint16]int{}, ClearSCTP: map[uint16]int{},
		guarded: map[uint32]bool{}, canary: newFinder(canary)}
}

// clone is a copy that does not change any more.
func (c Counts) clone() Counts {
	c.Kinds, c.Canary, c.Cut = maps.Clone(c.Kinds), maps.Clone(c.Canary), maps.Clone(c.Cut)
	c.ClearTCP, c.ClearUDP, c.ClearSCTP = maps.Clone(c.ClearTCP), maps.Clone(c.ClearUDP), maps.Clone(c.ClearSCTP)
	return c
}

// readPcap hands over the frames of a pcap stream of Ethernet, and how long each
// was on the wire. A last packet that is not complete is left out.
func readPcap(r io.Reader, take func(frame []byte, onWire int)) error {
	r = bufio.NewReaderSize(r, 1<<20)
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
		take(frame[:captured], int(onWire))
	}
}

func atEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// add counts a frame.
func (c *Counts) add(frame []byte, onWire int) {
	c.Packets++
	c.Bytes += onWire
	kind := c.classify(frame)
	switch kind.What {
	case kindESP:
		c.ESP++
	case kindIKE:
		c.IKE++
	default:
		c.Other++
		c.Kinds[kind]++
	}
	if c.canary.in(frame) >= 0 {
		c.Canary[kind]++
	}
	if len(frame) < onWire && !kind.ofESP() {
		c.Cut[kind]++
	}
}

func (c *Counts) classify(frame []byte) Kind {
	switch kind, p := etherType(frame); kind {
	case typeARP:
		return Kind{What: kindARP}
	case typeIPv4, typeIPv6:
		return c.ofIP(p, false)
	default:
		return Kind{What: fmt.Sprintf("EtherType %#04x", kind)}
	}
}

// ofIP is the kind of an IP packet, which may be one that an ICMP error quotes.
func (c *Counts) ofIP(b []byte, quoted bool) Kind {
	p := parseIP(b)
	switch p.proto {
	case none:
		return Kind{What: "IP that cannot be read"}
	case protoESP:
		return Kind{What: kindESP}
	case protoIGMP:
		return Kind{What: kindIGMP}
	case protoUDP:
		if what := c.guard(p); what != "" {
			return Kind{What: what}
		}
		return inClear(transport.ProtoUDP, p, c.ClearUDP, &c.FragmentsUDP)
	case protoTCP:
		return inClear(transport.ProtoTCP, p, c.ClearTCP, &c.Fragments)
	case protoSCTP:
		return inClear(transport.ProtoSCTP, p, c.ClearSCTP, &c.FragmentsSCTP)
	case protoICMP, protoICMP6:
		what, quote := icmpKind(p)
		if len(quote) == 0 || quoted {
			return Kind{What: what}
		}
		return Kind{What: what, Quotes: c.ofIP(quote, true).What}
	}
	return Kind{What: fmt.Sprintf("IP protocol %d", p.proto)}
}

// guard is IKE or ESP if a UDP packet, or a fragment of one, belongs to it, else "".
func (c *Counts) guard(p ipPacket) string {
	if p.later {
		if c.guarded[p.id] {
			return kindIKE // with certificates; ESP in UDP is cut before it is encrypted
		}
		return ""
	}
	if len(p.payload) < 8 {
		return ""
	}
	src, dst, body := binary.BigEndian.Uint16(p.payload), binary.BigEndian.Uint16(p.payload[2:]), p.payload[8:]
	what := kindESP
	switch {
	case src == 500 || dst == 500:
		what = kindIKE
	case src != 4500 && dst != 4500:
		return ""
	case len(body) < 4 || binary.BigEndian.Uint32(body) == 0:
		what = kindIKE
	}
	if p.first {
		c.guarded[p.id] = true
	}
	return what
}

// inClear counts a packet at both of its ports, or as a fragment if it has none.
func inClear(proto transport.Protocol, p ipPacket, ports map[uint16]int, fragments *int) Kind {
	if p.later || len(p.payload) < 4 {
		*fragments++
		return Kind{What: proto.String() + " fragment"}
	}
	src, dst := binary.BigEndian.Uint16(p.payload), binary.BigEndian.Uint16(p.payload[2:])
	ports[src]++
	if dst != src {
		ports[dst]++
	}
	return Kind{What: PortKind(proto, min(src, dst))} // the other one is some client's
}

const (
	pcapMicro    = 0xa1b2c3d4
	pcapNano     = 0xa1b23c4d
	linkEthernet = 1
	maxFrame     = 1 << 18 // tcpdump's own limit of a snapshot
)
