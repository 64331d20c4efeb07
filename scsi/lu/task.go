package lu

import (
	"math"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// Attr is a task attribute, as in SAM-5 8.9.
type Attr uint8

// The attributes that matter: all others are simple.
const (
	Simple      Attr = 1
	Ordered     Attr = 2
	HeadOfQueue Attr = 3
)

// Task is one command. Its owner sets the first fields, and may use it again after its end.
type Task struct {
	CDB  [16]byte
	Attr Attr
	// Offered is how many bytes the initiator wants to send.
	Offered uint32
	// Ended is called once, at the end, on any goroutine, possibly inside Execute. It does not
	// block.
	Ended func(t *Task)
	Owner any

	// Out says in which direction data go, and Length how many bytes at most: Prepare sets them.
	Out    bool
	Length uint32

	// Buf has Length bytes, or for data to the unit as many as have come, and for a READ as many as Fills says
	// suffice. Set before Execute.
	Buf []byte

	// Valid at the end. An aborted task has no status: its initiator gets no answer.
	Aborted bool
	Status  scsi.Status
	InLen   uint32 // for the initiator: of Buf, as far as it goes
	sense   [scsi.MaxSense]byte
	senseN  int

	nexus *Nexus
	cmd   *command
	early scsi.Sense // what Prepare has found wrong, if bad
	bad   bool
	lba   uint64
	n     uint32 // blocks
	reads bool   // all of them, for the initiator

	prev, next *Task // guarded by Unit.mu, like those below
	begun      bool
	running    bool
	excludes   bool // nothing else may run in [from, to)
	ordered    bool // and that only for the sake of the order
	from, to   uint64
	aborted    bool
	executed   bool     // its data have come
	aborts     []*abort // that wait for its end

	step    func(t *Task, errno syscall.Errno) // what comes after the I/O
	after   func(t *Task, errno syscall.Errno) // and after a flush that comes between
	scratch []byte
	ranges  []scsi.Range
	at      int

	part bool // of a copy: unit attentions are not for it, and it waits for nothing that waits
}

// stateRange is beyond all blocks: those exclude each other there that change reservations.
const stateRange = 1 << 63

// excludeState keeps others that change reservations away while the task runs.
func (t *Task) excludeState() { t.excludes, t.from, t.to = true, stateRange, stateRange+1 }

// Sense returns the sense data, if the status is CHECK CONDITION.
func (t *Task) Sense() []byte { return t.sense[:t.senseN] }

type taskList struct{ head *Task }

func (l *taskList) addLocked(t *Task) {
	t.prev, t.next = nil, l.head
	if l.head != nil {
		l.head.prev = t
	}
	l.head = t
}

func (l *taskList) removeLocked(t *Task) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
}

// Prepare reads the CDB: in which direction the command moves data, and how many.
func (n *Nexus) Prepare(t *Task) {
	t.nexus = n
	t.Out, t.Length, t.Buf, t.Aborted, t.Status, t.InLen, t.senseN = false, 0, nil, false, scsi.Good, 0, 0
	t.bad, t.lba, t.n, t.reads, t.begun, t.running, t.excludes, t.ordered, t.aborted = false, 0, 0, false, false, false, false, false, false
	t.scratch, t.ranges, t.at, t.executed = nil, nil, 0, false
	t.cmd = n.unit.find(&t.CDB)
	if t.cmd == nil {
		t.refuse(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidOperationCode})
		if n.unit.knows(t.CDB[0]) {
			t.refuse(invalidField(1)) // the operation code is known, its service action is not
		}
		return
	}
	t.from, t.to = 0, stateRange
	t.cmd.prepare(t)
	if t.n > 0 && !t.excludes {
		t.from, t.to = t.off(), t.off()+uint64(t.n)<<n.unit.shift
	}
	if t.bad {
		t.Length = 0
	}
}

// Fills returns how many bytes of Buf the command fills, if the initiator takes no more than room. Blocks that
// nobody takes are not read from the medium, those at the end of the room are read whole.
func (t *Task) Fills(room uint32) uint32 {
	if !t.reads || room >= t.Length {
		return t.Length
	}
	block := t.nexus.unit.cfg.BlockSize
	return (room + block - 1) / block * block
}

// refuse notes what is wrong with the CDB; Execute says it.
func (t *Task) refuse(s scsi.Sense) { t.bad, t.early = true, s }

func invalidField(at uint16) scsi.Sense {
	return scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInCDB, Field: at, HasField: true}
}

func invalidParameter(at uint16) scsi.Sense {
	return scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInParameters, Field: at, HasField: true, InData: true}
}

