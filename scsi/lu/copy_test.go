package lu

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// named is a disk with an identity of its own.
type named struct {
	*memory
	name string
}

func (n named) Identity() block.Identity { return block.Identity{Disk: block.NamedID(n.name)} }

// newPair returns a device with two units, the second of blocks of 4096 bytes.
func newPair(t testing.TB) (*Device, [2]*memory) {
	m := [2]*memory{newMemory(4 << 20), newMemory(4 << 20)}
	for i := range m[0].data {
		m[0].data[i] = byte(i>>9) ^ byte(i>>17)
	}
	d := newDevice(t, Config{Medium: named{m[0], "first"}})
	u, err := New(Config{Medium: named{m[1], "second"}, BlockSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Add(1, u); err != nil {
		t.Fatal(err)
	}
	return d, m
}

// target is a target descriptor of a unit.
func target(d *Device, lun uint16) []byte {
	u := d.units[lun]
	b := make([]byte, 4, 32)
	b[0] = scsi.CopyIdentification
	b = scsi.AppendDesignator(b, u.naa())
	b = append(b, make([]byte, 28-len(b))...)
	return binary.BigEndian.AppendUint32(b, u.cfg.BlockSize)
}

func segment(from, to uint16, n uint16, fromLBA, toLBA uint64) []byte {
	be := binary.BigEndian
	b := be.AppendUint16([]byte{scsi.CopyBlockToBlock, 2, 0, 24}, from)
	b = be.AppendUint16(b, to)
	b = be.AppendUint16(append(b, 0, 0), n)
	return be.AppendUint64(be.AppendUint64(b, fromLBA), toLBA)
}

func copyOf(id, usage byte, targets [][]byte, segments ...[]byte) []byte {
	b := make([]byte, 16)
	b[0], b[1] = id, usage<<3
	binary.BigEndian.PutUint16(b[2:], uint16(len(targets)*32))
	binary.BigEndian.PutUint32(b[8:], uint32(len(segments)*28))
	return slices.Concat(b, slices.Concat(targets...), slices.Concat(segments...))
}

func copyCDB(list []byte) []byte {
	return append(make([]byte, 10, 14), 0, 0, byte(len(list)>>8), byte(len(list)))
}

func (i *initiator) copy(list []byte) (scsi.Status, scsi.Sense) {
	cdb := copyCDB(list)
	cdb[0] = scsi.ExtendedCopy
	return i.do(list, cdb...)
}

// receive is RECEIVE COPY RESULTS; it returns nil if that is refused.
func (i *initiator) receive(action, id byte) []byte {
	if st, s := i.do(nil, scsi.ReceiveCopyResults, action, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0); st != scsi.Good {
		if s.Code != scsi.InvalidFieldInCDB {
			i.t.Errorf("%#x %+v", st, s)
		}
		return nil
	}
	return i.in()
}

func TestCopiesWithinAndBetweenUnits(t *testing.T) {
	d, m := newPair(t)
	i := newInitiator(t, d, "a")
	both := [][]byte{target(d, 0), target(d, 1)}
	// 3 MiB and a bit from the first to the second, and then back to elsewhere.
	const n = 3<<20 + 4096
	list := copyOf(5, 0, both, segment(0, 1, n/4096, 8, 1), segment(1, 0, 128, 1, 7<<10))
	if st, s := i.copy(list); st != scsi.Good {
		t.Fatalf("%#x %+v", st, s)
	}
	if !bytes.Equal(m[1].data[4096:4096+n], m[0].data[8*512:8*512+n]) || !bytes.Equal(m[0].data[7<<19:7<<19+65536], m[1].data[4096:4096+65536]) {
		t.Error("not what was to be copied")
	}
	if b := i.receive(scsi.CopyStatus, 5); !bytes.Equal(b[:12], binary.BigEndian.AppendUint32([]byte{0, 0, 0, 8, 1, 0, 2, 0}, n+65536)) {
		t.Errorf("%x", b)
	}
	if i.receive(scsi.CopyStatus, 6) != nil || i.receive(scsi.CopyFailure, 5) != nil || newInitiator(t, d, "b").receive(scsi.CopyStatus, 5) != nil {
		t.Error("results of what was not")
	}
	// DC clear: blocks of the source.
	list = copyOf(0, scsi.CopyAnonymous, both, segment(0, 1, 8, 0, 0))
	list[16+64+1] = 0
	before := bytes.Clone(m[1].data[4096:])
	if st, _ := i.copy(list); st != scsi.Good || !bytes.Equal(m[1].data[:4096], m[0].data[:4096]) || !bytes.Equal(m[1].data[4096:], before) {
		t.Errorf("%#x", st)
	}
	if i.receive(scsi.CopyStatus, 0) != nil {
		t.Error("a copy without identifier is known by one")
	}
	if st, _ := i.copy(nil); st != scsi.Good {
		t.Error("a list of no length is no error")
	}
}

// TestCopiesThatFail: what stands against a copy at its source or its destination stands against it there, and
// the failure says where.
func TestCopiesThatFail(t *testing.T) {
	d, m := newPair(t)
	i, other := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	both := [][]byte{target(d, 0), target(d, 1)}
	unknown := target(d, 1)
	unknown[8] ^= 1
	tape := target(d, 1)
	tape[1] = 1
	small := target(d, 1)
	small[30] = 2
	exact := segment(0, 1, 1, 0, 0)
	clean := bytes.Clone(m[1].data)
	inexact := segment(0, 1, 9, 0, 0)
	inexact[1] = 0
	for name, c := range map[string]struct {
		list []byte
		code scsi.Code
		at   uint16
	}{
		"no such source":          {copyOf(1, 0, both, segment(2, 1, 1, 0, 0)), scsi.UnreachableCopyTarget, 4},
		"no such destination":     {copyOf(1, 0, both, segment(0, 0xffff, 1, 0, 0)), scsi.UnreachableCopyTarget, 6},
		"beyond the source":       {copyOf(1, 0, both, segment(0, 1, 2, 8191, 0)), scsi.NoAdditionalSense, 12},
		"beyond the destination":  {copyOf(1, 0, both, segment(0, 1, 2, 0, 1023)), scsi.NoAdditionalSense, 20},
		"far beyond":              {copyOf(1, 0, both, segment(0, 1, 2, 0, 1<<64-1)), scsi.NoAdditionalSense, 20},
		"unknown unit":            {copyOf(1, 0, [][]byte{both[0], unknown}, exact), scsi.CopyTargetNotReachable, 6},
		"no disk":                 {copyOf(1, 0, [][]byte{both[0], tape}, exact), scsi.IncorrectCopyTargetType, 6},
		"other blocks":            {copyOf(1, 0, [][]byte{both[0], small}, exact), scsi.IncorrectCopyTargetType, 6},
		"a part of a block":       {copyOf(1, 0, both, inexact), scsi.InexactSegment, 10},
		"the second of the three": {copyOf(1, 0, both, segment(0, 1, 0, 0, 0), segment(0, 7, 1, 0, 0), exact), scsi.UnreachableCopyTarget, 6},
	} {
		st, s := i.copy(c.list)
		want := scsi.Sense{Key: scsi.CopyAborted, Code: c.code, Field: c.at, HasField: true, InSegment: true}
		if strings.HasPrefix(name, "the second") {
			want.Segment = 1
		}
		if st != scsi.CheckCondition || s != want {
			t.Errorf("%s: %#x %+v", name, st, s)
		}
		if b := i.receive(scsi.CopyStatus, 1); len(b) != 12 || b[4] != 2 || b[6] != byte(want.Segment) {
			t.Errorf("%s: status %x", name, b)
		}
		b := i.receive(scsi.CopyFailure, 1)
		if s, err := scsi.ParseSense(b[60:]); len(b) != 60+int(b[59]) || b[56] != byte(st) || err != nil || s != want {
			t.Errorf("%s: %x", name, b)
		}
	}
	at := func(lun byte) { i.lun[1], other.lun[1] = lun, lun }
	list := copyOf(1, 0, both, exact)
	for lun, status := range []scsi.Status{scsi.Good, scsi.ReservationConflict} { // who writes exclusively does not keep readers away
		at(byte(lun))
		i.do(nil, scsi.TestUnitReady)
		other.do(nil, scsi.TestUnitReady)
		other.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
		other.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
		at(1 - byte(lun))
		i.do(nil, scsi.TestUnitReady)
		if st, _ := i.copy(list); st != status {
			t.Errorf("reserved LUN %d: %#x", lun, st)
		}
		at(byte(lun))
		other.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Clear, 0)...)
		if status == scsi.Good {
			copy(m[1].data, clean)
		}
	}
	at(0)
	other.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
	other.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.ExclusiveAccess)...)
	at(1)
	if st, _ := i.copy(list); st != scsi.ReservationConflict {
		t.Errorf("from a unit that others may not read: %#x", st)
	}
	other.lun[1] = 0
	other.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Clear, 0)...)
	swp := []byte{0, 0, 0, 0, controlPage, 10, 0, 0x10, swpBit, 0, 0, 0, 0xff, 0xff, 0, 0}
	other.lun[1] = 1
	other.want(scsi.Good, 0, swp, scsi.ModeSelect6, 0x10, 0, 0, byte(len(swp)))
	if st, s := i.copy(list); st != scsi.CheckCondition || s.Code != scsi.ModeParametersChanged {
		t.Errorf("%#x %+v", st, s)
	}
	if st, s := i.copy(list); st != scsi.CheckCondition || s.Code != scsi.ThirdPartyDeviceFailure {
		t.Errorf("to a unit that is write protected: %#x %+v", st, s)
	}
	if !bytes.Equal(m[1].data, clean) {
		t.Error("something was copied")
	}
}

