package sctp

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// pmtu finds out how long packets may be (RFC 8899, for SCTP its section 6.2).
// A probe is a HEARTBEAT with a PAD chunk behind it (RFC 4820) that makes the
// packet as long as is to be tried; nothing but the probe is lost when it does not
// get through, and its loss counts neither as congestion nor as an error of the
// path.
//
// Some peers drop packets with a PAD chunk whole, though RFC 9260 section 3.2 has them
// skip it. So what got lost is tried without PAD, too: with a HEARTBEAT whose
// Heartbeat Information is as long as it takes (RFC 9260 section 3.3.5). The answer is
// of the same length, so that the way back has to carry it, in fragments of IP
// perhaps. What was answered last is what the next size is tried with. No probe
// holds data: losing it would delay messages, and black holes are found by what
// happens to packets of the size in use.
//
// The size in use begins with what every path carries: a message that was queued
// for a longer packet cannot be cut again. What the route has is probed at once, and
// beside it likely lesser sizes, so that it is in use after a round trip. It shrinks
//   - when the kernel refuses a packet of it, which knows the MTU of its own
//     devices, the overhead of its IPsec and what routers have told (EMSGSIZE);
//   - when long packets do not get through and short ones do (a black hole):
//     each loss of what was sent again sends short probes, and data lost three times
//     while such a probe was answered is enough. If the route's MTU has become less, once is enough. While
//     nothing gets through, as without an SA, nothing is concluded.
//
// What was queued for a longer packet leaves in fragments of IP then. Where these get
// lost as well, as behind a black hole that is no router's, it can never arrive, and
// the association ends.
//
// Sizes are those of SCTP packets, without IP and UDP headers.
type pmtu struct {
	max    int  // the longest packet that is tried
	failed int  // what is as long as this is known not to get through
	lost   int  // the shortest that got lost although the host had taken it, 0: none
	target int  // the size being probed, 0: none
	tries  int  // probes of that size that were lost
	route  int  // what the route is said to carry, 0: not known
	small  int  // the longest that got through since recovery.front began, below the size in use
	sure   bool // a probe of more than the first size got through, or the size has shrunk
	vain   int  // short probes that were answered while a longer first chunk got lost
	noPad  bool // the last probe that was answered had no PAD chunk

	probes [4]probe
}

// probe is a probe packet under way.
type probe struct {
	size  int // 0: none
	due   probeForm
	sent  time.Duration // 0: not yet
	nonce uint64
}

// probeForm says what makes a probe long.
type probeForm uint8

const (
	byPad probeForm = 1 << iota
	byInfo
)

// Index into pmtu.probes, in the order in which they leave.
const (
	searching = iota // of the target's size
	routed           // at first and after losses: Ethernet's, the route's, of the first chunk's packet
	safe             // the same: of a size that should get through
	alive            // a mere HEARTBEAT, which tells whether anything gets through
)

const (
	// probeTimeout is the least PROBE_TIMER, and maxProbes is MAX_PROBES (RFC 8899
	// section 5.1). raiseInterval is the PMTU_RAISE_TIMER.
	probeTimeout  = time.Second
	maxProbes     = 3
	raiseInterval = 10 * time.Minute
	// maxVain is how often in a row a chunk that is too long is lost before its
	// association ends, while no probe as long as it gets through.
	maxVain = 5
	// shortProbe is the length of a packet with a HEARTBEAT alone.
	shortProbe = headerLen + chunkHeaderLen + heartbeatLen
	// nearly is which part of the size in use is not searched for any more.
	nearly = 16
)

// likely are MTUs that paths have: of SLIP and of overlays, of Ethernet and jumbo
// frames, with tunnels, IPsec and PPP below, of FDDI, of loopback devices.
var likely = [...]int{1006, 1200, 1280, 1320, 1360, 1380, 1400, 1420, 1440, 1460, 1480, 1492, 1500, 2048, 4352, 8192, 8900, 9000, 16384, 32768, 65535}

// startProbing begins the search, when the association is established.
func (t *tcb) startProbing(now time.Duration) {
	m := &t.pm
	// Windows and buffers have to hold several packets.
	t.mostSize = min(t.mostSize, max(t.packetSize(DefaultMTU), min(t.flow.rwnd, t.sendBuffer)/8&^3))
	*m = pmtu{max: max(min(t.maxSize, t.mostSize), t.size)}
	m.failed = m.max + 4
	t.search(now)
}

