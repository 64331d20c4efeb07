package iscsitest

import (
	"errors"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// Session is a session, with its leading connection, in full feature phase.
type Session struct {
	*Conn
	isid      [6]byte
	tsih, cid uint16
	discovery bool

	cmdSN              uint32 // the next one
	expCmdSN, maxCmdSN uint32
	itt                uint32
	targetLimit        uint32 // the longest data segment in bytes that the target takes
	tasks              map[uint32]*Task
	other              []*PDU // what has come and nobody has waited for yet
}

// Task is a command that is under way, or was.
type Task struct {
	ITT   uint32
	CmdSN uint32
	K     iscsi.Command
	Out   []byte // for the target
	In    []byte // room for what comes from it; EDTL if there is no other

	hold    bool // R2Ts are noted, and the case answers them
	patient bool // who has sent it sends it again when the target has too much to do
	r2ts    []iscsi.R2T

	done      bool
	gone      bool // it was aborted: nothing of it is to come any more
	Status    scsi.Status
	Response  uint8 // other than iscsi.CommandCompleted: Status is not valid
	Sense     scsi.Sense
	HasSense  bool
	Residual  iscsi.Residual
	tags      []uint32 // over RDMA: what its command advertised
	closed    uint32   // over RDMA: the STag that its response has invalidated
	Received  uint32   // bytes of data
	dataSN    uint32   // of the next Data-In
	burst     uint32   // bytes of the sequence of Data-In that is under way
	final     bool     // the last Data-In had F
	r2tSN     uint32
	asked     uint32 // up to where R2Ts have asked
	pending   uint32 // R2Ts that are not fulfilled
	unsolicit uint32 // bytes that were sent before an R2T asked for any
}

// how says how a command is sent. The zero value is a task with the attribute SIMPLE whose data are sent as was
// agreed.
type how struct {
	immediate bool // for immediate delivery
	attr      iscsi.Attr
	edtl      uint32 // in place of the length of the data, if not 0
	noData    bool   // nothing is sent before an R2T asks for it
	hold      bool   // R2Ts are noted and not answered
	patient   bool   // BUSY and TASK SET FULL do not end the case
	itt       uint32 // in place of the next one
	cmdSN     uint32 // in place of the next one, which stays
	lun       *[8]byte
}

// lun is the LUN that is tested.
func (s *Session) lun() [8]byte { return scsi.PutLUN(s.t.target.LUN) }

// nextTag returns a task tag that is in no use.
func (s *Session) nextTag() uint32 {
	if s.itt++; s.itt == iscsi.NoTag {
		s.itt = 1
	}
	return s.itt
}

// numbers takes what a target says about the numbers of commands (RFC 7143 section 4.2.2.1).
func (s *Session) numbers(n iscsi.Numbers) {
	less := func(a, b uint32) bool { return int32(a-b) < 0 }
	if less(s.cmdSN, n.ExpCmdSN) {
		s.t.watch.breach(ruleExpCmdSN, "ExpCmdSN %d, and the next command has %d", n.ExpCmdSN, s.cmdSN)
	}
	if less(n.MaxCmdSN, n.ExpCmdSN-1) {
		s.t.watch.breach(ruleMaxCmdSN, "MaxCmdSN %d with ExpCmdSN %d", n.MaxCmdSN, n.ExpCmdSN)
		return
	}
	if less(s.expCmdSN, n.ExpCmdSN) {
		s.expCmdSN = n.ExpCmdSN
	} else if n.ExpCmdSN != s.expCmdSN {
		s.t.watch.breach(ruleExpCmdSN, "ExpCmdSN %d after %d", n.ExpCmdSN, s.expCmdSN)
	}
	if less(s.maxCmdSN, n.MaxCmdSN) {
		s.maxCmdSN = n.MaxCmdSN
	}
}

// window is how many commands the target takes.
func (s *Session) window() int { return int(int32(s.maxCmdSN - s.cmdSN + 1)) }

// opens waits until the target takes n commands more.
func (s *Session) opens(n int) {
	for s.window() < n {
		if len(s.running()) == 0 && n > 1 {
			s.t.skip("the target has a window of %d commands, and %d are needed", s.window(), n)
		}
		s.later(s.nextPDU("a window of commands"))
	}
}

func (s *Session) running() (all []*Task) {
	for _, k := range s.tasks {
		if !k.done && !k.gone {
			all = append(all, k)
		}
	}
	return all
}

// start sends a command: with out for the target, or with in for what comes from it.
func (s *Session) start(cdb []byte, out, in []byte, h how) *Task {
	k := &Task{ITT: h.itt, CmdSN: s.cmdSN, Out: out, In: in, hold: h.hold, patient: h.patient}
	if k.ITT == 0 {
		k.ITT = s.nextTag()
	}
	switch {
	case h.cmdSN != 0:
		k.CmdSN = h.cmdSN
	case !h.immediate:
		s.opens(1)
		k.CmdSN = s.cmdSN
		s.cmdSN++
	}
	edtl := uint32(len(out) + len(in))
	if h.edtl != 0 {
		edtl = h.edtl
	}
	if h.attr == 0 {
		h.attr = iscsi.Simple
	}
	k.K = iscsi.Command{Immediate: h.immediate, Final: true, Read: len(in) > 0, Write: len(out) > 0, Attr: h.attr, LUN: s.lun(), ITT: k.ITT, EDTL: edtl, CmdSN: k.CmdSN, ExpStatSN: s.expStatSN}
	if h.lun != nil {
		k.K.LUN = *h.lun
	}
	copy(k.K.CDB[:], cdb)
	var first, unsolicited uint32
	if n := uint32(len(out)); n > 0 && !h.noData {
		burst := min(n, s.v[iscsi.KeyFirstBurstLength])
		if s.v.Bool(iscsi.KeyImmediateData) {
			first = min(burst, s.targetLimit)
		}
		if s.t.target.Over == TCP && !s.v.Bool(iscsi.KeyInitialR2T) && first < burst {
			unsolicited = burst - first
			k.K.Final = false
		}
	}
	k.asked, k.unsolicit = first+unsolicited, first+unsolicited
	s.tasks[k.ITT] = k
	p := &PDU{in: in, out: out}
	if len(out) > 0 {
		p.Data = out[:first]
	}
	k.K.Put(&p.BHS)
	s.send(p)
	if unsolicited > 0 {
		s.sendData(k, iscsi.NoTag, first, unsolicited)
	}
	return k
}

// sendData sends a sequence of Data-Out PDUs.
func (s *Session) sendData(k *Task, ttt, off, n uint32) {
	end := off + n
	for sn := uint32(0); off < end; sn++ {
		m := min(end-off, s.targetLimit)
		d := iscsi.DataOut{Final: off+m == end, LUN: k.K.LUN, ITT: k.ITT, TTT: ttt, ExpStatSN: s.expStatSN, DataSN: sn, Offset: off}
		p := &PDU{Data: k.Out[off : off+m]}
		d.Put(&p.BHS)
		s.send(p)
		off += m
	}
}

// fulfil sends what an R2T asks for.
func (s *Session) fulfil(k *Task, r iscsi.R2T) {
	end := uint64(r.Offset) + uint64(r.Length)
	if end > uint64(len(k.Out)) { // as ruleR2TOrder has noted; there is nothing that could be sent
		s.t.fail("an R2T asks for the bytes from %d to %d of %d", r.Offset, end, len(k.Out))
	}
	k.pending--
	s.sendData(k, r.TTT, r.Offset, r.Length)
}

// wait waits until a task is done.
func (s *Session) waitFor(k *Task) *Task {
	for !k.done {
		s.later(s.nextPDU(fmt.Sprintf("the response to command %#02x", k.K.CDB[0])))
	}
	return k
}

// once carries a command out.
func (s *Session) once(cdb []byte, out, in []byte) *Task {
	return s.waitFor(s.start(cdb, out, in, how{}))
}

// maxAttentions is how many unit attentions a unit may have for an initiator.
const maxAttentions = 8

// do carries a command out, and again after each unit attention, of which there may be some at any time, and while
// the target has too much to do.
func (s *Session) do(cdb []byte, out, in []byte) *Task {
	until := s.t.wait()
	for attentions := 0; attentions < maxAttentions; {
		k := s.waitFor(s.start(cdb, out, in, how{patient: true}))
		switch {
		case k.turnedAway():
			if time.Now().After(until) {
				s.t.unclear("command %#02x ends with %s for %v", cdb[0], k.outcome(), s.t.o.Timeout)
			}
			s.t.pause(20 * time.Millisecond)
		case k.Status == scsi.CheckCondition && k.Sense.Key == scsi.UnitAttention:
			attentions++
		default:
			return k
		}
	}
	s.t.unclear("a command has ended with a unit attention %d times", maxAttentions)
	return nil
}

// turnedAway reports that the target has not begun with a task, since it has too much to do (SAM-5 section 5.3.1).
func (k *Task) turnedAway() bool {
	return k.Response == iscsi.CommandCompleted && (k.Status == scsi.Busy || k.Status == scsi.TaskSetFull)
}

// judged ends the case if a task has ended in a way that says nothing about what is judged: the target has too much
// to do, or somebody else has reserved the unit.
func (s *Session) judged(k *Task) {
	switch {
	case k.turnedAway() && k.Status == scsi.TaskSetFull && len(s.running()) > 0 && !k.patient:
		s.t.skip("the target does not take as many commands at once as its window has (TASK SET FULL)")
	case k.turnedAway() && !k.patient:
		s.t.unclear("the target has too much to do: command %#02x ends with %s", k.K.CDB[0], k.outcome())
	case k.Response == iscsi.CommandCompleted && k.Status == scsi.ReservationConflict && s.t.c.Group() != "reservation":
		s.t.unclear("command %#02x ends with RESERVATION CONFLICT, and the case has reserved nothing: has somebody else?", k.K.CDB[0])
	}
}

// awaitPDU waits for a PDU of a type that is no part of a task.
func (s *Session) awaitPDU(o iscsi.Opcode) *PDU {
	for {
		for i, p := range s.other {
			if p.BHS.Opcode() == o {
				s.other = append(s.other[:i:i], s.other[i+1:]...)
				return p
			}
		}
		s.later(s.nextPDU(o.String()))
	}
}

// silence has the target answer a ping, and returns what else has come until then.
func (s *Session) silence() []*PDU {
	tag := s.ping(nil)
	for {
		p := s.nextPDU("the answer to a ping")
		if p != nil && p.BHS.Opcode() == iscsi.OpNOPIn && p.BHS.ITT() == tag {
			all := s.other
			s.other = nil
			return all
		}
		s.later(p)
	}
}

// maxOther is how many PDUs may wait until a case asks for them.
const maxOther = 1000

// later keeps a PDU, if it is one, until somebody asks for it.
func (s *Session) later(p *PDU) {
	if p == nil {
		return
	}
	if s.other = append(s.other, p); len(s.other) > maxOther {
		s.t.unclear("the target has sent %d PDUs that nothing has asked for, the last of them %v", maxOther, p)
	}
}

// ping sends an immediate NOP-Out and returns its tag.
func (s *Session) ping(data []byte) uint32 {
	n := iscsi.NOP{Immediate: true, ITT: s.nextTag(), TTT: iscsi.NoTag, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
	p := &PDU{Data: data}
	n.PutOut(&p.BHS)
	s.send(p)
	return n.ITT
}

// nextPDU handles the next PDU. What belongs to a task is noted there, and pings are answered: those return nil.
// When nothing comes in time, a ping tells whether the target is alive; if it answers and what was waited for
// still does not come, it is to blame.
func (s *Session) nextPDU(waiting string) *PDU {
	p, err := s.tryReceive(s.t.wait())
	if errors.Is(err, errTimeout) {
		tag := s.ping(nil)
		p, err = s.tryReceive(s.t.wait())
		if err == nil && p.BHS.Opcode() == iscsi.OpNOPIn && p.BHS.ITT() == tag {
			s.t.fail("%s has not come for %v, although the target answers a ping", waiting, 2*s.t.o.Timeout)
		}
		if errors.Is(err, errTimeout) {
			s.t.unclear("%s has not come for %v, nor the answer to a ping", waiting, 2*s.t.o.Timeout)
		}
	}
	if p == nil {
		s.t.lost(s.Conn, err)
	}
	if s.taken(p) {
		return nil
	}
	return p
}

// taken handles a PDU, and reports whether that was all.
func (s *Session) taken(p *PDU) bool {
	s.numbers(iscsi.ParseReject(&p.BHS).Numbers) // which all PDUs of targets have at the same place
	switch p.BHS.Opcode() {
	case iscsi.OpDataIn, iscsi.OpR2T:
		if s.t.target.Over != TCP {
			s.t.watch.breach(ruleNoDataPDUs, "%v", p)
			return true
		}
		if p.BHS.Opcode() == iscsi.OpR2T {
			s.readyToTransfer(p)
		} else {
			s.dataIn(p)
		}
		return true
	case iscsi.OpResponse:
		s.response(p)
		return true
	case iscsi.OpNOPIn:
		n, err := iscsi.ParseNOPIn(&p.BHS)
		if err != nil || n.ITT == iscsi.NoTag && len(p.Data) > 0 {
			s.t.watch.breach(ruleNOPTag, "%v", p)
		}
		if n.ITT == iscsi.NoTag && n.TTT != iscsi.NoTag {
			pong := iscsi.NOP{Immediate: true, LUN: n.LUN, ITT: iscsi.NoTag, TTT: n.TTT, CmdSN: s.cmdSN, ExpStatSN: s.expStatSN}
			q := &PDU{}
			pong.PutOut(&q.BHS)
			s.send(q)
			return true
		}
		return n.ITT == iscsi.NoTag
	case iscsi.OpTextResp:
		if _, err := iscsi.ParseTextResponse(&p.BHS); err != nil {
			s.t.watch.breach(ruleTextTag, "%v", p)
		}
	}
	return false
}

// task returns the task of a PDU.
func (s *Session) task(p *PDU) *Task {
	k := s.tasks[p.BHS.ITT()]
	switch {
	case k == nil:
		s.t.watch.breach(ruleKnownTask, "%v, and there was no such task", p)
	case k.done:
		s.t.watch.breach(ruleKnownTask, "%v, and the task is over", p)
		return nil
	}
	return k
}

// conditionMet is the status of PRE-FETCH (SAM-5 5.3.1), which is none of an error.
const conditionMet = 0x04

func (s *Session) dataIn(p *PDU) {
	w := s.t.watch
	d, err := iscsi.ParseDataIn(&p.BHS)
	if err != nil || d.HasStatus && d.Status != uint8(scsi.Good) && d.Status != conditionMet {
		w.breach(ruleStatusAtEnd, "%v", p)
	}
	k := s.task(p)
	if k == nil {
		return
	}
	if d.DataSN != k.dataSN {
		w.breach(ruleDataSN, "%v, where %d comes next", p, k.dataSN)
	}
	k.dataSN = d.DataSN + 1
	if d.Offset != k.Received {
		w.breach(ruleOffset, "%v, where offset %d comes next", p, k.Received)
	}
	if k.final {
		k.burst = 0
	}
	n := uint32(len(p.Data))
	if k.burst += n; k.burst > s.v[iscsi.KeyMaxBurstLength] {
		w.breach(ruleBurst, "%v brings the sequence to %d bytes, and MaxBurstLength is %d", p, k.burst, s.v[iscsi.KeyMaxBurstLength])
	}
	k.final = d.Final
	if end := uint64(d.Offset) + uint64(n); end > uint64(len(k.In)) || end > uint64(k.K.EDTL) {
		w.breach(ruleOffset, "%v, and %d bytes were expected", p, k.K.EDTL)
	} else {
		copy(k.In[d.Offset:], p.Data)
	}
	k.Received = d.Offset + n
	if d.HasStatus {
		s.acknowledged(k, p, d.Numbers)
		k.Status, k.Residual = scsi.Status(d.Status), d.Residual
		s.finish(k, p)
	}
}

func (s *Session) readyToTransfer(p *PDU) {
	w := s.t.watch
	r, err := iscsi.ParseR2T(&p.BHS)
	if err != nil || r.Length > s.v[iscsi.KeyMaxBurstLength] {
		w.breach(ruleR2TLength, "%v, and MaxBurstLength is %d", p, s.v[iscsi.KeyMaxBurstLength])
	}
	k := s.task(p)
	if k == nil {
		return
	}
	if r.R2TSN != k.r2tSN {
		w.breach(ruleR2TSN, "%v, where %d comes next", p, k.r2tSN)
	}
	k.r2tSN = r.R2TSN + 1
	if r.Offset != k.asked || uint64(r.Offset)+uint64(r.Length) > uint64(k.K.EDTL) {
		w.breach(ruleR2TOrder, "%v, where offset %d comes next and %d bytes are to be had", p, k.asked, k.K.EDTL)
	}
	k.asked = r.Offset + r.Length
	if k.pending++; k.pending > s.v[iscsi.KeyMaxOutstandingR2T] {
		w.breach(ruleR2TCount, "%v is number %d of those that are outstanding, and MaxOutstandingR2T is %d", p, k.pending, s.v[iscsi.KeyMaxOutstandingR2T])
	}
	if k.hold {
		k.r2ts = append(k.r2ts, r)
	} else {
		s.fulfil(k, r)
	}
}

// acknowledged looks at whether a command is acknowledged with its status at the latest (section 4.2.2.1).
func (s *Session) acknowledged(k *Task, p *PDU, n iscsi.Numbers) {
	if !k.K.Immediate && int32(n.ExpCmdSN-k.CmdSN) <= 0 {
		s.t.watch.breach(ruleExpCmdSN, "%v ends a command that has CmdSN %d, and does not acknowledge it", p, k.CmdSN)
	}
}

func (s *Session) response(p *PDU) {
	w := s.t.watch
	r, err := iscsi.ParseResponse(&p.BHS)
	if err != nil {
		w.breach(ruleResidual, "%v: %v", p, err)
	}
	k := s.task(p)
	if k == nil {
		return
	}
	s.acknowledged(k, p, r.Numbers)
	k.Status, k.Response, k.Residual = scsi.Status(r.Status), r.Response, r.Residual
	k.tags, k.closed = p.advertised, p.invalidated
	sense, err := iscsi.ParseSense(p.Data)
	if err == nil && len(sense) > 0 {
		k.Sense, err = scsi.ParseSense(sense)
		k.HasSense = err == nil
	}
	if err != nil || k.Status == scsi.CheckCondition && r.Response == iscsi.CommandCompleted && !k.HasSense {
		w.breach(ruleAutosense, "%v", p)
	}
	if s.t.target.Over == TCP && r.Response == iscsi.CommandCompleted && k.K.Read && r.ExpDataSN != k.dataSN {
		w.breach(ruleExpDataSN, "%v after %d Data-In PDUs", p, k.dataSN)
	}
	s.finish(k, p)
	s.judged(k)
}

// finish is the end of a task.
func (s *Session) finish(k *Task, p *PDU) {
	k.done = true
	w := s.t.watch
	if s.t.target.Over == TCP && k.dataSN > 0 && !k.final {
		w.breach(ruleFinal, "%v, and the last Data-In PDU had no F", p)
	}
	if r := k.Residual; (r.Overflow || r.Underflow) && r.Count == 0 || r.Underflow && r.Count > k.K.EDTL {
		w.breach(ruleResidual, "%v, and %d bytes were expected", p, k.K.EDTL)
	}
}

// good fails the case unless a command has ended with GOOD.
func (s *Session) good(k *Task, what string) *Task {
	if k.Status != scsi.Good || k.Response != iscsi.CommandCompleted {
		s.t.fail("%s ends with %s", what, k.outcome())
	}
	return k
}

// senses fails the case unless a command has ended with CHECK CONDITION and a sense code.
func (s *Session) senses(k *Task, what string, key scsi.Key, code scsi.Code) {
	if k.Status != scsi.CheckCondition || k.Sense.Key != key || k.Sense.Code != code {
		s.t.fail("%s ends with %s, in place of sense %x/%04x", what, k.outcome(), byte(key), uint16(code))
	}
}

// outcome says how a task has ended.
func (k *Task) outcome() string {
	switch {
	case k.Response != iscsi.CommandCompleted:
		return fmt.Sprintf("response %d", k.Response)
	case k.HasSense:
		return fmt.Sprintf("status %#02x, sense %x/%04x", byte(k.Status), byte(k.Sense.Key), uint16(k.Sense.Code))
	}
	return fmt.Sprintf("status %#02x", byte(k.Status))
}