// TestCopiesTakeNoUnitAttention: what a unit has to say to the initiator it says to a command of its own.
func TestCopiesTakeNoUnitAttention(t *testing.T) {
	d, _ := newPair(t)
	i := newInitiator(t, d, "a") // has not spoken to LUN 1 yet
	if st, s := i.copy(copyOf(1, 0, [][]byte{target(d, 0), target(d, 1)}, segment(0, 1, 1, 0, 0))); st != scsi.Good {
		t.Errorf("%#x %+v", st, s)
	}
	i.lun[1] = 1
	i.want(scsi.CheckCondition, scsi.PowerOnOrReset, nil, scsi.TestUnitReady)
}

// TestCopiesRespectAtomicCommands: a copy to what a COMPARE AND WRITE has read waits until that has written.
func TestCopiesRespectAtomicCommands(t *testing.T) {
	d, m := newPair(t)
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	copy(m[0].data, bytes.Repeat([]byte{7}, 512))
	clear(m[0].data[512:1024])
	release := m[0].hold()
	b.begin(append(make([]byte, 512), bytes.Repeat([]byte{9}, 512)...), scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1)
	m[0].mu.Lock()
	m[0].held = nil
	m[0].mu.Unlock()
	copied := make(chan scsi.Status)
	go func() {
		st, _ := a.copy(copyOf(1, 0, [][]byte{target(d, 0)}, segment(0, 0, 1, 0, 1)))
		copied <- st
	}()
	u := d.units[0]
	for waiting := 0; waiting == 0; {
		u.mu.Lock()
		waiting = len(u.waiting)
		u.mu.Unlock()
	}
	release()
	<-b.over
	if st := <-copied; st != scsi.Good || b.task.Status != scsi.Good || m[0].data[512] != 7 {
		t.Errorf("%#x, %#x, %d", st, b.task.Status, m[0].data[512])
	}
}

