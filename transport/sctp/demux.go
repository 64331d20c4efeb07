package sctp

import (
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// demux is the state of the goroutine that reads the socket. Consecutive packets of one
// association are delivered together.
type demux struct {
	e      *Endpoint
	now    time.Duration
	to     netip.Addr   // where packets are addressed, if the socket has several addresses
	own    netip.Addr   // the same, of an association's own socket, whose packets do not say
	memory assoc.Memory // of the packets, if it may be kept
	cur    *Assoc       // locked
	meter  meter
}

func newDemux(e *Endpoint) *demux { return &demux{e: e, meter: newMeter()} }

// packet handles one packet.
func (r *demux) packet(from netip.AddrPort, p packet) {
	e := r.e
	if !p.intact() {
		e.counts.bad.Add(1)
		return
	}
	a := r.lockFor(from, p)
	if a != nil {
		switch typ := chunkType(p[headerLen]); {
		case typ == typeCookieEcho:
			a = nil
		case typ == typeShutdownAck && a.t.state < stateCookieEchoed+1 && a.t.state != stateClosed:
			a = nil // out of the blue (RFC 9260 section 8.5.1 E)
		}
	}
	if a == nil {
		r.finish()
		r.stray(from, p)
		return
	}
	if a.remote.Port() != from.Port() {
		a.movedLocked(from)
	}
	if a.t.sackBetween() {
		s := e.senders.get()
		a.t.between(&s.batch)
		s.from = a.local
		_ = a.carrierLocked().send(a.remote, s) // a failed send is as good as a lost packet
		e.senders.put(s)
	}
	a.t.memory = r.memory
	a.t.input(r.now, p.chunks(), false)
	a.t.memory = nil
}

// lockFor returns the association of a packet, or nil. It is locked: it is cur from now on.
func (r *demux) lockFor(from netip.AddrPort, p packet) *Assoc {
	a := r.cur
	if a != nil && a.t.localTag == p.tag() && a.oursLocked(r.to, from, p) { // unlocked: cur is locked
		return a
	}
	r.finish()
	r.e.mu.RLock()
	a = r.e.byTag[p.tag()]
	r.e.mu.RUnlock()
	if a == nil || p.tag() == 0 {
		return nil
	}
	a.mu.Lock()
	if !a.oursLocked(r.to, from, p) {
		a.mu.Unlock()
		return nil
	}
	a.local = r.to
	r.cur = a
	return a
}

// oursLocked reports whether the packet's addresses and ports are those of the association.
func (a *Assoc) oursLocked(to netip.Addr, from netip.AddrPort, p packet) bool {
	if a.local != to && a.local.IsValid() {
		return false
	}
	return a.remote.Addr() == from.Addr() && a.t.localPort == p.dstPort() && a.t.peerPort == p.srcPort()
}

// finish delivers what was received for the current association.
//
// unlocked: cur is locked.
func (r *demux) finish() {
	if a := r.cur; a != nil {
		r.cur = nil
		a.t.readDone()
		a.deliverAndUnlock(true)
	}
}

// sendStray sends a packet that the reader built itself. A failed send is as good as a
// lost packet.
func (e *Endpoint) sendStray(s *sender, from netip.Addr, to netip.AddrPort) {
	s.from = from
	_ = e.sock.send(to, s)
	e.senders.put(s)
}

// typeSet is a set of chunk types below 32.
type typeSet uint32

func (k typeSet) has(t chunkType) bool { return k>>t&1 != 0 }

// chunkTypes returns the types and the number of a packet's chunks. ok is false if they
// are malformed.
func chunkTypes(p packet) (k typeSet, n int, ok bool) {
	for rest := p.chunks(); len(rest) > 0; n++ {
		c, next, err := cutChunk(rest)
		if err != nil {
			return k, n, false
		}
		if c.typ() < 32 {
			k |= 1 << c.typ()
		}
		rest = next
	}
	return k, n, true
}

// stray handles a packet whose Verification Tag belongs to no association: it
// begins or ends one, reflects the peer's tag, or is out of the blue (RFC 9260 sections
// 5.1, 8.4 and 8.5.1).
func (r *demux) stray(from netip.AddrPort, p packet) {
	e := r.e
	e.counts.strays.Add(1)
	if !from.Addr().IsValid() || from.Addr().IsMulticast() || from.Addr().IsUnspecified() || from.Port() == 0 {
		return
	}
	cfg := r.config(from, p)
	if cfg.admit(e.localAddr(r.to), from, false) != nil {
		e.counts.notAdmitted.Add(1)
		return
	}
	if !r.meter.take(from.Addr(), r.now) {
		e.counts.excess.Add(1)
		return
	}
	k, n, ok := chunkTypes(p)
	if !ok {
		return
	}
	first, _, _ := cutChunk(p.chunks())
	switch {
	case first.typ() == typeInit:
		// Alone and with tag 0; bundled or tagged it is dropped.
		if n == 1 && p.tag() == 0 {
			r.init(cfg, from, p, first)
		}
	case p.tag() == 0:
	case (first.typ() == typeAbort || first.typ() == typeShutdownComplete) && first.flags()&flagT != 0:
		r.reflected(from, p)
	case k.has(typeAbort) || k.has(typeInit):
	case first.typ() == typeCookieEcho:
		r.cookieEcho(cfg, from, p, first)
	case k.has(typeShutdownAck):
		r.answer(from, p, p.tag(), func(b []byte) []byte { return appendChunk(b, typeShutdownComplete, flagT, nil) })
	case k.has(typeShutdownComplete), k.has(typeCookieAck):
	case k.has(typeError) && firstCause(first).Code == assoc.CauseStaleCookie:
	default:
		r.answer(from, p, p.tag(), func(b []byte) []byte { return appendAbort(b, flagT, assoc.Cause{}) })
	}
}

// config returns the Config for a packet outside associations: that of the listener at the
// address it came to, otherwise that of the association that the packet names, otherwise
// nil.
func (r *demux) config(from netip.AddrPort, p packet) *Config {
	e := r.e
	if cfg := e.config(e.localAddr(r.to).Addr()); cfg != nil {
		return cfg
	}
	e.mu.RLock()
	a := e.byTag[p.tag()]
	if a == nil {
		a = e.byAddr[addrKey{from, p.dstPort(), p.srcPort()}]
	}
	e.mu.RUnlock()
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.oursLocked(r.to, from, p) {
		return nil
	}
	return a.cfg
}

// answer sends one packet back to the source of p.
func (r *demux) answer(to netip.AddrPort, p packet, tag uint32, chunks func([]byte) []byte) {
	s := r.e.senders.get()
	b := &s.batch
	b.begin(p.dstPort(), p.srcPort(), tag)
	b.buf = chunks(b.buf)
	b.end()
	r.e.sendStray(s, r.to, to)
}

// reflected handles an ABORT or SHUTDOWN COMPLETE with the T bit, which carries the
// peer's own tag (RFC 9260 section 8.5.1 B and C).
func (r *demux) reflected(from netip.AddrPort, p packet) {
	e := r.e
	e.mu.RLock()
	a := e.byAddr[addrKey{from, p.dstPort(), p.srcPort()}]
	e.mu.RUnlock()
	if a == nil {
		return
	}
	a.mu.Lock()
	if a.t.peer.tag != 0 && a.t.peer.tag == p.tag() {
		a.t.input(r.now, p.chunks(), true)
	}
	a.deliverAndUnlock(true)
}

// init answers an INIT (RFC 9260 sections 5.1 B, 5.2.1 and 5.2.2) and keeps no state.
func (r *demux) init(cfg *Config, from netip.AddrPort, p packet, c chunk) {
	e := r.e
	i, err := parseInit(c)
	if err != nil || i.tag == 0 {
		return
	}
	abort := func(cause assoc.Cause) {
		r.answer(from, p, i.tag, func(b []byte) []byte { return appendAbort(b, 0, cause) })
	}
	params, err := parseParams(i.params)
	s := e.settings(cfg, from.Addr(), 0)
	s.localPort, s.peerPort = p.dstPort(), p.srcPort()
	switch {
	case err != nil:
		abort(assoc.Cause{Code: assoc.CauseProtocolViolation, Info: []byte("a parameter of the INIT is longer than the chunk")})
		return
	case i.out == 0 || i.in == 0:
		abort(assoc.Cause{Code: assoc.CauseInvalidParameter, Info: []byte("0 streams in INIT")})
		return
	case i.rwnd < 1500: // section 3.3.2
		abort(assoc.Cause{Code: assoc.CauseProtocolViolation, Info: []byte("a_rwnd of the INIT is less than 1500")})
		return
	case len(params.hostName) > 0:
		abort(assoc.Cause{Code: assoc.CauseUnresolvableAddress, Info: params.hostName})
		return
	}
	e.mu.RLock()
	a := e.byAddr[addrKey{from, p.dstPort(), p.srcPort()}]
	e.mu.RUnlock()
	if a == nil && (cfg.Accept == nil || p.dstPort() != cfg.port()) {
		abort(assoc.Cause{})
		return
	}
	if s.checkAdaptation(params) != nil {
		abort(adaptationCause())
		return
	}
	k := cookie{
		created: r.now, life: cookieLife,
		peer:    peer{i.tag, min(s.Streams, i.in), min(s.Streams, i.out)},
		peerTSN: i.tsn, peerRwnd: i.rwnd,
		localPort: s.localPort, peerPort: s.peerPort,
		addr: from.Addr(),
	}
	if a != nil && !a.tie(&s, &k) {
		return
	}
	k.localTag, k.localTSN = s.localTag, s.localTSN
	e.counts.inits.Add(1)
	ack := s.initChunk()
	for rest := params.unrecognized; len(rest) > 0; {
		var q param
		if q, rest, err = cutParam(rest); err != nil {
			break
		}
		ack.params = appendParam(ack.params, paramUnrecognized, q)
	}
	if s.Adaptation != 0 {
		ack.params = appendAdaptation(ack.params, s.Adaptation)
	}
	// Last, because its length is a multiple of 4: padding of the last parameter would
	// not count towards the chunk (RFC 9260 section 3.2).
	ack.params = appendParam(ack.params, paramCookie, e.signer.sign(r.now, &k))
	r.answer(from, p, i.tag, func(b []byte) []byte { return ack.append(b, typeInitAck) })
}

// tie fills in the cookie for an INIT to an existing association. It returns false if the
// INIT must be dropped.
func (a *Assoc) tie(s *settings, k *cookie) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.t.state {
	case stateClosed:
	case stateCookieWait: // section 5.2.1: as in our own INIT
		s.localTag, s.localTSN = a.t.localTag, a.t.localTSN
	case stateCookieEchoed:
		s.localTag, s.localTSN = a.t.localTag, a.t.localTSN
		k.localTie, k.peerTie = a.t.localTie, a.t.peerTie
	case stateShutdownAckSent: // section 9.2
		a.t.want |= sendShutdownAck
		a.flushLocked()
		return false
	default: // section 5.2.2: a new tag
		k.localTie, k.peerTie = a.t.localTie, a.t.peerTie
	}
	return true
}

