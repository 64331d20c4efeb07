package target

import (
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

type state uint8

const (
	idle state = iota
	receiving
	executing
	answering
)

// task is one command of an initiator. Its state is the receiving goroutine's until executing, and
// from then on its fields belong to whoever ends it.
type task struct {
	lu.Task
	x     *session
	c     *conn // where its answer goes
	nexus *lu.Nexus
	next  *task

	state       state
	begun       bool // in the task set of its unit
	itt, edtl   uint32
	cmdSN       uint32
	lun         [8]byte
	counted     *lunCounters // of the LUN, nil if there is none
	came        time.Time
	read        bool
	unsolicited bool // data without R2Ts are awaited
	reading     bool // some of them are being received
	asking      bool // transfer is that of this command
	immediate   bool
	ending      bool // it was aborted, and ends when those that are being received have come
	need        uint32
	buffer      buffer
	sequence    iscsi.Sequence
	transfer    iscsi.Transfer
	gets        [maxR2T]iscsi.Get
	busy        [maxR2T]bool
	givenUp     time.Time  // it was aborted, and its data are not waited for any more from then on
	bad         scsi.Sense // what was wrong with the data, if Code is set

	retries int      // how often data were asked for again
	seen    progress // of its data at the last look
	quiet   int      // looks since then

	data     iscsi.Out // Data-In, the answer if it has status
	response iscsi.Out
	left     int // one for the command, one for each R2T that is being sent, and one for what is kept; guarded by session.mu, like those below
	sense    []byte

	tag      uint32       // of data that are to be acknowledged: its place in session.tasks, and what tells it from others
	kept     answer       // until it is acknowledged
	said     iscsi.BHS    // the answer
	pieces   iscsi.Pieces // of its data, once they are sent
	expData  uint32       // the first number of those that are not acknowledged
	snackTag uint32       // of the last R-Data SNACK
	collapse bool         // the answer is in the last Data-In
	dropped  bool         // its data are not kept any more
	counts   bool         // it is to be counted
}

// maxTasks is how many tasks there are at most: two windows, of which one may wait until answers have been
// sent or are acknowledged, and the immediate ones; and one in the hands of each connection.
const maxTasks = 2*window + immediates + maxConnections

func (x *session) hasFreeLocked() bool { return x.free != nil || len(x.tasks) < maxTasks }

// takeLocked returns a task that is free.
func (x *session) takeLocked() *task {
	if t := x.free; t != nil {
		x.free = t.next
		return t
	}
	t := &task{x: x, tag: uint32(len(x.tasks))}
	t.kept.task = t
	t.data.Task, t.response.Task = t, t
	t.Owner = t
	t.Ended = ended
	for i := range t.gets {
		t.gets[i].Task, t.gets[i].Out.Task = t, t
	}
	x.tasks = append(x.tasks, t)
	return t
}

// find returns the task of a tag, nil if there is none.
func (x *session) find(itt uint32) (*task, state) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.findLocked(itt); t != nil {
		return t, t.state
	}
	return nil, idle
}

// findLocked returns the task of a tag, nil if there is none. With its answer a tag is free.
func (x *session) findLocked(itt uint32) *task {
	for _, t := range x.tasks {
		if (t.state == receiving || t.state == executing) && t.itt == itt {
			return t
		}
	}
	return nil
}

// execute notes that all data of a task are there.
func (x *session) execute(t *task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.state = executing
}

// command takes a SCSI Command.
func (c *conn) command(p *iscsi.Incoming, t *task) error {
	x := c.x
	t.c, t.left = c, 1 // unlocked: nobody else knows the task
	k, err := iscsi.ParseCommand(&p.BHS)
	if err != nil {
		t.sent()
		return err
	}
	ahs, err := iscsi.ParseAHS(p.AHS)
	if err != nil {
		t.sent()
		return err
	}
	t.itt, t.immediate, t.came = k.ITT, k.Immediate, time.Now()
	t.edtl, t.cmdSN, t.lun, t.read = k.EDTL, k.CmdSN, k.LUN, k.Read
	t.begun, t.unsolicited, t.ending, t.givenUp, t.bad, t.need, t.buffer = false, false, false, time.Time{}, scsi.Sense{}, 0, buffer{}
	t.CDB, t.Attr = k.CDB, lu.Attr(k.Attr)
	t.data.Remote, t.response.Remote = p.Remote, p.Remote
	t.Offered = 0
	if k.Write {
		t.Offered = k.EDTL
	}
	t.nexus, t.counted = x.port.Nexus(k.LUN), nil
	if n, ok := scsi.LUN(k.LUN); ok && t.nexus.Exists() {
		t.counted = x.countersOf(n)
	}
	t.renewLocked() // unlocked: nobody else knows the task
	t.nexus.Prepare(&t.Task)
	switch {
	case k.Read && k.Write || ahs.HasBidiRead: // no command moves data both ways
		t.bad = scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInInformation}
	case t.Out && k.Write:
		t.need = min(t.Length, k.EDTL)
	case !t.Out:
		t.need = t.Fills(t.room())
	}
	if err := c.firstData(p, &k, t); err != nil {
		t.sent()
		return c.survive(err, &p.BHS) // the command is dropped, and may come again (RFC 7143 section 7.8)
	}
	switch turn, why := x.admit(t, &k); {
	case turn == iscsi.Never:
		t.sent()
		if why != 0 {
			c.reject(&p.BHS, why)
		}
	case turn == iscsi.Now:
		t.begin()
		c.goOn(t)
		x.next()
	}
	return nil
}

