package target

import (
	"slices"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// response is what SCSI answers: to a command, or to a task management function.
type response struct {
	c      *conn
	t      *task
	itt    uint32 // of a task management function, without t
	result iscsi.TaskResponse
	fenced bool
}

// conn returns the connection that a response goes to.
func (r *response) conn() *conn {
	if r.t != nil {
		return r.t.c // it may have been reassigned
	}
	return r.c
}

// isFenced reports whether the response to a command is one of those of which the order over the
// connections matters (RFC 7143 section 4.2.2.3.4): all unit attentions, and that to PREEMPT AND ABORT.
func (t *task) isFenced() bool {
	if t.Status == scsi.CheckCondition {
		s, err := scsi.ParseSense(t.Sense())
		return err == nil && s.Key == scsi.UnitAttention
	}
	return t.CDB[0] == scsi.PersistentReserveOut && t.CDB[1]&0x1f == scsi.PreemptAndAbort
}

// respondLocked sends a response, after those before it if a fence keeps them.
func (x *session) respondLocked(r response) {
	if !r.fenced && x.fence.Open() && len(x.held) == 0 {
		r.sendLocked()
		return
	}
	x.held = append(x.held, r)
	x.respondNextLocked()
}

// respondNextLocked sends what the fence does not keep any more.
func (x *session) respondNextLocked() {
	for len(x.held) > 0 {
		x.stir.Store(true)
		r := x.held[0]
		switch c := r.conn(); {
		case !c.up: // nobody gets it
			r.sendLocked()
		case x.fence.MaySend():
			x.fence.Send(iscsi.SentStatus{CID: c.cid, StatSN: c.statSN})
			r.sendLocked()
			c.askLocked()
		case !x.fence.Open():
			return
		case r.fenced && len(x.conns) > 1:
			x.raiseLocked()
			continue
		default:
			r.sendLocked()
		}
		x.held[0] = response{}
		if x.held = x.held[1:]; len(x.held) == 0 {
			x.held = nil
		}
	}
}

// dropHeldLocked sends what a fence keeps of a connection that has ended, of which nobody gets it: later nothing would
// flush its mover.
func (x *session) dropHeldLocked(c *conn) {
	x.held = slices.DeleteFunc(x.held, func(r response) bool {
		if r.conn() != c {
			return false
		}
		r.sendLocked()
		return true
	})
}

// raiseLocked raises the fence, and asks the initiator for the acknowledgements that it waits for.
func (x *session) raiseLocked() {
	var before []iscsi.SentStatus
	for _, c := range x.conns {
		if c.up && c.acked != c.statSN {
			before = append(before, iscsi.SentStatus{CID: c.cid, StatSN: c.statSN - 1})
			c.askLocked()
		}
	}
	x.fence.Raise(before)
}

func (r *response) sendLocked() {
	switch {
	case r.t != nil && r.t.c.suspended:
		r.t.parkLocked()
		return
	case r.t != nil:
		r.t.answerLocked()
		return
	}
	r.c.replyLocked(r.itt, r.result)
}

// replyLocked answers a task management function.
func (c *conn) replyLocked(itt uint32, result iscsi.TaskResponse) {
	c.x.managing--
	c.answerLocked(nil, true, func(h *iscsi.BHS, n iscsi.Numbers) {
		a := iscsi.TaskReply{Response: result, ITT: itt, Numbers: n}
		a.Put(h)
	})
}
