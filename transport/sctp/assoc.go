package sctp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

var _ assoc.Association = (*Assoc)(nil)

// Assoc is an association. Its methods may be called from several goroutines.
type Assoc struct {
	ep    *Endpoint
	cfg   *Config        // the endpoint's when the association began
	key   addrKey        // in ep.byAddr; guarded by Endpoint.mu
	recv  assoc.Receiver // set before anything is delivered
	timer *time.Timer

	mu         sync.Mutex // guards the fields below it; taken before the Endpoint's
	t          tcb
	remote     netip.AddrPort // the peer's UDP address
	local      netip.Addr     // our address, once known, if the socket has several
	own        *socket        // connected to the peer, and nobody else's; nil: the endpoint's
	shut       error          // why packets can leave no more
	sendErr    error          // the socket's last error for a packet
	flushing   bool           // a goroutine is sending
	again      bool           // ... and has to try again
	ended      bool           // removed from the endpoint's maps
	delivering bool           // a goroutine is calling recv
	settled    sync.Cond      // signals that flushing or delivering has ended
	waiting    int            // goroutines waiting for room
	room       sync.Cond
	armed      time.Duration // when timer fires, 0 if it does not

	up   chan struct{} // closed when established
	done chan struct{} // closed when over
	err  error         // why it ended; set before done is closed
}

// lockedAssoc makes an association, and locks it.
func lockedAssoc(e *Endpoint, cfg *Config, local netip.Addr, remote netip.AddrPort, s settings) *Assoc {
	a := &Assoc{ep: e, cfg: cfg, local: local, remote: remote, up: make(chan struct{}), done: make(chan struct{})}
	a.key = addrKey{remote, s.localPort, s.peerPort}
	a.settled.L, a.room.L = &a.mu, &a.mu
	a.t.init(s)
	a.timer = time.AfterFunc(time.Hour, a.expire)
	a.timer.Stop()
	a.mu.Lock()
	return a
}

// expire is the timer's function.
func (a *Assoc) expire() {
	a.mu.Lock()
	a.armed = 0
	if a.shut != nil {
		a.t.close(a.shut)
	}
	a.t.expire(a.ep.now())
	a.deliverAndUnlock(false)
}

// deliverAndUnlock sends what is due, arms the timer, delivers to the Receiver, and
// unlocks. reader is true in the goroutine that reads the socket, whose buffer holds the
// received messages.
func (a *Assoc) deliverAndUnlock(reader bool) {
	own := reader && len(a.t.deliver) > 0
	if a.t.state == stateClosed && !a.ended {
		a.endLocked()
		a.flushLocked() // the last packet leaves before the end is reported
	}
	a.handOverLocked(own) // first, so that a SACK has the resulting window
	a.sendAndUnlock()
}

// sendAndUnlock is deliverAndUnlock for senders: nothing can have happened that the
// Receiver must be told, and they may hold locks that it takes.
func (a *Assoc) sendAndUnlock() {
	a.flushLocked()
	a.armLocked()
	if a.waiting > 0 && (a.t.state == stateClosed || a.t.tx.bytes <= a.t.sendBuffer/2) {
		a.room.Broadcast()
	}
	a.mu.Unlock()
}

// flushLocked sends what may be sent. Only one goroutine does so at a time, so that packets
// leave in order.
func (a *Assoc) flushLocked() {
	a.again = true
	if a.flushing {
		return
	}
	a.flushing = true
	var s *sender
	for more := false; more || a.again; {
		a.again = false
		if a.t.refreshRoute {
			a.t.refreshRoute = false
			a.t.setRoute(a.ep.now(), a.ep.sock.mtu(a.local, a.remote))
		}
		if s == nil {
			s = a.ep.senders.get()
		}
		more = a.t.transmit(a.ep.now(), &s.batch)
		if s.batch.empty() {
			break
		}
		to := a.remote
		s.from = a.local
		a.t.tx.lent = true
		carrier := a.carrierLocked()
		a.mu.Unlock()
		err := carrier.send(to, s)
		s.batch.reset()
		a.mu.Lock()
		a.t.tx.sent()
		if s.refused > 0 {
			a.t.refused(a.ep.now(), s.refused)
			a.again = true
		}
		if err != nil {
			a.sendErr = err
		}
		if errors.Is(err, errShut) && a.shut == nil && !a.ended { // a sender must not deliver the end: the timer does
			a.shut, a.armed = err, 1
			a.timer.Reset(0)
		}
	}
	a.flushing = false
	if a.ended {
		a.settled.Broadcast()
	}
	if s != nil {
		a.ep.senders.put(s)
	}
}

// armLocked sets the timer. It may fire early, never late.
func (a *Assoc) armLocked() {
	d := a.t.deadline()
	switch {
	case a.ended:
		a.timer.Stop()
	case d != 0 && (a.armed == 0 || d < a.armed):
		a.armed = d
		a.timer.Reset(max(0, d-a.ep.now()))
	}
}