// TestOrderedCopiesDoNotWaitForEachOther: ORDERED copies of two units to each other would, if their parts
// kept to the order.
func TestOrderedCopiesDoNotWaitForEachOther(t *testing.T) {
	d, _ := newPair(t)
	var wg sync.WaitGroup
	for lun := range byte(2) {
		i := newInitiator(t, d, string('a'+rune(lun)))
		i.lun[1] = lun
		i.do(nil, scsi.TestUnitReady)
		i.task.Attr = Ordered
		wg.Go(func() {
			for range 100 {
				if st, s := i.copy(copyOf(1, 0, [][]byte{target(d, 0), target(d, 1)}, segment(0, 1, 8, 0, 0), segment(1, 0, 8, 16, 128))); st != scsi.Good {
					t.Errorf("%#x %+v", st, s)
				}
			}
		})
	}
	wg.Wait()
}

// TestCopiesAreFewAndCanBeAborted: an initiator has so many at once, each by another identifier, and a copy that
// is aborted copies no further.
func TestCopiesAreFewAndCanBeAborted(t *testing.T) {
	d, m := newPair(t)
	i := newInitiator(t, d, "a")
	list := func(id byte) []byte {
		return copyOf(id, 0, [][]byte{target(d, 0), target(d, 1)}, segment(0, 1, 512, 0, 0))
	}
	release := m[0].hold()
	n := i.Nexus(i.lun)
	tasks := make([]*Task, maxCopies+1)
	over := make(chan *Task, len(tasks))
	start := func(k int, id byte) *Task {
		b := list(id)
		x := &Task{Ended: func(t *Task) { over <- t }, Offered: uint32(len(b))}
		copy(x.CDB[:], copyCDB(b))
		x.CDB[0] = scsi.ExtendedCopy
		n.Prepare(x)
		n.Begin(x)
		x.Buf = b
		n.Execute(x)
		tasks[k] = x
		return x
	}
	start(0, 0)
	if x := start(1, 0); <-over != x || x.Status != scsi.CheckCondition {
		t.Errorf("the same identifier twice: %#x", x.Status)
	}
	for k := 1; k < maxCopies; k++ {
		start(k, byte(k))
	}
	if x := start(maxCopies, maxCopies); <-over != x || x.Status != scsi.TaskSetFull {
		t.Errorf("%d copies at once: %#x", maxCopies+1, x.Status)
	}
	if b := i.receive(scsi.CopyStatus, 0); len(b) < 12 || b[4] != 0 {
		t.Errorf("%x", b)
	}
	done := make(chan struct{})
	n.Abort(func(t *Task) bool { return slices.Contains(tasks, t) }, func() { close(done) })
	release()
	<-done
	for range maxCopies {
		if x := <-over; !x.Aborted {
			t.Error("an aborted copy has a status")
		}
	}
	m[1].mu.Lock()
	defer m[1].mu.Unlock()
	if !bytes.Equal(m[1].data[MaxTransfer:], make([]byte, len(m[1].data)-MaxTransfer)) {
		t.Error("copies went on")
	}
}

