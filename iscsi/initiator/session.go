package initiator

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// What a session declares and proposes, in bytes.
const (
	maxReceive = 256 << 10 // of data in one PDU
	largeData  = 32 << 10  // of which a copy costs more than a call of the system
	maxBurst   = 1 << 20
	firstBurst = 64 << 10
)

// MaxTransfer is how many bytes ReadAt and WriteAt move by one command.
const MaxTransfer = 1 << 20

const (
	// silence is how long a target may say nothing while something is asked of it, before it is pinged, and once more
	// before it is given up.
	silence = 30 * time.Second

	// A command that a target turns away is sent again, so often, after a pause.
	maxRepeats = 100
	pause      = 20 * time.Millisecond
)

// Errors of a Session, besides ErrProtocol.
var (
	ErrClosed = errors.New("initiator: the session is closed")
	ErrSilent = errors.New("initiator: the target does not answer")
	ErrAsked  = errors.New("initiator: the target asks for the end of the session")
	ErrAlign  = errors.New("initiator: not a multiple of the unit's blocks, or beyond its end")
)

// CommandError is the end of a command that is not GOOD.
type CommandError struct {
	Op       byte // of the CDB
	Response uint8
	Status   scsi.Status
	Sense    scsi.Sense // if HasSense
	HasSense bool
}

func (e *CommandError) Error() string {
	switch {
	case e.Response != iscsi.CommandCompleted:
		return fmt.Sprintf("initiator: command %#02x was not carried out: response %d", e.Op, e.Response)
	case e.HasSense:
		return fmt.Sprintf("initiator: command %#02x ends with status %#02x, sense %x/%04x", e.Op, byte(e.Status), byte(e.Sense.Key), uint16(e.Sense.Code))
	}
	return fmt.Sprintf("initiator: command %#02x ends with status %#02x", e.Op, byte(e.Status))
}

// Session is a session with one logical unit. Its methods may be called from several goroutines; each command waits in
// its caller's, and as many are under way as there are callers and the target takes.
type Session struct {
	// Blocks is how many blocks the unit has, BlockLen how long each is, in bytes.
	Blocks   uint64
	BlockLen int

	nc        net.Conn
	ahead     ahead
	r         *bufio.Reader
	lun       [8]byte
	immediate int           // bytes of a write that go with its command
	segment   int           // the longest data segment that the target takes
	burst     int           // and the most that one R2T asks for
	patient   time.Time     // when the target was given its time, by the goroutine that receives
	over      chan struct{} // closed when the session has failed
	ended     chan struct{} // closed when nothing of it runs any more

	mu              sync.Mutex // guards the fields below it
	changed         *sync.Cond // a window that opens, PDUs to be sent, or the end
	queue           []outgoing
	sent            []outgoing // memory of the batch that is sent
	sending         bool       // somebody writes to the connection
	tasks           map[uint32]*task
	itt             uint32
	cmdSN, maxCmdSN uint32
	expStatSN       uint32
	pinged          bool
	err             error
}

// outgoing is a PDU that is to be sent. Its data are its task's.
type outgoing struct {
	h    iscsi.BHS
	data []byte
	task *task
}

// task is a command that is under way.
type task struct {
	itt      uint32
	op       byte
	in, out  []byte
	moved    int // bytes that have come, or of out those that were sent or are queued; after the end those that count
	unsent   int // PDUs in the queue that have its data
	answered bool
	err      error
	done     chan struct{}
}

// Login logs in to a target's unit by a connection, which is the session's from then on. It fails with ErrRefused,
// ErrProtocol, ErrTarget, with a *CommandError if the unit is not ready, and with the network's error; the connection
// is closed then.
func Login(ctx context.Context, nc net.Conn, cfg Config) (*Session, error) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	s, err := begin(nc, cfg)
	if err == nil {
		err = s.size()
	}
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		if s != nil {
			s.fail(err)
			<-s.ended
		}
		return nil, errors.Join(err, closed(nc))
	}
	return s, nil
}