// Begin puts the task into the task set of its unit.
func (n *Nexus) Begin(t *Task) {
	u := n.unit
	u.mu.Lock()
	defer u.mu.Unlock()
	t.begun = true
	u.tasks.addLocked(t)
}

// Execute carries the command out. Its data have come. It ends by Task.Ended.
func (n *Nexus) Execute(t *Task) {
	u := n.unit
	u.mu.Lock()
	t.executed = true
	if t.aborted {
		u.mu.Unlock()
		t.end()
		return
	}
	if !t.checkLocked() {
		u.mu.Unlock()
		t.end()
		return
	}
	if t.Attr == Ordered {
		t.ordered = !t.excludes
		t.excludes, t.from, t.to = true, 0, math.MaxUint64
	}
	if t.excludes {
		u.exclusive++
	}
	if u.exclusive > 0 && u.mustWaitLocked(t, u.waiting) {
		u.waiting = append(u.waiting, t)
		u.mu.Unlock()
		return
	}
	t.running = true
	u.mu.Unlock()
	t.cmd.run(t)
}

// mustWaitLocked reports whether a task that runs, or one of those that wait before it, excludes t
// or is excluded by it.
func (u *Unit) mustWaitLocked(t *Task, before []*Task) bool {
	for o := u.tasks.head; o != nil; o = o.next {
		if o != t && o.running && t.conflicts(o) && !(t.urgent() && t.onlyOrder(o)) {
			return true
		}
	}
	if t.urgent() {
		return false
	}
	return slices.ContainsFunc(before, t.conflicts)
}

func (t *Task) conflicts(o *Task) bool {
	return (t.excludes || o.excludes) && t.from < o.to && o.from < t.to
}

// urgent reports whether a task goes before those that wait and those that want an order. A part of
// a copy does since one of them may wait for the copy.
func (t *Task) urgent() bool { return t.Attr == HeadOfQueue || t.part }

// onlyOrder reports whether nothing but an order is between two tasks.
func (t *Task) onlyOrder(o *Task) bool {
	return (!t.excludes || t.ordered) && (!o.excludes || o.ordered)
}

// end takes the task out of the task set, reports its end, and starts those that waited for it.
func (t *Task) end() {
	u := t.nexus.unit
	t.scratch, t.ranges = nil, nil
	u.mu.Lock()
	if t.Aborted = t.aborted; u.absence == leaving && t.Status == scsi.Good {
		t.isAwayLocked() // what has been read is not for the initiator any more
	}
	u.tasks.removeLocked(t)
	if t.running && t.excludes {
		u.exclusive--
	}
	var ready [8]*Task
	start := u.readyLocked(ready[:0])
	aborts := t.aborts
	t.aborts = nil
	for _, a := range aborts {
		a.left--
	}
	over := aborts[:0]
	for _, a := range aborts {
		if a.left == 0 {
			over = append(over, a)
		}
	}
	u.mu.Unlock()
	t.Ended(t)
	for _, a := range over {
		a.done()
	}
	resume(start)
}

// elsewhere calls f, by which tasks may end, and has their answers sent: f is called by a goroutine
// that is neither their transport's nor their medium's.
func (p *Port) elsewhere(f func()) {
	f()
	if p.after != nil {
		p.after()
	}
}

// resume starts tasks that have waited.
func resume(start []*Task) {
	for _, w := range start {
		w.nexus.port.elsewhere(func() {
			if w.running {
				w.cmd.run(w)
			} else {
				w.end() // aborted while it waited, or refused by now
			}
		})
	}
}

// readyLocked takes the tasks that need not wait any more.
func (u *Unit) readyLocked(start []*Task) []*Task {
	kept := u.waiting[:0]
	for i := range u.waiting {
		w := u.waiting[i]
		switch {
		case !w.aborted && u.mustWaitLocked(w, kept):
			kept = append(kept, w)
			continue
		case !w.aborted && !w.barredLocked():
			w.running = true
		case w.excludes:
			u.exclusive--
		}
		start = append(start, w)
	}
	clear(u.waiting[len(kept):])
	u.waiting = kept
	return start
}

// good ends the task with status GOOD and n bytes for the initiator.
func (t *Task) good(n uint32) {
	t.Status, t.InLen = scsi.Good, n
	t.end()
}

// fail ends the task with CHECK CONDITION.
func (t *Task) fail(s scsi.Sense) {
	t.check(&s)
	t.end()
}

func (t *Task) check(s *scsi.Sense) {
	t.Status, t.InLen = scsi.CheckCondition, 0
	t.senseN = len(scsi.AppendSense(t.sense[:0], s, t.nexus.unit.dsense.Load()))
}

