package lu

import (
	"encoding/binary"
	"slices"

	"github.com/ironwarp/ironwarp/scsi"
)

// copyLimits bound the parameter lists of EXTENDED COPY.
var copyLimits = scsi.CopyLimits{
	Targets: maxCopyTargets, Segments: maxCopySegments,
	Descriptors: maxCopyTargets*scsi.CopyTargetLen + maxCopySegments*scsi.CopySegmentLen,
}

// copyJob is one EXTENDED COPY of a nexus, under way or ended.
type copyJob struct {
	id     byte
	named  bool       // it has an identifier
	result copyResult // guarded by Unit.mu, of the unit that has the command
}

// copyResult is how far a copy has come.
type copyResult struct {
	over     bool
	status   scsi.Status
	sense    []byte // of one that has failed
	segments uint16 // that have been copied
	bytes    uint64 // likewise
}

func copyList(t *Task) {
	most := uint32(scsi.CopyHeaderLen + copyLimits.Descriptors)
	t.Out, t.Length = true, binary.BigEndian.Uint32(t.CDB[10:])
	if t.Length > most {
		t.refuse(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.ParameterListLength})
	}
}

// extendedCopy copies from units of the device to others, or to themselves, which the initiator
// port has under whatever LUN.
func (t *Task) extendedCopy() {
	n := t.nexus
	if len(t.Buf) == 0 {
		t.good(0) // SPC-4 6.4.2: it is no error
		return
	}
	list, why := scsi.ParseCopy(t.Buf, copyLimits)
	if why != nil {
		t.fail(*why)
		return
	}
	j := &copyJob{id: list.ID, named: list.Usage != scsi.CopyAnonymous}
	n.unit.mu.Lock()
	running, again := 0, false
	for _, o := range n.copies {
		if !o.result.over {
			running++
			again = again || o.same(j)
		}
	}
	full := running >= maxCopies || !again && !n.port.mayCopy()
	if !again && !full {
		n.copies = slices.DeleteFunc(n.copies, func(o *copyJob) bool { return o.result.over && (!o.named || o.same(j)) })
		if i := slices.IndexFunc(n.copies, func(o *copyJob) bool { return o.result.over }); i >= 0 && len(n.copies) >= maxKnownCopies {
			n.copies = slices.Delete(n.copies, i, i+1)
		}
		n.copies = append(n.copies, j)
	}
	n.unit.mu.Unlock()
	switch {
	case again:
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.OperationInProgress})
	case full:
		t.Status = scsi.TaskSetFull
		t.end()
	default:
		go t.copyAll(j, &list)
	}
}

func (j *copyJob) same(o *copyJob) bool { return j.named && o.named && j.id == o.id }

// copyAll is the goroutine of a copy.
func (t *Task) copyAll(j *copyJob, l *scsi.CopyList) {
	u := t.nexus.unit
	c := &copier{task: t, job: j, list: l, done: make(chan struct{}, 1)}
	c.part.Ended = func(*Task) { c.done <- struct{}{} }
	for i := range l.Segments {
		if !c.segment(i) {
			break
		}
	}
	t.nexus.port.copies.Add(-1)
	t.nexus.port.elsewhere(func() {
		u.mu.Lock()
		j.result.over, j.result.status, j.result.sense = true, t.Status, slices.Clone(t.Sense())
		u.mu.Unlock()
		t.end()
	})
}

// copier copies a piece after the other: each is a READ and a WRITE of the same initiator port, to
// which applies what applies to its own.
type copier struct {
	task *Task
	job  *copyJob
	list *scsi.CopyList
	part Task
	done chan struct{}
	buf  []byte
}

// aborts sets the status of a copy that fails at a segment; at is the place in its descriptor.
func (c *copier) aborts(segment int, code scsi.Code, at uint16) bool {
	c.task.check(&scsi.Sense{Key: scsi.CopyAborted, Code: code, InSegment: true, Segment: uint16(segment), Field: at, HasField: true})
	return false
}