// countersOf returns those of a LUN that there is. The caller holds receiving.
func (x *session) countersOf(lun uint16) *lunCounters {
	c := x.luns[lun]
	if c == nil {
		c = x.target.tally.lun(lun)
		x.luns[lun] = c
	}
	return c
}

// admit puts a command in its turn. One that is for immediate delivery has it; one whose tag is in use,
// or which there is no room for, never does.
func (x *session) admit(t *task, k *iscsi.Command) (turn iscsi.Turn, why iscsi.Reason) {
	x.mu.Lock()
	defer x.mu.Unlock()
	turn = iscsi.Now
	switch {
	case !k.Immediate && !x.window.Includes(k.CmdSN): // also a command that is retried without need (section 7.2.1)
		return iscsi.Never, 0
	case x.findLocked(k.ITT) != nil:
		return iscsi.Never, iscsi.RejectTaskInProgress
	case !k.Immediate:
		turn = x.window.Admit(k.CmdSN)
	case x.active >= window+immediates || !x.mayKeepLocked():
		return iscsi.Never, iscsi.RejectTooManyImmediate
	}
	if turn != iscsi.Never {
		x.active++
		t.c.active++
		t.state = receiving
	}
	return turn, 0
}

func (t *task) begin() {
	t.begun = true
	t.nexus.Begin(&t.Task)
}

// firstData receives the immediate data, and finds out which others come without being asked for
// (RFC 7143 sections 13.10, 13.11 and 13.14).
func (c *conn) firstData(p *iscsi.Incoming, k *iscsi.Command, t *task) error {
	n := uint32(p.BHS.DataLen())
	v := &c.values
	burst := min(v[iscsi.KeyFirstBurstLength], k.EDTL)
	switch {
	case n > 0 && (!k.Write || !v.Bool(iscsi.KeyImmediateData)), !k.Final && v.Bool(iscsi.KeyInitialR2T):
		t.bad = scsi.Sense{Key: scsi.AbortedCommand, Code: scsi.WriteErrorUnexpectedData}
	case n > burst:
		t.bad = scsi.Sense{Key: scsi.AbortedCommand, Code: scsi.WriteErrorWrongAmount}
	}
	t.unsolicited = !k.Final
	t.sequence = iscsi.NewSequence(min(n, burst), burst-min(n, burst))
	if t.bad.Code != 0 {
		t.need = 0
	}
	if t.need > 0 && t.Out {
		c.x.memoryFor(t, !k.Final || n > 0)
	}
	if n > 0 {
		return c.readDataLocked(p, t.buffer.b[:min(uint32(len(t.buffer.b)), n)]) // unlocked: ControlNotify holds receiving
	}
	return nil
}

// unsolicited takes a Data-Out that answers no R2T.
func (c *conn) unsolicited(p *iscsi.Incoming) error {
	x := c.x
	d, err := iscsi.ParseDataOut(&p.BHS)
	if err != nil {
		return err
	}
	t, st := x.find(d.ITT)
	if t == nil || t.c != c || st != receiving || !t.unsolicited || t.ending {
		return nil // of a task that was aborted or refused meanwhile
	}
	n := uint32(p.BHS.DataLen())
	place, last := t.sequence.Take(&d, int(n))
	if place && d.Offset < uint32(len(t.buffer.b)) {
		t.reading = true
		err := c.readDataLocked(p, t.buffer.b[d.Offset:min(uint32(len(t.buffer.b)), d.Offset+n)]) // unlocked: ControlNotify holds receiving
		if t.reading = false; err != nil {
			t.sequence.Lose(int(n))
			if err = c.survive(err, &p.BHS); err != nil {
				return err
			}
		}
		if t.ending {
			x.endAborted(t)
			return nil
		}
	}
	if last {
		t.unsolicited = false
		if _, whole := t.sequence.Received(); !whole && t.bad.Code == 0 && !t.retry(&t.sequence) {
			t.bad = scsi.Sense{Key: scsi.AbortedCommand, Code: scsi.WriteErrorWrongAmount} // RFC 7143 section 11.4.7.2
			if t.sequence.Broken() {
				t.bad.Code = scsi.ProtocolServiceCRC // section 7.9: one of them was lost
			}
		}
		c.goOn(t)
	}
	return nil
}

