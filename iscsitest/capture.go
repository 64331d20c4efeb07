package iscsitest

import (
	"io"
	"net"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// The hosts of a capture (RFC 5737): what is in it are PDUs, and not the packets that have carried them.
var (
	captureInitiator = net.IPv4(192, 0, 2, 1)
	captureTarget    = net.IPv4(192, 0, 2, 2)
)

// captureSegment is the longest TCP segment of a capture in bytes.
const captureSegment = 32 << 10

// WriteCapture writes the trace as a capture (pcapng) that Wireshark opens: each connection is one of TCP to port
// 3260, whatever it was, with the PDUs as they are without digests. It fails as w does.
func (x *Result) WriteCapture(w io.Writer, began time.Time) error {
	f, err := pcapgo.NewNgWriter(w, layers.LinkTypeRaw)
	if err != nil {
		return err
	}
	type direction struct{ next uint32 } // sequence numbers
	flows := map[int]*[2]direction{}
	for _, e := range x.Trace {
		if e.PDU == nil {
			continue
		}
		flow := flows[e.Conn]
		if flow == nil {
			flow = &[2]direction{{1}, {1}}
			flows[e.Conn] = flow
		}
		from, to := &flow[0], &flow[1]
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: captureInitiator, DstIP: captureTarget}
		tcp := &layers.TCP{SrcPort: layers.TCPPort(49152 + e.Conn%16384), DstPort: DefaultPort, ACK: true, PSH: true, Window: 65535}
		if !e.Sent {
			from, to = to, from
			ip.SrcIP, ip.DstIP = ip.DstIP, ip.SrcIP
			tcp.SrcPort, tcp.DstPort = tcp.DstPort, tcp.SrcPort
		}
		for b := e.PDU.Bytes(); len(b) > 0; {
			n := min(len(b), captureSegment)
			tcp.Seq, tcp.Ack = from.next, to.next
			if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
				return err
			}
			out := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, tcp, gopacket.Payload(b[:n])); err != nil {
				return err
			}
			info := gopacket.CaptureInfo{Timestamp: began.Add(e.At), CaptureLength: len(out.Bytes()), Length: len(out.Bytes())}
			if err := f.WritePacket(info, out.Bytes()); err != nil {
				return err
			}
			from.next += uint32(n)
			b = b[n:]
		}
	}
	return f.Flush()
}