// target finds a unit, by its name. code is why there is none.
func (c *copier) target(i uint16) (n *Nexus, code scsi.Code) {
	if int(i) >= len(c.list.Targets) {
		return nil, scsi.UnreachableCopyTarget
	}
	d := &c.list.Targets[i]
	for _, n := range c.task.nexus.port.All() {
		if name := n.unit.naa(); !name.Equal(&d.Designator) {
			continue
		}
		if d.Device != 0 || d.Block != n.unit.cfg.BlockSize {
			return nil, scsi.IncorrectCopyTargetType
		}
		return n, 0
	}
	return nil, scsi.CopyTargetNotReachable
}

// segment copies one. It returns false once the copy has failed.
func (c *copier) segment(i int) bool {
	s := &c.list.Segments[i]
	from, code := c.target(s.From)
	if code != 0 {
		return c.aborts(i, code, 4)
	}
	to, code := c.target(s.To)
	if code != 0 {
		return c.aborts(i, code, 6)
	}
	n := uint64(s.Blocks) << from.unit.shift
	if s.ToBlocks {
		n = uint64(s.Blocks) << to.unit.shift
	}
	if big := max(from.unit.shift, to.unit.shift); n>>big<<big != n {
		return c.aborts(i, scsi.InexactSegment, 10) // what would be left over is not kept
	}
	if !from.unit.holds(s.FromLBA, n) {
		return c.aborts(i, scsi.NoAdditionalSense, 12)
	}
	if !to.unit.holds(s.ToLBA, n) {
		return c.aborts(i, scsi.NoAdditionalSense, 20)
	}
	u := c.task.nexus.unit
	for at := uint64(0); at < n; {
		k := min(n-at, MaxTransfer)
		if c.buf == nil {
			c.buf = make([]byte, min(n, MaxTransfer))
		} else if uint64(len(c.buf)) < k {
			c.buf = make([]byte, MaxTransfer)
		}
		if !c.move(i, from, scsi.Read16, s.FromLBA+at>>from.unit.shift, k) || !c.move(i, to, scsi.Write16, s.ToLBA+at>>to.unit.shift, k) {
			return false
		}
		at += k
		u.mu.Lock()
		c.job.result.bytes += k
		aborted := c.task.aborted
		u.mu.Unlock()
		if aborted {
			return false
		}
	}
	u.mu.Lock()
	c.job.result.segments++
	u.mu.Unlock()
	return true
}

// holds reports whether a range lies on the medium.
func (u *Unit) holds(lba, n uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lookLocked()
	return lba <= u.blocks && n>>u.shift <= u.blocks-lba
}

// move reads or writes a piece.
func (c *copier) move(segment int, n *Nexus, opcode byte, lba, length uint64) bool {
	p := &c.part
	p.CDB = [16]byte{opcode}
	binary.BigEndian.PutUint64(p.CDB[2:], lba)
	binary.BigEndian.PutUint32(p.CDB[10:], uint32(length>>n.unit.shift))
	p.Attr, p.Offered, p.part = Simple, uint32(length), true
	n.Prepare(p)
	n.Begin(p)
	p.Buf = c.buf[:length]
	n.Execute(p)
	<-c.done
	switch {
	case p.Aborted:
		return c.aborts(segment, scsi.ThirdPartyDeviceFailure, 0)
	case p.Status == scsi.ReservationConflict:
		c.task.Status = p.Status
		return false
	case p.Status != scsi.Good:
		return c.aborts(segment, scsi.ThirdPartyDeviceFailure, 0)
	}
	return true
}

// known finds the copy that RECEIVE COPY RESULTS asks about, or only one that has failed. If there is
// none it ends the task.
func (t *Task) known(onlyFailed bool) (r copyResult, ok bool) {
	u := t.nexus.unit
	u.mu.Lock()
	for _, o := range t.nexus.copies {
		if o.named && o.id == t.CDB[2] && (!onlyFailed || o.result.over && o.result.status != scsi.Good) {
			r, ok = o.result, true
		}
	}
	u.mu.Unlock()
	if !ok {
		t.fail(invalidField(2))
	}
	return r, ok
}