// goOn asks for data or, when all are there, has the command carried out. The caller holds receiving.
func (c *conn) goOn(t *task) {
	x := c.x
	if t.unsolicited || !t.begun {
		return
	}
	if t.bad.Code == 0 && t.need > uint32(len(t.buffer.b)) && !x.memoryFor(t, false) {
		x.starving = append(x.starving, t)
		x.mu.Lock()
		x.hungry = true
		x.askAllLocked()
		x.mu.Unlock()
		return
	}
	if t.bad.Code != 0 {
		x.execute(t)
		t.nexus.Fail(&t.Task, t.bad)
		return
	}
	got, _ := t.sequence.Received()
	if !t.Out {
		got = t.need
	}
	t.transfer, t.asking = iscsi.NewTransfer(got, t.need), true
	c.ask(t)
}

// ask sends R2Ts, or has the command carried out.
func (c *conn) ask(t *task) {
	x := c.x
	for {
		sn, off, n, ok := t.transfer.Next(&c.values)
		if !ok {
			break
		}
		i := 0
		for t.busy[i] {
			i++
		}
		t.busy[i] = true
		c.get(t, &t.gets[i], sn, off, n)
	}
	if !t.transfer.Done() {
		return
	}
	x.execute(t)
	if t.bad.Code != 0 {
		t.nexus.Fail(&t.Task, t.bad)
		return
	}
	t.Buf = t.buffer.b
	t.nexus.Execute(&t.Task)
}

// get asks for data of a task.
func (c *conn) get(t *task, g *iscsi.Get, r2tSN, off, n uint32) {
	g.R2T = iscsi.R2T{LUN: t.lun, ITT: t.itt, R2TSN: r2tSN, Offset: off, Length: n}
	g.Into = t.buffer.b[off : off+n]
	g.Memory, g.Remote = t.buffer.memory, t.response.Remote
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	g.R2T.Numbers = c.numbersLocked(false)
	t.left++
	c.queued++
	c.mover.GetData(g)
}

// DataCompletionNotify implements iscsi.Upper.
func (c *conn) DataCompletionNotify(g *iscsi.Get, whole bool) {
	c.heard.Store(true)
	x := c.x
	x.receiving.Lock()
	defer x.receiving.Unlock()
	t := g.Task.(*task)
	i := 0
	for g != &t.gets[i] {
		i++
	}
	if t.c != c || !t.busy[i] {
		return // another connection has aborted the task since, and it may be another command's
	}
	if t.ending {
		x.endAborted(t)
		return
	}
	if !whole && t.bad.Code == 0 && t.retry(&g.Sequence) {
		c.askAgain(t, g)
		return
	}
	t.busy[i] = false
	t.transfer.Answered()
	if !whole && t.bad.Code == 0 {
		t.bad = scsi.Sense{Key: scsi.AbortedCommand, Code: scsi.WriteErrorWrongAmount}
		if g.Sequence.Broken() {
			t.bad.Code = scsi.ProtocolServiceCRC
		}
		t.transfer.Cancel()
	}
	c.ask(t)
}

// memoryFor gets a task a buffer of the bytes that it needs. If there is no memory for them, a task
// whose data come unasked has room for those. A task for whose buffer the mover has no room fails.
func (x *session) memoryFor(t *task, unasked bool) bool {
	n := int(t.need)
	x.mu.Lock()
	ok := x.memory+size(n) <= leastMemory || x.memory+size(n) <= sessionMemory && x.srv.memory.Load()+int64(size(n)) <= x.srv.cfg.Memory
	if !ok && unasked {
		n = min(n, firstBurst)
	} else if !ok {
		x.mu.Unlock()
		return false
	}
	x.takeMemoryLocked(size(n) - size(len(t.buffer.b)))
	x.mu.Unlock()
	b, err := x.pool.get(n, x.id)
	if err != nil {
		x.mu.Lock()
		x.takeMemoryLocked(-size(n))
		x.mu.Unlock()
		x.srv.log.Warn("target: no memory for a command", "initiator", x.login.InitiatorName, "error", err)
		t.bad, t.need = scsi.Sense{Key: scsi.AbortedCommand, Code: scsi.InsufficientResources}, 0
	}
	copy(b.b, t.buffer.b)
	x.pool.put(t.buffer)
	t.buffer = b
	return ok || err != nil
}

