package iscsitest

import (
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// manage sends a task management function, for immediate delivery, and returns the response.
func (s *Session) manage(f iscsi.Function, set func(q *iscsi.TaskMgmt)) iscsi.TaskResponse {
	return s.managed(s.sendManage(f, set))
}

func (s *Session) sendManage(f iscsi.Function, set func(q *iscsi.TaskMgmt)) (itt uint32) {
	q := iscsi.TaskMgmt{Immediate: true, Function: f, LUN: s.lun(), ITT: s.nextTag(), RefTag: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
	if set != nil {
		set(&q)
	}
	p := &PDU{}
	q.Put(&p.BHS)
	s.send(p)
	return q.ITT
}

// managed waits for the response to a function.
func (s *Session) managed(itt uint32) iscsi.TaskResponse {
	p := s.awaitPDU(iscsi.OpTaskResp)
	if p.BHS.ITT() != itt {
		s.t.watch.breach(ruleKnownTask, "%v answers the function with tag %#x", p, itt)
	}
	return iscsi.ParseTaskReply(&p.BHS).Response
}

// waiting starts a WRITE that waits for data that are not sent: a task that is there until something ends it.
// Over iSER the target fetches them, and so there is none.
func (t *T) waiting(s *Session) *Task {
	k := s.start(write10(256, 64), t.pattern(64*s.blockLen()), nil, how{noData: true, hold: true})
	t.firstR2T(s, k)
	return k
}

// holding are keys with which WRITEs wait for data.
var holding = options{keys: []string{"InitialR2T=Yes", "ImmediateData=No"}}

// ends reports whether nothing comes of a task any more after a task management function, as the target
// answers pings.
func (t *T) isGone(s *Session, k *Task, function string) {
	answered := k.done
	s.silence()
	t.require(k.done == answered, "a response to the task comes after that to %s", function)
}

// aborting is a case in which one function ends a task that waits for data.
func aborting(id, source, says string, f iscsi.Function, set func(k *Task, q *iscsi.TaskMgmt)) Case {
	return Case{ID: "task." + id, Source: source, Says: says, Need: Data, Over: onTCP, run: func(t *T) {
		s := t.login(holding).ready()
		n := 64 * s.blockLen()
		before := t.pattern(n)
		s.good(s.do(write10(256, 64), before, nil), "WRITE")
		k := t.waiting(s)
		function := s.sendManage(f, func(q *iscsi.TaskMgmt) { set(k, q) })
		// For a task set "the issuing initiator MUST continue to respond to all valid Target Transfer Tags" (section
		// 11.5.1), and ends these sequences as quickly as it may.
		answers := f == iscsi.AbortTaskSet || f == iscsi.ClearTaskSet
		for _, r := range k.r2ts {
			if !answers {
				break
			}
			d := iscsi.DataOut{Final: true, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, ExpStatSN: s.expStatSN, Offset: r.Offset}
			p := &PDU{}
			d.Put(&p.BHS)
			s.send(p)
		}
		t.amiss = true // these are fewer data than R2Ts have asked for
		why := s.managed(function)
		if why == iscsi.FunctionNotSupported || why == iscsi.FunctionRejected {
			t.require(f != iscsi.AbortTask && f != iscsi.LogicalUnitReset, "response %d", why)
			t.skip("the target does not support the function (response %d)", why)
		}
		t.require(why == iscsi.FunctionComplete, "response %d", why)
		t.isGone(s, k, "the function")
		k.gone = true
		if !answers {
			t.late(s, k)
		}
		s = t.login(options{initiator: 1}).ready()
		s.verify(256, before)
	}}
}

// late sends the data of a task that was aborted. What the target makes of that is its own affair, but it does not write
// them, nor answer the task.
func (t *T) late(s *Session, k *Task) {
	for _, r := range k.r2ts {
		n := min(r.Length, s.targetLimit)
		d := iscsi.DataOut{Final: n == r.Length, LUN: r.LUN, ITT: k.ITT, TTT: r.TTT, ExpStatSN: s.expStatSN, Offset: r.Offset}
		p := &PDU{Data: k.Out[r.Offset:][:n]}
		d.Put(&p.BHS)
		if s.trySend(p) != nil {
			return
		}
	}
	for {
		p, err := s.tryReceive(t.soon())
		if err != nil {
			return
		}
		if p.BHS.Opcode() == iscsi.OpResponse && p.BHS.ITT() == k.ITT {
			t.fail("data that come after the function have the task carried out: %v", p)
		}
	}
}

func taskCases() []Case {
	tur := []byte{scsi.TestUnitReady}
	return []Case{
		aborting("abort-task", "RFC 7143 11.5.1, 11.6.1", "ABORT TASK of a task that waits for data ends it: Function Complete, and no response to the task after that", iscsi.AbortTask, func(k *Task, q *iscsi.TaskMgmt) {
			q.RefTag, q.RefCmdSN = k.ITT, k.CmdSN
		}),
		aborting("abort-task-set", "RFC 7143 11.5.1", "ABORT TASK SET ends the tasks of the initiator, and no response to them comes after its own", iscsi.AbortTaskSet, func(*Task, *iscsi.TaskMgmt) {}),
		aborting("clear-task-set", "RFC 7143 11.5.1", "CLEAR TASK SET ends the tasks of all, and no response to them comes after its own", iscsi.ClearTaskSet, func(*Task, *iscsi.TaskMgmt) {}),
		aborting("lun-reset", "RFC 7143 11.5.1", "LOGICAL UNIT RESET ends the tasks of the unit, and no response to them comes after its own", iscsi.LogicalUnitReset, func(*Task, *iscsi.TaskMgmt) {}),
		{ID: "task.abort-done", Source: "RFC 7143 7.11.1, 11.6.1", Says: "if the response was sent prior to the abort, then the target MUST respond with Task Does Not Exist", run: func(t *T) {
			s := t.login(options{}).ready()
			k := s.do(tur, nil, nil)
			s.silence()
			why := s.manage(iscsi.AbortTask, func(q *iscsi.TaskMgmt) { q.RefTag, q.RefCmdSN = k.ITT, k.CmdSN })
			t.require(why == iscsi.TaskDoesNotExist, "response %d", why)
		}},
		{ID: "task.abort-missing", Source: "RFC 7143 7.11.1, 11.6.1", Says: "If the abort request is received and the original command is missing, targets MUST consider the original command with that RefCmdSN as received and issue Function Complete", run: func(t *T) {
			s := t.login(options{}).ready()
			s.opens(2)
			missing := s.cmdSN
			s.cmdSN++
			why := s.manage(iscsi.AbortTask, func(q *iscsi.TaskMgmt) { q.RefTag, q.RefCmdSN = 0x4711, missing })
			t.require(why == iscsi.FunctionComplete, "response %d", why)
			s.good(s.do(tur, nil, nil), "the command after the one that is missing")
			late := s.start(inquiry(-1, 36), nil, make([]byte, 36), how{cmdSN: missing, itt: 0x4711})
			s.silence()
			t.require(!late.done, "the command is carried out when it comes after all")
		}},
		{ID: "task.abort-unknown", Source: "RFC 7143 11.6.1", Says: "a task of which nothing is known does not exist", run: func(t *T) {
			s := t.login(options{}).ready()
			why := s.manage(iscsi.AbortTask, func(q *iscsi.TaskMgmt) { q.RefTag, q.RefCmdSN = 0x99887766, s.cmdSN-1 })
			t.require(why == iscsi.TaskDoesNotExist, "response %d", why)
		}},
		{ID: "task.lun-unknown", Level: Should, Source: "RFC 7143 11.6.1", Says: "LOGICAL UNIT RESET of a LUN that there is not ends with LUN Does Not Exist", run: func(t *T) {
			s := t.login(options{})
			why := s.manage(iscsi.LogicalUnitReset, func(q *iscsi.TaskMgmt) { q.LUN = scsi.PutLUN(16000) })
			t.require(why == iscsi.LUNDoesNotExist, "response %d", why)
		}},
		{ID: "task.function-unknown", Level: Should, Source: "RFC 7143 11.5.1, 11.6.1, 11", Says: "a function that is not assigned is answered by Task Management Function Not Supported, or rejected", run: func(t *T) {
			s := t.login(options{})
			s.sendManage(0x60, nil)
			for {
				p := s.nextPDU("an answer to the function 0x60")
				if p == nil {
					continue
				}
				ok := p.BHS.Opcode() == iscsi.OpReject
				if p.BHS.Opcode() == iscsi.OpTaskResp {
					why := iscsi.ParseTaskReply(&p.BHS).Response
					ok = why == iscsi.FunctionNotSupported || why == iscsi.FunctionRejected
				}
				t.require(ok, "it is answered by %v", p)
				return
			}
		}},
		{ID: "task.reassign-level-0", Source: "RFC 7143 7.2.2", Says: "a target that does not support allegiance reassignment MUST respond with Task Allegiance Reassignment Not Supported", run: func(t *T) {
			s := t.login(options{keys: []string{"ErrorRecoveryLevel=0"}})
			why := s.manage(iscsi.TaskReassign, func(q *iscsi.TaskMgmt) { q.RefTag = 0x4711 })
			t.require(why == iscsi.ReassignmentNotSupported || why == iscsi.FunctionNotSupported || why == iscsi.TaskDoesNotExist, "response %d", why)
		}},
		{ID: "task.in-turn", Source: "RFC 7143 11.5.1", Says: "a task management function that is not immediate is carried out in its turn, and answered", run: func(t *T) {
			s := t.login(options{}).ready()
			s.opens(1)
			n := s.cmdSN
			s.cmdSN++
			why := s.manage(iscsi.AbortTaskSet, func(q *iscsi.TaskMgmt) { q.Immediate, q.CmdSN = false, n })
			t.require(why == iscsi.FunctionComplete || why == iscsi.FunctionNotSupported, "response %d", why)
			t.require(s.expCmdSN == s.cmdSN, "ExpCmdSN is %d after the function with CmdSN %d", s.expCmdSN, n)
		}},
		{ID: "task.reset-tells-others", Source: "SAM-5 5.14, 6.3", Says: "after LOGICAL UNIT RESET each initiator gets a unit attention", Need: Data, run: func(t *T) {
			a, b := t.login(options{}).ready(), t.login(options{initiator: 1}).ready()
			why := a.manage(iscsi.LogicalUnitReset, nil)
			t.require(why == iscsi.FunctionComplete, "response %d", why)
			for i, s := range []*Session{a, b} {
				k := s.once(tur, nil, nil)
				t.require(k.Status == scsi.CheckCondition && k.Sense.Key == scsi.UnitAttention && k.Sense.Code>>8 == 0x29, "the next command of initiator %d ends with %s", i+1, k.outcome())
				s.ready()
			}
		}},
		{ID: "task.warm-reset", Level: Practice, Source: "RFC 7143 11.5.1", Says: "TARGET WARM RESET is carried out, or is answered as what is not to be had", Need: Data, run: func(t *T) {
			s := t.login(options{}).ready()
			switch why := s.manage(iscsi.TargetWarmReset, nil); why {
			case iscsi.FunctionComplete, iscsi.FunctionNotSupported, iscsi.AuthorizationFailed, iscsi.FunctionRejected:
				s.ready()
			default:
				t.fail("response %d", why)
			}
		}},
	}
}
