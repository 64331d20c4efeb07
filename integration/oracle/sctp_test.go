package oracle

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
	"github.com/ironwarp/ironwarp/verbs"
)

// A packet of SCTP in UDP that an end has sent.
type datagram struct {
	from int
	data []byte
}

// reel keeps the packets of an association, in the order of their sending.
type reel struct {
	mu  sync.Mutex
	all []datagram
}

func (r *reel) record(fromClient bool, p []byte) (drop bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := server
	if fromClient {
		from = client
	}
	r.all = append(r.all, datagram{from, slices.Clone(p)})
	return false
}

// add writes the packets, as those of UDP over IPv4 or IPv6.
func (f *file) addDatagrams(all []datagram, ip6 bool) {
	f.t.Helper()
	ports := [2]layers.UDPPort{40000, udpPort}
	for i, d := range all {
		var ip gopacket.SerializableLayer
		var network gopacket.NetworkLayer
		if ip6 {
			addr := func(n int) net.IP { return net.ParseIP(fmt.Sprintf("fd09::%d", 1+n)) }
			v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: addr(d.from), DstIP: addr(1 - d.from)}
			ip, network = v6, v6
		} else {
			addr := func(n int) net.IP { return net.IP{10, 9, 0, byte(1 + n)} }
			v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: addr(d.from), DstIP: addr(1 - d.from)}
			ip, network = v4, v4
		}
		udp := &layers.UDP{SrcPort: ports[d.from], DstPort: ports[1-d.from]}
		if err := udp.SetNetworkLayerForChecksum(network); err != nil {
			f.t.Fatal(err)
		}
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(d.data)); err != nil {
			f.t.Fatal(err)
		}
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(1, 0).Add(time.Duration(i) * time.Millisecond), CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}
		if err := f.w.WritePacket(ci, b.Bytes()); err != nil {
			f.t.Fatal(err)
		}
	}
}

const (
	udpPort = 9899
	sctpMTU = 1500
	// sctpRoom is MULPDU: the MTU less the headers of IPv4, UDP, SCTP and DATA, a
	// SACK and the DDP-SSN, in whole words.
	sctpRoom = 1424
)

