package capture

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ironwarp/ironwarp/internal/crc32c"
)

// Header lengths in bytes.
const (
	ip4Len       = 20
	ip6Len       = 40
	tcpLen       = 20
	udpLen       = 8
	sctpLen      = 12
	dataChunkLen = 16
)

// Of the synthetic packets.
const (
	hopLimit = 64
	window   = 65535
	// maxSegment has room for the longest FPDU, which TCP sends in one segment here (RFC 5044 section 5).
	maxSegment = 65475
	// windowScale makes the window 1 GiB (RFC 7323 section 2.3).
	windowScale = 14
)

// packet builds packets, of which the last one is valid until the next.
type packet struct {
	out gopacket.SerializeBuffer
}

// ends are the addresses of a packet.
type ends struct{ from, to netip.AddrPort }

// tcp builds a TCP segment whose payload has length bytes, of which body are captured. It fails where the addresses are of
// different families.
func (p *packet) tcp(e ends, h layers.TCP, body []byte, length int) ([]byte, error) {
	h.SrcPort, h.DstPort = layers.TCPPort(e.from.Port()), layers.TCPPort(e.to.Port())
	h.Window, h.DataOffset = window, tcpLen/4
	options := 0
	if h.SYN {
		h.Options = []layers.TCPOption{
			{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{maxSegment >> 8, maxSegment & 0xff}},
			{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{windowScale}}, {OptionType: layers.TCPOptionKindNop},
		}
		options = 8
		h.DataOffset += 2
	}
	return p.ip(e, layers.IPProtocolTCP, &h, body, tcpLen+options+length, length > len(body))
}

// sctp builds a packet with one DATA chunk (RFC 9260 section 3.3.1): unordered, whole, of length bytes of which body are
// captured. udp are the ports around it, or nil (RFC 6951). It fails as tcp does.
func (p *packet) sctp(e ends, udp *[2]uint16, tag, tsn uint32, stream uint16, ppid uint32, body []byte, length int) ([]byte, error) {
	const dataType, unorderedWhole = 0, 0x07
	pad := -length & 3
	b := make([]byte, 0, sctpLen+dataChunkLen+len(body)+3)
	b = binary.BigEndian.AppendUint16(b, e.from.Port())
	b = binary.BigEndian.AppendUint16(b, e.to.Port())
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, 0, 0, 0, 0)
	b = append(b, dataType, unorderedWhole)
	b = binary.BigEndian.AppendUint16(b, uint16(dataChunkLen+length))
	b = binary.BigEndian.AppendUint32(b, tsn)
	b = binary.BigEndian.AppendUint16(b, stream)
	b = append(b, 0, 0) // its number in the stream, which unordered ones have not
	b = binary.BigEndian.AppendUint32(b, ppid)
	b = append(b, body...)
	cut := length > len(body)
	if !cut {
		b = append(b, make([]byte, pad)...)
		binary.LittleEndian.PutUint32(b[8:], crc32c.Checksum(b))
	}
	n := sctpLen + dataChunkLen + length + pad
	if udp == nil {
		return p.ip(e, layers.IPProtocolSCTP, nil, b, n, cut)
	}
	h := &layers.UDP{SrcPort: layers.UDPPort(udp[0]), DstPort: layers.UDPPort(udp[1]), Length: uint16(udpLen + n)}
	return p.ip(e, layers.IPProtocolUDP, h, b, udpLen+n, cut)
}

// ip puts an IP header before a transport header, which may be nil, and a body. n is the length of what follows the IP
// header, in bytes. Of a packet that is cut the transport's checksum is 0: nobody could verify it.
func (p *packet) ip(e ends, proto layers.IPProtocol, transport gopacket.SerializableLayer, body []byte, n int, cut bool) ([]byte, error) {
	var network gopacket.SerializableLayer
	if e.from.Addr().Is4() {
		network = &layers.IPv4{Version: 4, IHL: ip4Len / 4, Length: uint16(ip4Len + n), TTL: hopLimit, Protocol: proto, Flags: layers.IPv4DontFragment, SrcIP: ipOf(e.from), DstIP: ipOf(e.to)}
	} else {
		network = &layers.IPv6{Version: 6, Length: uint16(n), HopLimit: hopLimit, NextHeader: proto, SrcIP: ipOf(e.from), DstIP: ipOf(e.to)}
	}
	if p.out == nil {
		p.out = gopacket.NewSerializeBuffer()
	}
	p.out.Clear()
	if err := gopacket.Payload(body).SerializeTo(p.out, gopacket.SerializeOptions{}); err != nil {
		return nil, err
	}
	if transport != nil {
		if err := transport.SerializeTo(p.out, gopacket.SerializeOptions{}); err != nil {
			return nil, err
		}
		if at := checksumAt[proto]; at > 0 && !cut {
			b := p.out.Bytes()
			binary.BigEndian.PutUint16(b[at:], checksum(e, proto, b))
		}
	}
	if err := network.SerializeTo(p.out, gopacket.SerializeOptions{ComputeChecksums: true}); err != nil {
		return nil, err
	}
	return p.out.Bytes(), nil
}

// checksumAt is where the checksum is in the headers of protocols that have the Internet's.
var checksumAt = map[layers.IPProtocol]int{layers.IPProtocolTCP: 16, layers.IPProtocolUDP: 6}

// checksum is that of a TCP segment or UDP datagram whose own checksum is 0, behind its pseudo header (RFC 9293 section 3.1, RFC
// 8200 section 8.1). The library's takes longer than all else that a packet takes.
func checksum(e ends, proto layers.IPProtocol, b []byte) uint16 {
	sum := uint64(proto) + uint64(len(b))
	for _, part := range [][]byte{ipOf(e.from), ipOf(e.to), b} {
		// Words of 32 bits add up to the same as those of 16, once the carries are folded (RFC 1071).
		for ; len(part) >= 4; part = part[4:] {
			sum += uint64(binary.BigEndian.Uint32(part))
		}
		for ; len(part) >= 2; part = part[2:] {
			sum += uint64(binary.BigEndian.Uint16(part))
		}
		if len(part) == 1 {
			sum += uint64(part[0]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	if sum == 0xffff && proto == layers.IPProtocolUDP {
		return 0xffff // 0 says that there is none
	}
	return ^uint16(sum)
}

func ipOf(a netip.AddrPort) net.IP { return a.Addr().AsSlice() }