// launch sends a probe of the target's size, and beside it, as long as none was
// answered, of likely ones.
func (t *tcb) launch(now time.Duration) {
	m := &t.pm
	t.probeWith(searching, m.target)
	for i, mtu := range [...]int{safe: safeMTU, routed: DefaultMTU} {
		if size := t.packetSize(mtu); !m.sure && m.tries < 2 && size > t.size && size < m.target {
			t.probeWith(i, size)
		}
	}
	if m.tries > 0 {
		m.probes[alive] = probe{size: shortProbe, due: byInfo}
	}
	t.timers[tProbe] = now + max(probeTimeout, t.path.rto)
}

// probeWith has a probe sent, and in both forms where others got lost.
func (t *tcb) probeWith(i, size int) {
	m := &t.pm
	form := byPad
	switch {
	case m.tries > 0 || t.loss.front > 1:
		form = byPad | byInfo
	case m.noPad:
		form = byInfo
	}
	m.probes[i] = probe{size: size, due: form}
	t.want |= sendProbe
}

// search goes on with the next size: the route's, the middle one of those that are
// likely, or what is between the size in use and one that is too long.
func (t *tcb) search(now time.Duration) {
	m := &t.pm
	m.target, m.tries = 0, 0
	if m.max > t.size && m.max < m.failed && !m.sure {
		m.target = m.max
	} else if m.route > t.size && m.route < m.failed && m.route < m.max {
		m.target = m.route
	} else {
		var sizes [len(likely) + 1]int
		n := 0
		for _, mtu := range likely {
			if size := (mtu - t.overhead) &^ 3; size > t.size && size < m.failed && size < m.max {
				sizes[n] = size
				n++
			}
		}
		if m.max > t.size && m.max < m.failed {
			sizes[n] = m.max
			n++
		}
		if gap := m.failed - t.size; n > 0 {
			m.target = sizes[n/2]
		} else if gap > max(t.size/nearly, 4) {
			m.target = (t.size + gap/2) &^ 3
		}
	}
	if m.target == 0 {
		t.timers[tProbe] = now + raiseInterval
		return
	}
	t.launch(now)
}

// transmitProbe adds a packet for a probe that is due. It is false when the batch
// has no room.
func (t *tcb) transmitProbe(now time.Duration, b *batch) bool {
	t.want &^= sendProbe
	for i := range t.pm.probes {
		p := &t.pm.probes[i]
		for _, form := range [...]probeForm{byPad, byInfo} {
			if p.due&form == 0 {
				continue
			}
			if b.full(p.size) {
				t.want |= sendProbe
				return false
			}
			if p.sent == 0 {
				p.sent, p.nonce = now, t.nonce()
			}
			p.due &^= form
			b.begin(t.localPort, t.peerPort, t.peer.tag)
			b.kind = packetAlone
			if form == byInfo {
				b.buf = appendHeartbeat(b.buf, p.sent, p.nonce, p.size-b.len()-chunkHeaderLen)
			} else {
				b.buf = appendHeartbeat(b.buf, p.sent, p.nonce, heartbeatLen)
				b.buf = appendChunk(b.buf, typePad, 0, make([]byte, p.size-b.len()-chunkHeaderLen))
			}
			b.end()
			t.stats.PacketsOut++
			t.stats.Probes++
		}
	}
	return true
}

// probeAck takes the answer to a probe, if it is one, with Heartbeat Information of n
// bytes.
func (t *tcb) probeAck(now, sent time.Duration, nonce uint64, n int) bool {
	m := &t.pm
	for i := range m.probes {
		p := &m.probes[i]
		if p.size == 0 || p.sent != sent || p.nonce != nonce {
			continue
		}
		size := p.size
		*p = probe{}
		if i == alive {
			return true
		}
		m.noPad = n > heartbeatLen
		switch {
		case size > t.size:
			m.sure = true
			t.resize(size)
			if m.target <= size {
				t.search(now)
			}
		case t.loss.front > 0 && t.front() > t.size:
			if m.vain++; m.vain >= maxVain {
				t.fail(assoc.Cause{Code: assoc.CauseUserAbort, Info: fmt.Appendf(nil,
					"a message for packets of %d bytes does not get through: the path has become narrower and carries %d by now",
					t.front()+t.overhead, t.size+t.overhead)})
			}
		case size < t.size:
			m.small = max(m.small, size)
			t.judge(now)
		}
		return true
	}
	return false
}

// expireProbe is the timer of the search.
func (t *tcb) expireProbe(now time.Duration) {
	m := &t.pm
	p := &m.probes[searching]
	switch {
	case m.target == 0: // PMTU_RAISE_TIMER
		t.askRoute = true
		m.failed = m.max + 4
		t.search(now)
		return
	case p.due != 0:
	case t.life.heard > p.sent:
		m.tries++
	default: // nothing gets through, whatever its length
		m.tries = max(m.tries, 1)
	}
	if m.tries < maxProbes {
		t.launch(now)
		return
	}
	m.failed = m.target
	t.swallowed(m.target)
	t.search(now)
}