// takeMemoryLocked counts memory of n bytes that the session has more.
func (x *session) takeMemoryLocked(n int) {
	x.memory += n
	x.srv.memory.Add(int64(n))
}

// feed goes on with tasks that waited for memory. The caller holds receiving.
func (x *session) feed() {
	for len(x.starving) > 0 {
		t := x.starving[0]
		if !x.memoryFor(t, false) {
			return
		}
		x.starving = x.starving[1:]
		t.c.goOn(t)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hungry = len(x.starving) > 0
}

// ended is called at the end of a command.
func ended(l *lu.Task) {
	t := l.Owner.(*task)
	x := t.x
	x.mu.Lock()
	x.active--
	t.c.active--
	if !t.Aborted {
		t.state = answering
		x.respondLocked(response{c: t.c, t: t, fenced: len(x.conns) > 1 && t.isFenced()})
	}
	x.inactiveLocked(t.c)
	aborted := t.Aborted
	x.mu.Unlock()
	if aborted {
		t.sent()
	}
}

// answerLocked sends what a command has to say.
func (t *task) answerLocked() {
	c, x := t.c, t.x
	in, presented := uint32(0), t.InLen
	if t.Out {
		presented = t.Length
	} else if t.read {
		in = t.input()
	}
	residual := iscsi.ResidualOf(presented, t.edtl)
	keeps := c.keepsLocked()
	if keeps {
		x.unacked++
	}
	if t.counts {
		t.counts = false
		if x.counted.count(t, in); t.counted != nil {
			t.counted.count(t, in)
		}
	}
	rdma := c.values.Bool(iscsi.KeyRDMAExtensions)
	sends, expDataSN := in > 0, uint32(0)
	if in > 0 && !rdma {
		if t.pieces.End == 0 {
			t.pieces = iscsi.Pieces{Segment: uint32(c.mover.Segment()), Burst: c.values[iscsi.KeyMaxBurstLength], End: in}
		}
		expDataSN = t.pieces.Next()
		t.data.Pieces, t.data.From, t.data.To = t.pieces, t.pieces.SN, expDataSN
		sends = t.data.From != t.data.To
	}
	t.collapse = sends && t.Status == scsi.Good && !rdma && t.snackTag == 0
	var statSN uint32
	if sends {
		d := iscsi.DataIn{Final: true, LUN: t.lun, ITT: t.itt, TTT: t.tag, HasStatus: t.collapse}
		d.Numbers = c.numbersLocked(t.collapse)
		if t.collapse {
			d.Residual, d.Status = residual, uint8(t.Status)
			statSN = d.StatSN
		} else {
			d.StatSN = 0
			t.left++
		}
		d.Put(&t.data.BHS)
		t.data.Data, t.data.Memory = t.buffer.b[:in], t.buffer.memory
		c.queued++
		c.mover.PutData(&t.data)
	}
	if t.sense = t.sense[:0]; !t.collapse {
		if t.Status == scsi.CheckCondition {
			t.sense = iscsi.AppendSense(t.sense, t.Sense())
		}
		r := iscsi.Response{Residual: residual, Status: uint8(t.Status), ITT: t.itt, SNACKTag: t.snackTag, ExpDataSN: expDataSN, Numbers: c.numbersLocked(true)}
		statSN = r.StatSN
		r.Put(&t.response.BHS)
		t.response.Data = t.sense
		c.sendLocked(&t.response)
	}
	if keeps {
		t.keepLocked(statSN, in)
	}
}

// sent gives the task back when all of its answer has been sent, and nothing of it is kept.
func (t *task) sent() { t.sentBy(nil) }

// sentBy is sent of something that a connection has sent, nil: of nothing.
func (t *task) sentBy(by *conn) {
	x := t.x
	x.mu.Lock()
	if by != nil {
		if by.queued--; by.suspended {
			x.change.Broadcast()
		}
	}
	b, fed := t.releaseLocked()
	c := t.c
	x.mu.Unlock()
	x.pool.put(b)
	if fed {
		x.fed.Store(true)
		c.mover.Wake()
	}
}

// releaseLocked is the end of one of those things that a task waits for before it is free. It returns the
// buffer that is to be given back, and whether others wait for memory.
func (t *task) releaseLocked() (b buffer, fed bool) {
	x := t.x
	if t.left--; t.left > 0 {
		return b, false
	}
	b, fed = t.takeBufferLocked()
	t.state = idle
	t.busy = [maxR2T]bool{}
	t.next, x.free = x.free, t
	x.change.Broadcast()
	return b, fed
}

// takeBufferLocked takes a task's buffer from it.
func (t *task) takeBufferLocked() (b buffer, fed bool) {
	b, t.buffer = t.buffer, buffer{}
	t.x.takeMemoryLocked(-size(len(b.b)))
	return b, t.x.hungry
}
