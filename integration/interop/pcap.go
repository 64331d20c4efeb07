package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
)

// Constants of the file that tcpdump writes on a little-endian machine.
const (
	pcapMagic     = 0xa1b2c3d4
	pcapHeader    = 24
	maxPacket     = 1 << 18
	etherLen      = 14
	etherIPv4     = 0x0800
	etherIPv6     = 0x86dd
	protoTCP      = 6
	minTCP        = 20
	captureLength = 65535 // bytes of each packet: all, so that a failure can be looked into
)

// segment is a captured TCP segment.
type segment struct {
	src, dst netip.AddrPort
	seq      uint32
	syn      bool
	payload  []byte // valid during the call
}

// readSegments calls f for each TCP segment of a capture.
func readSegments(r io.Reader, f func(segment) error) error {
	var head [pcapHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	if m := binary.LittleEndian.Uint32(head[:]); m != pcapMagic {
		return fmt.Errorf("it begins with %#08x, want %#08x", m, uint32(pcapMagic))
	}
	buf := make([]byte, maxPacket)
	for {
		var rec [16]byte
		if _, err := io.ReadFull(r, rec[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(rec[8:])
		if n > maxPacket {
			return fmt.Errorf("a packet of %d bytes", n)
		}
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			return err
		}
		if s, ok := parseSegment(buf[:n]); ok {
			if err := f(s); err != nil {
				return err
			}
		}
	}
}

// parseSegment reads an Ethernet frame; false: there is no TCP in it.
func parseSegment(frame []byte) (s segment, ok bool) {
	if len(frame) < etherLen+40 {
		return s, false
	}
	p := frame[etherLen:]
	var src, dst netip.Addr
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		head, total := int(p[0]&15)*4, int(binary.BigEndian.Uint16(p[2:]))
		if p[9] != protoTCP || head < 20 || total < head {
			return s, false
		}
		src, dst = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
		p = p[head:max(head, min(total, len(p)))]
	case etherIPv6:
		if p[6] != protoTCP {
			return s, false
		}
		src, dst = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
		p = p[40:min(len(p), 40+int(binary.BigEndian.Uint16(p[4:])))]
	default:
		return s, false
	}
	if len(p) < minTCP {
		return s, false
	}
	data := int(p[12]>>4) * 4
	if data < minTCP || data > len(p) {
		return s, false
	}
	s.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(p))
	s.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p[2:]))
	s.seq = binary.BigEndian.Uint32(p[4:])
	s.syn = p[13]&2 != 0
	s.payload = p[data:]
	return s, true
}