// overSCTP makes two new ends do everything over several streams of one association, in
// turn, through a relay with these faults. It returns what was sent, and the ends: a
// client and a server for each stream.
func overSCTP(t testing.TB, streams int, faults sctptest.Faults) (*reel, [][2]*end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lo := netip.MustParseAddr("127.0.0.1")
	r := &reel{}
	// Both RNICs are shared by the streams of the association.
	c, s := newEnd(t, client), newEnd(t, server)
	cfg := func(port uint16) *transport.Config {
		return &transport.Config{Protector: transport.LoopbackOnly(), Kind: transport.SCTPUDP, UDPPort: port, MTU: sctpMTU}
	}
	port := iwarptest.FreeUDPPort(t)
	ln, err := s.dev.Listen(ctx, netip.AddrPortFrom(lo, serverPort), verbs.ListenConfig{Transport: cfg(port)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	faults.Drop = r.record
	relay, err := sctptest.NewRelay(netip.AddrPortFrom(lo, port), faults, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	dial := verbs.DialConfig{Remote: netip.AddrPortFrom(lo, serverPort), Transport: cfg(relay.Addr().Port()), PrivateData: []byte("of the oracle")}
	var all [][2]*end
	for range streams {
		pair := [2]*end{c.sibling(), s.sibling()}
		served := make(chan error, 1)
		go func() {
			req, err := ln.Accept(ctx)
			if err == nil {
				pair[server].qp, err = req.Accept(ctx, pair[server].pd, verbs.AcceptConfig{QP: pair[server].cfg, PrivateData: []byte("welcome")})
			}
			served <- err
		}()
		dial.QP = pair[client].cfg
		pair[client].qp, err = pair[client].pd.Dial(ctx, dial)
		if err := errors.Join(err, <-served); err != nil {
			t.Fatal(err)
		}
		all = append(all, pair)
	}
	for _, pair := range all {
		everything(pair[client], pair[server])
		everything(pair[server], pair[client])
	}
	for _, pair := range all {
		finish(t, pair[:]...)
	}
	// The association is shut down after its last stream.
	deadline := time.After(2 * time.Minute)
	for !r.has(chunkShutdownComplete) {
		select {
		case <-deadline:
			t.Fatal("the association is not shut down when its last stream is over")
		case <-time.After(time.Millisecond):
		}
	}
	return r, all
}

// chunkShutdownComplete is the type of the last chunk of an association (RFC 9260
// section 3.3.13).
const chunkShutdownComplete = 14

// has reports whether a packet begins with a chunk of that type.
func (r *reel) has(chunk byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.all, func(d datagram) bool { return len(d.data) > 12 && d.data[12] == chunk })
}

// sibling is another end at the same RNIC.
func (e *end) sibling() *end {
	e.t.Helper()
	s := &end{t: e.t, from: e.from, ulp: e.ulp, dev: e.dev, pd: e.pd, mulpdu: sctpRoom}
	var err error
	if s.cq, err = e.ulp.CreateCQ(256, nil); err != nil {
		e.t.Fatal(err)
	}
	s.cfg = e.cfg
	s.cfg.SendCQ, s.cfg.RecvCQ = s.cq, s.cq
	s.memory()
	return s
}

// spoil changes a packet and corrects its checksum (RFC 9260 section 6.8).
func spoil(d datagram, change func(p []byte)) datagram {
	p := slices.Clone(d.data)
	change(p)
	clear(p[8:12])
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return datagram{d.from, p}
}

// tshark decodes every operation of several streams in one association as intended, and
// the association's chunks as well: on a clean network, and on one that loses,
// duplicates and reorders packets.
func TestTsharkReadsEveryOperationOverSCTP(t *testing.T) {
	requireTshark(t)
	for name, faults := range map[string]sctptest.Faults{
		"clean, IPv4": {}, "bad, IPv6": {Loss: 0.02, Duplicate: 0.05, Reorder: 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			r, ends := overSCTP(t, 3, faults)
			f := newFile(t)
			f.addDatagrams(r.all, name == "bad, IPv6")
			found := askSCTP(t, f.path)
			for _, c := range found.complaints(t, ends) {
				t.Error(c)
			}
			for _, want := range []string{"INIT (1)", "INIT_ACK (2)", "COOKIE_ECHO (10)", "COOKIE_ACK (11)", "DATA (0)", "SACK (3)", "SHUTDOWN (7)", "SHUTDOWN_ACK (8)", "SHUTDOWN_COMPLETE (14)"} {
				if found.chunks[want] == 0 {
					t.Errorf("there is no chunk %s: %v", want, found.chunks)
				}
			}
		})
	}
}

// The control: the same check finds each of these faults in an association that is
// otherwise good.
func TestSpoiltAssociationsAreFlagged(t *testing.T) {
	requireTshark(t)
	r, ends := overSCTP(t, 1, sctptest.Faults{})
	// data is the first packet with a DDP segment of the client's at a chunk that is
	// the packet's first; its chunk begins at 12.
	data := slices.IndexFunc(r.all, func(d datagram) bool {
		return d.from == client && len(d.data) > 40 && d.data[12] == 0 && binary.BigEndian.Uint32(d.data[24:]) == 16
	})
	initiate := slices.IndexFunc(r.all, func(d datagram) bool { return d.data[12] == 1 })
	if data < 0 || initiate < 0 {
		t.Fatal("there is no packet to spoil")
	}
	for _, tc := range []struct {
		name   string
		packet int
		change func(p []byte)
		raw    bool // the checksum is not corrected
	}{
		{name: "nothing", packet: data, change: func([]byte) {}},
		{name: "a checksum", packet: data, change: func(p []byte) { p[8] ^= 1 }, raw: true},
		{name: "an ordered chunk", packet: data, change: func(p []byte) { p[13] &^= 4 }},
		{name: "a fragment", packet: data, change: func(p []byte) { p[13] &^= 1 }},
		{name: "a payload protocol", packet: data, change: func(p []byte) { p[27] = 18 }},
		{name: "a chunk that is too long", packet: data, change: func(p []byte) { p[14] = 0x20 }},
		{name: "a DDP-SSN", packet: data, change: func(p []byte) { p[29] += 3 }},
		{name: "a bit of a DDP header", packet: data, change: func(p []byte) { p[30] ^= 0x80 }},
		{name: "a bit of a payload", packet: data, change: func(p []byte) { p[len(p)-5] ^= 1 }},
		{name: "the adaptation indication", packet: initiate, change: func(p []byte) {
			at := strings.Index(string(p), "\xc0\x06\x00\x08")
			if at < 0 {
				t.Fatalf("no indication in the INIT %x", p)
			}
			p[at+7] = 2
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := slices.Clone(r.all)
			if tc.raw {
				all[tc.packet] = datagram{all[tc.packet].from, slices.Clone(all[tc.packet].data)}
				tc.change(all[tc.packet].data)
			} else {
				all[tc.packet] = spoil(all[tc.packet], tc.change)
			}
			f := newFile(t)
			f.addDatagrams(all, false)
			flagged := askSCTP(t, f.path).complaints(t, ends)
			if good := tc.name == "nothing"; good != (len(flagged) == 0) {
				t.Errorf("%d complaints: %v", len(flagged), flagged)
			}
		})
	}
}
