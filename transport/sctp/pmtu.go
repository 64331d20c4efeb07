package sctp

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// pmtu discovers how long packets may be (RFC 8899, section 6.2 for SCTP). A probe is a
// HEARTBEAT followed by a PAD chunk (RFC 4820) that fills the packet up to the size being
// tried. If it does not get through, only the probe is lost, and its loss counts neither
// as congestion nor as an error of the path.
//
// Some peers drop whole packets with a PAD chunk, although RFC 9260 section 3.2 has them
// skip it. So a size that was lost is also tried without PAD: with a HEARTBEAT whose
// Heartbeat Information is long enough (RFC 9260 section 3.3.5). Its answer has the same
// length, so the way back must carry it, perhaps in IP fragments. The next size is tried
// in the form that was answered last. No probe holds data: losing it would delay
// messages, and black holes are found by the fate of packets of the size in use.
//
// The size in use starts at what every path carries: a message queued for a longer packet
// cannot be cut again. The route's size is probed at once, along with likely smaller
// sizes, so that it is in use after a round trip. It shrinks
//   - when the kernel refuses a packet of it (EMSGSIZE): the kernel knows the MTU of its
//     own devices, the overhead of its IPsec and what routers have reported;
//   - when long packets do not get through and short ones do (a black hole): each loss of
//     a retransmission sends short probes, and losing data three times while such a probe
//     is answered is enough; once is enough if the route's MTU has become less. While
//     nothing gets through, as without an SA, nothing is concluded.
//
// What was queued for a longer packet is then sent in IP fragments. If these are lost as
// well, as behind a black hole that is not a router's, it can never arrive, and the
// association ends.
//
// Sizes are those of SCTP packets, without IP and UDP headers.
type pmtu struct {
	max       int  // the longest packet that is tried
	failed    int  // packets of this size or more are known not to get through
	lost      int  // the shortest that was lost although the host had taken it, 0 if none
	target    int  // the size being probed, 0 if none
	tries     int  // lost probes of that size
	route     int  // the route's size, 0 if unknown
	small     int  // the longest below the size in use that got through since recovery.front became nonzero
	sure      bool // a probe longer than the first size got through, or the size has shrunk
	shortOnly int  // short probes answered while a longer first chunk was lost
	noPad     bool // the last answered probe had no PAD chunk

	probes [4]probe
}

// probe is a probe packet in flight.
type probe struct {
	size  int // 0: none
	due   probeForm
	sent  time.Duration // 0 if not yet
	nonce uint64
}

// probeForm is what makes a probe long.
type probeForm uint8

const (
	byPad probeForm = 1 << iota
	byInfo
)

// Indexes into pmtu.probes, in the order in which the probes are sent.
const (
	searching = iota // a probe of the target's size
	routed           // at first and after losses: of Ethernet's size, the route's, or that of the first chunk's packet
	safe             // at first and after losses: of a size that should get through
	alive            // a plain HEARTBEAT, which shows whether anything gets through
)

const (
	// probeTimeout is the least PROBE_TIMER, maxProbes is MAX_PROBES (RFC 8899 section
	// 5.1), and raiseInterval is the PMTU_RAISE_TIMER.
	probeTimeout  = time.Second
	maxProbes     = 3
	raiseInterval = 10 * time.Minute
	// maxShortOnly is how often in a row a chunk that is too long is lost before its
	// association ends, while no probe of its length gets through.
	maxShortOnly = 5
	// shortProbe is the length of a packet with only a HEARTBEAT.
	shortProbe = headerLen + chunkHeaderLen + heartbeatLen
	// nearly is the fraction of the size in use (1/nearly) below which the search stops.
	nearly = 16
)

// likely are common path MTUs: of SLIP and of overlays, of Ethernet and jumbo frames,
// with tunnels, IPsec and PPP below, of FDDI, of loopback devices.
var likely = [...]int{1006, 1200, 1280, 1320, 1360, 1380, 1400, 1420, 1440, 1460, 1480, 1492, 1500, 2048, 4352, 8192, 8900, 9000, 16384, 32768, 65535}

