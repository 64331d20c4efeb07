package lu

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

const blocks = 256 // of a disk of these tests

// newErasable returns a disk full of data whose unit has SANITIZE.
func newErasable(t testing.TB) (*memory, Config) {
	m := newMemory(blocks * 512)
	for i := range m.data {
		m.data[i] = 'x'
	}
	return m, Config{Medium: m, Sanitize: filepath.Join(t.TempDir(), "sanitize")}
}

func overwriteList(first byte, pattern ...byte) []byte {
	return append([]byte{first, 0, byte(len(pattern) >> 8), byte(len(pattern))}, pattern...)
}

func sanitizeCDB(first byte, n int) []byte {
	return []byte{scsi.Sanitize, first, 0, 0, 0, 0, 0, byte(n >> 8), byte(n)}
}

// hold has the medium keep its I/O back; release carries it out.
func (m *memory) hold() (release func()) {
	held := make(chan struct{})
	m.mu.Lock()
	m.held = held
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.held = nil
		m.mu.Unlock()
		close(held)
	}
}

func TestSanitizeOverwritesAll(t *testing.T) {
	m, cfg := newErasable(t)
	i := newInitiator(t, newDevice(t, cfg), "a")
	for _, c := range []struct {
		first byte
		want  []byte
	}{
		{1, []byte{1, 2, 3}}, {3, []byte{1, 2, 3}}, {0x81, []byte{1, 2, 3}}, {0x82, []byte{1, 2, 3}},
		{0x83, []byte{1, 2, 3}}, {0x9f, bytes.Repeat([]byte{7}, 512)},
	} {
		list := overwriteList(c.first, c.want...)
		i.want(scsi.Good, 0, list, sanitizeCDB(scsi.Overwrite, len(list))...)
		one := bytes.Repeat(c.want, 512)[:512]
		if !bytes.Equal(m.data, bytes.Repeat(one, blocks)) {
			t.Errorf("%#x: %x", c.first, m.data[:16])
		}
	}
	m.mu.Lock()
	if last := m.calls[len(m.calls)-1]; last != block.OpFlush {
		t.Errorf("what was written last is followed by %v", last)
	}
	m.mu.Unlock()
	for _, list := range [][]byte{overwriteList(0, 1), overwriteList(0x21, 1), {1, 0, 0, 2, 1}, {1, 0, 0, 0, 1}} {
		i.want(scsi.CheckCondition, scsi.InvalidFieldInParameters, list, sanitizeCDB(scsi.Overwrite, len(list))...)
	}
	for _, n := range []int{0, 4, 512 + 5} {
		i.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, make([]byte, n), sanitizeCDB(scsi.Overwrite, n)...)
	}
}

// TestInvertedPasses: with INVERT each pass is the inversion of the one before, and the last is the pattern.
func TestInvertedPasses(t *testing.T) {
	m, cfg := newErasable(t)
	i := newInitiator(t, newDevice(t, cfg), "a")
	var passes []byte
	m.onWrite = func(off int64, buf []byte) {
		if off == 0 {
			passes = append(passes, buf[0])
		}
	}
	for first, want := range map[byte][]byte{0x84: {0xfe, 1, 0xfe, 1}, 0x83: {1, 0xfe, 1}, 2: {1, 1}} {
		passes = nil
		list := overwriteList(first, 1)
		if i.want(scsi.Good, 0, list, sanitizeCDB(scsi.Overwrite, len(list))...); !bytes.Equal(passes, want) {
			t.Errorf("%#x: %x", first, passes)
		}
	}
}

// TestBlockEraseWritesBeforeItUnmaps: what gives up space alone would leave the data in it.
func TestBlockEraseWritesBeforeItUnmaps(t *testing.T) {
	m, cfg := newErasable(t)
	i := newInitiator(t, newDevice(t, cfg), "a")
	m.holes = []block.Extent{{Length: 64 * 512}, {Length: 64 * 512, State: block.Hole | block.Zero}, {Length: 128 * 512}}
	written := 0
	m.onWrite = func(off int64, buf []byte) {
		if off < 128*512 && off+int64(len(buf)) > 64*512 {
			t.Error("a hole is filled")
		}
		written += len(buf)
	}
	m.calls = nil
	i.want(scsi.Good, 0, nil, sanitizeCDB(scsi.BlockErase, 0)...)
	if written != 192*512 || !bytes.Equal(m.data, make([]byte, len(m.data))) {
		t.Error(written)
	}
	order := []block.Op{block.OpStatus, block.OpWrite, block.OpWrite, block.OpFlush, block.OpWriteZeroes, block.OpFlush}
	if got := m.calls; len(got) != len(order) {
		t.Error(got)
	} else {
		for k := range got {
			if got[k] != order[k] {
				t.Error(got)
			}
		}
	}
}

