package target

import (
	"sync"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// manage carries a task management function out (RFC 7143 section 11.5).
func (c *conn) manage(h *iscsi.BHS) error {
	q, err := iscsi.ParseTaskMgmt(h)
	if err != nil {
		return err
	}
	x := c.x
	if c.refuses(h) {
		return nil
	}
	x.mu.Lock()
	x.managing++
	x.mu.Unlock()
	n, many := x.port.Nexus(q.LUN), managesMany(h)
	reply := func(r iscsi.TaskResponse) {
		x.mu.Lock()
		x.respondLocked(response{c: c, itt: q.ITT, result: r, fenced: len(x.conns) > 1 && many})
		x.mu.Unlock()
		x.flush()
		c.mover.Flush()
	}
	complete := func() { reply(iscsi.FunctionComplete) }
	switch q.Function {
	case iscsi.AbortTask:
		c.abortTask(&q, reply)
		return nil
	case iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset:
		if !n.Exists() {
			reply(iscsi.LUNDoesNotExist)
			return nil
		}
		switch q.Function {
		case iscsi.AbortTaskSet:
			n.Abort(n.Of, complete)
		case iscsi.ClearTaskSet:
			n.Abort(nil, func() { n.Cleared(); complete() })
		default:
			n.Abort(nil, func() { n.Reset(scsi.BusDeviceReset); complete() })
		}
		x.boundWait(n)
	case iscsi.TargetWarmReset, iscsi.TargetColdReset:
		x.resetTarget(q.Function, complete)
		x.boundWait(nil)
	case iscsi.TaskReassign:
		c.reassignLocked(&q) // unlocked: the caller holds receiving
	default:
		reply(iscsi.FunctionNotSupported)
	}
	return nil
}

// resetTarget resets all units.
func (x *session) resetTarget(f iscsi.Function, complete func()) {
	all := x.port.All()
	var mu sync.Mutex
	left := len(all) + 1
	over := func() {
		mu.Lock()
		left--
		last := left == 0
		mu.Unlock()
		if !last {
			return
		}
		for _, n := range all {
			n.Reset(scsi.PowerOnOrReset)
		}
		complete()
		if f == iscsi.TargetColdReset { // "MUST then close all of its TCP connections"
			x.srv.endAll(x.target, nil)
		}
	}
	for _, n := range all {
		n.Abort(nil, over)
	}
	over()
}

// abortTask is ABORT TASK (RFC 7143 section 11.6.1).
func (c *conn) abortTask(q *iscsi.TaskMgmt, reply func(iscsi.TaskResponse)) {
	x := c.x
	t, st := x.find(q.RefTag)
	if t == nil {
		x.mu.Lock()
		missing := x.window.Includes(q.RefCmdSN) && int32(q.RefCmdSN-q.CmdSN) < 0
		if missing { // "consider the CmdSN as received"
			x.window.Admit(q.RefCmdSN)
		}
		x.mu.Unlock()
		if !missing {
			c.adoptAnswered(q) // first what it has to say (section 11.5.1)
			reply(iscsi.TaskDoesNotExist)
			return
		}
		x.next()
		reply(iscsi.FunctionComplete)
		return
	}
	if !t.begun { // it came out of turn: its number is considered received
		x.endAborted(t)
		reply(iscsi.FunctionComplete)
		return
	}
	found := false
	t.nexus.Abort(func(o *lu.Task) bool { found = found || o == &t.Task; return o == &t.Task }, func() {
		if found {
			reply(iscsi.FunctionComplete)
		} else {
			reply(iscsi.TaskDoesNotExist) // its status was handed over before (section 7.11)
		}
	})
	if st == receiving {
		x.endAborted(t)
	}
}