// cookieEcho handles a COOKIE ECHO (RFC 9260 sections 5.1.5 and 5.2.4).
func (r *demux) cookieEcho(cfg *Config, from netip.AddrPort, p packet, c chunk) {
	e, now := r.e, r.now
	k, ok := e.signer.open(now, c.value())
	if !ok || k.localTag != p.tag() || k.localPort != p.dstPort() || k.peerPort != p.srcPort() || k.addr != from.Addr() {
		e.counts.badCookies.Add(1)
		return
	}
	e.mu.RLock()
	a := e.byTag[k.localTag]
	if a == nil || a.key.remote.Addr() != from.Addr() || a.key.local != k.localPort || a.key.peer != k.peerPort {
		a = e.byAddr[addrKey{from, p.dstPort(), p.srcPort()}]
	}
	e.mu.RUnlock()
	rest := p.chunks()[min(padded(len(c)), len(p)-headerLen):]
	if a != nil {
		a.mu.Lock()
		gone := a.t.state == stateClosed || a.cookieEchoLocked(now, from, &k, rest)
		a.deliverAndUnlock(true)
		if !gone {
			return
		}
	} else if now > k.created+k.life {
		e.counts.badCookies.Add(1)
		r.answer(from, p, k.tag, func(b []byte) []byte { return staleCookie(b, now, &k) })
		return
	}
	r.establish(cfg, from, p, &k, rest)
}

