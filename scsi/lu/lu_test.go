package lu

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// memory is a Medium in memory.
type memory struct {
	mu    sync.Mutex // guards the fields below it
	data  []byte
	errno map[block.Op]syscall.Errno
	held  chan struct{} // if set, I/O completes once it is closed
	calls []block.Op
	holes []block.Extent // what OpStatus says; nil: all is data

	onWrite func(off int64, buf []byte)
}

func newMemory(n int) *memory { return &memory{data: make([]byte, n)} }

func (m *memory) Geometry() block.Geometry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return block.Geometry{Size: uint64(len(m.data)), PreferredBlock: 4096, CanFlush: true, CanFUA: true, CanTrim: true, CanWriteZeroes: true, CanCache: true, CanStatus: true}
}

func (m *memory) Identity() block.Identity    { return block.Identity{Disk: block.NamedID("x")} }
func (m *memory) NewQueue(func()) block.Queue { return memoryQueue{m} }

type memoryQueue struct{ m *memory }

func (memoryQueue) Close() error { return nil }

func (q memoryQueue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	m := q.m
	m.mu.Lock()
	held := m.held
	m.calls = append(m.calls[:min(len(m.calls), 100)], op)
	m.mu.Unlock()
	if held != nil {
		go func() { <-held; done.Complete(m.carryOut(op, buf, off, n)) }()
		return false
	}
	done.Complete(m.carryOut(op, buf, off, n))
	return true
}

func (m *memory) carryOut(op block.Op, buf []byte, off, n int64) syscall.Errno {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.errno[op]; e != 0 {
		return e
	}
	p := m.data[off : off+n]
	switch op {
	case block.OpRead:
		copy(buf, p)
	case block.OpWrite:
		if m.onWrite != nil {
			m.onWrite(off, buf)
		}
		copy(p, buf)
	case block.OpWriteZeroes:
		clear(p)
	case block.OpStatus:
		all := m.holes
		if all == nil {
			all = []block.Extent{{Length: uint32(n)}}
		}
		block.PutExtents(buf, all)
	}
	return 0
}

// initiator is a port that does one thing after the other.
type initiator struct {
	t testing.TB
	*Port
	lun  [8]byte
	task Task
	over chan struct{}
}

func newInitiator(t testing.TB, d *Device, name string) *initiator {
	i := &initiator{t: t, Port: d.Attach(Initiator{Name: name}, nil), over: make(chan struct{}, 1)}
	i.task.Ended = func(*Task) { i.over <- struct{}{} }
	i.do(nil, scsi.TestUnitReady) // takes the first unit attention
	return i
}

// do carries a command out and returns its status and its sense.
func (i *initiator) do(out []byte, cdb ...byte) (scsi.Status, scsi.Sense) {
	i.begin(out, cdb...)
	<-i.over
	s, _ := scsi.ParseSense(i.task.Sense())
	return i.task.Status, s
}

func (i *initiator) begin(out []byte, cdb ...byte) {
	n := i.Nexus(i.lun)
	i.task.CDB = [16]byte{}
	copy(i.task.CDB[:], cdb)
	i.task.Offered = uint32(len(out))
	n.Prepare(&i.task)
	n.Begin(&i.task)
	if i.task.Out {
		i.task.Buf = out[:min(len(out), int(i.task.Length))]
	} else {
		i.task.Buf = make([]byte, i.task.Length)
	}
	n.Execute(&i.task)
}

func (i *initiator) in() []byte { return i.task.Buf[:i.task.InLen] }

func (i *initiator) want(status scsi.Status, code scsi.Code, out []byte, cdb ...byte) {
	i.t.Helper()
	if st, s := i.do(out, cdb...); st != status || s.Code != code {
		i.t.Errorf("%x: status %#x, sense %+v; want %#x, %#x", cdb, st, s, status, code)
	}
}

