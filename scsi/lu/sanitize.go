package lu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// erasureState is where a unit is with SANITIZE (SBC-3 4.11):
//
//	           SANITIZE            all is written
//	erased ---------------> erasing -------------> erased
//	  ^                      |   ^
//	  | EXIT FAILURE MODE,   |   | SANITIZE
//	  | if AUSE was set      v   |
//	  +-------------------- failed
//
// The file of a unit has one of them; erasing, at a start, means that it has failed.
type erasureState string

const (
	erased  erasureState = "" // or never asked for
	erasing erasureState = "erasing"
	failed  erasureState = "failed"
)

// erasure is what a unit knows of SANITIZE.
type erasure struct {
	State erasureState `json:"state"`
	// Exit says that EXIT FAILURE MODE may end a failure (AUSE).
	Exit bool `json:"exit"`

	task *Task // waits for the end, nil if none does
}

// load reads the file. One that is not there means that nothing was ever asked for. It fails with
// the file system's error, and if the file is not what save writes.
func (e *erasure) load(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, e)
	}
	switch {
	case err != nil:
		return err
	case e.State == erasing:
		e.State = failed // the one who did it has gone
	case e.State != erased && e.State != failed:
		return fmt.Errorf("%s: no state %q", path, e.State)
	}
	return nil
}

// erasureSenseLocked is what commands get meanwhile, nil if they are carried out. SANITIZE is after a
// failure.
func (u *Unit) erasureSenseLocked(sanitize bool) *scsi.Sense {
	switch {
	case u.erasure.State == erasing:
		return &scsi.Sense{Key: scsi.NotReady, Code: scsi.SanitizeInProgress, HasProgress: true, Progress: uint16(u.progress.Load())}
	case u.erasure.State == failed && !sanitize:
		return &scsi.Sense{Key: scsi.MediumError, Code: scsi.SanitizeFailed}
	}
	return nil
}

// The bits of SANITIZE's second byte.
const (
	immediate        = 0x80
	unrestrictedExit = 0x20
)

func prepareSanitize(t *Task) {
	u := t.nexus.unit
	t.Attr = HeadOfQueue // Seagate's manual, 3.41.1
	n := uint32(t.CDB[7])<<8 | uint32(t.CDB[8])
	switch {
	case t.CDB[1]&0x40 != 0:
		t.refuse(invalidField(1))
	case !bytes.Equal(t.CDB[2:7], make([]byte, 5)):
		t.refuse(invalidField(2))
	case t.cmd.action != scsi.Overwrite && n != 0, t.cmd.action == scsi.Overwrite && (n < 5 || n > u.cfg.BlockSize+4):
		t.refuse(invalidField(7))
	default:
		t.Out, t.Length = n > 0, n
	}
}

// sanitize has all of the medium written. It goes on whatever becomes of the command, the nexus and
// the unit's tasks. Until it has ended others get that it is under way.
func (t *Task) sanitize() {
	u := t.nexus.unit
	erase := u.blockErase
	if t.cmd.action == scsi.Overwrite {
		list, err := scsi.ParseOverwrite(t.Buf, u.cfg.BlockSize)
		if err != nil {
			t.fail(invalidParameter(0))
			return
		}
		list.Pattern = bytes.Clone(list.Pattern)
		erase = func(q *eraser) error { return u.overwrite(q, &list) }
	}
	exit, immed := t.CDB[1]&unrestrictedExit != 0, t.CDB[1]&immediate != 0
	u.mu.Lock()
	before, beforeExit := u.erasure.State, u.erasure.Exit
	if before == failed && !beforeExit && exit {
		u.mu.Unlock()
		t.fail(invalidField(1)) // who began in restricted completion mode stays there
		return
	}
	u.erasure = erasure{State: erasing, Exit: exit, task: t}
	u.progress.Store(0)
	u.work.Add(1)
	u.mu.Unlock()
	go func() {
		defer u.work.Done()
		if u.write(u.cfg.Sanitize, &erasure{State: erasing, Exit: exit}) != nil {
			u.erasureEnds(before, beforeExit, &scsi.Sense{Key: scsi.HardwareError, Code: scsi.InternalTargetFailure})
			return
		}
		if immed {
			u.answerErasure(nil)
		}
		settled := make(chan struct{})
		u.settle(t, func() { close(settled) })
		<-settled
		q := &eraser{u: u, queue: u.cfg.Medium.NewQueue(nil), answer: make(chan syscall.Errno, 1)}
		err := erase(q)
		q.queue.Close()
		if err == nil {
			err = u.write(u.cfg.Sanitize, &erasure{})
		}
		if err != nil {
			u.erasureEnds(failed, exit, &scsi.Sense{Key: scsi.MediumError, Code: scsi.SanitizeFailed})
			return
		}
		u.erasureEnds(erased, false, nil)
	}()
}

// erasureEnds notes where SANITIZE has come to, and answers the command, if that still waits.
func (u *Unit) erasureEnds(s erasureState, exit bool, why *scsi.Sense) {
	u.mu.Lock()
	u.erasure.State, u.erasure.Exit = s, exit
	u.mu.Unlock()
	u.answerErasure(why)
}

