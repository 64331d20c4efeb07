package lu

import (
	"testing"

	"github.com/ironwarp/ironwarp/scsi"
)

// hears takes a unit attention of a LUN, 0: there is none.
func (i *initiator) hears(lun byte, want scsi.Code) {
	i.t.Helper()
	i.lun[1] = lun
	st, s := i.do(nil, scsi.TestUnitReady)
	if want == 0 && st == scsi.Good {
		return
	}
	if st != scsi.CheckCondition || s.Key != scsi.UnitAttention || s.Code != want {
		i.t.Errorf("LUN %d: status %#x, %+v, want the unit attention %#x", lun, st, s, want)
	}
}

// unsupported wants a LUN not to be there.
func (i *initiator) unsupported(lun byte) {
	i.t.Helper()
	i.lun[1] = lun
	i.want(scsi.CheckCondition, scsi.LogicalUnitNotSupported, nil, scsi.TestUnitReady)
}

func newUnit(t testing.TB, cfg Config) *Unit {
	t.Helper()
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestLUNsComeAndGo: initiators that are attached hear of it at the other LUNs, once, and not if they have
// asked for the list.
func TestLUNsComeAndGo(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	if err := d.Add(1, newUnit(t, Config{Medium: newMemory(1 << 20)})); err != nil {
		t.Fatal(err)
	}
	if err := d.Add(1, newUnit(t, Config{Medium: newMemory(1 << 20)})); err == nil {
		t.Error("a LUN is given away twice")
	}
	a.hears(0, scsi.ReportedLUNsChanged)
	a.hears(0, 0)
	a.hears(1, scsi.PowerOnOrReset)
	a.hears(1, 0)
	b.want(scsi.Good, 0, nil, scsi.ReportLUNs, 0, 0, 0, 0, 0, 0, 0, 0, 64)
	if in := b.in(); len(in) != 24 || in[17] != 1 {
		t.Errorf("%x", in)
	}
	b.hears(0, 0)
	<-d.Withdraw(1)
	a.unsupported(1)
	b.unsupported(1)
	a.hears(0, scsi.ReportedLUNsChanged)
	b.hears(0, scsi.ReportedLUNsChanged)
	a.want(scsi.Good, 0, nil, scsi.ReportLUNs, 0, 0, 0, 0, 0, 0, 0, 0, 64)
	if in := a.in(); len(in) != 16 {
		t.Errorf("%x", in)
	}
	<-d.Withdraw(7) // which there never was
	a.hears(0, 0)
	a.Detach()
	b.Detach()
}

// underWay is what is going on at LUN 1 while its medium holds: a read, a command that waits for that, and
// one whose data have not come.
type underWay struct {
	read, waits, late *initiator
	hold              chan struct{}
}

func (d *Device) occupied(t *testing.T, m *memory) *underWay {
	t.Helper()
	w := &underWay{newInitiator(t, d, "read"), newInitiator(t, d, "waits"), newInitiator(t, d, "late"), make(chan struct{})}
	for _, i := range []*initiator{w.read, w.waits, w.late} {
		i.lun[1] = 1
		i.do(nil, scsi.TestUnitReady)
	}
	m.mu.Lock()
	m.held = w.hold
	m.mu.Unlock()
	w.read.begin(nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
	w.waits.task.Attr = Ordered
	w.waits.begin(nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
	n := w.late.Nexus(w.late.lun)
	w.late.task.CDB = [16]byte{scsi.Write10, 8: 1}
	n.Prepare(&w.late.task)
	n.Begin(&w.late.task)
	w.late.task.Buf = make([]byte, 512)
	return w
}

// ends wants a command that was begun to end so.
func (i *initiator) ends(status scsi.Status, code scsi.Code, in uint32) {
	i.t.Helper()
	<-i.over
	if s, _ := scsi.ParseSense(i.task.Sense()); i.task.Status != status || s.Code != code || i.task.InLen != in {
		i.t.Errorf("status %#x, %+v, %d bytes; want %#x, %#x, %d", i.task.Status, s, i.task.InLen, status, code, in)
	}
}

// TestLUNIsWithdrawnFromWhatIsUnderWay: nothing that begins is carried out, what runs brings its initiator
// nothing, and the end of it is waited for.
func TestLUNIsWithdrawnFromWhatIsUnderWay(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	m := newMemory(1 << 20)
	if err := d.Add(1, newUnit(t, Config{Medium: m})); err != nil {
		t.Fatal(err)
	}
	w := d.occupied(t, m)
	over := d.Withdraw(1)
	w.late.task.nexus.Execute(&w.late.task)
	w.late.ends(scsi.CheckCondition, scsi.LogicalUnitNotSupported, 0)
	select {
	case <-over:
		t.Error("the medium is still in use")
	default:
	}
	close(w.hold)
	w.read.ends(scsi.CheckCondition, scsi.LogicalUnitNotSupported, 0)
	w.waits.ends(scsi.CheckCondition, scsi.LogicalUnitNotSupported, 0)
	<-over
	if len(m.calls) != 1 {
		t.Errorf("%d I/Os, where the first was under way", len(m.calls))
	}
	w.read.unsupported(1)
}

// TestLUNIsSuspended: what is under way is carried out, what comes meanwhile is to come again, and then meets
// the other unit, which initiators are told to look at.
func TestLUNIsSuspended(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	m := newMemory(1 << 20)
	if err := d.Add(1, newUnit(t, Config{Medium: m})); err != nil {
		t.Fatal(err)
	}
	w := d.occupied(t, m)
	over := d.Suspend(1)
	w.late.task.nexus.Execute(&w.late.task)
	w.late.ends(scsi.Busy, 0, 0)
	newcomer := d.Attach(Initiator{Name: "newcomer"}, nil)
	close(w.hold)
	w.read.ends(scsi.Good, 0, 512)
	w.waits.ends(scsi.Busy, 0, 0)
	<-over
	w.read.want(scsi.Busy, 0, nil, scsi.TestUnitReady)
	m.held = nil // nothing is under way
	if err := d.Add(1, newUnit(t, Config{Medium: m, ReadOnly: true})); err != nil {
		t.Fatal(err)
	}
	w.read.hears(1, scsi.PowerOnOrReset)
	w.read.hears(1, scsi.InquiryDataChanged)
	w.read.hears(1, 0)
	w.read.hears(0, 0)
	w.read.lun[1] = 1
	w.read.want(scsi.CheckCondition, scsi.WriteProtected, make([]byte, 512), scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1)
	newcomer.Detach()
	w.read.Detach()
}

// TestSizeIsTold to initiators by a unit attention when the medium has grown, and not otherwise.
func TestSizeIsTold(t *testing.T) {
	m := newMemory(1 << 20)
	u := newUnit(t, Config{Medium: m})
	d := &Device{}
	if err := d.Add(0, u); err != nil {
		t.Fatal(err)
	}
	i := newInitiator(t, d, "a")
	u.Resized()
	i.hears(0, 0)
	m.mu.Lock()
	m.data = append(m.data, make([]byte, 1<<20)...)
	m.mu.Unlock()
	u.Resized()
	i.hears(0, scsi.CapacityHasChanged)
	i.hears(0, 0)
	i.want(scsi.Good, 0, make([]byte, 512), scsi.Write10, 0, 0, 0, 0x0f, 0xff, 0, 0, 1)
}
