package lu

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// The bits of the second byte of CDBs that move blocks.
const (
	protect = 0xe0 // RDPROTECT, WRPROTECT, VRPROTECT: there is no protection information
	fua     = 0x08
	bytchk  = 0x06
	anchor  = 0x10 // of WRITE SAME
	doUnmap = 0x08
	ndob    = 0x01
)

func (t *Task) bytes() uint32 { return t.n << t.nexus.unit.shift }
func (t *Task) off() uint64   { return t.lba << t.nexus.unit.shift }

// blockRange reads LBA and number of blocks, at most most bytes.
func (t *Task) blockRange(most uint64) bool {
	u := t.nexus.unit
	t.lba, t.n = scsi.Extent(&t.CDB)
	switch {
	case t.CDB[0] == scsi.Read6 || t.CDB[0] == scsi.Write6:
		if t.n == 0 {
			t.n = 256
		}
	case t.CDB[1]&protect != 0:
		t.refuse(invalidField(1))
		return false
	}
	if uint64(t.n)<<u.shift > most {
		t.tooLong()
		return false
	}
	return true
}

// tooLong refuses a command that is longer than what the Block Limits page allows. What lies beyond
// the end of the medium besides is told so.
func (t *Task) tooLong() {
	u := t.nexus.unit
	if blocks := u.cfg.Medium.Geometry().Size >> u.shift; t.lba >= blocks || uint64(t.n) > blocks-t.lba {
		t.refuse(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.LBAOutOfRange, Info: t.lba, HasInfo: true})
		return
	}
	t.refuse(invalidField(uint16(2 * scsi.CDBLen(t.CDB[0]) / 3)))
}

func transfer(out bool) func(*Task) {
	return func(t *Task) {
		if t.nexus.unit.isAbsent() || !t.blockRange(MaxTransfer) {
			return
		}
		t.Out, t.Length, t.reads = out, t.bytes(), !out
		if c := t.CDB[0]; c == scsi.OrWrite16 {
			t.exclude()
		} else if c == scsi.WriteVerify10 || c == scsi.WriteVerify12 || c == scsi.WriteVerify16 {
			if t.CDB[1]&bytchk > 2 {
				t.refuse(invalidField(1))
			}
		}
	}
}

// exclude keeps others away from the range while the task runs.
func (t *Task) exclude() { t.excludes, t.from, t.to = true, t.off(), t.off()+uint64(t.bytes()) }

// has reports whether the data that have come are those that the command needs. Fewer whole blocks
// are good for as many: the initiator asked for no more (RFC 7143 section 11.4.5.1).
func (t *Task) has() bool {
	if n := uint32(len(t.Buf)) >> t.nexus.unit.shift; n<<t.nexus.unit.shift != uint32(len(t.Buf)) {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInInformation})
		return false
	} else if n < t.n {
		t.n = n
	}
	if t.n == 0 {
		t.good(0)
	}
	return t.n > 0
}

func (t *Task) read() {
	switch {
	case len(t.Buf) == 0:
		t.good(t.bytes())
	case t.CDB[1]&fua != 0 && scsi.CDBLen(t.CDB[0]) != 6 && t.nexus.unit.geo.CanFlush:
		t.do(block.OpFlush, nil, 0, 0, 0, readAfterFlush) // what a cache has is to be on the medium first
	default:
		t.readBuf()
	}
}

func (t *Task) readBuf() {
	p := t.Buf[:min(int(t.bytes()), len(t.Buf))]
	t.do(block.OpRead, p, t.off(), int64(len(p)), 0, readDone)
}

func readAfterFlush(t *Task, errno syscall.Errno) {
	if !t.failed(errno, false) {
		t.readBuf()
	}
}

func readDone(t *Task, errno syscall.Errno) {
	if !t.failed(errno, true) {
		t.good(t.bytes())
	}
}

func (t *Task) write() {
	if !t.has() {
		return
	}
	t.put(t.Buf[:t.bytes()], t.CDB[1]&fua != 0 && scsi.CDBLen(t.CDB[0]) != 6, finished)
}

