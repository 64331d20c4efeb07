package lab

import "encoding/binary"

// ipPacket is a parsed IP packet. Its protocol is none for frames that are not IP, or
// whose headers are cut or wrong.
type ipPacket struct {
	proto   int
	first   bool   // the first of several fragments
	later   bool   // a fragment that is not the first
	id      uint32 // of the datagram, if it is in fragments
	payload []byte // behind the IP header and its extensions
}

// etherType is the type of a frame behind its VLAN tags, and what follows it.
func etherType(f []byte) (kind uint16, p []byte) {
	if len(f) < 14 {
		return 0, nil
	}
	kind, p = binary.BigEndian.Uint16(f[12:]), f[14:]
	for kind == typeVLAN && len(p) >= 4 {
		kind, p = binary.BigEndian.Uint16(p[2:]), p[4:]
	}
	return kind, p
}

// parseIP reads a packet of either version.
func parseIP(p []byte) ipPacket {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		n := int(p[0]&15) * 4
		if n < 20 || n > len(p) {
			return ipPacket{proto: none}
		}
		cut := binary.BigEndian.Uint16(p[6:])
		later := cut&0x1fff != 0
		return ipPacket{proto: int(p[9]), later: later, first: !later && cut&0x2000 != 0, id: uint32(binary.BigEndian.Uint16(p[4:])), payload: p[n:]}
	case len(p) >= 40 && p[0]>>4 == 6:
		return parseIP6(p[6], p[40:])
	}
	return ipPacket{proto: none}
}

func parseIP6(next uint8, p []byte) ipPacket {
	pkt := ipPacket{}
	for {
		switch next {
		case 0, 43, 60: // hop-by-hop, routing, destination options
			if len(p) < 8 || len(p) < int(p[1])*8+8 {
				return ipPacket{proto: none}
			}
			next, p = p[0], p[int(p[1])*8+8:]
		case 44: // fragment
			if len(p) < 8 {
				return ipPacket{proto: none}
			}
			cut := binary.BigEndian.Uint16(p[2:])
			pkt.later = pkt.later || cut&0xfff8 != 0
			pkt.first = !pkt.later && cut&1 != 0
			pkt.id = binary.BigEndian.Uint32(p[4:])
			next, p = p[0], p[8:]
			if pkt.later {
				pkt.proto, pkt.payload = int(next), p
				return pkt
			}
		default:
			pkt.proto, pkt.payload = int(next), p
			return pkt
		}
	}
}

const (
	none = -1

	protoICMP  = 1
	protoIGMP  = 2
	protoTCP   = 6
	protoUDP   = 17
	protoESP   = 50
	protoICMP6 = 58
	// protoSCTP is that of the kernel's SCTP; SCTP in UDP is UDP.
	protoSCTP = 132

	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeIPv6 = 0x86dd
	// typeMark is a type for local experiments (IEEE 802); catchUp's frames have it.
	typeMark = 0x88b5
)
