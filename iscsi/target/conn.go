package target

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// conn is a connection of a session: the iscsi.Upper of its mover.
type conn struct {
	x      *session
	cid    uint16
	login  *iscsi.Login
	mover  iscsi.Datamover
	paused func() bool
	values iscsi.Values  // what was agreed for the session and for this connection; with receiving
	over   chan struct{} // closed at its end
	forget chan struct{} // closed when its commands are not to wait any more
	again  chan struct{} // one slot: they are to wait once more

	text    iscsi.TextExchange // with receiving
	heard   atomic.Bool        // something has come since the last look
	silent  atomic.Bool        // the initiator has not answered a ping
	overdue atomic.Bool        // data of tasks that were aborted
	late    atomic.Bool        // it is to be looked at whether data make progress

	begun       bool     // its login is over; guarded by session.mu, like those below
	up          bool     // in full feature phase
	leaving     bool     // it takes nothing more
	cut         bool     // it is to end
	unexpected  []uint32 // StatSN of what the initiator did not expect and has not acknowledged
	why         error
	statSN      uint32
	acked       uint32 // the initiator's ExpStatSN
	active      int    // of the session's, those that belong here
	controls    int    // answers other than those to commands, and repeated ones, that are not sent
	controlData int    // bytes of those that are not repeated
	freeControl *control
	kept        answers
	asked       bool // the initiator was asked for an acknowledgement, and none has come
	queued      int  // what the mover has to send
	recovery    bool // its commands are to wait for another, although it is logged out
	suspended   bool // they do
	loggedOut   bool // and may be reassigned
	superseded  bool // another connection has its CID
	forgotten   bool // forget is closed
	pinged      bool // the initiator owes an answer to a NOP-In
	pings       *time.Timer
	looks       *time.Timer // at the progress of data
}

// The reasons why a connection ends.
var (
	errDiscovery = errors.New("a discovery session is for discovery only")
	errSilent    = errors.New("the initiator is silent: it answers no NOP-In, or has no use for its discovery session")
)

// connect returns the connection that has logged in at p. It fails if resources are short.
func (x *session) connect(p *portal, l *iscsi.Login) (*conn, error) {
	mover, err := p.link.mover(&l.Values)
	if err != nil {
		return nil, err
	}
	c := &conn{x: x, cid: l.CID, login: l, mover: mover, paused: p.link.paused, values: l.Values, over: make(chan struct{}), forget: make(chan struct{}), again: make(chan struct{}, 1)}
	return c, mover.NoticeKeyValues(&l.Values, l.DeclaredSegment())
}

// run serves the connection to its end.
func (c *conn) run() error {
	c.x.begin(c)
	c.startPings()
	if !c.login.Discovery {
		c.startLooks()
	}
	err := c.mover.Run(c)
	c.stopPings()
	c.stopLooks()
	return c.x.leave(c, err)
}

// abandon is the end of a connection whose login failed at last.
func (c *conn) abandon() { c.x.leave(c, iscsi.ErrLogout) }

// ControlNotify implements iscsi.Upper.
func (c *conn) ControlNotify(p *iscsi.Incoming) error {
	c.heard.Store(true)
	x := c.x
	o := p.BHS.Opcode()
	if c.login.Discovery {
		switch o {
		case iscsi.OpText, iscsi.OpLogout, iscsi.OpNOPOut:
		default:
			return fmt.Errorf("%v: %w", o, errDiscovery) // RFC 7143 section 13.21
		}
	}
	t, ok := c.room(&p.BHS)
	if !ok {
		return nil // after a Logout
	}
	x.receiving.Lock()
	defer x.receiving.Unlock()
	switch o {
	case iscsi.OpCommand:
		return c.command(p, t)
	case iscsi.OpDataOut:
		return c.unsolicited(p)
	case iscsi.OpNOPOut, iscsi.OpTaskMgmt, iscsi.OpText, iscsi.OpLogout:
		return c.request(p)
	case iscsi.OpSNACK:
		return c.snack(&p.BHS)
	}
	return fmt.Errorf("%v in full feature phase: %w", o, iscsi.ErrFormat)
}

