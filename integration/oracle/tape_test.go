package oracle

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// tape records what the two ends of a connection write, in an order in which no answer
// precedes its request.
type tape struct {
	mu     sync.Mutex
	chunks []chunk
}

type chunk struct {
	from int // client or server
	data []byte
}

// The ends of a connection.
const (
	client = iota
	server
)

var endNames = [...]string{"c", "s"}

// taped is one end of a recorded connection. It hides the file descriptor, so
// that every byte goes through Write.
type taped struct {
	net.Conn
	tape *tape
	from int
}

func (c *taped) Write(p []byte) (int, error) {
	c.tape.mu.Lock()
	c.tape.chunks = append(c.tape.chunks, chunk{c.from, append([]byte(nil), p...)})
	c.tape.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *taped) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// connection returns the two ends of a recorded TCP connection on loopback.
func connection(t testing.TB) (*tape, [2]net.Conn) {
	t.Helper()
	c, s := iwarptest.TCPPair(t)
	tp := &tape{}
	return tp, [2]net.Conn{&taped{c, tp, client}, &taped{s, tp, server}}
}

// stream is all that one end wrote.
func (tp *tape) stream(from int) []byte {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	var b []byte
	for _, c := range tp.chunks {
		if c.from == from {
			b = append(b, c.data...)
		}
	}
	return b
}

// cut is a way to divide a stream into TCP segments.
type cut struct {
	name  string
	fpdus bool  // exactly one FPDU in each segment
	sizes []int // or segments of these sizes in bytes, in turn
}

var cuts = []cut{
	{name: "an FPDU a segment", fpdus: true},
	{name: "many FPDUs a segment", sizes: []int{9000}},
	{name: "odd segments", sizes: []int{333, 1000, 61, 1460, 19, 127, 11}},
}

// startupLen is the length in bytes of the start-up frame at the head of a
// stream.
func startupLen(stream []byte) int { return 20 + int(binary.BigEndian.Uint16(stream[18:])) }

// fpduEnds returns where the FPDUs of a stream in full operation end.
func fpduEnds(stream []byte, markers bool) (ends []int) {
	for pos := 0; pos < len(stream); {
		head := pos
		if markers && pos%512 == 0 {
			head += 4
		}
		n := int(binary.BigEndian.Uint16(stream[head:]))
		for left := 2 + n + -(n+2)&3 + 4; left > 0; {
			if markers && pos%512 == 0 {
				pos += 4
			}
			step := left
			if markers {
				step = min(left, 512-pos%512)
			}
			pos += step
			left -= step
		}
		ends = append(ends, pos)
	}
	return ends
}

// half is one direction of the connection that is written as a capture.
type half struct {
	data []byte // written so far
	off  int    // of it in packets
	ends []int  // of the start-up frame and the FPDUs
	turn int
	seq  uint32
	ip   net.IP
	port layers.TCPPort
}

// split is the least number of bytes of an FPDU before a cut. With fewer of them
// in a TCP segment tshark does not wait for the rest.
const split = 8

// boundary is the last end of an FPDU at or before off.
func (h *half) boundary(off int) int {
	i, exact := slices.BinarySearch(h.ends, off)
	switch {
	case exact:
		return off
	case i == 0:
		return 0
	}
	return h.ends[i-1]
}

// next is where the next TCP segment ends.
func (h *half) next(how cut) int {
	if i, _ := slices.BinarySearch(h.ends, h.off+1); how.fpdus || i == 0 {
		if i == len(h.ends) {
			return len(h.data)
		}
		return h.ends[i]
	}
	end := h.off + how.sizes[h.turn%len(how.sizes)]
	h.turn++
	if b := h.boundary(end); end > b && end < b+split {
		end = b + split
	}
	return end
}

// file is a capture that is being written: connections one after the other, each with
// its own client's port.
type file struct {
	t    testing.TB
	path string
	f    *os.File
	w    *pcapgo.Writer
	n    int64
}

const serverPort = 7471