// TestSanitizeIsOnlyThereWhereItMayBe: a unit without it says so in every way, and no unit claims to
// change a key that it has not.
func TestSanitizeIsOnlyThereWhereItMayBe(t *testing.T) {
	m, cfg := newErasable(t)
	without := newInitiator(t, newDevice(t, Config{Medium: m}), "a")
	with := newInitiator(t, newDevice(t, cfg), "a")
	supported := func(i *initiator, action byte) bool {
		i.do(nil, scsi.MaintenanceIn, scsi.ReportSupportedOperations, 2, scsi.Sanitize, 0, action, 0, 0, 0, 64)
		one := len(i.in()) > 4 && i.in()[1]&7 == 3
		i.do(nil, scsi.MaintenanceIn, scsi.ReportSupportedOperations, 0, 0, 0, 0, 0, 0, 0xff, 0)
		all := false
		for b := i.in()[4:]; len(b) >= 8; b = b[8:] {
			all = all || b[0] == scsi.Sanitize && b[3] == action
		}
		if one != all {
			t.Errorf("action %#x: one says %v, all say %v", action, one, all)
		}
		return all
	}
	const cryptoErase = 3
	for action, want := range map[byte]bool{scsi.Overwrite: true, scsi.BlockErase: true, scsi.ExitFailureMode: true, cryptoErase: false} {
		if supported(with, action) != want || supported(without, action) {
			t.Errorf("action %#x", action)
		}
	}
	without.want(scsi.CheckCondition, scsi.InvalidOperationCode, nil, sanitizeCDB(scsi.BlockErase, 0)...)
	with.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, nil, sanitizeCDB(cryptoErase, 0)...)
	with.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, nil, sanitizeCDB(0x40|scsi.BlockErase, 0)...)
	with.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, nil, scsi.Sanitize, scsi.BlockErase, 0, 0, 0, 0, 1)
	with.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, make([]byte, 8), sanitizeCDB(scsi.BlockErase, 8)...)
	cfg.ReadOnly = true
	readOnly := newInitiator(t, newDevice(t, cfg), "a")
	readOnly.want(scsi.CheckCondition, scsi.WriteProtected, nil, sanitizeCDB(scsi.BlockErase, 0)...)
	if !bytes.Equal(m.data, bytes.Repeat([]byte{'x'}, len(m.data))) {
		t.Error("something was erased")
	}
}

// TestWhatOthersGetWhileAUnitIsSanitized: NOT READY with how far it has come, whatever they want of the
// medium; and no function stops it.
func TestWhatOthersGetWhileAUnitIsSanitized(t *testing.T) {
	m, cfg := newErasable(t)
	d := newDevice(t, cfg)
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	release := m.hold()
	b.begin(bytes.Repeat([]byte{'y'}, 512), scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1) // is under way before, and waited for
	m.mu.Lock()
	m.held = nil
	m.mu.Unlock()
	list := overwriteList(2, 0)
	a.begin(list, sanitizeCDB(scsi.Overwrite, len(list))...)
	c := newInitiator(t, d, "c")
	for _, cdb := range [][]byte{
		{scsi.TestUnitReady}, {scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1}, {scsi.ModeSense6, 0, 0x3f, 0, 255}, {scsi.StartStopUnit, 0, 0, 0, 1}, {scsi.PersistentReserveIn, 0, 0, 0, 0, 0, 0, 0, 8},
		sanitizeCDB(scsi.BlockErase, 0), sanitizeCDB(scsi.ExitFailureMode, 0),
	} {
		if st, s := c.do(nil, cdb...); st != scsi.CheckCondition || s.Key != scsi.NotReady || s.Code != scsi.SanitizeInProgress || !s.HasProgress {
			t.Errorf("%x: %#x, %+v", cdb, st, s)
		}
	}
	c.want(scsi.Good, 0, nil, scsi.Inquiry, 0, 0, 0, 96)
	c.want(scsi.Good, 0, nil, scsi.ReportLUNs, 0, 0, 0, 0, 0, 0, 0, 0, 16)
	c.want(scsi.Good, 0, nil, scsi.RequestSense, 0, 0, 0, 18)
	if s, err := scsi.ParseSense(c.in()); err != nil || s.Code != scsi.SanitizeInProgress || !s.HasProgress {
		t.Errorf("%+v, %v", s, err)
	}
	aborted := make(chan struct{})
	n := c.Nexus(c.lun)
	n.Abort(func(o *Task) bool { return o == &a.task }, func() { close(aborted) })
	<-aborted
	if <-a.over; !a.task.Aborted {
		t.Error("the command has a status")
	}
	n.Reset(scsi.BusDeviceReset)
	a.Detach()
	release()
	<-b.over
	d.units[0].work.Wait()
	c.want(scsi.CheckCondition, scsi.BusDeviceReset, nil, scsi.TestUnitReady)
	c.want(scsi.Good, 0, nil, scsi.TestUnitReady)
	if !bytes.Equal(m.data, make([]byte, len(m.data))) {
		t.Error("it was stopped, or a write came after it")
	}
}