// staleCookie appends an ERROR with the staleness of a cookie in microseconds (RFC 9260
// section 3.3.10.3).
func staleCookie(b []byte, now time.Duration, k *cookie) []byte {
	late := (now - k.created - k.life) / time.Microsecond
	return appendError(b, assoc.CauseStaleCookie, uint32Info(uint32(min(late, 1<<32-1))))
}

// establish makes an association from a cookie.
func (r *demux) establish(cfg *Config, from netip.AddrPort, p packet, k *cookie, rest []byte) {
	e, now := r.e, r.now
	refuse := func() {
		e.counts.noRoom.Add(1)
		r.answer(from, p, k.tag, func(b []byte) []byte { return appendAbort(b, 0, assoc.Cause{Code: assoc.CauseOutOfResource}) })
	}
	if cfg.Accept == nil || k.localPort != cfg.port() || len(e.accepted) == cap(e.accepted) {
		refuse()
		return
	}
	s := e.settings(cfg, from.Addr(), e.sock.mtu(r.to, from))
	s.localPort, s.peerPort = k.localPort, k.peerPort
	s.localTag, s.localTSN = k.localTag, k.localTSN
	a, err := e.lockNew(cfg, r.to, from, s, false)
	if err != nil {
		refuse()
		return
	}
	a.t.establish(now, k)
	a.delivering = true // nothing is delivered before there is a Receiver
	a.mu.Unlock()
	recv := cfg.Accept(a)
	a.mu.Lock()
	a.recv, a.delivering = recv, false
	a.t.input(now, rest, false)
	a.t.readDone()
	a.deliverAndUnlock(true)
	select {
	case e.accepted <- a:
	default: // readers of other sockets have filled it meanwhile
		a.Abort("too many associations wait to be accepted")
	}
}