// lostAgain looks for a black hole when the first outstanding chunk was lost once
// more, or by a timeout: short probes leave, and what they bring is held against
// what happens to the data. What is acknowledged of later chunks changes nothing of
// that: they may be shorter.
func (t *tcb) lostAgain(now time.Duration) {
	m := &t.pm
	if t.loss.front == 0 {
		m.small, m.vain = 0, 0
	}
	t.loss.front++
	front := t.front()
	if front <= t.minSize {
		return
	}
	if front > t.size { // which says nothing of the size in use
		t.probeWith(safe, t.minSize)
		t.probeWith(routed, front) // the path may be wide, and lose much
		return
	}
	t.askRoute = true
	least := t.safeSize
	if t.loss.front >= maxProbes {
		least = t.minSize
	}
	if least < t.size {
		t.probeWith(safe, least)
	}
	if m.route != 0 && m.route < t.size && m.route > least {
		t.probeWith(routed, m.route)
	}
	t.judge(now)
}

// front is the length of the packet that carried the first outstanding chunk last,
// with whatever else was in it, 0 without one.
func (t *tcb) front() (n int) {
	q := &t.tx
	for tsn := q.acked + 1; tsn != q.unsent; tsn++ {
		if c := q.at(tsn); c.packet == q.at(q.acked+1).packet {
			n = max(n, int(c.offset)+len(c.data))
		}
	}
	return n
}

// judge decides whether there is a black hole.
func (t *tcb) judge(now time.Duration) {
	m := &t.pm
	if front := t.front(); m.small == 0 || t.loss.front == 0 || front <= m.small || front > t.size || m.small >= t.size {
		return
	}
	if t.loss.front >= maxProbes || m.route != 0 && m.route < t.size && m.small >= min(m.route, t.safeSize) {
		t.swallowed(t.size)
		t.shrink(now, m.small)
	}
}

// swallowed notes a size that gets lost although the host has taken it.
func (t *tcb) swallowed(size int) {
	if m := &t.pm; m.lost == 0 || size < m.lost {
		m.lost = size
	}
}

// lostMTU is the length of IP packets that get lost although the host takes them, 0
// if none are known.
func (t *tcb) lostMTU() int {
	if t.pm.lost == 0 {
		return 0
	}
	return t.pm.lost + t.overhead
}

// shrink goes on with shorter packets. What is queued and longer leaves without the
// Don't Fragment bit (RFC 9260 section 6.9).
func (t *tcb) shrink(now time.Duration, size int) {
	m := &t.pm
	m.failed = min(m.failed, t.size)
	if m.route != 0 && m.route < t.size {
		m.failed = min(m.failed, max(m.route, size)+4)
	}
	m.small, m.sure = 0, true
	m.probes = [len(m.probes)]probe{}
	t.resize(size)
	t.path.calm(t.RTOMin, t.mostRTO())
	if t.tx.outstanding() {
		t.again()
		t.loss.once = true
		t.armT3(now)
	}
	t.loss.front = 0
	t.search(now)
}

// resize sets the size in use.
func (t *tcb) resize(size int) {
	if size == t.size {
		return
	}
	t.size = size
	if size >= t.pm.lost {
		t.pm.lost = 0
	}
	t.longest.Store(int32(t.maxMessage()))
	t.path.window.resize(size-headerLen, t.v6, t.loss.solo)
	t.event(assoc.Event{Kind: assoc.EventMTU})
}

// refused is told that the kernel has refused a packet of n bytes for its
// length.
func (t *tcb) refused(now time.Duration, n int) {
	if t.state < stateEstablished || t.state > stateShutdownReceived || n <= headerLen {
		return
	}
	m := &t.pm
	t.askRoute = true
	if n <= m.lost {
		m.lost = 0
	}
	for i := range m.probes {
		if m.probes[i].size >= n {
			m.probes[i] = probe{}
		}
	}
	if n > t.size {
		m.failed = min(m.failed, n)
		if m.target >= n {
			t.search(now)
		}
		return
	}
	size := t.minSize
	for _, s := range [...]int{t.safeSize, m.route} {
		if s < n {
			size = max(size, s)
		}
	}
	m.failed = min(m.failed, n)
	if size < t.size {
		t.shrink(now, size)
	}
}

// setRoute is told the MTU of the route, 0: it is not known.
func (t *tcb) setRoute(now time.Duration, mtu int) {
	m := &t.pm
	if mtu == 0 || t.state < stateEstablished {
		return
	}
	size := max(t.packetSize(mtu), t.minSize)
	if size == m.route {
		return
	}
	m.route = size
	if size = min(size, t.mostSize); size > m.max && m.target == 0 {
		m.max, m.failed = size, size+4
		t.search(now)
	}
}
