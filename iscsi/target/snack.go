package target

import "github.com/ironwarp/ironwarp/iscsi"

// taskBits is how many bits of the tag of data that are to be acknowledged are the task's place.
const taskBits = 12

var _ = [1]int{}[maxTasks>>taskBits]

// snack takes a SNACK (RFC 7143 section 11.16). The PDUs that it asks for count as answers that wait to be
// sent: while there are many, nothing more is received. The caller holds receiving.
func (c *conn) snack(h *iscsi.BHS) error {
	s, err := iscsi.ParseSNACK(h)
	if err != nil {
		return err
	}
	x := c.x
	x.mu.Lock()
	defer x.mu.Unlock()
	why := iscsi.Reject{Reason: iscsi.RejectSNACK}
	switch {
	case c.values.Bool(iscsi.KeyRDMAExtensions):
		why.Reason = iscsi.RejectProtocolError // RFC 7145 section 7.3.11
	case x.level == 0:
	case s.Type == iscsi.SNACKStatus:
		why = c.repeatStatusLocked(&s)
	case s.Type == iscsi.SNACKDataACK:
		why = c.acknowledgeDataLocked(&s)
	default:
		why = c.repeatDataLocked(&s)
	}
	if why.Reason != 0 {
		c.rejectLocked(h, why)
	}
	return nil
}

// runOf returns the numbers that a SNACK asks for, if all of them are among those that were sent and are not
// acknowledged, from first up to next.
func runOf(s *iscsi.SNACK, first, next uint32) (from, to uint32, ok bool) {
	from, to = s.BegRun, s.BegRun+s.RunLength
	switch {
	case s.BegRun == 0 && s.RunLength == 0: // "all unacknowledged PDUs"
		return first, next, true
	case s.RunLength == 0:
		to = next
	}
	return from, to, from-first < next-first && to-first <= next-first && to-from-1 < next-first
}

// repeatStatusLocked sends answers again.
func (c *conn) repeatStatusLocked(s *iscsi.SNACK) (why iscsi.Reject) {
	if s.ITT != iscsi.NoTag || s.TTT != iscsi.NoTag {
		return iscsi.Reject{Reason: iscsi.RejectInvalidField}
	}
	from, to, ok := runOf(s, c.acked, c.statSN)
	if !ok {
		return iscsi.Reject{Reason: iscsi.RejectProtocolError}
	}
	n, all := to-from, true
	asked := func(a *answer) bool { return a.statSN-from < n }
	found := uint32(0)
	for a := c.kept.first; a != nil; a = a.next {
		if asked(a) {
			found++
			all = all && !(a.task != nil && a.task.collapse && a.task.dropped)
		}
	}
	if found != n || !all {
		return iscsi.Reject{Reason: iscsi.RejectSNACK} // it is not kept any more
	}
	for a := c.kept.first; a != nil; a = a.next {
		if asked(a) {
			c.repeatLocked(a)
		}
	}
	return why
}

// repeatLocked sends an answer again: as it was, with the numbers of commands that hold now.
func (c *conn) repeatLocked(a *answer) {
	t := a.task
	if t != nil && t.collapse {
		c.sendDataLocked(t, t.pieces.Next()-1, t.pieces.Next())
		return
	}
	k := c.againLocked()
	if t != nil {
		k.out.BHS, k.out.Data = t.said, append(k.out.Data, t.sense...)
	} else {
		k.out.BHS, k.out.Data = a.control.out.BHS, append(k.out.Data, a.control.out.Data...)
	}
	k.out.BHS.Renumber(c.x.numbersLocked())
	c.sendLocked(&k.out)
}

// sendDataLocked sends data of a task again, by their numbers.
func (c *conn) sendDataLocked(t *task, from, to uint32) {
	if from == to {
		return
	}
	k := c.againLocked()
	k.t, t.left = t, t.left+1
	if k.out.BHS = t.said; !t.collapse {
		d := iscsi.DataIn{Final: true, LUN: t.lun, ITT: t.itt, TTT: t.tag}
		d.Put(&k.out.BHS)
	}
	k.out.Data, k.out.Pieces, k.out.From, k.out.To = t.buffer.b[:t.pieces.End], t.pieces, from, to
	k.out.BHS.Renumber(c.x.numbersLocked())
	c.queued++
	c.mover.PutData(&k.out)
}

