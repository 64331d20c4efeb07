package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// Startup is what a capture shows of one connection's start-up.
type Startup struct {
	Request, Reply *mpa.Frame // nil: not seen
	First          []byte     // the DDP segment of the initiator's first FPDU
}

// CRC reports whether the two frames agree on CRCs.
func (s Startup) CRC() bool { return s.Request.CRC || s.Reply.CRC }

// Ready reports whether the first FPDU is a ready-to-receive message that the
// reply allows (RFC 6581 section 9.2).
func (s Startup) Ready() bool {
	e := s.Reply.Enhanced
	if e == nil || !e.PeerToPeer || ddp.HeaderLen(s.First) == 0 {
		return false
	}
	if ddp.IsTagged(s.First) {
		t := ddp.Tagged(s.First)
		_, op := rdmap.ParseControl(t.ULP())
		return op == rdmap.OpWrite && len(t.Payload()) == 0 && e.RTR&mpa.RTRWrite != 0
	}
	u := ddp.Untagged(s.First)
	_, op := rdmap.ParseControl(u.ULP())
	r, ok := rdmap.ParseReadRequest(u.Payload())
	return op == rdmap.OpReadRequest && ok && r.Size == 0 && e.RTR&mpa.RTRRead != 0
}

// readStartups reads the start-ups of all connections in a capture, by the
// listening port, which has to be lo or higher and lower than hi.
func readStartups(path string, lo, hi int) (map[int]Startup, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	defer f.Close()
	found := make(map[int]Startup)
	err = readPackets(f, func(src, dst int, payload []byte) error {
		port, up := dst, true
		if src >= lo && src < hi {
			port, up = src, false
		}
		if port < lo || port >= hi || len(payload) == 0 {
			return nil
		}
		s := found[port]
		switch {
		case up && s.Request == nil:
			fr, err := mpa.ParseFrame(payload, false)
			if err != nil {
				return fmt.Errorf("request to port %d: %w", port, err)
			}
			s.Request = &fr
		case !up && s.Reply == nil:
			fr, err := mpa.ParseFrame(payload, true)
			if err != nil {
				return fmt.Errorf("reply from port %d: %w", port, err)
			}
			s.Reply = &fr
		case up && s.First == nil && s.Reply != nil && len(payload) > 2:
			n := int(binary.BigEndian.Uint16(payload))
			s.First = append([]byte(nil), payload[2:min(len(payload), 2+n)]...)
		}
		found[port] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the capture %s: %w", path, err)
	}
	return found, nil
}

// Of the file that tcpdump writes on a little-endian machine.
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

// readPackets calls f for each TCP packet of a capture, of whose payload the
// capture may have the beginning only.
func readPackets(r io.Reader, f func(src, dst int, payload []byte) error) error {
	var head [pcapHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	if m := binary.LittleEndian.Uint32(head[:]); m != pcapMagic {
		return fmt.Errorf("it begins with %#08x, want %#08x", m, uint32(pcapMagic))
	}
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
		frame := make([]byte, n)
		if _, err := io.ReadFull(r, frame); err != nil {
			return err
		}
		if tcp := tcpSegment(frame); len(tcp) >= minTCP {
			data := int(tcp[12]>>4) * 4
			if data > len(tcp) {
				continue
			}
			if err := f(int(binary.BigEndian.Uint16(tcp)), int(binary.BigEndian.Uint16(tcp[2:])), tcp[data:]); err != nil {
				return err
			}
		}
	}
}

// tcpSegment is the TCP header and payload of an Ethernet frame, nil if it has
// none.
func tcpSegment(frame []byte) []byte {
	if len(frame) < etherLen+40 {
		return nil
	}
	p := frame[etherLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		head, total := int(p[0]&15)*4, int(binary.BigEndian.Uint16(p[2:]))
		if p[9] != protoTCP || head < 20 || total < head {
			return nil
		}
		return p[head:max(head, min(total, len(p)))]
	case etherIPv6:
		if p[6] != protoTCP {
			return nil
		}
		return p[40:min(len(p), 40+int(binary.BigEndian.Uint16(p[4:])))]
	}
	return nil
}