// startProbing begins the search when the association is established.
func (t *tcb) startProbing(now time.Duration) {
	m := &t.pm
	// Windows and buffers have to hold several packets.
	t.mostSize = min(t.mostSize, max(t.packetSize(DefaultMTU), min(t.flow.rwnd, t.sendBuffer)/8&^3))
	*m = pmtu{max: max(min(t.maxSize, t.mostSize), t.size)}
	m.failed = m.max + 4
	t.search(now)
}

// launch sends a probe of the target's size and, until one was answered, probes of likely
// sizes.
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

// probeWith sends a probe, in both forms if others were lost.
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

// search continues with the next size: the route's, the median of the likely ones, or one
// between the size in use and one that is too long.
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

// transmitProbe adds the packets of due probes. It returns false if the batch has no
// room.
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

// probeAck handles the answer to a probe, if it is one, with Heartbeat Information of n
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
			if m.shortOnly++; m.shortOnly >= maxShortOnly {
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

// expireProbe handles the timer of the search.
func (t *tcb) expireProbe(now time.Duration) {
	m := &t.pm
	p := &m.probes[searching]
	switch {
	case m.target == 0: // PMTU_RAISE_TIMER
		t.refreshRoute = true
		m.failed = m.max + 4
		t.search(now)
		return
	case p.due != 0:
	case t.life.heard > p.sent:
		m.tries++
	default: // nothing gets through, of whatever length
		m.tries = max(m.tries, 1)
	}
	if m.tries < maxProbes {
		t.launch(now)
		return
	}
	m.failed = m.target
	t.noteLost(m.target)
	t.search(now)
}

// lostAgain looks for a black hole when the first outstanding chunk was lost once more,
// or by a timeout: it sends short probes, whose fate is compared with that of the data.
// Acknowledged later chunks do not matter: they may be shorter.
func (t *tcb) lostAgain(now time.Duration) {
	m := &t.pm
	if t.loss.front == 0 {
		m.small, m.shortOnly = 0, 0
	}
	t.loss.front++
	front := t.front()
	if front <= t.minSize {
		return
	}
	if front > t.size { // says nothing about the size in use
		t.probeWith(safe, t.minSize)
		t.probeWith(routed, front) // the path may be wide but lossy
		return
	}
	t.refreshRoute = true
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

// front returns the length of the packet that last carried the first outstanding chunk,
// including whatever else was in it, 0 if there is none.
func (t *tcb) front() (n int) {
	q := &t.tx
	for tsn := q.acked + 1; tsn != q.unsent; tsn++ {
		if c := q.at(tsn); c.packet == q.at(q.acked+1).packet {
			n = max(n, int(c.offset)+len(c.data()))
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
		t.noteLost(t.size)
		t.shrink(now, m.small)
	}
}

// noteLost records a size that is lost although the host has taken it.
func (t *tcb) noteLost(size int) {
	if m := &t.pm; m.lost == 0 || size < m.lost {
		m.lost = size
	}
}

// lostMTU returns the size of IP packets that are lost although the host takes them, 0 if
// none is known.
func (t *tcb) lostMTU() int {
	if t.pm.lost == 0 {
		return 0
	}
	return t.pm.lost + t.overhead
}

// shrink continues with shorter packets. Longer ones already queued are sent without the
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
	t.path.setRTO(t.RTOMin, t.maxRTO())
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

// refused handles that the kernel refused a packet of n bytes as too long.
func (t *tcb) refused(now time.Duration, n int) {
	if t.state < stateEstablished || t.state > stateShutdownReceived || n <= headerLen {
		return
	}
	m := &t.pm
	t.refreshRoute = true
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

// setRoute sets the MTU of the route, 0 if unknown.
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