// closed closes a connection, of which nobody cares whether it was closed before.
func closed(nc net.Conn) error {
	if err := nc.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// begin logs in.
func begin(nc net.Conn, cfg Config) (*Session, error) {
	l := newLogin(nc, cfg)
	l.cmdSN = 1
	said, err := l.run([]string{"SessionType", "Normal", "TargetName", cfg.Target}, []string{
		"MaxRecvDataSegmentLength", strconv.Itoa(maxReceive), "MaxBurstLength", strconv.Itoa(maxBurst), "FirstBurstLength", strconv.Itoa(firstBurst),
		"InitialR2T", "Yes", "ImmediateData", "Yes", "MaxOutstandingR2T", "1", "MaxConnections", "1", "ErrorRecoveryLevel", "0",
		"DataPDUInOrder", "Yes", "DataSequenceInOrder", "Yes"})
	if err != nil {
		return nil, err
	}
	number := func(key string, most, absent int) int {
		n, err := strconv.ParseUint(said[key], 0, 24)
		if err != nil || n < 512 {
			return absent
		}
		return min(int(n), most)
	}
	s := &Session{nc: nc, ahead: ahead{nc, maxReceive}, lun: scsi.PutLUN(cfg.LUN), over: make(chan struct{}), ended: make(chan struct{}), tasks: map[uint32]*task{},
		cmdSN: l.cmdSN, maxCmdSN: l.cmdSN, expStatSN: l.expStatSN,
		segment: number("MaxRecvDataSegmentLength", 1<<24-1, iscsi.LoginDataSegment), burst: number("MaxBurstLength", maxBurst, maxBurst)}
	if said["ImmediateData"] != "No" {
		s.immediate = min(s.segment, number("FirstBurstLength", firstBurst, firstBurst))
	}
	s.r = bufio.NewReaderSize(&s.ahead, maxReceive)
	s.changed = sync.NewCond(&s.mu)
	go s.run()
	return s, nil
}

// run is the session's life. Whoever is told of its end finds that nobody touches a task's memory any more.
func (s *Session) run() {
	var loops sync.WaitGroup
	loops.Go(s.receive)
	loops.Go(s.send)
	loops.Wait()
	s.mu.Lock()
	for s.sending {
		s.changed.Wait()
	}
	for _, t := range s.tasks {
		t.err = s.err
		close(t.done)
	}
	s.tasks = nil
	s.mu.Unlock()
	close(s.ended)
}

// size asks for the unit's.
func (s *Session) size() error {
	if _, err := s.Do([]byte{scsi.TestUnitReady}, nil, nil); err != nil {
		return err
	}
	in := make([]byte, 32)
	n, err := s.Do([]byte{scsi.ServiceActionIn16, scsi.ReadCapacity16, 13: byte(len(in)), 15: 0}, nil, in)
	if err == nil && n >= 12 {
		s.Blocks, s.BlockLen = binary.BigEndian.Uint64(in)+1, int(binary.BigEndian.Uint32(in[8:]))
	} else {
		if n, err = s.Do([]byte{scsi.ReadCapacity10, 9: 0}, nil, in[:8]); err != nil {
			return err
		} else if n < 8 {
			return fmt.Errorf("a capacity of %d bytes: %w", n, ErrProtocol)
		}
		s.Blocks, s.BlockLen = uint64(binary.BigEndian.Uint32(in))+1, int(binary.BigEndian.Uint32(in[4:]))
	}
	const longest = 64 << 10
	if s.BlockLen < 512 || s.BlockLen > longest || s.BlockLen&(s.BlockLen-1) != 0 || s.Blocks == 0 || s.Blocks > 1<<62/uint64(s.BlockLen) {
		return fmt.Errorf("a unit of %d blocks of %d bytes: %w", s.Blocks, s.BlockLen, ErrProtocol)
	}
	return nil
}

// Size is the unit's size in bytes.
func (s *Session) Size() int64 { return int64(s.Blocks) * int64(s.BlockLen) }

// ReadAt reads whole blocks. It fails with ErrAlign, as Do does, and never with io.EOF.
func (s *Session) ReadAt(p []byte, off int64) (int, error) {
	return s.move(p, off, scsi.Read16, func(cdb, part []byte) error {
		n, err := s.Do(cdb, nil, part)
		return whole(n, part, err)
	})
}

// whole fails unless a command that has ended well has moved all of its data.
func whole(n int, part []byte, err error) error {
	if err == nil && n < len(part) {
		err = fmt.Errorf("GOOD, and %d of %d bytes were moved: %w", n, len(part), ErrProtocol)
	}
	return err
}

// WriteAt writes whole blocks, which Flush makes durable. It fails with ErrAlign, and as Do does.
func (s *Session) WriteAt(p []byte, off int64) (int, error) {
	return s.move(p, off, scsi.Write16, func(cdb, part []byte) error {
		n, err := s.Do(cdb, part, nil)
		return whole(n, part, err)
	})
}

func (s *Session) move(p []byte, off int64, op byte, do func(cdb, part []byte) error) (done int, err error) {
	block := int64(s.BlockLen)
	if off < 0 || off%block != 0 || int64(len(p))%block != 0 || off > s.Size()-int64(len(p)) {
		return 0, fmt.Errorf("%d bytes at %d of %d: %w", len(p), off, s.Size(), ErrAlign)
	}
	for done < len(p) && err == nil {
		part := p[done:min(len(p), done+MaxTransfer)]
		cdb := binary.BigEndian.AppendUint64([]byte{op, 0}, uint64((off+int64(done))/block))
		cdb = append(binary.BigEndian.AppendUint32(cdb, uint32(int64(len(part))/block)), 0, 0)
		if err = do(cdb, part); err == nil {
			done += len(part)
		}
	}
	return done, err
}

// Flush makes durable what was written. It fails as Do does.
func (s *Session) Flush() error {
	_, err := s.Do([]byte{scsi.SynchronizeCache10, 9: 0}, nil, nil)
	return err
}

// Do carries a command out: it writes out, or reads into in; n is how many bytes of either were moved. A unit attention, and a target
// that has too much to do, have it carried out again. It fails with a *CommandError, with ErrProtocol, ErrSilent, ErrAsked
// and ErrClosed, and with the network's error.
func (s *Session) Do(cdb, out, in []byte) (n int, err error) {
	for range maxRepeats {
		n, err = s.once(cdb, out, in)
		var e *CommandError
		if !errors.As(err, &e) || e.Response != iscsi.CommandCompleted {
			break
		}
		if e.Status == scsi.Busy || e.Status == scsi.TaskSetFull {
			select {
			case <-time.After(pause):
			case <-s.over:
			}
		} else if e.Status != scsi.CheckCondition || e.Sense.Key != scsi.UnitAttention {
			break
		}
	}
	return n, err
}

func (s *Session) once(cdb, out, in []byte) (int, error) {
	t := &task{op: cdb[0], in: in, out: out, done: make(chan struct{})}
	s.mu.Lock()
	for s.err == nil && int32(s.cmdSN-s.maxCmdSN) > 0 {
		s.changed.Wait()
	}
	if err := s.err; err != nil {
		s.mu.Unlock()
		return 0, err
	}
	for s.itt = (s.itt + 1) % (1 << 31); s.tasks[s.itt] != nil; s.itt = (s.itt + 1) % (1 << 31) {
	}
	t.itt, s.tasks[s.itt] = s.itt, t
	k := iscsi.Command{Final: true, Read: len(in) > 0, Write: len(out) > 0, Attr: iscsi.Simple, LUN: s.lun, ITT: s.itt, EDTL: uint32(len(in) + len(out)), CmdSN: s.cmdSN}
	copy(k.CDB[:], cdb)
	s.cmdSN++
	o := outgoing{data: out[:min(len(out), s.immediate)], task: t}
	k.Put(&o.h)
	t.moved = len(o.data)
	s.pushLocked(o)
	if s.sending || len(s.tasks) > 1 { // who waits already has more to send soon, with this
		s.changed.Broadcast()
		s.mu.Unlock()
	} else {
		batch := s.takeQueueLocked()
		s.mu.Unlock()
		s.write(batch)
	}
	<-t.done
	return t.moved, t.err
}

// pushLocked queues a PDU. Who does not send it himself broadcasts that there is one.
func (s *Session) pushLocked(o outgoing) {
	if o.task != nil {
		o.task.unsent++
	}
	s.queue = append(s.queue, o)
}

// send writes what is queued and nobody writes.
func (s *Session) send() {
	for {
		s.mu.Lock()
		for (len(s.queue) == 0 || s.sending) && s.err == nil {
			s.changed.Wait()
		}
		if s.err != nil {
			s.mu.Unlock()
			return
		}
		batch := s.takeQueueLocked()
		s.mu.Unlock()
		s.write(batch)
	}
}

// takeQueueLocked is what is queued, for write, which has to follow. What is queued meanwhile is left to send.
func (s *Session) takeQueueLocked() []outgoing {
	batch := s.queue
	s.queue, s.sent, s.sending = s.sent[:0], nil, true
	for i := range batch {
		o := &batch[i]
		o.h.SetLengths(0, len(o.data))
		binary.BigEndian.PutUint32(o.h[28:], s.expStatSN) // of all requests (RFC 7143 section 11)
	}
	return batch
}

// write writes PDUs. If it fails so does the session, and their tasks end with that.
func (s *Session) write(batch []outgoing) {
	var pad [3]byte
	vec := make(net.Buffers, 0, 3*len(batch))
	for i := range batch {
		o := &batch[i]
		vec = append(vec, o.h[:])
		if len(o.data) > 0 {
			vec = append(vec, o.data, pad[:iscsi.Pad(len(o.data))])
		}
	}
	_, err := vec.WriteTo(s.nc)
	if err != nil {
		s.fail(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending = false
	if len(s.queue) > 0 || s.err != nil {
		s.changed.Broadcast()
	}
	if err != nil {
		return
	}
	for i := range batch {
		if t := batch[i].task; t != nil {
			t.unsent--
			s.endLocked(t)
		}
		batch[i] = outgoing{}
	}
	s.sent = batch
}

// endLocked ends a task that is answered, and whose memory nobody reads any more.
func (s *Session) endLocked(t *task) {
	if t.answered && t.unsent == 0 {
		delete(s.tasks, t.itt)
		close(t.done)
	}
}

// fail ends the session.
func (s *Session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.over)
	s.nc.Close()
	s.changed.Broadcast()
}

// receive takes what comes, until the session ends.
func (s *Session) receive() {
	var err error
	for err == nil {
		err = s.one()
	}
	s.fail(err)
}

// await waits for the next PDU, and pings a target that owes something and is silent.
func (s *Session) await() error {
	for {
		s.patience()
		_, err := s.r.Peek(1)
		var late net.Error
		if !errors.As(err, &late) || !late.Timeout() {
			return err
		}
		s.mu.Lock()
		switch {
		case len(s.tasks) == 0:
		case s.pinged:
			err = ErrSilent
		default:
			s.pinged = true
			q := iscsi.NOP{Immediate: true, ITT: iscsi.NoTag - 1, TTT: iscsi.NoTag, CmdSN: s.cmdSN}
			var o outgoing
			q.PutOut(&o.h)
			s.pushLocked(o)
			s.changed.Broadcast()
		}
		s.mu.Unlock()
		if err == ErrSilent {
			return err
		}
	}
}

// patience gives the target silence, less a second, for what it says next: a deadline for each PDU would cost more than the PDU.
func (s *Session) patience() {
	if now := time.Now(); now.Sub(s.patient) > time.Second {
		s.patient = now
		s.nc.SetReadDeadline(now.Add(silence))
	}
}

// one takes one PDU.
func (s *Session) one() error {
	if err := s.await(); err != nil {
		return err
	}
	var h iscsi.BHS
	s.patience()
	if _, err := io.ReadFull(s.r, h[:]); err != nil {
		return err
	}
	n := h.DataLen()
	if h.AHSLen() != 0 || n > maxReceive {
		return fmt.Errorf("%v with %d bytes of data: %w", h.Opcode(), n, ErrProtocol)
	}
	into, t, err := s.room(&h, n)
	if err != nil {
		return err
	}
	if err := s.readData(into); err != nil {
		return err
	}
	if _, err := s.r.Discard(iscsi.Pad(n)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinged = false
	s.numbersLocked(&h)
	return s.takeLocked(&h, into, t)
}

// readData reads the data of a PDU. Much of it goes where it belongs without a way by the buffer, and lets the buffer read
// no further than the next header, so that as much can be said of the data behind that.
func (s *Session) readData(into []byte) error {
	if len(into) < largeData {
		s.ahead.most = maxReceive
		_, err := io.ReadFull(s.r, into)
		return err
	}
	s.ahead.most = iscsi.BHSLen
	n, err := io.ReadFull(s.r, into[:min(s.r.Buffered(), len(into))])
	if err == nil {
		_, err = io.ReadFull(s.nc, into[n:])
	}
	return err
}

// ahead is a connection for a buffer, which reads some bytes at a time at most.
type ahead struct {
	nc   net.Conn
	most int
}

func (a *ahead) Read(b []byte) (int, error) { return a.nc.Read(b[:min(len(b), a.most)]) }

// room is where the data of a PDU go: into the memory of its task, or anywhere.
func (s *Session) room(h *iscsi.BHS, n int) ([]byte, *task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[h.ITT()]
	switch h.Opcode() {
	case iscsi.OpDataIn, iscsi.OpResponse, iscsi.OpR2T:
		if t == nil || t.answered {
			return nil, nil, fmt.Errorf("%v for a task that there is not: %w", h.Opcode(), ErrProtocol)
		}
	}
	if h.Opcode() != iscsi.OpDataIn {
		return make([]byte, n), t, nil
	}
	// Data come in order, as was agreed: so none of them is missing, or there twice.
	off := uint64(h.BufferOffset())
	if off != uint64(t.moved) || off+uint64(n) > uint64(len(t.in)) {
		return nil, nil, fmt.Errorf("%d bytes at %d, where those from %d to %d were expected: %w", n, off, t.moved, len(t.in), ErrProtocol)
	}
	return t.in[off : off+uint64(n)], t, nil
}

// numbersLocked takes what a PDU says about numbers (RFC 7143 section 4.2.2).
func (s *Session) numbersLocked(h *iscsi.BHS) {
	n := iscsi.ParseReject(h).Numbers // which all PDUs of targets have at the same place
	if int32(n.MaxCmdSN-s.maxCmdSN) > 0 {
		s.maxCmdSN = n.MaxCmdSN
		s.changed.Broadcast()
	}
	counts := true
	switch h.Opcode() {
	case iscsi.OpR2T:
		counts = false
	case iscsi.OpDataIn:
		counts = h[1]&1 != 0 // with status
	case iscsi.OpNOPIn:
		counts = h.ITT() != iscsi.NoTag
	}
	if counts {
		s.expStatSN = n.StatSN + 1
	}
}

// takeLocked handles a PDU whose data have come.
func (s *Session) takeLocked(h *iscsi.BHS, data []byte, t *task) error {
	switch h.Opcode() {
	case iscsi.OpDataIn:
		d, err := iscsi.ParseDataIn(h)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		t.moved += len(data)
		if d.HasStatus {
			s.answeredLocked(t, iscsi.Response{Response: iscsi.CommandCompleted, Status: d.Status, Residual: d.Residual}, nil)
		}
	case iscsi.OpResponse:
		r, err := iscsi.ParseResponse(h)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		s.answeredLocked(t, r, data)
	case iscsi.OpR2T:
		return s.answerLocked(h, t)
	case iscsi.OpNOPIn:
		n, err := iscsi.ParseNOPIn(h)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if n.ITT == iscsi.NoTag && n.TTT != iscsi.NoTag {
			q := iscsi.NOP{Immediate: true, LUN: n.LUN, ITT: iscsi.NoTag, TTT: n.TTT, CmdSN: s.cmdSN}
			var o outgoing
			q.PutOut(&o.h)
			s.pushLocked(o)
			s.changed.Broadcast()
		}
	case iscsi.OpLogoutResp:
		return ErrClosed
	case iscsi.OpAsync:
		if iscsi.ParseAsync(h).Event != 0 { // other than sense data
			return ErrAsked
		}
	case iscsi.OpReject:
		return fmt.Errorf("the target rejects what was sent, for the reason %d: %w", iscsi.ParseReject(h).Reason, ErrProtocol)
	default:
		return fmt.Errorf("%v, which nothing has asked for: %w", h.Opcode(), ErrProtocol)
	}
	return nil
}

// answeredLocked takes the answer to a task.
func (s *Session) answeredLocked(t *task, r iscsi.Response, data []byte) {
	if r.Response != iscsi.CommandCompleted || scsi.Status(r.Status) != scsi.Good {
		e := &CommandError{Op: t.op, Response: r.Response, Status: scsi.Status(r.Status)}
		if b, err := iscsi.ParseSense(data); err == nil && len(b) > 0 {
			e.Sense, err = scsi.ParseSense(b)
			e.HasSense = err == nil
		}
		t.err = e
	}
	if r.Residual.Underflow { // of what was sent so many were not taken
		t.moved = min(t.moved, len(t.in)+len(t.out)-int(min(r.Residual.Count, uint32(len(t.in)+len(t.out)))))
	}
	t.answered = true
	s.endLocked(t)
}

// answerLocked queues the data that an R2T asks for.
func (s *Session) answerLocked(h *iscsi.BHS, t *task) error {
	r, err := iscsi.ParseR2T(h)
	if err != nil || r.Length == 0 || int64(r.Offset) != int64(t.moved) || uint64(r.Offset)+uint64(r.Length) > uint64(len(t.out)) || int(r.Length) > s.burst {
		return fmt.Errorf("an R2T for %d bytes at %d of %d (%v): %w", r.Length, r.Offset, len(t.out), err, ErrProtocol)
	}
	end := r.Offset + r.Length
	for off, sn := r.Offset, uint32(0); off < end; sn++ {
		n := min(end-off, uint32(s.segment))
		d := iscsi.DataOut{Final: off+n == end, LUN: r.LUN, ITT: r.ITT, TTT: r.TTT, DataSN: sn, Offset: off}
		o := outgoing{data: t.out[off : off+n], task: t}
		d.Put(&o.h)
		s.pushLocked(o)
		off += n
	}
	t.moved = int(end)
	s.changed.Broadcast()
	return nil
}

// Close logs out, and ends the session. What is under way fails with ErrClosed. It never fails.
func (s *Session) Close() error {
	s.mu.Lock()
	idle := s.err == nil && len(s.tasks) == 0
	if idle {
		q := iscsi.Logout{Immediate: true, Reason: iscsi.CloseSession, ITT: iscsi.NoTag - 2, CmdSN: s.cmdSN}
		var o outgoing
		q.Put(&o.h)
		s.pushLocked(o)
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	if idle {
		select {
		case <-s.over:
		case <-time.After(logoutTime):
		}
	}
	s.fail(ErrClosed)
	<-s.ended
	return nil
}

// logoutTime is how long a target may take for its answer to a Logout.
const logoutTime = 2 * time.Second