// IdleNotify implements iscsi.Upper.
func (c *conn) IdleNotify() {
	x := c.x
	fed, overdue, late := x.fed.Swap(false), c.overdue.Swap(false), c.late.Swap(false)
	if !fed && !overdue && !late {
		if x.stir.Load() && x.stir.Swap(false) {
			x.flush()
		}
		c.mover.Flush()
		return
	}
	x.receiving.Lock()
	if overdue {
		c.stopWaiting()
	}
	if late {
		c.look()
	}
	if fed {
		x.feed()
	}
	x.receiving.Unlock()
	x.flush()
}

// readDataLocked reads data of a PDU. The caller holds receiving; meanwhile others receive for the
// session.
func (c *conn) readDataLocked(p *iscsi.Incoming, dst []byte) error {
	c.x.receiving.Unlock()
	err := p.ReadData(dst)
	c.x.receiving.Lock()
	return err
}

// room waits until there is room for what a PDU leads to: not too many answers wait to be sent and, for
// a command, there is a task, which it returns. It takes the PDU's ExpStatSN. ok is false if the
// connection takes nothing more.
func (c *conn) room(h *iscsi.BHS) (t *task, ok bool) {
	x, command, exp := c.x, h.Opcode() == iscsi.OpCommand, h.ExpStatSN()
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.Opcode() != iscsi.OpLogout || c.isOwnLogout(h) {
		c.acknowledgeLocked(exp)
	}
	if len(c.unexpected) > 0 {
		c.unexpected = slices.DeleteFunc(c.unexpected, func(sn uint32) bool { return int32(exp-sn) > 0 })
	}
	for c.isFullLocked(command) && !c.leaving {
		x.mu.Unlock()
		c.mover.Flush()
		x.mu.Lock()
		if c.isFullLocked(command) {
			x.change.Wait()
		}
	}
	if command && !c.leaving {
		t = x.takeLocked()
	}
	return t, !c.leaving
}

// isFullLocked reports whether there is no room.
func (c *conn) isFullLocked(command bool) bool {
	return c.controls >= maxControls || c.controlData >= maxControlData || command && !c.x.hasFreeLocked()
}

// acknowledgeLocked takes an ExpStatSN.
func (c *conn) acknowledgeLocked(exp uint32) {
	if int32(exp-c.acked) <= 0 || int32(exp-c.statSN) > 0 {
		return
	}
	c.acked = exp
	x := c.x
	if x.level > 0 {
		c.settleAnswersLocked()
	}
	if !x.fence.Open() {
		x.fence.Acknowledge(c.cid, exp)
		x.respondNextLocked()
	}
}

// numbersLocked returns the sequence numbers for a PDU.
func (c *conn) numbersLocked(status bool) iscsi.Numbers {
	n := c.x.numbersLocked()
	n.StatSN = c.statSN
	if status {
		c.statSN++
	}
	return n
}

// control is an answer other than one to a command, or something that is sent again.
type control struct {
	c     *conn
	out   iscsi.Out
	next  *control
	kept  answer
	again bool  // it is used once
	t     *task // whose data it sends
	sent  bool
}

// answer sends a control PDU. put writes the header with the numbers; status says that it counts as
// status.
func (c *conn) answer(data []byte, status bool, put func(h *iscsi.BHS, n iscsi.Numbers)) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	c.answerLocked(data, status, put)
}

func (c *conn) answerLocked(data []byte, status bool, put func(h *iscsi.BHS, n iscsi.Numbers)) {
	k := c.freeControl
	if k == nil {
		k = &control{c: c}
		k.out.Task, k.kept.control = k, k
	} else {
		c.freeControl = k.next
	}
	c.controls++
	c.controlData += len(data)
	k.sent = false
	k.out.Data = append(k.out.Data[:0], data...)
	n := c.numbersLocked(status)
	put(&k.out.BHS, n)
	c.sendLocked(&k.out)
	if status && c.keepsLocked() {
		c.keepControlLocked(k, n.StatSN)
	}
}

