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
}

// Clear is the number of packets of a TCP port that crossed the wire outside
// ESP.
func (c Counts) Clear(port uint16) int { return c.ClearTCP[port] + c.Fragments }

// String is a line for people.
func (c Counts) String() string {
	var clear []string
	for _, p := range slices.Sorted(maps.Keys(c.ClearTCP)) {
		clear = append(clear, fmt.Sprintf("%d:%d", p, c.ClearTCP[p]))
	}
	s := fmt.Sprintf("%d packets: %d ESP, %d IKE, %d other", c.Packets, c.ESP, c.IKE, c.Other)
	if len(clear) > 0 {
		s += "; clear TCP by port: " + strings.Join(clear, " ")
	}
	if c.Dropped > 0 {
		s += fmt.Sprintf("; %d missed", c.Dropped)
	}
	return s
}

// CountFile counts the packets of a pcap file of Ethernet frames. A last packet
// that is not complete yet, as in a running capture, is left out.
func CountFile(path string) (Counts, error) {
	c := Counts{ClearTCP: map[uint16]int{}}
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
	proto, later, p := ipPayload(frame)
	switch {
	case proto == protoESP:
		c.ESP++
		return
	case proto == protoUDP && !later && len(p) >= 8:
		src, dst, body := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), p[8:]
		switch {
		case src == 500 || dst == 500:
			c.IKE++
			return
		case src != 4500 && dst != 4500:
		case len(body) < 4 || binary.BigEndian.Uint32(body) == 0:
			c.IKE++
			return
		default:
			c.ESP++
			return
		}
	case proto == protoTCP && (later || len(p) < 4):
		c.Fragments++
	case proto == protoTCP:
		src, dst := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
		c.ClearTCP[src]++
		if dst != src {
			c.ClearTCP[dst]++
		}
	}
	c.Other++
}

// ipPayload returns the transport protocol of a frame and what follows the IP
// header and its extensions; later tells that it is not the first fragment. The
// protocol is 0 for frames that are not IP.
func ipPayload(f []byte) (proto uint8, later bool, payload []byte) {
	if len(f) < 14 {
		return 0, false, nil
	}
	kind, p := binary.BigEndian.Uint16(f[12:]), f[14:]
	for kind == 0x8100 && len(p) >= 4 { // VLAN tags
		kind, p = binary.BigEndian.Uint16(p[2:]), p[4:]
	}
	switch {
	case kind == 0x0800 && len(p) >= 20:
		n := int(p[0]&15) * 4
		if n < 20 || n > len(p) {
			return 0, false, nil
		}
		return p[9], binary.BigEndian.Uint16(p[6:])&0x1fff != 0, p[n:]
	case kind == 0x86dd && len(p) >= 40:
		return ip6Payload(p[6], p[40:])
	}
	return 0, false, nil
}

func ip6Payload(next uint8, p []byte) (proto uint8, later bool, payload []byte) {
	for {
		switch next {
		case 0, 43, 60: // hop-by-hop, routing, destination options
			if len(p) < 8 || len(p) < int(p[1])*8+8 {
				return 0, false, nil
			}
			next, p = p[0], p[int(p[1])*8+8:]
		case 44: // fragment
			if len(p) < 8 {
				return 0, false, nil
			}
			later = later || binary.BigEndian.Uint16(p[2:])&0xfff8 != 0
			next, p = p[0], p[8:]
			if later {
				return next, true, p
			}
		default:
			return next, later, p
		}
	}
}

const (
	protoTCP = 6
	protoUDP = 17
	protoESP = 50

	pcapMicro    = 0xa1b2c3d4
	pcapNano     = 0xa1b23c4d
	linkEthernet = 1
	maxFrame     = 1 << 18 // tcpdump's own limit of a snapshot
)
