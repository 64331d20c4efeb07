package sctp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// rawPeer is a peer that sends whatever a test wants, on a UDP socket.
type rawPeer struct {
	t        testing.TB
	c        *net.UDPConn
	src, dst uint16
	tag      uint32 // ours
	peerTag  uint32
	tsn      uint32
	peerTSN  uint32
}

func newRawPeer(t testing.TB, e *Endpoint) *rawPeer {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(e.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &rawPeer{t: t, c: c, src: 7777, dst: DefaultPort, tag: 0x11223344, tsn: 1000}
}

func (r *rawPeer) addr() netip.AddrPort { return r.c.LocalAddr().(*net.UDPAddr).AddrPort() }

// send sends chunks in one packet.
func (r *rawPeer) send(tag uint32, chunks ...[]byte) {
	r.t.Helper()
	b := appendHeader(nil, r.src, r.dst, tag)
	for _, c := range chunks {
		b = append(b, c...)
	}
	packet(b).seal()
	if _, err := r.c.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// recv is the next packet, but HEARTBEATs and those that try the path's MTU.
func (r *rawPeer) recv() packet {
	r.t.Helper()
	for {
		p := r.recvAny()
		if holds(p, func(c chunk) bool { return c.typ() != typeHeartbeat && c.typ() != typePad }) {
			return p
		}
	}
}

func (r *rawPeer) recvAny() packet {
	r.t.Helper()
	b := make([]byte, 1<<16)
	r.c.SetReadDeadline(time.Now().Add(patience))
	n, err := r.c.Read(b)
	if err != nil {
		r.t.Fatal(err)
	}
	if !packet(b[:n]).intact() {
		r.t.Fatalf("a damaged packet: %x", b[:n])
	}
	return b[:n]
}

// want waits for a packet with a chunk of this type and returns the chunk and the
// packet.
func (r *rawPeer) want(typ chunkType) (chunk, packet) {
	r.t.Helper()
	for {
		p := r.recv()
		for rest := p.chunks(); len(rest) > 0; {
			c, next, err := cutChunk(rest)
			if err != nil {
				r.t.Fatalf("a malformed packet: %x", p)
			}
			if c.typ() == typ {
				return c, p
			}
			rest = next
		}
	}
}

// quiet checks that all that was sent before brought no answer: a HEARTBEAT
// behind it is answered first.
func (r *rawPeer) quiet(what string) {
	r.t.Helper()
	r.send(r.peerTag, appendChunk(nil, typeHeartbeat, 0, appendParam(nil, paramHeartbeatInfo, []byte(what))))
	p := r.recv()
	c, _, _ := cutChunk(p.chunks())
	if c.typ() != typeHeartbeatAck {
		r.t.Errorf("%s was answered: %x", what, p)
	}
}

func (r *rawPeer) init() []byte {
	i := initChunk{tag: r.tag, rwnd: 1 << 20, out: 10, in: 10, tsn: r.tsn}
	return i.append(nil, typeInit)
}

// connect does the handshake.
func (r *rawPeer) connect() {
	r.t.Helper()
	r.send(0, r.init())
	c, p := r.want(typeInitAck)
	if p.tag() != r.tag {
		r.t.Fatalf("the INIT ACK has tag %x, want %x", p.tag(), r.tag)
	}
	i, err := parseInit(c)
	if err != nil {
		r.t.Fatal(err)
	}
	params, err := parseParams(i.params)
	if err != nil {
		r.t.Fatal(err)
	}
	r.peerTag, r.peerTSN = i.tag, i.tsn
	r.send(r.peerTag, appendChunk(nil, typeCookieEcho, 0, params.cookie))
	r.want(typeCookieAck)
}

// data is a DATA chunk with the next TSN.
func (r *rawPeer) data(stream uint16, payload string) []byte {
	r.tsn++
	return dataWith(r.tsn-1, stream, flagB|flagE|flagU, payload)
}

func dataWith(tsn uint32, stream uint16, flags uint8, payload string) []byte {
	b := appendDataHeader(nil, flags, tsn, stream, 0, 16, len(payload))
	return pad(append(b, payload...), len(payload))
}

// victim is an endpoint with a raw peer that has an association with it.
func victim(t testing.TB, cfg Config) (*Endpoint, *rawPeer, *Assoc, *assoctest.Inbox) {
	t.Helper()
	in := assoctest.NewInbox()
	cfg.Accept = func(*Assoc) assoc.Receiver { return in }
	e := listen(t, "127.0.0.1", cfg)
	r := newRawPeer(t, e)
	r.connect()
	a, err := e.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	return e, r, a, in
}