// cookieEchoLocked handles a COOKIE ECHO for an existing association (RFC 9260 section 5.2.4,
// Table 12). It reports whether the peer has restarted: then this association has ended,
// and a new one must be made.
func (a *Assoc) cookieEchoLocked(now time.Duration, from netip.AddrPort, k *cookie, rest []byte) (restarted bool) {
	t := &a.t
	local, peer := k.localTag == t.localTag, k.tag == t.peer.tag
	if now > k.created+k.life && !(local && peer) {
		t.reply(typeError, appendCause(nil, assoc.CauseStaleCookie, uint32Info(uint32(min((now-k.created-k.life)/time.Microsecond, 1<<32-1)))))
		return false
	}
	tied := k.localTie == t.localTie && k.peerTie == t.peerTie
	switch {
	case !local && !peer && tied: // A
		if t.state == stateShutdownAckSent {
			t.want |= sendShutdownAck
			t.reply(typeError, appendCause(nil, assoc.CauseCookieWhileShutdown, nil))
			return false
		}
		t.close(assoc.ErrRestarted)
		return true
	case local && !peer: // B
		if t.state == stateCookieWait || t.state == stateCookieEchoed {
			t.adopt(k)
			t.up(now)
			t.heard()
		} else {
			t.peer.tag = k.tag
		}
		t.want |= sendCookieAck
	case local && peer: // D
		if t.state == stateCookieEchoed {
			t.up(now)
			t.heard()
		}
		if t.state >= stateEstablished {
			t.want |= sendCookieAck
		}
	default: // C, and what is not in the table
		return false
	}
	if a.remote != from { // only the port can differ: the address is in the cookie
		a.movedLocked(from)
	}
	t.input(now, rest, false)
	t.readDone()
	return false
}
