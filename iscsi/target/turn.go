package target

import (
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/iscsi"
)

// request is a request other than a command that waits for its turn: requests of one session come over
// several connections (RFC 7143 section 4.2.2.1). One for immediate delivery that manages tasks waits for
// the commands before it (section 4.2.3.3).
type request struct {
	c    *conn
	bhs  iscsi.BHS
	data []byte
}

// request takes a request that may have data: NOP-Out, Text, Logout or Task Management Function.
func (c *conn) request(p *iscsi.Incoming) error {
	x := c.x
	most := 0
	switch p.BHS.Opcode() {
	case iscsi.OpNOPOut: // "up to the first MaxRecvDataSegmentLength bytes" (section 11.19)
		most = c.mover.Segment()
	case iscsi.OpText:
		most = iscsi.MaxText
	}
	var data []byte
	if n := min(p.BHS.DataLen(), most); n > 0 {
		data = make([]byte, n)
		if err := c.readDataLocked(p, data); err != nil { // unlocked: ControlNotify holds receiving
			return c.survive(err, &p.BHS)
		}
	}
	x.mu.Lock()
	exp, last := x.window.Numbers()
	sn := p.BHS.CmdSN()
	turn := iscsi.Now
	switch {
	case !p.BHS.Immediate():
		turn = x.window.Admit(sn)
	case int32(sn-exp) > 0 && int32(sn-last) <= 1 && managesMany(&p.BHS):
		turn = iscsi.Later
	}
	x.mu.Unlock()
	switch {
	case turn == iscsi.Never:
		return nil
	case turn == iscsi.Now:
		err := c.perform(&p.BHS, data, true)
		x.next()
		return err
	case p.BHS.Immediate() && x.countEarly(c) >= immediates:
		c.reject(&p.BHS, iscsi.RejectTooManyImmediate)
		return nil
	case x.earlyData+len(data) > maxEarlyData:
		x.mu.Lock()
		x.window.Forget(sn)
		x.mu.Unlock()
		c.reject(&p.BHS, iscsi.RejectLongOperation)
		return nil
	}
	x.early = append(x.early, &request{c, p.BHS, data})
	x.earlyData += len(data)
	return nil
}

// managesMany reports whether a PDU asks for a task management function on more than one task.
func managesMany(h *iscsi.BHS) bool {
	if h.Opcode() != iscsi.OpTaskMgmt {
		return false
	}
	q, err := iscsi.ParseTaskMgmt(h)
	return err == nil && q.Function != iscsi.AbortTask && q.Function != iscsi.TaskReassign
}

func (x *session) countEarly(c *conn) (n int) {
	for _, r := range x.early {
		if r.c == c && r.bhs.Immediate() {
			n++
		}
	}
	return n
}

// perform carries a request out whose turn it is. own says that the connection's own goroutine does so.
func (c *conn) perform(h *iscsi.BHS, data []byte, own bool) error {
	switch h.Opcode() {
	case iscsi.OpNOPOut:
		return c.nop(h, data)
	case iscsi.OpTaskMgmt:
		return c.manage(h)
	case iscsi.OpText:
		return c.textRequest(h, data)
	case iscsi.OpLogout:
		return c.logoutLocked(h, own) // unlocked: the caller holds receiving
	}
	return fmt.Errorf("%v has no turn: %w", h.Opcode(), iscsi.ErrFormat)
}

// refuses rejects a Task Management Function or a Logout if too many of the session have not been answered.
func (c *conn) refuses(h *iscsi.BHS) bool {
	c.x.mu.Lock()
	many := c.x.hasManyRequestsLocked()
	c.x.mu.Unlock()
	switch {
	case many && h.Immediate():
		c.reject(h, iscsi.RejectTooManyImmediate)
	case many:
		c.reject(h, iscsi.RejectLongOperation)
	}
	return many
}

// next goes on with what came out of turn, and whose turn it is now. The caller holds receiving.
func (x *session) next() {
	delivered := false
	for {
		x.mu.Lock()
		if !x.window.Waiting() && len(x.early) == 0 {
			x.mu.Unlock()
			break
		}
		exp, _ := x.window.Numbers()
		i := slices.IndexFunc(x.early, func(r *request) bool { return r.bhs.Immediate() && int32(r.bhs.CmdSN()-exp) <= 0 })
		var t *task
		if i < 0 {
			sn, ok := x.window.Next()
			if !ok {
				x.mu.Unlock()
				break
			}
			i = slices.IndexFunc(x.early, func(r *request) bool { return !r.bhs.Immediate() && r.bhs.CmdSN() == sn })
			for _, o := range x.tasks {
				if o.state == receiving && !o.begun && !o.ending && o.cmdSN == sn {
					t = o
				}
			}
		}
		x.mu.Unlock()
		switch {
		case t != nil:
			t.begin()
			t.c.goOn(t)
		case i >= 0:
			r := x.early[i]
			x.early = slices.Delete(x.early, i, i+1)
			x.earlyData -= len(r.data)
			if err := r.c.perform(&r.bhs, r.data, false); err != nil {
				r.c.fail(err)
			}
		} // otherwise it was aborted before its turn came
		delivered = true
	}
	if delivered {
		x.flush()
	}
}

// forgetEarly discards what came out of turn on a connection that has ended: it may come again on
// another (RFC 7143 section 11.14). The caller holds receiving.
func (x *session) forgetEarly(c *conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.early = slices.DeleteFunc(x.early, func(r *request) bool {
		if r.c == c {
			x.earlyData -= len(r.data)
			if !r.bhs.Immediate() {
				x.window.Forget(r.bhs.CmdSN())
			}
		}
		return r.c == c
	})
}

// fail ends a connection for a reason, from another goroutine than its own.
func (c *conn) fail(why error) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	c.why = why
	c.terminateLocked()
}