// put writes at the task's range, durably if so asked.
func (t *Task) put(p []byte, durable bool, step func(*Task, syscall.Errno)) {
	switch g := &t.nexus.unit.geo; {
	case durable && g.CanFUA:
		t.do(block.OpWrite, p, t.off(), int64(len(p)), block.FUA, step)
	case durable && g.CanFlush:
		t.after = step
		t.do(block.OpWrite, p, t.off(), int64(len(p)), 0, flushAfter)
	default:
		t.do(block.OpWrite, p, t.off(), int64(len(p)), 0, step)
	}
}

func flushAfter(t *Task, errno syscall.Errno) {
	if !t.failed(errno, false) {
		t.do(block.OpFlush, nil, 0, 0, 0, t.after)
	}
}

// writeVerify writes through to the medium and reads it again; with BYTCHK it compares.
func (t *Task) writeVerify() {
	if !t.has() {
		return
	}
	t.put(t.Buf[:t.bytes()], true, func(t *Task, errno syscall.Errno) {
		if !t.failed(errno, false) {
			t.verify()
		}
	})
}

func prepareVerify(t *Task) {
	if t.nexus.unit.isAbsent() || !t.blockRange(MaxTransfer) {
		return
	}
	switch t.CDB[1] & bytchk {
	case 2:
		t.Out, t.Length = true, t.bytes()
	case 4:
		t.refuse(invalidField(1))
	case 6: // one block, that all are compared with
		t.Out, t.Length = true, min(t.n, 1)<<t.nexus.unit.shift
	}
}

func (t *Task) verify() {
	if t.n == 0 {
		t.good(0)
		return
	}
	check := t.CDB[1] & bytchk
	if check == 2 && !t.has() {
		return
	}
	if bs := t.nexus.unit.cfg.BlockSize; check == 6 && uint32(len(t.Buf)) < bs {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInInformation})
		return
	}
	t.scratch, t.at = make([]byte, min(t.bytes(), maxPiece)), 0
	t.verifyNext()
}

// verifyNext reads the next piece.
func (t *Task) verifyNext() {
	n := min(int(t.bytes())-t.at, len(t.scratch))
	if n == 0 {
		t.good(0)
		return
	}
	t.do(block.OpRead, t.scratch[:n], t.off()+uint64(t.at), int64(n), 0, verified)
}

func verified(t *Task, errno syscall.Errno) {
	if t.failed(errno, true) {
		return
	}
	got := t.scratch[:min(int(t.bytes())-t.at, len(t.scratch))]
	switch t.CDB[1] & bytchk {
	case 2:
		if !t.compare(got, t.Buf[t.at:t.at+len(got)]) {
			return
		}
		t.at += len(got)
	case 6:
		for bs := int(t.nexus.unit.cfg.BlockSize); len(got) > 0; got = got[bs:] {
			if !t.compare(got[:bs], t.Buf[:bs]) {
				return
			}
			t.at += bs
		}
	default:
		t.at += len(got)
	}
	t.verifyNext()
}

// compare ends the task with MISCOMPARE, and the offset of the first byte, unless both are equal. They are
// at t.at in the data.
func (t *Task) compare(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	t.fail(scsi.Sense{Key: scsi.Miscompare, Code: scsi.MiscompareDuringVerify, Info: uint64(t.at + i), HasInfo: true})
	return false
}

// maxCompare is the most blocks of a COMPARE AND WRITE: the field has a byte, and both halves of the
// data are in one buffer.
func (u *Unit) maxCompare() uint32 { return min(255, uint32(MaxTransfer/2)>>u.shift) }

func prepareCompare(t *Task) {
	u := t.nexus.unit
	if u.isAbsent() {
		return
	}
	t.lba, t.n = binary.BigEndian.Uint64(t.CDB[2:]), uint32(t.CDB[13])
	switch {
	case t.CDB[1]&protect != 0:
		t.refuse(invalidField(1))
		return
	case t.n > u.maxCompare():
		t.tooLong()
		return
	}
	if t.Offered != 2*t.bytes() { // nothing is compared with half of what was meant
		t.refuse(invalidField(13))
		return
	}
	t.Out, t.Length = true, 2*t.bytes()
	t.exclude()
}

