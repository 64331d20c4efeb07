package target

import "github.com/ironwarp/ironwarp/iscsi"

// answer is an answer with a StatSN that is kept at ErrorRecoveryLevel 1 and above, until that is
// acknowledged: the initiator may ask for it again (RFC 7143 section 11.16).
type answer struct {
	task    *task    // whose it is, or
	control *control // what it is
	next    *answer
	statSN  uint32
	listed  bool
	parked  bool // it has not been sent, since the connection had ended
}

// answers are those of a connection, in the order of their StatSN.
type answers struct {
	first, last *answer
	controls    int
	data        int // bytes of these
}

// keepsLocked reports whether the connection's answers are kept.
func (c *conn) keepsLocked() bool { return c.x.level > 0 && c.up && !c.suspended }

// add adds an answer.
func (l *answers) add(a *answer, statSN uint32) {
	a.next, a.statSN, a.listed, a.parked = nil, statSN, true, false
	if l.last == nil {
		l.first = a
	} else {
		l.last.next = a
	}
	l.last = a
	if a.control != nil {
		l.controls++
		l.data += len(a.control.out.Data)
	}
}

// remove removes the answer after before, nil: the first.
func (l *answers) remove(before *answer) *answer {
	at := &l.first
	if before != nil {
		at = &before.next
	}
	a := *at
	if *at = a.next; *at == nil {
		l.last = before
	}
	a.next, a.listed = nil, false
	if a.control != nil {
		l.controls--
		l.data -= len(a.control.out.Data)
	}
	return a
}

// keepLocked keeps the answer of a command, which counts already. What it has for its initiator is kept, too; in is how many bytes.
func (t *task) keepLocked(statSN, in uint32) {
	x, c := t.x, t.c
	t.left++
	t.said = t.response.BHS
	if t.collapse {
		t.said = t.data.BHS
	}
	c.kept.add(&t.kept, statSN)
	if in == 0 {
		b, fed := t.takeBufferLocked()
		x.putLocked(c, b, fed)
	}
	if x.unacked > window {
		x.askAllLocked()
	}
}

// putLocked gives back a buffer.
func (x *session) putLocked(c *conn, b buffer, fed bool) {
	x.pool.put(b)
	if fed {
		x.fed.Store(true)
		c.mover.Wake()
	}
}

// keepControlLocked keeps another answer, and forgets the oldest if there are too many.
func (c *conn) keepControlLocked(k *control, statSN uint32) {
	l := &c.kept
	l.add(&k.kept, statSN)
	for l.controls > maxKept || l.data > maxKeptData {
		var before *answer
		a := l.first
		for a.control == nil {
			before, a = a, a.next
		}
		l.remove(before).control.freeLocked()
	}
	if l.controls > maxKept/2 {
		c.askForAcknowledgementLocked()
	}
}

// askForAcknowledgementLocked asks the initiator to acknowledge what it has, unless it was asked already.
func (c *conn) askForAcknowledgementLocked() {
	if !c.asked && c.up && c.kept.first != nil {
		c.asked = true
		c.askLocked()
	}
}

// askAllLocked asks for acknowledgements on all connections.
func (x *session) askAllLocked() {
	if x.level == 0 {
		return
	}
	for _, c := range x.conns {
		c.askForAcknowledgementLocked()
	}
	x.stir.Store(true)
}

// settleAnswersLocked forgets the answers that are acknowledged. If that opens the window again the initiator
// is told so (RFC 7143 section 11.4.11).
func (c *conn) settleAnswersLocked() {
	x := c.x
	c.asked = false
	exp, last := x.window.Numbers()
	for a := c.kept.first; a != nil && !a.parked && int32(c.acked-a.statSN) > 0; a = c.kept.first {
		c.kept.remove(nil).forgetLocked(c)
	}
	if c.up && last-exp == ^uint32(0) && x.numbersLocked().MaxCmdSN != last {
		c.answerLocked(nil, false, func(h *iscsi.BHS, n iscsi.Numbers) {
			in := iscsi.NOP{ITT: iscsi.NoTag, TTT: iscsi.NoTag, Numbers: n}
			in.PutIn(h)
		})
	}
}

// forgetLocked ends what keeps an answer that is not listed any more.
func (a *answer) forgetLocked(c *conn) {
	if a.control != nil {
		a.control.freeLocked()
		return
	}
	x := a.task.x
	x.unacked--
	b, fed := a.task.releaseLocked()
	x.putLocked(c, b, fed)
}

// forgetLocked forgets all answers of a connection that has ended.
func (c *conn) forgetLocked() {
	for c.kept.first != nil {
		c.kept.remove(nil).forgetLocked(c)
	}
}

// dropDataLocked drops the data that are kept for SNACK: commands wait for memory, and the initiator, which
// was asked, does not acknowledge any. Only such are left whose answer has been sent.
func (x *session) dropDataLocked() {
	for _, c := range x.conns {
		for a := c.kept.first; a != nil; a = a.next {
			if t := a.task; t != nil && t.left == 1 && len(t.buffer.b) > 0 {
				t.dropped = true
				b, fed := t.takeBufferLocked()
				x.putLocked(c, b, fed)
			}
		}
	}
}

// mayKeepLocked reports whether there is room for one more command for immediate delivery: the answers of
// those that the initiator may have ahead will be kept, too.
func (x *session) mayKeepLocked() bool {
	exp, last := x.window.Numbers()
	return x.level == 0 || x.active+x.unacked+int(last-exp+1) < 2*window+immediates
}
