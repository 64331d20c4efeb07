package sctp

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// deaf is a carrier of which nothing comes; what is sent to it is kept.
type deaf struct {
	done chan struct{}
	last packet
}

func (d *deaf) send(_ netip.AddrPort, s *sender) error {
	for i := range s.batch.packets {
		d.last = append(d.last[:0], s.batch.packets[i]...)
	}
	return nil
}
func (d *deaf) read(*demux) error                  { <-d.done; return nil }
func (d *deaf) local() netip.AddrPort              { return netip.MustParseAddrPort(addrA) }
func (d *deaf) recvBuffer() int                    { return 1 << 18 }
func (d *deaf) mtu(netip.Addr, netip.AddrPort) int { return 0 }
func (d *deaf) close()                             { close(d.done) }

// FuzzEndpoint is a peer that sends anything: packets with a right checksum, with
// tags that are right or not, whose chunks are whatever the input says, to an
// endpoint with an association that has messages under way. Whatever happens,
// its sums are right, what it keeps is bounded, and another peer's association
// stays.
func FuzzEndpoint(f *testing.F) {
	sack := func(off int32, gaps ...gapBlock) []byte {
		return appendSack(nil, uint32(off), 5000, gaps, nil)
	}
	f.Add([]byte{0, 24, 3, 0}, []byte("x"))
	var seed []byte
	for _, c := range [][]byte{sack(0), sack(2, gapBlock{2, 3}), sack(2, gapBlock{2, 3}), sack(5), dataWith(3, 1, 7, "abc"), dataWith(1, 1, 7, "abc"),
		appendShutdown(nil, 5), appendChunk(nil, typeHeartbeat, 0, []byte{0, 1, 0, 4}), appendAbort(nil, 0, assoc.Cause{})} {
		seed = append(append(seed, 0, byte(len(c))), c...)
	}
	f.Add(seed, []byte("payload"))
	for _, g := range linuxPackets(f) {
		c := g.p.chunks()
		c = c[:min(len(c), 250)]
		f.Add(append([]byte{byte(len(c)), byte(len(c))}, c...), []byte("x"))
	}
	f.Fuzz(func(t *testing.T, script, payload []byte) {
		d := &deaf{done: make(chan struct{})}
		in := assoctest.NewInbox()
		in.Quiet, in.Hold = true, len(payload)%2 == 0
		e := newEndpoint(d, Config{Params: assoc.Params{Streams: 4}, Admit: anyone, Accept: to(in), RecvWindow: 4000, SendBuffer: 1 << 16})
		defer e.Close()
		r := newDemux(e)
		r.now = time.Second
		peer, other := netip.MustParseAddrPort(addrB), netip.MustParseAddrPort("192.0.2.3:9899")
		deliver := func(from netip.AddrPort, tag uint32, chunks []byte) {
			p := packet(append(appendHeader(nil, 7, DefaultPort, tag), chunks...))
			if len(p) < headerLen+chunkHeaderLen {
				return
			}
			p.seal()
			r.packet(from, p)
			r.finish()
			r.now += time.Millisecond
		}
		setUp := func(from netip.AddrPort) *Assoc {
			deliver(from, 0, (&initChunk{tag: 99, rwnd: 1 << 16, out: 4, in: 4, tsn: 1}).append(nil, typeInit))
			c, _, _ := cutChunk(d.last.chunks())
			i, _ := parseInit(c)
			k, _ := parseParams(i.params)
			deliver(from, i.tag, appendChunk(nil, typeCookieEcho, 0, k.cookie))
			return <-e.accepted
		}
		a, b := setUp(peer), setUp(other)
		first := a.t.localTSN
		if len(payload) > 0 {
			ms := make([]assoc.Outgoing, 8)
			for i := range ms {
				ms[i].Bufs = [][]byte{payload[:min(len(payload), 1400)]}
			}
			a.TrySend(ms)
		}
		for len(script) >= 2 {
			how, n := script[0], int(script[1])
			script = script[2:]
			n = min(n, len(script))
			c := append([]byte(nil), script[:n]...)
			script = script[n:]
			// SACK and SHUTDOWN come near what was sent, so that they are not all refused.
			if len(c) >= 8 && how < 128 && (chunkType(c[0]) == typeSack || chunkType(c[0]) == typeShutdown) {
				binary.BigEndian.PutUint32(c[4:], first-1+binary.BigEndian.Uint32(c[4:])%12)
			}
			tag := a.t.localTag
			switch how % 16 {
			case 1:
				tag = 0
			case 2:
				tag = 99
			case 3:
				tag++
			}
			deliver(peer, tag, c)
			if how%16 == 4 {
				a.mu.Lock()
				a.t.expire(r.now + time.Duration(how)*time.Second)
				a.deliverAndUnlock(false)
			}
			a.mu.Lock()
			(&sim{}).check(&a.t)
			if a.t.held > 2*4000 || len(a.t.control) > 4096 || len(a.t.rx.ring) > (maxAhead+1)/64 || len(a.t.rx.dups) > maxDups {
				t.Errorf("%d bytes held, %d of control, %d words of TSNs", a.t.held, len(a.t.control), len(a.t.rx.ring))
			}
			a.mu.Unlock()
		}
		if s := b.State(); s != "ESTABLISHED" {
			t.Errorf("the other association is %s: %v", s, b.Err())
		}
		if n := e.Stats().Assocs; n > 3 {
			t.Errorf("%d associations", n)
		}
	})
}
