// Package capture reads the TCP connections of a pcap file, for tests that compare the
// stack with the bytes of other implementations.
package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Conn is a TCP connection, each direction's bytes put together.
type Conn struct {
	Client, Server         netip.AddrPort // the client sent the SYN
	FromClient, FromServer []byte
}

// direction collects what one end sent.
type direction struct {
	next uint32 // sequence number of the next byte
	data []byte
	late map[uint32][]byte // segments ahead of next
}

// Read returns the connections of a pcap file, which may be compressed by gzip,
// in the order in which they began. A connection whose beginning was not
// captured, and a gap, are errors.
func Read(path string) ([]Conn, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read a capture: %w", err)
	}
	defer f.Close()
	conns, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("read the capture %s: %w", path, err)
	}
	return conns, nil
}

func read(f io.Reader) ([]Conn, error) {
	in := bufio.NewReader(f)
	var src io.Reader = in
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		gz, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		src = gz
	}
	r, err := pcapgo.NewReader(src)
	if err != nil {
		return nil, err
	}
	type ends [2]netip.AddrPort
	var order []ends
	dirs := map[ends]*direction{}
	for n := 1; ; n++ {
		raw, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p := gopacket.NewPacket(raw, r.LinkType(), gopacket.Default)
		tcp, ok := p.TransportLayer().(*layers.TCP)
		if !ok {
			continue
		}
		flow := p.NetworkLayer().NetworkFlow()
		from, _ := netip.AddrFromSlice(flow.Src().Raw())
		to, _ := netip.AddrFromSlice(flow.Dst().Raw())
		key := ends{netip.AddrPortFrom(from, uint16(tcp.SrcPort)), netip.AddrPortFrom(to, uint16(tcp.DstPort))}
		d := dirs[key]
		switch {
		case tcp.SYN:
			if d == nil && !tcp.ACK {
				order = append(order, key)
			}
			dirs[key] = &direction{next: tcp.Seq + 1, late: map[uint32][]byte{}}
			continue
		case d == nil:
			return nil, fmt.Errorf("packet %d is of a connection whose beginning is not there: %v", n, key)
		}
		d.add(tcp.Seq, tcp.Payload)
	}
	var conns []Conn
	for _, key := range order {
		c, s := dirs[key], dirs[ends{key[1], key[0]}]
		if s == nil {
			s = &direction{}
		}
		if len(c.late)+len(s.late) > 0 {
			return nil, fmt.Errorf("the connection %v has a gap", key)
		}
		conns = append(conns, Conn{Client: key[0], Server: key[1], FromClient: c.data, FromServer: s.data})
	}
	return conns, nil
}

// add takes a segment, which may repeat or overlap earlier ones.
func (d *direction) add(seq uint32, p []byte) {
	behind := int(int32(d.next - seq))
	if len(p) == 0 || behind >= len(p) {
		return
	}
	if behind < 0 {
		d.late[seq] = bytes.Clone(p)
		return
	}
	d.data = append(d.data, p[behind:]...)
	d.next += uint32(len(p) - behind)
	for seq, p := range d.late {
		if int32(d.next-seq) >= 0 {
			delete(d.late, seq)
			d.add(seq, p)
			return
		}
	}
}
