package ipsectest

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// TCP flags (RFC 9293 section 3.1).
const (
	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagPSH = 1 << 3
	flagACK = 1 << 4
)

// segment is a TCP segment with its addresses.
type segment struct {
	from, to netip.AddrPort
	seq, ack uint32
	flags    byte
	data     []byte
}

// datagram is a UDP datagram with its addresses.
type datagram struct {
	from, to netip.AddrPort
	data     []byte
}

// sum is the Internet checksum (RFC 1071).
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			s += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)%2 == 1 {
			s += uint32(p[len(p)-1]) << 8
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// ip puts a header before a payload whose checksum is at the offset at.
func ip(from, to netip.Addr, proto byte, at int, payload []byte) []byte {
	be := binary.BigEndian
	src, dst := from.AsSlice(), to.AsSlice()
	pseudo := append(append([]byte{}, src...), dst...)
	pseudo = be.AppendUint32(pseudo, uint32(len(payload)))
	pseudo = be.AppendUint32(pseudo, uint32(proto))
	be.PutUint16(payload[at:], sum(pseudo, payload))
	return header(from, to, proto, payload)
}

// header puts a header before a payload that has its checksum.
func header(from, to netip.Addr, proto byte, payload []byte) []byte {
	be := binary.BigEndian
	src, dst := from.AsSlice(), to.AsSlice()
	var h []byte
	if from.Is4() {
		h = make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, proto
		be.PutUint16(h[2:], uint16(20+len(payload)))
		copy(h[12:], src)
		copy(h[16:], dst)
		be.PutUint16(h[10:], sum(h))
	} else {
		h = make([]byte, 40)
		h[0], h[6], h[7] = 0x60, proto, 64
		be.PutUint16(h[4:], uint16(len(payload)))
		copy(h[8:], src)
		copy(h[24:], dst)
	}
	return append(h, payload...)
}

func (s segment) packet() []byte {
	be := binary.BigEndian
	h := make([]byte, 20, 20+len(s.data))
	be.PutUint16(h, s.from.Port())
	be.PutUint16(h[2:], s.to.Port())
	be.PutUint32(h[4:], s.seq)
	be.PutUint32(h[8:], s.ack)
	h[12], h[13] = 5<<4, s.flags
	be.PutUint16(h[14:], 0xffff)
	return ip(s.from.Addr(), s.to.Addr(), unix.IPPROTO_TCP, 16, append(h, s.data...))
}

func (d datagram) packet() []byte {
	h := make([]byte, 8, 8+len(d.data))
	binary.BigEndian.PutUint16(h, d.from.Port())
	binary.BigEndian.PutUint16(h[2:], d.to.Port())
	binary.BigEndian.PutUint16(h[4:], uint16(8+len(d.data)))
	return ip(d.from.Addr(), d.to.Addr(), unix.IPPROTO_UDP, 6, append(h, d.data...))
}

// parse reads a TCP segment of an IP packet without options.
func parse(p []byte) (s segment, ok bool) {
	var src, dst netip.Addr
	be := binary.BigEndian
	switch {
	case len(p) >= 40 && p[0] == 0x45 && p[9] == unix.IPPROTO_TCP:
		src, dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		p = p[20:min(len(p), int(be.Uint16(p[2:])))]
	case len(p) >= 60 && p[0]>>4 == 6 && p[6] == unix.IPPROTO_TCP:
		src, dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		p = p[40:min(len(p), 40+int(be.Uint16(p[4:])))]
	default:
		return s, false
	}
	if len(p) < 20 || len(p) < int(p[12]>>4)*4 {
		return s, false
	}
	return segment{from: netip.AddrPortFrom(src, be.Uint16(p)), to: netip.AddrPortFrom(dst, be.Uint16(p[2:])),
		seq: be.Uint32(p[4:]), ack: be.Uint32(p[8:]), flags: p[13], data: p[int(p[12]>>4)*4:]}, true
}

// next is the sequence number after the segment.
func (s segment) next() uint32 {
	n := s.seq + uint32(len(s.data))
	for _, f := range []byte{flagSYN, flagFIN} {
		if s.flags&f != 0 {
			n++
		}
	}
	return n
}

func linkAddr(t *testing.T, h *lab.Host) (mac net.HardwareAddr, index int) {
	t.Helper()
	err := h.Do(func() error {
		dev, err := net.InterfaceByName(h.Dev())
		if err == nil {
			mac, index = dev.HardwareAddr, dev.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac, index
}

// neighbour is a host on the same wire that sends arbitrary packets.
type neighbour struct {
	*lab.Host
	t     *testing.T
	fd    int
	index int
	head  []byte // of Ethernet
}

// newNeighbour attacks a host.
func newNeighbour(t *testing.T, h *lab.Host, at *host) *neighbour {
	t.Helper()
	n := &neighbour{Host: h, t: t}
	to, _ := linkAddr(t, at.Host)
	from, index := linkAddr(t, h)
	n.index, n.head = index, append(append([]byte{}, to...), from...)
	err := h.Do(func() (err error) {
		n.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(n.fd) })
	return n
}

// send puts an IP packet on the wire.
func (n *neighbour) send(packet []byte) {
	n.t.Helper()
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	frame := append(binary.BigEndian.AppendUint16(append([]byte{}, n.head...), kind), packet...)
	if err := unix.Sendto(n.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: n.index, Halen: 6}); err != nil {
		n.t.Fatal(err)
	}
}

// sniffer sees the TCP segments of a host after ESP has decrypted them, clear ones
// as well, and with userland ESP those that are to be encrypted.
type sniffer struct {
	mu    sync.Mutex
	seen  []segment
	marks []string // what settle has sent
}

func sniff(t *testing.T, h *host) *sniffer {
	t.Helper()
	s := &sniffer{}
	packets(t, h, func(b []byte) {
		if i := bytes.Index(b, []byte(settled)); i >= 0 {
			s.mu.Lock()
			s.marks = append(s.marks, string(b[i:]))
			s.mu.Unlock()
			return
		}
		if seg, ok := parse(b); ok && (seg.from.Port() == port || seg.to.Port() == port) {
			seg.data = append([]byte{}, seg.data...)
			s.mu.Lock()
			s.seen = append(s.seen, seg)
			s.mu.Unlock()
		}
	})
	return s
}

// settled is how what settle sends begins.
const settled = "everything before this is counted "

// settle returns when the sniffer has seen all that crossed the host's devices before the call.
func (s *sniffer) settle(t *testing.T, h *host) {
	t.Helper()
	mark := settled + rand.Text()
	err := h.Do(func() error {
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(mark))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "what has crossed the devices is counted", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.marks, mark)
	})
}

// sniffESP returns a function that returns the ESP packets that a host has
// received from an IPv4 address, in UDP or not.
func sniffESP(t *testing.T, h *host, from netip.Addr) func() [][]byte {
	t.Helper()
	var mu sync.Mutex
	var seen [][]byte
	packets(t, h, func(b []byte) {
		if len(b) < 36 || b[0] != 0x45 || netip.AddrFrom4([4]byte(b[12:16])) != from {
			return
		}
		be := binary.BigEndian
		b = b[:min(len(b), int(be.Uint16(b[2:])))]
		inUDP := b[9] == unix.IPPROTO_UDP && be.Uint16(b[22:]) == 4500 && be.Uint32(b[28:]) != 0
		if b[9] == unix.IPPROTO_ESP || inUDP {
			mu.Lock()
			seen = append(seen, append([]byte{}, b...))
			mu.Unlock()
		}
	})
	return func() [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// packets passes on the IP packets of a host's devices until the test ends.
func packets(t *testing.T, h *host, take func([]byte)) {
	t.Helper()
	var f *os.File
	err := h.Do(func() error {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		if err == nil {
			f = os.NewFile(uintptr(fd), "packets")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, err := f.Read(b)
			if err != nil {
				return
			}
			take(b[:n])
		}
	}()
	t.Cleanup(func() { f.Close(); <-done })
}

func (s *sniffer) has(f func(segment) bool) bool {
	_, ok := s.last(f)
	return ok
}

// count is how many segments of a kind were seen.
func (s *sniffer) count(f func(segment) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.seen {
		if f(g) {
			n++
		}
	}
	return n
}

// first returns the first segment of a kind.
func (s *sniffer) first(f func(segment) bool) (segment, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.seen, f); i >= 0 {
		return s.seen[i], true
	}
	return segment{}, false
}

// last returns the last segment of a kind.
func (s *sniffer) last(f func(segment) bool) (segment, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.seen) - 1; i >= 0; i-- {
		if f(s.seen[i]) {
			return s.seen[i], true
		}
	}
	return segment{}, false
}

// unguard removes the guard of a host, and everything else of the kernel's IPsec that
// would stop clear packets.
func (p *pair) unguard(t *testing.T, h *host) {
	t.Helper()
	if p.lab.DataPlane() == esp.Kernel { // the SA's policies demand ESP
		p.acknowledged(t) // waiting packets would bring the SA back
		deleteIKE(t, h, p.other(h).Name())
		// strongSwan reports the end of an SA before it has cleaned up.
		eventually(t, "the SA's policies are gone", func() bool {
			out, err := h.Run(t.Context(), "ip", "xfrm", "policy")
			return err == nil && !strings.Contains(out, "tmpl")
		})
	}
	if err := h.m.RemoveGuard(t.Context(), p.other(h).Name()); err != nil {
		t.Fatal(err)
	}
}