// endLocked removes the association from the endpoint.
func (a *Assoc) endLocked() {
	a.ended = true
	a.err = a.t.err
	if a.err == assoc.ErrPeerUnreachable && a.sendErr != nil {
		a.err = fmt.Errorf("%w; the last packet could not be sent: %w", a.err, a.sendErr)
	}
	a.removeLocked()
	a.t.events = append(a.t.events, assoc.Event{Kind: assoc.EventDown, Err: a.err})
}

// removeLocked removes the association from the endpoint's maps.
func (a *Assoc) removeLocked() {
	e := a.ep
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byTag[a.t.localTag] == a {
		delete(e.byTag, a.t.localTag)
	}
	if e.byAddr[a.key] == a {
		delete(e.byAddr, a.key)
	}
	e.ending[a] = true
}

// overLocked closes done: its Receiver has been told.
func (a *Assoc) overLocked() {
	close(a.done)
	a.ep.mu.Lock()
	defer a.ep.mu.Unlock()
	delete(a.ep.ending, a)
}

// movedLocked records the peer's new UDP port (RFC 6951 section 5.4). Its packet has the
// right Verification Tag. The association may have ended since the packet found it: it is in
// the endpoint's maps no more then, and nobody would remove it again.
func (a *Assoc) movedLocked(from netip.AddrPort) {
	if a.ended {
		return
	}
	e := a.ep
	e.mu.Lock()
	if e.byAddr[a.key] == a {
		delete(e.byAddr, a.key)
	}
	a.key.remote = from
	if e.byAddr[a.key] == nil {
		e.byAddr[a.key] = a
	}
	e.mu.Unlock()
	a.remote = from
	a.t.event(assoc.Event{Kind: assoc.EventMoved})
}

// handOverLocked calls the Receiver, without the lock, one goroutine at a time. own is true if
// there are, or were, messages in the caller's buffer: they have been delivered, by whomever, when
// it returns.
func (a *Assoc) handOverLocked(own bool) {
	for a.delivering {
		if !own {
			return // the goroutine that delivers looks again
		}
		a.settled.Wait()
	}
	for len(a.t.deliver) > 0 || len(a.t.events) > 0 {
		a.delivering = true
		messages, events := a.t.deliver, a.t.events
		a.t.deliver, a.t.events = nil, nil
		a.mu.Unlock()
		over, unheld := a.call(messages, events)
		a.mu.Lock()
		a.delivering = false
		if a.t.deliver == nil {
			a.t.deliver = messages[:0] // reuse it
		}
		if a.t.events == nil {
			a.t.events = events[:0]
		}
		if over {
			for a.flushing { // another goroutine is sending the last packet
				a.settled.Wait()
			}
			if a.own != nil { // not here: its reader may be who calls, and the close waits for that
				a.ep.wg.Go(a.own.close) // unlocked: it never changes again
			}
			a.overLocked()
		}
		if unheld > 0 {
			a.t.release(unheld)
		}
		a.settled.Broadcast()
	}
}

// call is one round of handOverLocked. The first event precedes the messages, the others follow
// them. over reports whether the association has ended; unheld is the number of bytes that
// the Receiver did not hold.
func (a *Assoc) call(messages []assoc.Message, events []assoc.Event) (over bool, unheld int) {
	for i := range events {
		if events[i].Kind == assoc.EventUp {
			close(a.up)
			a.recv.Event(events[i])
		}
	}
	for i := range messages {
		m := &messages[i]
		if n := len(m.Payload); !a.recv.Message(m) {
			unheld += n
		}
		m.Payload, m.Memory = nil, nil
	}
	if len(messages) > 0 {
		a.recv.BatchEnd()
	}
	for i := range events {
		switch events[i].Kind {
		case assoc.EventUp:
			continue
		case assoc.EventDown:
			over = true
		}
		a.recv.Event(events[i])
	}
	return over, unheld
}

// Remote returns the peer's UDP address, whose port may change (RFC 6951 section 5.4).
func (a *Assoc) Remote() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.remote
}

// Local returns this end's UDP address. On a socket of all addresses its IP address is
// unspecified until the peer's first packet.
func (a *Assoc) Local() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ep.localAddr(a.local)
}

// Ports returns the SCTP ports of both ends.
func (a *Assoc) Ports() (local, peer uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.t.localPort, a.t.peerPort
}

// Streams implements assoc.Association. Both are 0 before the handshake.
func (a *Assoc) Streams() (out, in int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int(a.t.peer.out), int(a.t.peer.in)
}

// MaxMessage implements assoc.Association.
func (a *Assoc) MaxMessage() int { return int(a.t.longest.Load()) } // unlocked: it is atomic

// Done implements assoc.Association.
func (a *Assoc) Done() <-chan struct{} { return a.done }

// Err implements assoc.Association.
func (a *Assoc) Err() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

// State returns the name of the state in RFC 9260 section 4, such as "ESTABLISHED".
func (a *Assoc) State() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.t.state.String()
}

