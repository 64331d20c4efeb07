package target

import (
	"errors"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// Connection recovery: ErrorRecoveryLevel 2 (RFC 7143 section 7.1.4.3). The goroutine of a connection that has
// failed, or is logged out for recovery, stays until nothing waits for another connection any more.
//
//	up --fails----------------> failed --logged out--> logged out
//	  `--logged out for recovery---------------------->    |  TASK REASSIGN, for each command
//	                                                       v
//	                             time is over, or nothing is left: over
//
// What waits counts in the session's window and memory, and for Time2Wait and Time2Retain. Commands that have
// not been delivered are forgotten, and may be sent again (section 11.14); so are those for immediate delivery
// (section 7.14).

// retention is how long the commands of a connection that has failed wait.
func retention(v *iscsi.Values) time.Duration {
	wait, retain := v[iscsi.KeyDefaultTime2Wait], v[iscsi.KeyDefaultTime2Retain]
	if v[iscsi.KeyErrorRecoveryLevel] < 2 || retain == 0 || wait > iscsi.MaxTime2Wait {
		return 0
	}
	return time.Duration(wait+min(retain, time2Retain)) * time.Second
}

// times returns Time2Wait and Time2Retain in seconds.
func (x *session) times() (wait, retain uint16) {
	v := &x.login.Values
	if x.retain > 0 {
		retain = uint16(v[iscsi.KeyDefaultTime2Retain])
	}
	return uint16(v[iscsi.KeyDefaultTime2Wait]), retain
}

// waitsLocked reports whether the commands of a connection that ends for a reason wait for another.
func (x *session) waitsLocked(c *conn, why error) bool {
	return c.begun && x.retain > 0 && !x.ending && !errors.Is(why, iscsi.ErrFormat) && (c.recovery || !errors.Is(why, iscsi.ErrLogout))
}

// suspend has the tasks of a connection wait. The caller holds receiving.
func (x *session) suspend(c *conn) {
	x.mu.Lock()
	c.suspended = true
	all := slices.Clone(x.tasks)
	x.mu.Unlock()
	for _, t := range all {
		st := x.stateOf(t)
		switch {
		case t.c != c || st != receiving && st != executing:
		case !t.begun || t.immediate:
			x.endTask(t, st)
		case t.ending:
			x.endAborted(t)
		case st == receiving:
			x.halt(t)
		}
	}
}

// halt has a task forget what it waits for: what has come until then is kept.
func (x *session) halt(t *task) {
	x.starving = slices.DeleteFunc(x.starving, func(o *task) bool { return o == t })
	t.unsolicited = false
	if g := t.awaited(); g != nil {
		off, _ := g.Sequence.Received()
		t.transfer.Rewind(off)
		t.busy = [maxR2T]bool{}
	}
	if t.asking && t.bad.Code != 0 {
		t.transfer.Cancel()
	}
}

// parkLocked keeps a command that has ended, and is to be answered by another connection.
func (t *task) parkLocked() {
	t.c.kept.add(&t.kept, 0)
	t.kept.parked = true
	t.x.unacked++
	if t.Out || t.InLen == 0 {
		b, fed := t.takeBufferLocked()
		t.x.putLocked(t.c, b, fed)
	}
}

// addFailedLocked adds a connection to those whose commands wait.
func (x *session) addFailedLocked(c *conn) {
	var before *answer
	for a := c.kept.first; a != nil; {
		next := a.next
		if a.task == nil || a.task.immediate {
			c.kept.remove(before).forgetLocked(c)
		} else {
			before = a
		}
		a = next
	}
	c.loggedOut = c.recovery
	x.change.Broadcast()
	x.failed = append(x.failed, c)
	if x.ending { // meanwhile
		c.forgetSoonLocked()
	}
	room := maxConnections
	for _, o := range slices.Backward(x.failed) {
		if o.forgotten {
			continue
		}
		if room--; room < 0 {
			o.forgetSoonLocked()
		}
	}
}

// await waits until the commands of a connection do not wait any more.
func (c *conn) await() {
	over := time.NewTimer(c.x.retain)
	defer over.Stop()
	for {
		select {
		case <-over.C:
			return
		case <-c.forget:
			return
		case <-c.again:
			over.Reset(c.x.retain)
		}
	}
}

func (c *conn) forgetSoonLocked() {
	if !c.forgotten {
		c.forgotten = true
		close(c.forget)
	}
}

// bury is the end of a connection that has failed, once its tasks have ended.
func (x *session) bury(c *conn) {
	x.mu.Lock()
	for c.active > 0 {
		x.change.Wait()
	}
	x.dropHeldLocked(c)
	c.forgetLocked()
	x.failed = slices.DeleteFunc(x.failed, func(o *conn) bool { return o == c })
	x.settleLocked()
	x.mu.Unlock()
	x.receiving.Lock()
	x.feed()
	x.receiving.Unlock()
	x.flush()
}

// failedLocked returns the connection of a CID that has failed, nil if there is none.
func (x *session) failedLocked(cid uint16) *conn {
	for _, c := range x.failed {
		if c.cid == cid && !c.superseded && !c.forgotten {
			return c
		}
	}
	return nil
}

// logOutLocked is the Logout of a connection that has failed: its commands may be reassigned, and have the
// whole time for it.
func (x *session) logOutLocked(c *conn) {
	c.loggedOut = true
	select {
	case c.again <- struct{}{}:
	default:
	}
	x.tidyLocked(c)
}

// supersedeLocked is the implicit Logout of a connection that has failed, by one with its CID (section 6.3.4).
func (x *session) supersedeLocked(cid uint16) {
	if c := x.failedLocked(cid); c != nil {
		c.superseded = true
		x.logOutLocked(c)
	}
}

// tidyLocked forgets a connection that has failed if it has nothing that waits. The last of a session stays:
// so does the session.
func (x *session) tidyLocked(c *conn) {
	if c.loggedOut && len(x.conns) > 0 && c.active == 0 && c.kept.first == nil {
		c.forgetSoonLocked()
	}
}

// reassignLocked is TASK REASSIGN (sections 7.2.2, 11.5.1 and 11.6.1): the answer first, then what is to be done
// for the task. The caller holds receiving.
func (c *conn) reassignLocked(q *iscsi.TaskMgmt) {
	x := c.x
	x.receiving.Unlock()
	x.mu.Lock()
	for x.isPartingLocked(q.RefTag) && !c.cut {
		x.change.Wait()
	}
	x.mu.Unlock()
	x.receiving.Lock()
	x.mu.Lock()
	t, result := x.orphanLocked(q)
	c.replyLocked(q.ITT, result)
	resumes := false
	if t != nil {
		old := t.c
		resumes = x.adoptLocked(c, t, q.ExpDataSN)
		x.tidyLocked(old)
	}
	x.mu.Unlock()
	switch {
	case resumes && t.asking:
		c.ask(t)
	case resumes:
		c.goOn(t)
	}
	x.flush()
}

// isPartingLocked reports whether a task is that of a connection that has been logged out for recovery, and is
// about to end.
func (x *session) isPartingLocked(itt uint32) bool {
	return slices.ContainsFunc(x.tasks, func(t *task) bool {
		return t.state != idle && t.itt == itt && t.c != nil && t.c.suspended && slices.Contains(x.conns, t.c)
	})
}

// orphanLocked finds the task that is to be reassigned, or why it is not.
func (x *session) orphanLocked(q *iscsi.TaskMgmt) (*task, iscsi.TaskResponse) {
	switch {
	case x.level < 2:
		return nil, iscsi.ReassignmentNotSupported
	case !q.Immediate:
		return nil, iscsi.FunctionRejected
	}
	result := iscsi.TaskDoesNotExist
	if slices.ContainsFunc(x.early, func(r *request) bool { return r.bhs.ITT() == q.RefTag }) || // unlocked: the caller holds receiving
		slices.ContainsFunc(x.held, func(r response) bool { return r.t == nil && r.itt == q.RefTag }) {
		result = iscsi.FunctionRejected
	}
	for _, t := range x.tasks {
		switch {
		case t.itt != q.RefTag || t.state == idle || t.c == nil:
		case !t.c.suspended || !t.c.loggedOut:
			result = iscsi.TaskStillAllegiant
		case !t.begun || t.immediate || t.ending || t.c.forgotten:
		case t.dropped && x.leftOfLocked(t, q.ExpDataSN) != t.pieces.Next():
			result = iscsi.FunctionRejected // its data are not kept any more
		default:
			return t, iscsi.FunctionComplete
		}
	}
	return nil, result
}

// leftOfLocked is the number of the first Data-In that a task has to send on another connection (section 11.5.6).
func (x *session) leftOfLocked(t *task, expDataSN uint32) uint32 {
	if expDataSN != 0 && expDataSN-t.expData <= t.pieces.Next()-t.expData {
		return expDataSN
	}
	return t.expData
}

// adoptLocked has a task belong to the connection. It reports whether it is to go on with its data; its answer
// is sent.
func (x *session) adoptLocked(c *conn, t *task, expDataSN uint32) (resumes bool) {
	old := t.c
	t.c, t.snackTag = c, 0
	if t.state != answering {
		old.active--
		c.active++
		return t.state == receiving
	}
	if t.pieces.End > 0 {
		t.expData = x.leftOfLocked(t, expDataSN)
		t.pieces = t.pieces.Again(t.expData, uint32(c.mover.Segment()))
	}
	var before *answer
	for a := old.kept.first; a != nil; before, a = a, a.next {
		if a == &t.kept {
			old.kept.remove(before)
			x.unacked--
			x.respondLocked(response{c: c, t: t})
			break
		}
	} // otherwise a fence keeps it
	return false
}

// adoptAnswered has a command that has ended, and is to be aborted, answered by this connection, if that of its
// own is logged out.
func (c *conn) adoptAnswered(q *iscsi.TaskMgmt) {
	x := c.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.level < 2 {
		return
	}
	t, _ := x.orphanLocked(&iscsi.TaskMgmt{Immediate: true, RefTag: q.RefTag})
	if t != nil && t.kept.listed {
		old := t.c
		x.adoptLocked(c, t, 0)
		x.tidyLocked(old)
	}
}