func newDevice(t testing.TB, cfg Config) *Device {
	t.Helper()
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{Name: "iqn.x:t", PortalGroup: 1}
	if err := d.Add(0, u); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestReadsAndWrites(t *testing.T) {
	m := newMemory(1 << 20)
	i := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
	data := bytes.Repeat([]byte("data"), 256)
	i.want(scsi.Good, 0, data, scsi.Write10, 0, 0, 0, 0, 3, 0, 0, 2)
	i.want(scsi.Good, 0, nil, scsi.Read16, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2)
	if !bytes.Equal(i.in(), data) {
		t.Error("what was written is not read")
	}
	i.want(scsi.Good, 0, nil, scsi.Read6, 0, 0, 3, 2)
	i.want(scsi.CheckCondition, scsi.LBAOutOfRange, data, scsi.Write10, 0, 0, 0, 7, 0xff, 0, 0, 2)
	i.want(scsi.CheckCondition, scsi.LBAOutOfRange, nil, scsi.Read16, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 2)
	i.want(scsi.CheckCondition, scsi.InvalidFieldInInformation, data[:200], scsi.Write10, 0, 0, 0, 0, 3, 0, 0, 1)
	i.want(scsi.CheckCondition, scsi.InvalidOperationCode, nil, 0xff)
	i.want(scsi.Good, 0, data[:512], scsi.WriteSame10, 0, 0, 0, 0, 8, 0, 0, 9)
	i.want(scsi.Good, 0, data[:512], scsi.Verify10, 6, 0, 0, 0, 8, 0, 0, 9)
	i.want(scsi.CheckCondition, scsi.MiscompareDuringVerify, append(make([]byte, 511), 1), scsi.Verify10, 6, 0, 0, 0, 8, 0, 0, 9)
	i.lun[1] = 5
	i.want(scsi.CheckCondition, scsi.LogicalUnitNotSupported, nil, scsi.TestUnitReady)
	i.want(scsi.Good, 0, nil, scsi.Inquiry, 0, 0, 0, 96)
	if i.in()[0] != 0x7f {
		t.Error("a unit that there is not says that there is one")
	}
}

// TestFailuresAreNotGood: what the medium could not do, a flush above all, is never GOOD.
func TestFailuresAreNotGood(t *testing.T) {
	for op, cdb := range map[block.Op][]byte{
		block.OpFlush:       {scsi.SynchronizeCache10, 2},
		block.OpRead:        {scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1},
		block.OpWrite:       {scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1},
		block.OpWriteZeroes: {scsi.Unmap, 0, 0, 0, 0, 0, 0, 0, 24},
	} {
		m := newMemory(1 << 20)
		i := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
		m.errno = map[block.Op]syscall.Errno{op: syscall.EIO}
		out := make([]byte, 512)
		copy(out, []byte{0, 22, 0, 16, 19: 1})
		if st, s := i.do(out, cdb...); st != scsi.CheckCondition || s.Key != scsi.MediumError {
			t.Errorf("%v: %#x %+v", op, st, s)
		}
	}
}

// TestCompareAndWriteIsAtomic: a counter that two paths increment by COMPARE AND WRITE loses nothing.
func TestCompareAndWriteIsAtomic(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	const rounds = 200
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		i := newInitiator(t, d, name)
		wg.Go(func() {
			for n := 0; n < rounds; {
				i.do(nil, scsi.Read10, 0, 0, 0, 0, 7, 0, 0, 1)
				both := append(slices.Clone(i.in()), i.in()...)
				binary.BigEndian.PutUint64(both[512:], binary.BigEndian.Uint64(both)+1)
				switch st, s := i.do(both, scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1); {
				case st == scsi.Good:
					n++
				case s.Key != scsi.Miscompare:
					t.Errorf("%#x %+v", st, s)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := binary.BigEndian.Uint64(m.data[7*512:]); n != 2*rounds {
		t.Errorf("%d of %d increments", n, 2*rounds)
	}
}

// TestExclusiveRangeWaits: a write to the range of a COMPARE AND WRITE that is under way waits for
// it, and one elsewhere does not.
func TestExclusiveRangeWaits(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	a, b, c := newInitiator(t, d, "a"), newInitiator(t, d, "b"), newInitiator(t, d, "c")
	held := make(chan struct{})
	m.mu.Lock()
	m.held = held
	m.mu.Unlock()
	new := bytes.Repeat([]byte{1}, 512)
	a.begin(append(make([]byte, 512), new...), scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1)
	m.mu.Lock()
	m.held = nil
	m.mu.Unlock()
	b.begin(bytes.Repeat([]byte{2}, 512), scsi.Write10, 0, 0, 0, 0, 7, 0, 0, 1)
	if c.want(scsi.Good, 0, new, scsi.Write10, 0, 0, 0, 0, 8, 0, 0, 1); len(b.over) != 0 {
		t.Error("the write did not wait")
	}
	close(held)
	<-a.over
	<-b.over
	if a.task.Status != scsi.Good || m.data[7*512] != 2 {
		t.Errorf("%#x, %d", a.task.Status, m.data[7*512])
	}
}

func persistentOut(action byte, kind scsi.Type) []byte {
	return []byte{scsi.PersistentReserveOut, action, byte(kind), 0, 0, 0, 0, 0, 24}
}

func keys(mine, other uint64, flags byte) []byte {
	b := make([]byte, 24)
	binary.BigEndian.PutUint64(b, mine)
	binary.BigEndian.PutUint64(b[8:], other)
	b[20] = flags
	return b
}

func TestPersistentReservationsOutliveARestart(t *testing.T) {
	for _, aptpl := range []byte{0, 1} {
		m := newMemory(1 << 20)
		cfg := Config{Medium: m, Reservations: filepath.Join(t.TempDir(), "reservations")}
		d := newDevice(t, cfg)
		a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
		a.want(scsi.Good, 0, keys(0, 1, aptpl), persistentOut(scsi.Register, 0)...)
		a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
		write := []byte{scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1}
		for range 2 {
			b.want(scsi.ReservationConflict, 0, make([]byte, 512), write...)
			b.want(scsi.Good, 0, nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
			a.want(scsi.Good, 0, make([]byte, 512), write...)
			a.Detach() // the loss of a nexus changes nothing
			a = newInitiator(t, d, "a")
		}
		d = newDevice(t, cfg)
		b = newInitiator(t, d, "b")
		want := scsi.Good
		if aptpl == 1 {
			want = scsi.ReservationConflict
		}
		if b.want(want, 0, make([]byte, 512), write...); aptpl == 0 {
			continue
		}
		b.want(scsi.Good, 0, keys(0, 2, aptpl), persistentOut(scsi.Register, 0)...)
		b.want(scsi.Good, 0, keys(2, 1, 0), persistentOut(scsi.Preempt, scsi.ExclusiveAccess)...)
		a = newInitiator(t, d, "a")
		a.want(scsi.ReservationConflict, 0, nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
		b.want(scsi.Good, 0, keys(2, 0, 0), persistentOut(scsi.Clear, 0)...)
		a.want(scsi.Good, 0, make([]byte, 512), write...)
	}
	if _, err := New(Config{Medium: newMemory(512), Reservations: t.TempDir()}); err == nil {
		t.Error("reservations that cannot be read are none")
	}
	path := filepath.Join(t.TempDir(), "r")
	os.WriteFile(path, []byte(`{"keys":{"a":1},"holder":"b","type":1}`), 0o600)
	if _, err := New(Config{Medium: newMemory(512), Reservations: path}); err == nil {
		t.Error("a reservation of nobody")
	}
}

func TestReserve6EndsWithTheNexus(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	a.want(scsi.Good, 0, nil, scsi.Reserve6)
	b.want(scsi.ReservationConflict, 0, nil, scsi.TestUnitReady)
	b.want(scsi.Good, 0, nil, scsi.Release6)
	b.want(scsi.ReservationConflict, 0, nil, scsi.Reserve6)
	a.Detach()
	b.want(scsi.Good, 0, nil, scsi.TestUnitReady)
}

// TestAbortWaitsForTheMedium: a function is complete when what it aborts can have no effect any more.
func TestAbortWaitsForTheMedium(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	m.held = make(chan struct{})
	a.begin(make([]byte, 512), scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1)
	var done atomic.Bool
	complete := make(chan struct{})
	n := b.Nexus(b.lun)
	n.Abort(nil, func() { n.Reset(scsi.BusDeviceReset); done.Store(true); close(complete) })
	if done.Load() {
		t.Error("complete while the medium has a write")
	}
	close(m.held)
	<-a.over
	<-complete
	m.held = nil
	if !a.task.Aborted {
		t.Error("an aborted task has a status")
	}
	for _, i := range []*initiator{a, b} {
		i.want(scsi.CheckCondition, scsi.BusDeviceReset, nil, scsi.TestUnitReady)
		i.want(scsi.Good, 0, nil, scsi.TestUnitReady)
	}
}

func TestReadsAndWritesAllocateNothing(t *testing.T) {
	i := newInitiator(t, newDevice(t, Config{Medium: newMemory(1 << 20)}), "a")
	n := i.Nexus(i.lun)
	buf := make([]byte, 4096)
	for _, c := range []byte{scsi.Read10, scsi.Write10} {
		got := testing.AllocsPerRun(100, func() {
			i.task.CDB = [16]byte{c, 8: 8}
			n.Prepare(&i.task)
			n.Begin(&i.task)
			i.task.Buf = buf
			n.Execute(&i.task)
			<-i.over
		})
		if got != 0 || i.task.Status != scsi.Good {
			t.Errorf("%#x: %v allocations, status %#x", c, got, i.task.Status)
		}
	}
}

// FuzzCommand proves that every CDB with whatever data ends once, and says no more than was asked.
func FuzzCommand(f *testing.F) {
	for i := range commands {
		f.Add(append([]byte{commands[i].opcode, byte(max(commands[i].action, 0))}, commands[i].usage[1:]...), []byte("0123456789"), false)
	}
	f.Fuzz(func(t *testing.T, cdb, out []byte, removable bool) {
		i := newInitiator(t, newDevice(t, Config{Medium: newMemory(64 << 10), Removable: removable}), "a")
		st, s := i.do(out, cdb...)
		if i.task.InLen > i.task.Length || len(i.over) > 0 {
			t.Fatal(i.task.InLen, i.task.Length)
		}
		if (st == scsi.CheckCondition) != (s.Key != 0) {
			t.Fatalf("%#x %+v", st, s)
		}
		i.Detach()
	})
}

// TestHeadOfQueueDoesNotSplitAtomicCommands: not even a HEAD OF QUEUE write comes between what COMPARE AND WRITE
// reads and what it writes.
func TestHeadOfQueueDoesNotSplitAtomicCommands(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	release := m.hold()
	a.begin(append(make([]byte, 512), bytes.Repeat([]byte{1}, 512)...), scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1)
	m.mu.Lock()
	m.held = nil
	m.mu.Unlock()
	b.task.Attr = HeadOfQueue
	b.begin(bytes.Repeat([]byte{2}, 512), scsi.Write10, 0, 0, 0, 0, 7, 0, 0, 1)
	if len(b.over) > 0 {
		t.Error("it did not wait")
	}
	release()
	<-a.over
	<-b.over
	if a.task.Status != scsi.Good || m.data[7*512] != 2 {
		t.Errorf("%#x, %d", a.task.Status, m.data[7*512])
	}
}

// TestAnswersOfWhatHasWaitedAreSent: the transport of a command that ends on a goroutine of another session is told.
func TestAnswersOfWhatHasWaitedAreSent(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	a := newInitiator(t, d, "a")
	var answers, sent atomic.Int32
	flushed := make(chan struct{}, 100)
	b := d.Attach(Initiator{Name: "b"}, func() { sent.Store(answers.Load()); flushed <- struct{}{} })
	task := Task{Ended: func(*Task) { answers.Add(1) }}
	n := b.Nexus([8]byte{})
	run := func(cdb ...byte) {
		task.CDB = [16]byte{}
		copy(task.CDB[:], cdb)
		n.Prepare(&task)
		n.Begin(&task)
		task.Buf = make([]byte, task.Length)
		n.Execute(&task)
	}
	run(scsi.TestUnitReady)
	release := m.hold()
	a.begin(make([]byte, 1024), scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1)
	m.mu.Lock()
	m.held = nil
	m.mu.Unlock()
	run(scsi.Read10, 0, 0, 0, 0, 7, 0, 0, 1)
	if answers.Load() != 1 {
		t.Error("it did not wait")
	}
	release()
	<-a.over
	<-flushed
	if sent.Load() != 2 || task.Status != scsi.Good {
		t.Error(sent.Load(), task.Status)
	}
}