func (u *Unit) answerErasure(why *scsi.Sense) {
	u.mu.Lock()
	t := u.erasure.task
	u.erasure.task = nil
	u.mu.Unlock()
	if t == nil {
		return
	}
	t.nexus.port.elsewhere(func() {
		if why != nil {
			t.fail(*why)
		} else {
			t.good(0)
		}
	})
}

// exitFailureMode makes a unit usable again whose SANITIZE has failed, if that had AUSE.
func (t *Task) exitFailureMode() {
	u := t.nexus.unit
	u.mu.Lock()
	state, exit := u.erasure.State, u.erasure.Exit
	if state == failed && exit {
		u.erasure.State = erasing // for others, until it is in the file
		u.work.Add(1)
	}
	u.mu.Unlock()
	switch {
	case state == erased:
		t.good(0)
		return
	case !exit:
		t.fail(invalidField(1))
		return
	}
	go func() {
		defer u.work.Done()
		err := u.write(u.cfg.Sanitize, &erasure{})
		u.mu.Lock()
		if u.erasure.State = erased; err != nil {
			u.erasure.State = failed
		}
		u.mu.Unlock()
		t.nexus.port.elsewhere(func() {
			if err != nil {
				t.fail(scsi.Sense{Key: scsi.HardwareError, Code: scsi.InternalTargetFailure})
			} else {
				t.good(0)
			}
		})
	}()
}

// eraser does one I/O after the other.
type eraser struct {
	u          *Unit
	queue      block.Queue
	answer     chan syscall.Errno
	all, bytes uint64 // to do, and done
}

// Complete implements block.Completion.
func (q *eraser) Complete(errno syscall.Errno) { q.answer <- errno }

var errClosing = errors.New("lu: the unit is being closed")

// do does an I/O and counts it. It fails with the I/O's error, and once the unit is being closed.
func (q *eraser) do(op block.Op, buf []byte, off, n uint64, fl block.Flags) error {
	select {
	case <-q.u.closing:
		return errClosing
	default:
	}
	q.queue.Do(op, buf, int64(off), int64(n), fl, q)
	if errno := <-q.answer; errno != 0 {
		return errno
	}
	q.bytes += n
	q.u.progress.Store(uint32(min(0xffff, q.bytes>>q.u.shift*0x10000/max(1, q.all>>q.u.shift))))
	return nil
}

func (q *eraser) flush() error {
	if !q.u.geo.CanFlush {
		return nil
	}
	return q.do(block.OpFlush, nil, 0, 0, 0)
}

// fill writes the same to a range.
func (q *eraser) fill(buf []byte, off, n uint64) error {
	for end := off + n; off < end; {
		k := min(end-off, uint64(len(buf)))
		if err := q.do(block.OpWrite, buf[:k], off, k, 0); err != nil {
			return err
		}
		off += k
	}
	return nil
}

// overwrite writes the pattern to every block, as often as asked, each time down to the medium. With
// INVERT the last time is the pattern as it was given.
func (u *Unit) overwrite(q *eraser, l *scsi.OverwriteList) error {
	size := u.cfg.Medium.Geometry().Size
	q.all = size * uint64(l.Count)
	one := bytes.Repeat(l.Pattern, int(u.cfg.BlockSize)/len(l.Pattern)+1)[:u.cfg.BlockSize]
	buf := bytes.Repeat(one, MaxTransfer>>u.shift)
	for left := l.Count; left > 0; left-- {
		if l.Invert && (left%2 == 0 || left < l.Count) {
			for i := range buf {
				buf[i] ^= 0xff
			}
		}
		if err := q.fill(buf, 0, size); err != nil {
			return err
		}
		if err := q.flush(); err != nil {
			return err
		}
	}
	return nil
}

// blockErase writes zeroes over all that is not a hole, down to the medium, and gives the space up
// then: to punch holes alone would leave the data in free space.
func (u *Unit) blockErase(q *eraser) error {
	size := u.cfg.Medium.Geometry().Size
	q.all = 2 * size
	zeroes, answer := make([]byte, MaxTransfer), make([]byte, block.StatusLen)
	for off := uint64(0); off < size; {
		n := min(size-off, maxUnmap)
		extents := []block.Extent{{Length: uint32(n)}}
		if u.geo.CanStatus {
			if err := q.do(block.OpStatus, answer, off, n, 0); err != nil {
				return err
			}
			q.bytes -= n
			extents = block.ParseExtents(answer, uint32(n), u.cfg.BlockSize)
		}
		for _, e := range extents {
			n := uint64(e.Length)
			if e.State&block.Hole != 0 {
				q.bytes += n
			} else if err := q.fill(zeroes, off, n); err != nil {
				return err
			}
			off += n
		}
	}
	if err := q.flush(); err != nil {
		return err
	}
	for off := uint64(0); off < size; {
		n := min(size-off, maxUnmap)
		if err := q.do(block.OpWriteZeroes, nil, off, n, 0); err != nil {
			return err
		}
		off += n
	}
	return q.flush()
}