// TestCopyLimitsAreTold: lists that are as long as RECEIVE COPY RESULTS says are taken, and longer ones are
// refused before there is memory for them.
func TestCopyLimitsAreTold(t *testing.T) {
	d, _ := newPair(t)
	i := newInitiator(t, d, "a")
	p := i.receive(scsi.CopyParameters, 0)
	be := binary.BigEndian
	if len(p) != int(be.Uint32(p))+4 || len(p) != 44+int(p[43]) {
		t.Fatalf("%x", p)
	}
	var targets, segments [][]byte
	for range be.Uint16(p[8:]) {
		targets = append(targets, target(d, 1))
	}
	for range be.Uint16(p[10:]) {
		segments = append(segments, segment(0, uint16(len(targets)-1), 1, 0, 1))
	}
	full := copyOf(1, 0, targets, segments...)
	if most := be.Uint32(p[12:]); uint32(len(full)-16) != most {
		t.Errorf("%d bytes of descriptors, %d", len(full)-16, most)
	}
	if st, s := i.copy(full); st != scsi.Good {
		t.Errorf("%#x %+v", st, s)
	}
	i.want(scsi.CheckCondition, scsi.ParameterListLength, append(full, 0), append([]byte{scsi.ExtendedCopy}, copyCDB(append(full, 0))[1:]...)...)
	if i.task.Length != 0 {
		t.Error("memory is asked for a list that is refused")
	}
	i.do(nil, scsi.Inquiry, 1, 0x8f, 1, 0)
	for b := i.in()[4:]; len(b) > 0; b = b[4+int(be.Uint16(b[2:])):] {
		if be.Uint16(b[2:])%4 != 0 {
			t.Fatalf("%x", b)
		}
	}
}

// FuzzCopyCommand proves that every EXTENDED COPY ends once, and leaves alone what it does not name.
func FuzzCopyCommand(f *testing.F) {
	d, _ := newPair(f)
	f.Add(copyOf(1, 0, [][]byte{target(d, 0), target(d, 1)}, segment(0, 1, 8, 0, 0), segment(1, 0, 1, 3, 4)))
	f.Add(copyOf(0, 3, [][]byte{target(d, 1)}, segment(0, 0, 0xffff, 0, 1)))
	f.Fuzz(func(t *testing.T, list []byte) {
		d, m := newPair(t)
		i := newInitiator(t, d, "a")
		before := bytes.Clone(m[1].data)
		st, s := i.copy(list)
		if (st == scsi.CheckCondition) != (s.Key != 0) || len(i.over) > 0 {
			t.Fatalf("%#x %+v", st, s)
		}
		if l, why := scsi.ParseCopy(list, copyLimits); why != nil || len(l.Targets) == 0 {
			if !bytes.Equal(m[1].data, before) {
				t.Fatal("copied without a list")
			}
		}
		i.Detach()
	})
}
