//go:build weakened

package verbs

import (
	"encoding/binary"
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

func (d *Device) deniesQP(qp *QP, op string) error {
	if !checks.On(checks.PartitionQP) {
		return nil
	}
	return d.mayUse(op+" a queue pair", qp.Label(), qp.Partition(), qp.Peer())
}

func (d *Device) deniesDial(label, partition string) error {
	if !checks.On(checks.PartitionDial) {
		return nil
	}
	return d.mayUse("dial", label, partition, "")
}

func (d *Device) deniesRequest(label, partition string) error {
	if !checks.On(checks.PartitionRequest) {
		return nil
	}
	return d.mayUse("listen", label, partition, "")
}

func (d *Device) deniesPeer(label, partition string, peer transport.Identity) error {
	if !checks.On(checks.PartitionRequest) {
		return nil
	}
	return d.mayUse("take a request", label, partition, peer)
}

func (d *Device) deniesGoingOn(label, partition string, peer transport.Identity) error {
	if !checks.On(checks.PartitionChange) {
		return nil
	}
	return d.mayUse("go on", label, partition, peer)
}

func (a *account) isOver(limit, n int64) bool {
	return limit > 0 && n > limit && (a.group == nil || checks.On(checks.PeerQuota))
}

func (g *group) isFree(r resource) bool { return !g.divides[r] || !checks.On(checks.FairShare) }

func (m TrustModel) isMoreThan(most TrustModel) bool {
	return !most.Permits(m) && checks.On(checks.DeclaredTrust)
}

func (pd *PD) isForOneStream() bool { return !pd.trust.ShareStreams && checks.On(checks.StreamTrust) }

func (t *stagTable) drawLocked() uint32 {
	if !checks.On(checks.RandomSTag) {
		v := binary.LittleEndian.Uint32(t.pool[:]) + 1
		binary.LittleEndian.PutUint32(t.pool[:], v)
		return v
	}
	return t.randomLocked()
}

func (t *stagTable) retireLocked(stag uint32) (oldest uint32) {
	if !checks.On(checks.FreshSTag) {
		return stag
	}
	oldest = t.retired[t.next]
	t.retired[t.next] = stag
	t.next = (t.next + 1) % len(t.retired)
	return oldest
}

func (w *window) allows(pd *PD, qp *QP) bool {
	return (w.pd == pd || !checks.On(checks.PDOfSTag)) && (w.qp == nil || w.qp == qp || !checks.On(checks.StreamOfSTag))
}

func (qp *QP) reportFault(err error) {
	if !checks.On(checks.FaultEvent) {
		return
	}
	qp.pd.ulp.dev.events.emit(qp.event(EventPeerFault, err))
}

func (w *window) revokeLocked() {
	if !checks.On(checks.LiveSTag) {
		return
	}
	w.closeLocked()
}

func (w *window) isOutside(end uint64) bool {
	return end > uint64(len(w.mem)) && checks.On(checks.Bounds)
}

func wraps(to, end uint64) bool { return end < to && checks.On(checks.TOWrap) }

func (w *window) isInUse() bool { return w.pins.Load() != shut && checks.On(checks.Revocation) }

func (w *window) isPlacing() bool { return w.placing.Load() != shut && checks.On(checks.Revocation) }

func (w *window) lacks(need rdmap.Access) bool {
	return w.rights&need != need && checks.On(checks.Rights)
}

// Memory of two ULPs is distinguished before, unless that check is off.
func (mr *MR) mayShare(o *MR) bool {
	return mr.win.pd == o.win.pd || !mr.local && !o.local ||
		mr.win.pd.ulp != o.win.pd.ulp && !checks.On(checks.ForeignMemory) || !checks.On(checks.Alias)
}

func (t *extent) mayShare(e *extent) bool {
	return t.qp == e.qp || !t.writable && !e.writable || !checks.On(checks.AliasWindow)
}

// Without the check a half-open stream is charged to nobody: first come, first served.
func halfOpenOf(peer transport.Identity) charge {
	if !checks.On(checks.HalfOpen) {
		return charge{}
	}
	return charge{peer: peer}
}

func keepsOut(most, newcomer transport.Identity) bool {
	return most == newcomer || !checks.On(checks.BacklogShare)
}

func (p *IdlePolicy) reaps() bool { return p.After != 0 && checks.On(checks.Reaping) }

func (s *SRQ) isShare(n int) bool { return n >= s.cfg.MaxPerQP && checks.On(checks.SRQShare) }

func (pd *PD) reserves() bool { return !pd.trust.Overcommit && checks.On(checks.CQReservation) }

func (p *SlowPolicy) allows(b *rate.Bucket) bool {
	return p.PerSecond == 0 || b.Take(p.limit(), time.Now()) || !checks.On(checks.SlowPath)
}

func (pd *PD) sharesNoSTags() bool { return !pd.trust.ShareSTags && checks.On(checks.SharedSTag) }

func (qp *QP) abortOverflowed() {
	qp.Abort(ErrCQOverflow)
	if !checks.On(checks.CQIsolation) {
		for _, other := range qp.pd.ulp.dev.QPs() {
			other.Abort(ErrCQOverflow)
		}
	}
}

func (cq *CQ) isForeign(u *ULP) bool { return cq.ulp != u && checks.On(checks.ForeignCQ) }
func (pd *PD) isOfOther(u *ULP) bool { return pd.ulp != u && checks.On(checks.ForeignMemory) }
func (pd *PD) isForeign(o *PD) bool  { return pd != o && checks.On(checks.ForeignPD) }

func (p *eventEntries) hasItsShare() bool {
	return p.n >= eventsPerPeer && checks.On(checks.EventShare)
}

func (q *eventQueue) givesWayLocked(p *eventEntries) bool {
	return checks.On(checks.EventShare) && q.makeRoomLocked(p.n)
}