// compareAndWrite compares the first half of the data with the medium, of which it has a copy of
// its own, and writes the second.
func (t *Task) compareAndWrite() {
	switch {
	case t.n == 0:
		t.good(0)
		return
	case uint32(len(t.Buf)) < 2*t.bytes():
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInInformation})
		return
	}
	t.scratch = make([]byte, t.bytes())
	t.do(block.OpRead, t.scratch, t.off(), int64(len(t.scratch)), 0, func(t *Task, errno syscall.Errno) {
		n := t.bytes()
		if !t.failed(errno, true) && t.compare(t.scratch, t.Buf[:n]) {
			t.put(t.Buf[n:2*n], t.CDB[1]&fua != 0, finished)
		}
	})
}

// orWrite sets the bits of the data on the medium.
func (t *Task) orWrite() {
	if !t.has() {
		return
	}
	t.scratch = make([]byte, t.bytes())
	t.do(block.OpRead, t.scratch, t.off(), int64(len(t.scratch)), 0, func(t *Task, errno syscall.Errno) {
		if t.failed(errno, true) {
			return
		}
		for i, b := range t.Buf[:len(t.scratch)] {
			t.scratch[i] |= b
		}
		t.put(t.scratch, t.CDB[1]&fua != 0, finished)
	})
}

// wholeRange reads a range of any length; none means up to the end.
func wholeRange(t *Task) { t.lba, t.n = scsi.Extent(&t.CDB) }

// prefetch asks the medium to have the blocks ready.
func (t *Task) prefetch() {
	u := t.nexus.unit
	if !u.geo.CanCache {
		t.good(0)
		return
	}
	n := int64(t.n) << u.shift
	if n == 0 {
		n = int64(u.cfg.Medium.Geometry().Size - t.off())
	}
	if n == 0 {
		t.good(0)
		return
	}
	t.do(block.OpCache, nil, t.off(), min(n, MaxTransfer), 0, finished)
}

// synchronize flushes all that was written. IMMED does not let it answer before that is done: an
// answer that comes early could not say that it failed.
func (t *Task) synchronize() {
	if !t.nexus.unit.geo.CanFlush {
		t.good(0)
		return
	}
	t.do(block.OpFlush, nil, 0, 0, 0, finished)
}

func prepareSame(t *Task) {
	u := t.nexus.unit
	if u.isAbsent() || !t.blockRange(maxWriteSame) {
		return
	}
	f := t.CDB[1]
	noData := t.CDB[0] == scsi.WriteSame16 && f&ndob != 0
	switch {
	case f&anchor != 0, f&doUnmap != 0 && !u.canZero(), noData && f&doUnmap == 0 && !u.geo.CanWriteZeroes, f&6 != 0:
		t.refuse(invalidField(1))
		return
	case !noData && t.Offered != u.cfg.BlockSize:
		t.refuse(invalidField(uint16(2 * scsi.CDBLen(t.CDB[0]) / 3)))
		return
	case !noData:
		t.Out, t.Length = true, u.cfg.BlockSize
	}
	if blocks := u.cfg.Medium.Geometry().Size >> u.shift; t.n == 0 && t.lba < blocks { // all up to the end
		if blocks-t.lba > maxWriteSame>>u.shift {
			t.refuse(invalidField(uint16(2 * scsi.CDBLen(t.CDB[0]) / 3)))
			return
		}
		t.n = uint32(blocks - t.lba)
	}
}

// canZero reports whether a range can be unmapped such that it reads as zeroes.
func (u *Unit) canZero() bool { return u.geo.CanTrim && u.geo.CanWriteZeroes }

var zeroBlock [4096]byte

func (t *Task) writeSame() {
	u := t.nexus.unit
	n := int64(t.n) << u.shift
	if n == 0 { // at the very end
		t.good(0)
		return
	}
	if t.Out && uint32(len(t.Buf)) != u.cfg.BlockSize {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidFieldInInformation})
		return
	}
	if u.geo.CanWriteZeroes && (!t.Out || bytes.Equal(t.Buf, zeroBlock[:u.cfg.BlockSize])) {
		fl := block.NoUnmap
		if t.CDB[1]&doUnmap != 0 {
			fl = 0
		}
		t.do(block.OpWriteZeroes, nil, t.off(), n, fl, finished)
		return
	}
	t.scratch = bytes.Repeat(t.Buf, int(min(n, maxPiece)>>u.shift))
	t.at = 0
	sameNext(t, 0)
}