// copyStatus tells how far a copy has come (SPC-4 6.18.2).
func (t *Task) copyStatus() {
	r, ok := t.known(false)
	if !ok {
		return
	}
	b := []byte{0, 0, 0, 8, 0} // under way
	switch {
	case r.over && r.status == scsi.Good:
		b[4] = 1
	case r.over:
		b[4] = 2
	}
	b = binary.BigEndian.AppendUint16(b, r.segments)
	unit := byte(0) // bytes, KiB, MiB and so on
	for ; r.bytes > 1<<32-1; r.bytes >>= 10 {
		unit++
	}
	t.answer(binary.BigEndian.AppendUint32(append(b, unit), uint32(r.bytes)))
}

// copyFailure tells why a copy has failed (SPC-4 6.18.5).
func (t *Task) copyFailure() {
	r, ok := t.known(true)
	if !ok {
		return
	}
	b := make([]byte, 60, 60+len(r.sense))
	b[56] = byte(r.status)
	binary.BigEndian.PutUint16(b[58:], uint16(len(r.sense)))
	b = append(b, r.sense...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.answer(b)
}

// copyDescriptors are the types that are known.
var copyDescriptors = []byte{scsi.CopyBlockToBlock, scsi.CopyIdentification}

const maxSegment = (1<<16 - 1) << 12 // bytes: as many blocks of 4096 as there can be in one

// copyParameters tells the limits (SPC-4 6.18.4).
func (t *Task) copyParameters() {
	be := binary.BigEndian
	b := make([]byte, 44)
	b[4] = 1 // SNLID: a list may have no identifier
	be.PutUint16(b[8:], maxCopyTargets)
	be.PutUint16(b[10:], maxCopySegments)
	be.PutUint32(b[12:], uint32(copyLimits.Descriptors))
	be.PutUint32(b[16:], maxSegment)
	be.PutUint16(b[34:], maxCopies) // in all, and of those that have an identifier
	b[36] = maxCopies
	b[37] = 9 // a granularity of 512 bytes
	b[43] = byte(len(copyDescriptors))
	b = append(b, copyDescriptors...)
	be.PutUint32(b, uint32(len(b)-4))
	t.answer(b)
}

// appendThirdParty appends the Third-Party Copy page (SPC-4 7.8.17).
func appendThirdParty(b []byte) []byte {
	be := binary.BigEndian
	descriptor := func(kind uint16, d []byte) {
		for len(d)%4 != 0 {
			d = append(d, 0)
		}
		b = be.AppendUint16(b, kind)
		b = append(be.AppendUint16(b, uint16(len(d))), d...)
	}
	commands := []byte{scsi.ExtendedCopy, 1, 0, scsi.ReceiveCopyResults, 3, scsi.CopyStatus, scsi.CopyParameters, scsi.CopyFailure}
	descriptor(1, append([]byte{byte(len(commands))}, commands...))
	p := be.AppendUint16(make([]byte, 4, 28), maxCopyTargets) // parameter data
	p = be.AppendUint16(p, maxCopySegments)
	p = be.AppendUint32(p, uint32(copyLimits.Descriptors))
	descriptor(4, append(p, make([]byte, 28-len(p))...))
	descriptor(8, append([]byte{byte(len(copyDescriptors))}, copyDescriptors...))
	descriptor(0xc, make([]byte, 4))     // no identifiers of units but those of descriptors
	g := be.AppendUint32(nil, maxCopies) // general copy operations
	g = be.AppendUint32(g, maxCopies)
	g = be.AppendUint32(g, maxSegment)
	g = append(g, 9) // a granularity of 512 bytes
	descriptor(0x8001, append(g, make([]byte, 32-len(g))...))
	return b
}