// Fail is what Execute is not called for: the task ends with sense data of the transport.
func (n *Nexus) Fail(t *Task, s scsi.Sense) {
	t.check(&s)
	t.end()
}

// do starts an I/O of the medium, after which step goes on.
func (t *Task) do(op block.Op, buf []byte, off uint64, n int64, fl block.Flags, step func(*Task, syscall.Errno)) {
	t.step = step
	t.nexus.queue.Do(op, buf, int64(off), n, fl, t)
}

// Complete implements block.Completion.
func (t *Task) Complete(errno syscall.Errno) { t.step(t, errno) }

// failed ends the task if an I/O has failed.
func (t *Task) failed(errno syscall.Errno, reading bool) bool {
	switch {
	case errno == 0:
		return false
	case errno == syscall.ENOSPC || errno == syscall.EDQUOT:
		t.fail(scsi.Sense{Key: scsi.DataProtect, Code: scsi.WriteErrorSpace})
	case errno == syscall.EROFS || errno == syscall.EPERM:
		t.fail(scsi.Sense{Key: scsi.DataProtect, Code: scsi.WriteProtected})
	case reading:
		t.fail(scsi.Sense{Key: scsi.MediumError, Code: scsi.UnrecoveredReadError, Info: t.lba, HasInfo: true})
	default:
		t.fail(scsi.Sense{Key: scsi.MediumError, Code: scsi.WriteError, Info: t.lba, HasInfo: true})
	}
	return true
}

// finished is the step after an I/O that is the command's last, and changes or reads nothing.
func finished(t *Task, errno syscall.Errno) {
	if !t.failed(errno, false) {
		t.good(0)
	}
}

// abort waits for tasks to end.
type abort struct {
	left int // guarded by Unit.mu
	done func()
}

// Abort aborts the tasks of the unit that match, all of them if match is nil: they have no answer.
// done is called once they have ended, possibly inside Abort. Those that other ports have not sent
// all data of are not waited for (RFC 7143 section 4.2.3.3); they will not be executed.
func (n *Nexus) Abort(match func(t *Task) bool, done func()) {
	u := n.unit
	a := &abort{left: 1, done: done}
	var alone *Task
	u.mu.Lock()
	for t := u.tasks.head; t != nil; t = t.next {
		if match == nil || match(t) {
			t.aborted = true
			if t.executed || t.nexus.port == n.port {
				a.left++
				t.aborts = append(t.aborts, a)
			}
			if u.erasure.task == t { // what it began goes on (SBC-3 4.11)
				alone, u.erasure.task = t, nil
			}
		}
	}
	u.goOnAndUnlock(a)
	if alone != nil {
		alone.nexus.port.elsewhere(alone.end)
	}
}

// settle calls done once the tasks that run now have ended, but for one.
func (u *Unit) settle(but *Task, done func()) {
	a := &abort{left: 1, done: done}
	u.mu.Lock()
	for t := u.tasks.head; t != nil; t = t.next {
		if t.running && t != but {
			a.left++
			t.aborts = append(t.aborts, a)
		}
	}
	u.goOnAndUnlock(a)
}

// goOnAndUnlock calls done if nothing has to be waited for, and takes tasks that need not wait.
func (u *Unit) goOnAndUnlock(a *abort) {
	var ready [8]*Task
	start := u.readyLocked(ready[:0])
	a.left--
	over := a.left == 0
	u.mu.Unlock()
	if over {
		a.done()
	}
	resume(start)
}

// Of reports whether the task came from the port of n.
func (n *Nexus) Of(t *Task) bool { return t.nexus.port == n.port }

// Cleared tells the other nexuses that their commands were cleared (CLEAR TASK SET).
func (n *Nexus) Cleared() {
	n.unit.mu.Lock()
	defer n.unit.mu.Unlock()
	n.unit.attendOthersLocked(n, scsi.CommandsCleared)
}

// Reset is the effect of LOGICAL UNIT RESET, with scsi.BusDeviceReset, or of a reset of the target,
// with scsi.PowerOnOrReset, on what is no task.
func (n *Nexus) Reset(c scsi.Code) {
	n.unit.mu.Lock()
	defer n.unit.mu.Unlock()
	n.unit.resetLocked(c)
}

// Lost notes that tasks of the nexus were ended by the transport (RFC 7143 section 11.14.5).
func (n *Nexus) Lost() {
	n.unit.mu.Lock()
	defer n.unit.mu.Unlock()
	n.attendLocked(scsi.ClearedByISCSI)
}