func newFile(t testing.TB) *file {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tape.pcap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(1<<18, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	return &file{t: t, path: path, f: f, w: w}
}

// add writes the record as packets of IPv4 or IPv6. markers says whose stream has some.
func (f *file) add(tp *tape, port uint16, how cut, ip6 bool, markers [2]bool) {
	f.t.Helper()
	f.addCut(tp, tp, port, how, ip6, markers)
}

// addCut is add with segments for the FPDUs of another record.
func (f *file) addCut(tp, like *tape, port uint16, how cut, ip6 bool, markers [2]bool) {
	f.t.Helper()
	w := &packetWriter{file: f, ip6: ip6}
	for from := range w.halves {
		// The sequence numbers wrap early on, except with markers, where tshark misreads the
		// length of the FPDU at the wrap.
		h := &half{seq: 0xfffff000 + uint32(from), port: []layers.TCPPort{layers.TCPPort(port), serverPort}[from], ip: net.IP{10, 9, 0, byte(1 + from)}}
		if markers != [2]bool{} {
			h.seq -= 1 << 20
		}
		if ip6 {
			h.ip = net.ParseIP(fmt.Sprintf("fd09::%d", 1+from))
		}
		if s := like.stream(from); len(s) > 0 {
			n := startupLen(s)
			h.ends = append(h.ends, n)
			for _, end := range fpduEnds(s[n:], markers[from]) {
				h.ends = append(h.ends, n+end)
			}
		}
		w.halves[from] = h
	}
	w.packet(client, &layers.TCP{SYN: true}, nil)
	w.packet(server, &layers.TCP{SYN: true, ACK: true}, nil)
	w.packet(client, &layers.TCP{ACK: true}, nil)
	for i, c := range tp.chunks {
		h := w.halves[c.from]
		h.data = append(h.data, c.data...)
		w.drain(c.from, how, len(h.data), false)
		if i+1 < len(tp.chunks) && tp.chunks[i+1].from != c.from {
			w.drain(c.from, how, h.boundary(len(h.data)), true)
		}
	}
	for from, h := range w.halves {
		w.drain(from, how, len(h.data), true)
	}
	w.packet(client, &layers.TCP{FIN: true, ACK: true}, nil)
	w.packet(server, &layers.TCP{FIN: true, ACK: true}, nil)
	w.packet(client, &layers.TCP{ACK: true}, nil)
}

type packetWriter struct {
	*file
	halves [2]*half
	ip6    bool
}

// drain writes what there is up to limit in whole segments, and with over the
// rest in a short one.
func (w *packetWriter) drain(from int, how cut, limit int, over bool) {
	for h := w.halves[from]; h.off < limit; {
		turn := h.turn
		end := h.next(how)
		if end > limit {
			if !over {
				h.turn = turn
				return
			}
			end = limit
		}
		w.packet(from, &layers.TCP{ACK: true, PSH: true}, h.data[h.off:end])
		h.off = end
	}
}

func (w *packetWriter) packet(from int, tcp *layers.TCP, payload []byte) {
	h, peer := w.halves[from], w.halves[1-from]
	tcp.SrcPort, tcp.DstPort, tcp.Seq, tcp.Window = h.port, peer.port, h.seq, 0xffff
	if tcp.ACK {
		tcp.Ack = peer.seq
	}
	if tcp.SYN {
		tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{14}}}
	}
	h.seq += uint32(len(payload))
	if tcp.SYN || tcp.FIN {
		h.seq++
	}
	var ip gopacket.SerializableLayer
	var network gopacket.NetworkLayer
	if w.ip6 {
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: h.ip, DstIP: peer.ip}
		ip, network = v6, v6
	} else {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: h.ip, DstIP: peer.ip}
		ip, network = v4, v4
	}
	if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
		w.t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, tcp, gopacket.Payload(payload)); err != nil {
		w.t.Fatal(err)
	}
	w.n++
	ci := gopacket.CaptureInfo{Timestamp: time.Unix(1, 0).Add(time.Duration(w.n) * time.Millisecond), CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}
	if err := w.file.w.WritePacket(ci, b.Bytes()); err != nil {
		w.t.Fatal(err)
	}
}
