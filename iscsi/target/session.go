package target

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// session is a session with its one connection. The mover's receiving goroutine calls
// ControlNotify and what it leads to; commands end on any goroutine.
//
// A task circulates:
//
//	free --> data are received --> at the unit --> its answer is sent --> free
//	              |    ^
//	 no memory:   v    |
//	            starved
type session struct {
	srv    *Server
	target *Target
	login  *iscsi.Login
	origin Origin
	since  time.Time
	mover  iscsi.Datamover
	paused func() bool
	values iscsi.Values
	pool   *pool
	port   *lu.Port // nil in a discovery session
	tsih   uint16
	id     uint64        // no other session has, or had, the same
	over   chan struct{} // closed at its end

	counted counters
	luns    map[uint16]*counters // of the target

	text iscsi.TextExchange

	heard    atomic.Bool // something has come since the last look
	overdue  atomic.Bool // data of tasks that were aborted
	silent   atomic.Bool // the initiator has not answered a ping
	starving []*task     // need memory, in their order

	mu          sync.Mutex // guards the fields below it; taken before the mover's and the pool's
	change      sync.Cond  // a task or an answer was given back
	window      *iscsi.Window
	statSN      uint32
	free        *task
	tasks       []*task // all of them
	active      int     // between their command and the handing over of their answer
	leaving     bool
	controls    int  // answers other than those to commands that are not sent
	memory      int  // bytes of buffers
	hungry      bool // starving is not empty: memory that comes back is to be announced
	fed         bool // it has come back
	freeControl *control
	unexpected  []uint32 // StatSN of what the initiator did not expect and has not acknowledged
	pinged      bool     // the initiator owes an answer to a NOP-In
	pings       *time.Timer
}

func newSession(p *portal, l *iscsi.Login) (*session, error) {
	mover, err := p.link.mover(&l.Values)
	if err != nil {
		return nil, err
	}
	x := &session{srv: p.Server, target: p.target, login: l, origin: p.origin, since: time.Now(), mover: mover, paused: p.link.paused, values: l.Values, id: p.sessionIDs.Add(1), pool: &p.pool, over: make(chan struct{})}
	x.change.L = &x.mu
	x.window = iscsi.NewWindow(l.CmdSN, window)
	if r, ok := mover.(iscsi.Registrar); ok {
		x.pool = &pool{registrar: r, most: sessionPool}
	}
	return x, mover.NoticeKeyValues(&l.Values, l.DeclaredSegment())
}

// replacedBy reports whether a new session is in the place of this one (RFC 7143 sections 6.3.5 and
// 7.4.2).
func (x *session) replacedBy(o *session) bool {
	a, b := x.login, o.login
	return a.InitiatorName == b.InitiatorName && a.ISID == b.ISID && a.TargetName == b.TargetName && (a.TargetName != "" || x.origin.Local == o.origin.Local)
}

// drop takes the session out of the server's list.
func (x *session) drop() {
	x.srv.mu.Lock()
	delete(x.srv.sessions, x.tsih)
	x.srv.mu.Unlock()
	close(x.over)
}

// The reasons why a session ends.
var (
	errDiscovery = errors.New("a discovery session is for discovery only")
	errSilent    = errors.New("the initiator does not answer NOP-In")
)