// TestSanitizeFailsUntilItIsDone: after a failure, and after a restart in the middle, nobody gets at what
// is left, whatever has happened since.
func TestSanitizeFailsUntilItIsDone(t *testing.T) {
	for _, exit := range []byte{0, unrestrictedExit} {
		for _, restart := range []bool{false, true} {
			m, cfg := newErasable(t)
			m.data = bytes.Repeat([]byte{'x'}, 2*MaxTransfer)
			d := newDevice(t, cfg)
			i := newInitiator(t, d, "a")
			list := overwriteList(1, 0)
			cdb := sanitizeCDB(exit|scsi.Overwrite, len(list))
			if restart {
				release := m.hold()
				cdb[1] |= immediate
				i.want(scsi.Good, 0, list, cdb...)
				i.Detach()
				closed := make(chan struct{})
				go func() { d.units[0].Close(); close(closed) }()
				<-d.units[0].closing
				release() // one I/O was under way
				<-closed
				if m.data[MaxTransfer] != 'x' {
					t.Error("it was not stopped")
				}
				d = newDevice(t, cfg)
				i = newInitiator(t, d, "a")
			} else {
				m.errno = map[block.Op]syscall.Errno{block.OpWrite: syscall.EIO}
				i.want(scsi.CheckCondition, scsi.SanitizeFailed, list, cdb...)
				m.errno = nil
			}
			for range 2 {
				i.want(scsi.CheckCondition, scsi.SanitizeFailed, nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
				i.want(scsi.CheckCondition, scsi.SanitizeFailed, nil, scsi.TestUnitReady)
				i.want(scsi.Good, 0, nil, scsi.Inquiry, 0, 0, 0, 96)
				i.Detach()
				d = newDevice(t, cfg)
				i = newInitiator(t, d, "a")
			}
			if exit == 0 {
				i.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, nil, sanitizeCDB(scsi.ExitFailureMode, 0)...)
				i.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, nil, sanitizeCDB(unrestrictedExit|scsi.BlockErase, 0)...)
				i.want(scsi.CheckCondition, scsi.SanitizeFailed, nil, scsi.TestUnitReady)
				i.want(scsi.Good, 0, nil, sanitizeCDB(scsi.BlockErase, 0)...)
			} else {
				i.want(scsi.Good, 0, nil, sanitizeCDB(scsi.ExitFailureMode, 0)...)
			}
			i.want(scsi.Good, 0, nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
			i.want(scsi.Good, 0, nil, sanitizeCDB(scsi.ExitFailureMode, 0)...)
			i = newInitiator(t, newDevice(t, cfg), "a")
			i.want(scsi.Good, 0, nil, scsi.TestUnitReady)
		}
	}
}

// TestSanitizeIsInTheFileBeforeItBegins: otherwise a crash would show a disk that is half erased as one
// that is not, and one that was not erased as one that was.
func TestSanitizeIsInTheFileBeforeItBegins(t *testing.T) {
	m, cfg := newErasable(t)
	d := newDevice(t, cfg)
	i := newInitiator(t, d, "a")
	u := d.units[0]
	write := u.write
	wrong := errors.New("no space")
	u.write = func(path string, v any) error {
		if v.(*erasure).State == erasing {
			return wrong
		}
		return write(path, v)
	}
	m.onWrite = func(int64, []byte) { t.Error("it began all the same") }
	i.want(scsi.CheckCondition, scsi.InternalTargetFailure, nil, sanitizeCDB(immediate|scsi.BlockErase, 0)...)
	i.want(scsi.Good, 0, nil, scsi.TestUnitReady)
	m.onWrite = nil
	u.write = func(path string, v any) error {
		if v.(*erasure).State == erased {
			return wrong
		}
		return write(path, v)
	}
	i.want(scsi.CheckCondition, scsi.SanitizeFailed, nil, sanitizeCDB(scsi.BlockErase, 0)...)
	i.want(scsi.CheckCondition, scsi.SanitizeFailed, nil, scsi.TestUnitReady)
	if err := os.WriteFile(cfg.Sanitize, []byte(`{"state":"perhaps"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg); err == nil {
		t.Error("a state that there is not")
	}
}