// acknowledgeDataLocked takes a DataACK (section 11.16.2).
func (c *conn) acknowledgeDataLocked(s *iscsi.SNACK) (why iscsi.Reject) {
	i := int(s.TTT & (1<<taskBits - 1))
	if s.ITT != iscsi.NoTag || s.RunLength != 0 {
		return iscsi.Reject{Reason: iscsi.RejectInvalidField}
	}
	if i < len(c.x.tasks) {
		t := c.x.tasks[i]
		if t.c == c && t.tag == s.TTT && t.lun == s.LUN && t.state == answering && t.pieces.End > 0 && s.BegRun-t.expData <= t.pieces.Next()-t.expData {
			t.expData = s.BegRun
			return why
		}
	}
	return iscsi.Reject{Reason: iscsi.RejectInvalidDataACK}
}

// repeatDataLocked sends data or an R2T again (sections 11.16.1 and 11.16.3).
func (c *conn) repeatDataLocked(s *iscsi.SNACK) (why iscsi.Reject) {
	resegment := s.Type == iscsi.SNACKRData
	if s.ITT == iscsi.NoTag || !resegment && s.TTT != iscsi.NoTag || resegment && (s.TTT == 0 || s.TTT == iscsi.NoTag || s.BegRun != 0 || s.RunLength != 0) {
		return iscsi.Reject{Reason: iscsi.RejectInvalidField}
	}
	t := c.taskLocked(s.ITT)
	switch {
	case t == nil || resegment && t.Out:
		return iscsi.Reject{Reason: iscsi.RejectProtocolError}
	case t.Out:
		return c.repeatAskedLocked(t, s)
	case t.pieces.End == 0: // nothing is sent yet
		if resegment {
			t.snackTag = s.TTT
		} else if s.BegRun != 0 || s.RunLength != 0 {
			return iscsi.Reject{Reason: iscsi.RejectProtocolError}
		}
		return why
	}
	from, to, ok := runOf(s, t.expData, t.pieces.Next())
	switch {
	case !ok:
		return iscsi.Reject{Reason: iscsi.RejectProtocolError, DataSN: t.pieces.Next()}
	case t.dropped:
		return iscsi.Reject{Reason: iscsi.RejectSNACK}
	}
	if !resegment {
		c.sendDataLocked(t, from, to)
		return why
	}
	t.snackTag = s.TTT
	t.pieces = t.pieces.Again(t.expData, uint32(c.mover.Segment()))
	t.respondTaggedLocked()
	return why
}

// respondTaggedLocked sends all data of a task that are not acknowledged, and then its answer with the tag of
// the SNACK, under the number that it had (section 11.16.3).
func (t *task) respondTaggedLocked() {
	t.collapse = false
	t.c.sendDataLocked(t, t.expData, t.pieces.Next())
	r := iscsi.Response{
		Residual: iscsi.ResidualOf(t.InLen, t.edtl), Status: uint8(t.Status), ITT: t.itt, SNACKTag: t.snackTag,
		ExpDataSN: t.pieces.Next(), Numbers: iscsi.Numbers{StatSN: t.kept.statSN},
	}
	r.Put(&t.said)
	t.c.repeatLocked(&t.kept)
}

// repeatAskedLocked sends the R2T again that the initiator has to answer. All before have been answered.
func (c *conn) repeatAskedLocked(t *task, s *iscsi.SNACK) (why iscsi.Reject) {
	next := t.transfer.R2TSN()
	g := t.awaited()
	first := next
	if g != nil {
		first = g.R2T.R2TSN
	}
	from, to, ok := runOf(s, first, next)
	switch {
	case !ok:
		return iscsi.Reject{Reason: iscsi.RejectProtocolError, DataSN: next}
	case from != to:
		c.repeatR2TLocked(g)
	}
	return why
}

// taskLocked returns the task of a tag that belongs to the connection, nil if there is none: one that is
// answered is only meant if no other has its tag.
func (c *conn) taskLocked(itt uint32) *task {
	if t := c.x.findLocked(itt); t != nil {
		if t.c != c || !t.begun {
			return nil
		}
		return t
	}
	var found *task
	for a := c.kept.first; a != nil; a = a.next {
		if a.task != nil && a.task.itt == itt {
			found = a.task
		}
	}
	return found
}