// run serves the session to its end.
func (x *session) run() error {
	defer x.drop()
	x.mu.Lock()
	x.statSN = x.login.StatSN()
	x.mu.Unlock()
	if !x.login.Discovery {
		x.target.tally.logins.Add(1)
		x.luns = map[uint16]*counters{}
		for _, n := range x.target.Device.LUNs() {
			x.luns[n] = x.target.tally.lun(n)
		}
		x.port = x.target.Device.Attach(lu.Initiator{Name: x.login.InitiatorName, ISID: x.login.ISID}, x.mover.Flush)
		x.startPings()
	}
	err := x.mover.Run(x)
	x.stopPings()
	if x.port != nil {
		x.clear()
		x.port.Detach()
	}
	if x.pool != &x.srv.pool {
		x.mover.Flush() // gives back what is sent no more
		x.mu.Lock()
		for slices.ContainsFunc(x.tasks, func(t *task) bool { return t.state != idle }) {
			x.change.Wait()
		}
		x.mu.Unlock()
		x.pool.drop()
	}
	switch {
	case errors.Is(err, iscsi.ErrLogout):
		return nil
	case x.silent.Load():
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

// clear ends all tasks, and returns when they have ended. The receiving goroutine calls it, or
// what follows it.
func (x *session) clear() {
	x.mu.Lock()
	x.leaving = true
	all := append([]*task(nil), x.tasks...)
	x.starving = nil
	x.mu.Unlock()
	for _, t := range all {
		switch st := x.stateOf(t); {
		case st == receiving && !t.begun:
			x.mu.Lock()
			t.state = idle
			x.active--
			x.mu.Unlock()
		case st == receiving || st == executing:
			t.nexus.Abort(func(o *lu.Task) bool { return o == &t.Task }, func() {})
			if st == receiving {
				x.endAborted(t)
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.active > 0 {
		x.change.Wait()
	}
}

func (x *session) stateOf(t *task) state {
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.state
}

// endAborted ends a task that was aborted before its data had come. Data that are arriving in its
// buffer come to their end first.
func (x *session) endAborted(t *task) {
	x.starving = slices.DeleteFunc(x.starving, func(o *task) bool { return o == t })
	if t.ending = x.mover.DeallocateTaskResources(t.itt) || t.reading; t.ending {
		return
	}
	x.execute(t)
	t.nexus.Execute(&t.Task)
}

// ControlNotify implements iscsi.Upper.
func (x *session) ControlNotify(p *iscsi.Incoming) error {
	x.heard.Store(true)
	x.acknowledged(p.BHS.ExpStatSN())
	if x.login.Discovery {
		switch p.BHS.Opcode() {
		case iscsi.OpText, iscsi.OpLogout, iscsi.OpNOPOut:
		default:
			return fmt.Errorf("%v: %w", p.BHS.Opcode(), errDiscovery) // RFC 7143 section 13.21
		}
	}
	switch p.BHS.Opcode() {
	case iscsi.OpCommand:
		return x.command(p)
	case iscsi.OpDataOut:
		return x.unsolicited(p)
	case iscsi.OpNOPOut:
		return x.nop(p)
	case iscsi.OpTaskMgmt:
		return x.manage(p)
	case iscsi.OpText:
		return x.textRequest(p)
	case iscsi.OpLogout:
		return x.logout(p)
	case iscsi.OpSNACK:
		return x.reject(p, iscsi.RejectSNACK)
	}
	return fmt.Errorf("%v in full feature phase: %w", p.BHS.Opcode(), iscsi.ErrFormat)
}

// IdleNotify implements iscsi.Upper.
func (x *session) IdleNotify() {
	x.feed()
	if x.overdue.Swap(false) {
		x.stopWaiting()
	}
	x.mover.Flush()
}

// inTurn takes the number of a request that is no SCSI command. Such a one that comes before its
// turn is dropped: on one connection that does not happen.
func (x *session) inTurn(p *iscsi.Incoming) bool {
	if p.BHS.Immediate() {
		return true
	}
	x.mu.Lock()
	turn := x.window.Admit(p.BHS.CmdSN())
	x.mu.Unlock()
	if turn == iscsi.Now {
		x.next()
	}
	return turn == iscsi.Now
}

// numbersLocked returns the sequence numbers for a PDU. MaxCmdSN lets the initiator have as many
// commands as there is room for.
func (x *session) numbersLocked(status bool) (n iscsi.Numbers) {
	x.window.Open(window - x.active)
	n.StatSN = x.statSN
	n.ExpCmdSN, n.MaxCmdSN = x.window.Numbers()
	if status {
		x.statSN++
	}
	return n
}

// control is an answer other than one to a command.
type control struct {
	out  iscsi.Out
	next *control
}

// answer sends a control PDU, once not too many wait to be sent. put writes the header with the
// numbers; status says that it counts as status.
func (x *session) answer(data []byte, status bool, put func(h *iscsi.BHS, n iscsi.Numbers)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for x.controls >= maxControls && !x.leaving {
		x.mu.Unlock()
		x.mover.Flush()
		x.mu.Lock()
		if x.controls >= maxControls {
			x.change.Wait()
		}
	}
	x.answerLocked(data, status, put)
}

func (x *session) answerLocked(data []byte, status bool, put func(h *iscsi.BHS, n iscsi.Numbers)) {
	c := x.freeControl
	if c == nil {
		c = new(control)
		c.out.Task = c
	} else {
		x.freeControl = c.next
	}
	x.controls++
	c.out.Data = append(c.out.Data[:0], data...)
	put(&c.out.BHS, x.numbersLocked(status))
	x.mover.SendControl(&c.out)
}

// SentNotify implements iscsi.Upper.
func (x *session) SentNotify(o *iscsi.Out) {
	switch owner := o.Task.(type) {
	case *control:
		x.mu.Lock()
		defer x.mu.Unlock()
		owner.next, x.freeControl = x.freeControl, owner
		x.controls--
		x.change.Broadcast()
	case *task:
		x.heard.Store(true) // an initiator that reads is there, even if its answer to a ping has to wait
		owner.sent()
	}
}

func (x *session) reject(p *iscsi.Incoming, why iscsi.Reason) error {
	x.mu.Lock()
	may := x.mayTellLocked()
	x.mu.Unlock()
	if !may {
		return nil
	}
	h := p.BHS
	x.answer(h[:], true, func(b *iscsi.BHS, n iscsi.Numbers) {
		r := iscsi.Reject{Reason: why, Numbers: n}
		r.Put(b)
		x.toldLocked(n.StatSN)
	})
	return nil
}

// mayTellLocked reports whether the initiator has room for a PDU that it does not expect, and one more
// for a ping. Otherwise there is none: "this rule overrides any other requirement" (RFC 7145 section
// 8.1.2). All Rejects count, although it has room for some of them instead of answers.
func (x *session) mayTellLocked() bool {
	most := x.values[iscsi.KeyMaxOutstandingUnexpectedPDUs]
	return !x.values.Bool(iscsi.KeyRDMAExtensions) || most == 0 || len(x.unexpected)+1 < int(most)
}

// toldLocked notes such a PDU.
func (x *session) toldLocked(statSN uint32) {
	if x.values.Bool(iscsi.KeyRDMAExtensions) && x.values[iscsi.KeyMaxOutstandingUnexpectedPDUs] > 0 {
		x.unexpected = append(x.unexpected, statSN)
	}
}

func (x *session) acknowledged(expStatSN uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.unexpected) > 0 {
		x.unexpected = slices.DeleteFunc(x.unexpected, func(sn uint32) bool { return int32(expStatSN-sn) > 0 })
	}
}

func (x *session) nop(p *iscsi.Incoming) error {
	n, err := iscsi.ParseNOPOut(&p.BHS)
	if err != nil {
		return err
	}
	if !x.inTurn(p) || n.ITT == iscsi.NoTag {
		return nil // it acknowledges, and answers nothing of ours: this target sends no pings
	}
	// "up to the first MaxRecvDataSegmentLength bytes" (section 11.19)
	data := make([]byte, min(p.BHS.DataLen(), x.mover.Segment()))
	if err := p.ReadData(data); err != nil {
		return err
	}
	x.answer(data, true, func(b *iscsi.BHS, nn iscsi.Numbers) {
		in := iscsi.NOP{LUN: n.LUN, ITT: n.ITT, TTT: iscsi.NoTag, Numbers: nn}
		in.PutIn(b)
	})
	return nil
}

func (x *session) textRequest(p *iscsi.Incoming) error {
	q, err := iscsi.ParseText(&p.BHS)
	if err != nil {
		return err
	}
	data := make([]byte, min(p.BHS.DataLen(), iscsi.MaxText))
	if err := p.ReadData(data); err != nil {
		return err
	}
	if !x.inTurn(p) {
		return nil
	}
	var refused error
	r, part, why := x.text.Request(&q, data, x.mover.Segment(), func(pairs []iscsi.Pair) (text []byte) {
		text, refused = iscsi.Renegotiate(&x.values, pairs, x.sendTargets)
		return text
	})
	if why != 0 || refused != nil {
		return x.reject(p, cmp.Or(why, iscsi.RejectProtocolError))
	}
	x.mover.NoticeSegment(x.values[iscsi.KeyMaxRecvDataSegmentLength])
	x.answer(part, true, func(b *iscsi.BHS, nn iscsi.Numbers) {
		r.Numbers = nn
		r.PutResponse(b)
	})
	return nil
}

// logout ends the session. What it has at the medium has ended before the answer.
func (x *session) logout(p *iscsi.Incoming) error {
	q, err := iscsi.ParseLogout(&p.BHS)
	if err != nil {
		return err
	}
	if !x.inTurn(p) {
		return nil
	}
	response := uint8(iscsi.LogoutClosed)
	switch {
	case q.Reason == iscsi.RemoveForRecovery:
		response = iscsi.LogoutNotSupported // ErrorRecoveryLevel is 0
	case q.Reason == iscsi.CloseConnection && q.CID != x.login.CID:
		response = iscsi.LogoutNoCID
	case x.port != nil:
		x.clear()
	}
	x.answer(nil, true, func(b *iscsi.BHS, n iscsi.Numbers) {
		r := iscsi.LogoutReply{Response: response, ITT: q.ITT, Numbers: n}
		r.Put(b)
	})
	if response != iscsi.LogoutClosed {
		return nil
	}
	return iscsi.ErrLogout
}

// manage carries a task management function out (RFC 7143 section 11.5).
func (x *session) manage(p *iscsi.Incoming) error {
	q, err := iscsi.ParseTaskMgmt(&p.BHS)
	if err != nil {
		return err
	}
	if !x.inTurn(p) {
		return nil
	}
	n := x.port.Nexus(q.LUN)
	reply := func(r iscsi.TaskResponse) {
		x.mu.Lock()
		x.answerLocked(nil, true, func(b *iscsi.BHS, nn iscsi.Numbers) {
			a := iscsi.TaskReply{Response: r, ITT: q.ITT, Numbers: nn}
			a.Put(b)
		})
		x.mu.Unlock()
		x.mover.Flush()
	}
	complete := func() { reply(iscsi.FunctionComplete) }
	switch q.Function {
	case iscsi.AbortTask:
		x.abortTask(&q, reply)
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
		reply(iscsi.ReassignmentNotSupported)
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
func (x *session) abortTask(q *iscsi.TaskMgmt, reply func(iscsi.TaskResponse)) {
	t, st := x.find(q.RefTag)
	if t == nil {
		x.mu.Lock()
		missing := x.window.Includes(q.RefCmdSN) && int32(q.RefCmdSN-q.CmdSN) < 0
		if missing { // "consider the CmdSN as received"
			x.window.Admit(q.RefCmdSN)
		}
		x.mu.Unlock()
		if !missing {
			reply(iscsi.TaskDoesNotExist)
			return
		}
		x.next()
		reply(iscsi.FunctionComplete)
		return
	}
	if !t.begun {
		reply(iscsi.FunctionRejected) // it came out of turn
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

// boundWait bounds the wait for data of aborted tasks of a unit, nil: of all units. RFC 7143 section
// 4.2.3.3 has a target wait for data that it has asked the initiator of the abort for; but Linux'
// initiator by default (FastAbort = Yes), and others, send none any more without saying so.
func (x *session) boundWait(n *lu.Nexus) {
	x.mu.Lock()
	defer x.mu.Unlock()
	wait := x.srv.cfg.DataWait
	waits := false
	for _, t := range x.tasks {
		if t.state == receiving && t.begun && (n == nil || t.nexus == n) {
			t.givenUp, waits = time.Now().Add(wait), true
		}
	}
	if waits {
		time.AfterFunc(wait, func() {
			x.overdue.Store(true)
			x.mover.Wake()
		})
	}
}

// stopWaiting ends the tasks whose data were waited for long enough.
func (x *session) stopWaiting() {
	now := time.Now()
	var late []*task
	x.mu.Lock()
	for _, t := range x.tasks {
		if t.state == receiving && !t.givenUp.IsZero() && !now.Before(t.givenUp) {
			late = append(late, t)
		}
	}
	x.mu.Unlock()
	for _, t := range late {
		x.endAborted(t)
	}
}