// sameNext writes the next piece of a WRITE SAME.
func sameNext(t *Task, errno syscall.Errno) {
	u := t.nexus.unit
	if t.failed(errno, false) {
		return
	}
	left := int64(t.n)<<u.shift - int64(t.at)
	if left == 0 {
		t.good(0)
		return
	}
	off := t.off() + uint64(t.at)
	p := t.scratch[:min(left, int64(len(t.scratch)))]
	t.at += len(p)
	t.do(block.OpWrite, p, off, int64(len(p)), 0, sameNext)
}

// unmap gives up ranges. They read as zeroes afterwards.
func (t *Task) unmap() {
	u := t.nexus.unit
	if t.CDB[1]&1 != 0 || !u.canZero() { // ANCHOR
		t.fail(invalidField(1))
		return
	}
	if len(t.Buf) == 0 {
		t.good(0)
		return
	}
	if len(t.Buf) < 8 {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.ParameterListLength})
		return
	}
	all, err := scsi.ParseUnmap(t.Buf, maxUnmapRanges)
	if err != nil {
		t.fail(invalidParameter(2))
		return
	}
	sum := uint64(0)
	blocks := u.cfg.Medium.Geometry().Size >> u.shift
	for _, r := range all {
		if r.LBA > blocks || uint64(r.Blocks) > blocks-r.LBA {
			t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.LBAOutOfRange, Info: r.LBA, HasInfo: true})
			return
		}
		sum += uint64(r.Blocks) << u.shift
	}
	if sum > maxUnmap {
		t.fail(invalidParameter(8))
		return
	}
	t.ranges, t.at = all, 0
	unmapNext(t, 0)
}

func unmapNext(t *Task, errno syscall.Errno) {
	u := t.nexus.unit
	if t.failed(errno, false) {
		return
	}
	for t.at < len(t.ranges) && t.ranges[t.at].Blocks == 0 {
		t.at++
	}
	if t.at == len(t.ranges) {
		t.good(0)
		return
	}
	r := t.ranges[t.at]
	t.at++
	t.do(block.OpWriteZeroes, nil, r.LBA<<u.shift, int64(r.Blocks)<<u.shift, 0, unmapNext)
}

func statusAllocation(t *Task) {
	t.lba = binary.BigEndian.Uint64(t.CDB[2:])
	t.n = 1 // one block must be there
	t.allocate(binary.BigEndian.Uint32(t.CDB[10:]))
}

// lbaStatus tells which blocks are mapped, from the real holes (SBC-3 5.6).
func (t *Task) lbaStatus() {
	u := t.nexus.unit
	n := min(u.cfg.Medium.Geometry().Size-t.off(), maxUnmap)
	if !u.geo.CanStatus {
		t.statusData([]block.Extent{{Length: uint32(n)}})
		return
	}
	t.n = uint32(n >> u.shift)
	t.scratch = make([]byte, block.StatusLen)
	t.do(block.OpStatus, t.scratch, t.off(), int64(n), 0, func(t *Task, errno syscall.Errno) {
		if !t.failed(errno, true) {
			t.statusData(block.ParseExtents(t.scratch, t.bytes(), t.nexus.unit.cfg.BlockSize))
		}
	})
}

func (t *Task) statusData(all []block.Extent) {
	lba := t.lba
	b := make([]byte, 8)
	for _, e := range all {
		n := e.Length >> t.nexus.unit.shift
		state := byte(0)
		if e.State&block.Hole != 0 {
			state = 1 // deallocated
		}
		b = binary.BigEndian.AppendUint64(b, lba)
		b = binary.BigEndian.AppendUint32(b, n)
		b = append(b, state, 0, 0, 0)
		lba += uint64(n)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.answer(b)
}
