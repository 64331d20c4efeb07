package simulation

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// lossy is what a path over SCTP does to packets, to the client and from it.
type lossy struct {
	loss   [2]float64 // the share that is lost
	twice  float64    // the share that arrives twice
	late   float64    // the share that takes up to ten times as long
	jitter float64    // by how much of their time packets differ
	mtu    int        // in bytes: longer ones are lost
	damage float64    // the share in which bits are others when they arrive
}

// outage is a time in which a path over SCTP loses more.
type outage struct {
	after  time.Duration // the one before
	last   time.Duration
	client int
	path   int
	loss   [2]float64
}

// addSCTP draws which paths are SCTP's, at least one, and what they do to packets.
func (p *plan) addSCTP(rnd *rand.Rand) {
	sometimes := func(oneIn int, most float64) float64 {
		if rnd.IntN(oneIn) > 0 {
			return 0
		}
		return most * rnd.Float64() * rnd.Float64()
	}
	sure := rnd.IntN(len(p.clients))
	for i := range p.clients {
		c := &p.clients[i]
		c.sctp = make([]*lossy, len(c.delays))
		first := rnd.IntN(len(c.delays))
		for k := range c.delays {
			if !(i == sure && k == first) && rnd.IntN(2) == 0 {
				continue
			}
			l := &lossy{loss: [2]float64{sometimes(2, 0.3), sometimes(2, 0.3)}, twice: sometimes(3, 0.5), late: sometimes(3, 1), jitter: sometimes(2, 1), mtu: 1 << 16}
			if rnd.IntN(3) == 0 {
				l.mtu = 640 + rnd.IntN(2000)
			}
			l.damage = sometimes(3, 0.2)
			c.sctp[k] = l
			for range rnd.IntN(3) {
				o := outage{after: logTime(rnd, time.Millisecond, 5*time.Second), last: logTime(rnd, time.Millisecond, 10*time.Second), client: i, path: k}
				o.loss = [][2]float64{{1, 0}, {0, 1}, {1, 1}, {rnd.Float64(), rnd.Float64()}}[rnd.IntN(4)]
				p.outages = append(p.outages, o)
			}
		}
	}
	rnd.Shuffle(len(p.outages), func(i, j int) { p.outages[i], p.outages[j] = p.outages[j], p.outages[i] })
}

// packetPath is a path over SCTP while the world lasts.
type packetPath struct {
	*lossy
	from   time.Duration // what a packet takes
	rnd    *rand.Rand
	outage atomic.Pointer[outage]
	fates  *fates
}

// fates counts what became of the packets of SCTP.
type fates struct {
	lost, inOutage, oneWay, tooLong, twice, late, damaged, arrived, swallowed, refused uint64
}

// add adds what another run has counted.
func (f *fates) add(o fates) {
	sums := f.each()
	for what, n := range o.each() {
		*sums[what] += *n
	}
}

// each returns what is counted.
func (f *fates) each() map[string]*uint64 {
	return map[string]*uint64{"lost": &f.lost, "lost in an outage": &f.inOutage, "lost in an outage of one direction": &f.oneWay, "too long": &f.tooLong,
		"doubled": &f.twice, "late": &f.late, "damaged": &f.damaged, "arrived": &f.arrived, "swallowed": &f.swallowed, "without an SA": &f.refused}
}

// countPackets adds what the network has counted.
func (w *world) countPackets() {
	for _, c := range w.clients {
		for _, l := range c.links {
			p := l.Packets()
			w.fates.arrived, w.fates.swallowed, w.fates.refused = w.fates.arrived+p.Arrived, w.fates.swallowed+p.Swallowed, w.fates.refused+p.Refused
		}
	}
}

// headers is what IPv4 and UDP add to a packet, in bytes.
const headers = 28

// carry decides when the copies of a packet arrive.
func (p *packetPath) carry(out bool, size int) (copies []time.Duration) {
	way := 0
	if out {
		way = 1
	}
	if o := p.outage.Load(); o != nil && p.rnd.Float64() < o.loss[way] {
		p.fates.inOutage++
		if o.loss[1-way] == 0 {
			p.fates.oneWay++
		}
		return nil
	}
	switch {
	case p.rnd.Float64() < p.loss[way]:
		p.fates.lost++
		return nil
	case size+headers > p.mtu:
		p.fates.tooLong++
		return nil
	}
	n := 1
	if p.rnd.Float64() < p.twice {
		p.fates.twice++
		n = 2
	}
	for range n {
		d := time.Duration(float64(p.from) * (1 + p.jitter*p.rnd.Float64()))
		if p.rnd.Float64() < p.late {
			p.fates.late++
			d *= time.Duration(2 + p.rnd.IntN(9))
		}
		copies = append(copies, d)
	}
	return copies
}

// spoil damages some of the packets.
func (p *packetPath) spoil(packet []byte) {
	if p.rnd.Float64() >= p.damage {
		return
	}
	p.fates.damaged++
	for range 1 + p.rnd.IntN(3) {
		packet[p.rnd.IntN(len(packet))] ^= byte(1 + p.rnd.IntN(255))
	}
}

// lose carries out the outages.
func (w *world) lose() {
	var over sync.WaitGroup
	for _, o := range w.plan.outages {
		sleep(o.after)
		w.happens("path loses: client %d, path %d, %v, for %v", o.client, o.path, o.loss, o.last)
		p := w.clients[o.client].packets[o.path]
		p.outage.Store(&o)
		over.Go(func() {
			sleep(o.last)
			p.outage.CompareAndSwap(&o, nil)
		})
	}
	over.Wait()
}

// network is what a process reaches others by. Once it is dead it does not, and what it sends
// packets by is closed.
type network struct {
	transport.Network
	p *process
}

func (n network) Dial(ctx context.Context, local netip.Addr, remote netip.AddrPort) (net.Conn, error) {
	if n.p.dead.Load() {
		return nil, syscall.ENETDOWN
	}
	return n.Network.Dial(ctx, local, remote)
}

func (n network) ListenPacket(local netip.AddrPort) (net.PacketConn, error) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead.Load() {
		return nil, syscall.ENETDOWN
	}
	conn, err := n.Network.ListenPacket(local)
	if err == nil {
		p.sockets = append(p.sockets, conn)
	}
	return conn, err
}

// die has the process reach nobody any more by packets.
func (p *process) die() {
	p.dead.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sockets {
		s.Close()
	}
	p.sockets = nil
}

// transport returns how the process reaches others from a host.
func (p *process) transport(h *verbstest.Host, kind transport.Kind) *transport.Config {
	t := h.Transport()
	t.Network, t.Kind = network{t.Network, p}, kind
	return t
}