// sendLocked has a PDU sent.
func (c *conn) sendLocked(o *iscsi.Out) {
	c.queued++
	c.mover.SendControl(o)
}

// freeLocked lets a control be used again that is sent, and not kept.
func (k *control) freeLocked() {
	if k.sent && !k.kept.listed && !k.again {
		if cap(k.out.Data) > maxControlBuffer {
			k.out.Data = nil
		}
		k.next, k.c.freeControl = k.c.freeControl, k
	}
}

// SentNotify implements iscsi.Upper.
func (c *conn) SentNotify(o *iscsi.Out) {
	switch owner := o.Task.(type) {
	case *control:
		c.x.mu.Lock()
		owner.sent = true
		c.controls--
		if !owner.again {
			c.controlData -= len(o.Data)
		}
		owner.freeLocked()
		c.queued--
		c.x.change.Broadcast()
		c.x.mu.Unlock()
		if owner.t != nil {
			owner.t.sent()
		}
	case *task:
		c.heard.Store(true) // an initiator that reads is there, even if its answer to a ping has to wait
		owner.sentBy(c)
	}
}

// reject rejects the PDU of a header.
func (c *conn) reject(h *iscsi.BHS, why iscsi.Reason) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	c.rejectLocked(h, iscsi.Reject{Reason: why})
}

func (c *conn) rejectLocked(h *iscsi.BHS, r iscsi.Reject) {
	c.tellLocked(h[:], func(b *iscsi.BHS, n iscsi.Numbers) {
		r.Numbers = n
		r.Put(b)
	})
}

// tellLocked sends a PDU that the initiator does not expect, if it has room for it and one more for a
// ping. Otherwise there is none: "this rule overrides any other requirement" (RFC 7145 section 8.1.2).
// All Rejects count, although it has room for some of them instead of answers.
func (c *conn) tellLocked(data []byte, put func(h *iscsi.BHS, n iscsi.Numbers)) {
	if most := c.values[iscsi.KeyMaxOutstandingUnexpectedPDUs]; c.values.Bool(iscsi.KeyRDMAExtensions) && most > 0 {
		if len(c.unexpected)+1 >= int(min(most, maxUnexpected)) {
			return
		}
		c.unexpected = append(c.unexpected, c.statSN)
	}
	c.answerLocked(data, true, put)
}

func (c *conn) nop(h *iscsi.BHS, data []byte) error {
	n, err := iscsi.ParseNOPOut(h)
	if err != nil || n.ITT == iscsi.NoTag {
		return err // it acknowledges, or answers a ping
	}
	c.answer(data, true, func(b *iscsi.BHS, nn iscsi.Numbers) {
		in := iscsi.NOP{LUN: n.LUN, ITT: n.ITT, TTT: iscsi.NoTag, Numbers: nn}
		in.PutIn(b)
	})
	return nil
}

func (c *conn) textRequest(h *iscsi.BHS, data []byte) error {
	q, err := iscsi.ParseText(h)
	if err != nil {
		return err
	}
	var refused error
	r, part, why := c.text.Request(&q, data, c.mover.Segment(), func(pairs []iscsi.Pair) (text []byte) {
		text, refused = iscsi.Renegotiate(&c.values, pairs, c.x.sendTargets)
		return text
	})
	if why != 0 || refused != nil {
		c.reject(h, cmp.Or(why, iscsi.RejectProtocolError))
		return nil
	}
	c.mover.NoticeSegment(c.values[iscsi.KeyMaxRecvDataSegmentLength])
	c.answer(part, true, func(b *iscsi.BHS, nn iscsi.Numbers) {
		r.Numbers = nn
		r.PutResponse(b)
	})
	return nil
}
