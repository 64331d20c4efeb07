//go:build !weakened

package verbs

import (
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// The checks of docs/security.md, one function each, with the sections of RFC 5042. weakened.go
// has them with switches.

// P1: a queue pair of a partition is made, and gets its stream, only if its label may use that.
func (d *Device) deniesQP(qp *QP, op string) error {
	return d.mayUse(op+" a queue pair", qp.Label(), qp.Partition(), qp.Peer())
}

// P2: a request is sent and taken only if the label of who sends or takes it may use the partition, P3: and this host talks
// with the peer in it.
func (d *Device) deniesDial(label, partition string) error {
	return d.mayUse("dial", label, partition, "")
}
func (d *Device) deniesRequest(label, partition string) error {
	return d.mayUse("listen", label, partition, "")
}
func (d *Device) deniesPeer(label, partition string, peer transport.Identity) error {
	return d.mayUse("take a request", label, partition, peer)
}

// P5: what may not be any more ends.
func (d *Device) deniesGoingOn(label, partition string, peer transport.Identity) error {
	return d.mayUse("go on", label, partition, peer)
}

// R2 and R19, section 6.4.1: what a peer has is counted against its quota; 0: it has none.
func (a *account) isOver(limit, n int64) bool { return limit > 0 && n > limit }

// R2 and R28, section 7.2: the unused part of others' shares is reserved for them.
func (g *group) isFree(r resource) bool { return !g.divides[r] }

// R3, section 3: a ULP's domains are trusted no more than the ULP.
func (m TrustModel) isMoreThan(most TrustModel) bool { return !most.Permits(m) }

// R3, sections 3 and 7.1: a protection domain of a strict model has one stream, whose queues are
// its own.
func (pd *PD) isForOneStream() bool { return !pd.trust.ShareStreams }

// R7, sections 5.1.1 and 6.1.1: STags come from the CSPRNG, and are reused as late as
// possible. retireLocked returns the one that may be reused instead, 0: none.
func (t *stagTable) drawLocked() uint32 { return t.randomLocked() }
func (t *stagTable) retireLocked(stag uint32) (oldest uint32) {
	oldest = t.retired[t.next]
	t.retired[t.next] = stag
	t.next = (t.next + 1) % len(t.retired)
	return oldest
}

// R8 and R9, section 6.1.1: an STag is valid on a protection domain's streams (section 2.2.5), or on
// one of them.
func (w *window) allows(pd *PD, qp *QP) bool { return w.pd == pd && (w.qp == nil || w.qp == qp) }

// R10, section 6.1.1: a peer's fault is reported by an event.
func (qp *QP) reportFault(err error) { qp.pd.ulp.dev.events.emit(qp.event(EventPeerFault, err)) }

// R10 and R15, section 6.3.3: a revoked STag opens nothing.
func (w *window) revokeLocked() { w.closeLocked() }

// R11 and R16, sections 6.2.1, 6.3.1 and 6.3.4: an access is within base and bounds, and no tagged
// offset wraps.
func (w *window) isOutside(end uint64) bool { return end > uint64(len(w.mem)) }
func wraps(to, end uint64) bool             { return end < to }

// R12, section 6.2.2: a revocation waits for what is in flight, and so does a diversion.
func (w *window) isInUse() bool   { return w.pins.Load() != shut }
func (w *window) isPlacing() bool { return w.placing.Load() != shut }

// R17, section 6.3.5: an access has the right that it needs.
func (w *window) lacks(need rdmap.Access) bool { return w.rights&need != need }

// R18, section 6.3.6: shared memory is written by no peer, or belongs to one protection domain; and
// a peer gets no window on memory that another stream's peer can write.
func (mr *MR) mayShare(o *MR) bool { return mr.win.pd == o.win.pd || !mr.local && !o.local }
func (t *extent) mayShare(e *extent) bool {
	return t.qp == e.qp || !t.writable && !e.writable
}

// R19, section 6.4.1: half-open streams are counted against their peers, and a peer's requests
// give way to those of one with fewer.
func halfOpenOf(peer transport.Identity) charge       { return charge{peer: peer} }
func keepsOut(most, newcomer transport.Identity) bool { return most == newcomer }

// R20, section 6.4.2: idle streams go when streams run short.
func (p *IdlePolicy) reaps() bool { return p.After != 0 }

// R21, section 6.4.3.1: a stream's share of a shared receive queue is bounded.
func (s *SRQ) isShare(n int) bool { return n >= s.cfg.MaxPerQP }

// R22, section 6.4.3.2: a completion queue has room for all that may be posted.
func (pd *PD) reserves() bool { return !pd.trust.Overcommit }

// R24, section 6.4.4: slow paths that a peer drives are metered.
func (p *SlowPolicy) allows(b *rate.Bucket) bool {
	return p.PerSecond == 0 || b.Take(p.limit(), time.Now())
}

// R25, section 6.4.5: an STag of several streams has no remote rights without trust.
func (pd *PD) sharesNoSTags() bool { return !pd.trust.ShareSTags }

// R26, section 6.4.6: an overflow ends the streams of that queue only.
func (qp *QP) abortOverflowed() { qp.Abort(ErrCQOverflow) }

// R27, R29 and R31, sections 7.1, 7.3 and 2.2.4: a completion queue and memory are used only by the
// ULP that owns them, and objects only with those of the same protection domain.
func (cq *CQ) isForeign(u *ULP) bool { return cq.ulp != u }
func (pd *PD) isOfOther(u *ULP) bool { return pd.ulp != u }
func (pd *PD) isForeign(o *PD) bool  { return pd != o }

// R30, section 2.2.7: events of one peer are bounded, and give way to those of others.
func (p *eventEntries) hasItsShare() bool { return p.n >= eventsPerPeer }
func (q *eventQueue) givesWayLocked(p *eventEntries) bool {
	return q.makeRoomLocked(p.n)
}