// Stats implements assoc.Association.
func (a *Assoc) Stats() assoc.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, p := a.t.stats, &a.t.path
	s.RTT, s.RTO = p.srtt, p.rto
	s.Window, s.Threshold, s.InFlight = p.cwnd, p.ssthresh, p.flight
	s.Queued, s.PeerWindow, s.HeldHere = a.t.tx.bytes, max(0, a.t.flow.rwnd), a.t.held
	now := a.ep.now()
	s.PathMTU = a.t.size + a.t.overhead
	s.LostMTU = a.t.lostMTU()
	s.Unanswered = max(a.t.life.errors, a.t.exchange.tries)
	s.Silent, s.Idle = now-a.t.life.heard, now-a.t.life.used
	return s
}

// Outq implements assoc.Association.
func (a *Assoc) Outq() (int, error) {
	a.mu.Lock()
	n, over := a.t.tx.user(), a.ended
	a.mu.Unlock()
	if over {
		return 0, a.wrap("count what is queued", net.ErrClosed)
	}
	return n, nil
}

// Bytes implements assoc.Association.
func (a *Assoc) Bytes() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.t.stats.BytesIn + a.t.ackedBytes
}

// Kick implements assoc.Association.
func (a *Assoc) Kick() (stuck bool) {
	a.mu.Lock()
	stuck = a.t.kick(a.ep.now())
	a.sendAndUnlock()
	return stuck
}

// LimitRTO implements assoc.Association.
func (a *Assoc) LimitRTO(rtoMax time.Duration) {
	a.mu.Lock()
	a.t.limitRTO(a.ep.now(), rtoMax)
	a.sendAndUnlock()
}

// TrySend implements assoc.Association.
func (a *Assoc) TrySend(ms []assoc.Outgoing) (n int, err error) {
	a.mu.Lock()
	n, err = a.queueLocked(ms)
	a.sendAndUnlock()
	return n, a.wrap("send", err)
}

func (a *Assoc) queueLocked(ms []assoc.Outgoing) (n int, err error) {
	for n = range ms {
		size, err := a.t.sendable(&ms[n])
		if err != nil {
			return n, err
		}
		if !a.t.tx.room(size, a.t.sendBuffer) {
			return n, nil
		}
		a.t.tx.push(&ms[n], size)
	}
	return len(ms), nil
}

// SendNow implements assoc.Association.
func (a *Assoc) SendNow(m assoc.Outgoing) error {
	a.mu.Lock()
	size, err := a.t.sendable(&m)
	if err == nil && !a.t.tx.room(size, a.t.sendBuffer+assoc.Reserve) {
		err = assoc.ErrNoRoom
	}
	if err == nil {
		a.t.tx.push(&m, size)
	}
	a.sendAndUnlock()
	return a.wrap("send", err)
}

// Wait implements assoc.Association.
func (a *Assoc) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		a.room.Broadcast()
		a.mu.Unlock()
	})
	defer stop()
	a.mu.Lock()
	for ctx.Err() == nil && !a.ended && !a.t.tx.room(a.t.maxMessage(), a.t.sendBuffer) {
		a.waiting++
		a.room.Wait()
		a.waiting--
	}
	a.mu.Unlock()
	return a.wrap("send", ctx.Err())
}

// Send queues messages as TrySend does, and waits for room until all are queued, the
// association ends or ctx is done. It fails as TrySend and Wait do; the first n messages
// are queued.
func (a *Assoc) Send(ctx context.Context, ms []assoc.Outgoing) (n int, err error) {
	for {
		k, err := a.TrySend(ms[n:])
		n += k
		if n == len(ms) || err != nil {
			return n, err
		}
		if err := a.Wait(ctx); err != nil {
			return n, err
		}
	}
}

// Outstanding implements assoc.Association.
func (a *Assoc) Outstanding(stream uint16) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for q, tsn := &a.t.tx, a.t.tx.acked+1; tsn != q.next; tsn++ {
		if dataChunk(q.at(tsn).data()).stream() == stream {
			n++
		}
	}
	return n
}

// Release implements assoc.Association.
func (a *Assoc) Release(n int) {
	a.mu.Lock()
	a.t.release(n)
	if a.t.want != 0 {
		a.sendAndUnlock()
		return
	}
	a.mu.Unlock()
}

// Shutdown implements assoc.Association.
func (a *Assoc) Shutdown(ctx context.Context) error {
	a.mu.Lock()
	a.t.shutdown(a.ep.now())
	a.deliverAndUnlock(false)
	select {
	case <-a.done:
		return a.wrap("shut down", a.err)
	case <-ctx.Done():
		a.Abort("the shutdown took too long")
		return a.wrap("shut down", ctx.Err())
	}
}

// Abort implements assoc.Association.
func (a *Assoc) Abort(reason string) {
	a.mu.Lock()
	a.t.fail(assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte(reason)})
	a.deliverAndUnlock(false)
}

// Close is Abort without a reason. It is idempotent and does not wait.
func (a *Assoc) Close() error {
	a.Abort("")
	return nil
}

func (a *Assoc) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &assoc.Error{Op: op, Remote: a.Remote(), Err: err}
}

// gaveUp adds the socket's error, if any, to why a handshake was given up.
func (a *Assoc) gaveUp(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sendErr == nil {
		return err
	}
	return fmt.Errorf("%w; the last packet could not be sent: %w", err, a.sendErr)
}
