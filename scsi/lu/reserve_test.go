package lu

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/scsi"
)

// moveTo is the parameter list of REGISTER AND MOVE to a port of no ISID.
func moveTo(mine, other uint64, flags byte, port string) []byte {
	be := binary.BigEndian
	b := be.AppendUint64(be.AppendUint64(nil, mine), other)
	b = append(b, 0, flags, 0, targetPort)
	id := scsi.AppendTransportID(nil, port)
	return append(be.AppendUint32(b, uint32(len(id))), id...)
}

// pr is PERSISTENT RESERVE OUT with a list of any length.
func pr(action byte, kind scsi.Type, list []byte) []byte {
	b := persistentOut(action, kind)
	binary.BigEndian.PutUint32(b[5:], uint32(len(list)))
	return b
}

// attention returns the unit attention that a port has waiting, 0 if there is none.
func (i *initiator) attention() scsi.Code {
	i.t.Helper()
	first := scsi.Code(0)
	for {
		st, s := i.do(nil, scsi.TestUnitReady)
		if st == scsi.Good || st == scsi.ReservationConflict {
			return first
		}
		if first != 0 || s.Key != scsi.UnitAttention {
			i.t.Errorf("%#x %+v after %#x", st, s, first)
			return first
		}
		first = s.Code
	}
}

func (i *initiator) mayWrite() bool {
	st, _ := i.do(make([]byte, 512), scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1)
	return st == scsi.Good
}

func (i *initiator) mayRead() bool {
	st, _ := i.do(nil, scsi.Read10, 0, 0, 0, 0, 0, 0, 0, 1)
	return st == scsi.Good
}

// TestTypesOfReservations: who may read and write under each type, by table 32 of SPC-4.
func TestTypesOfReservations(t *testing.T) {
	for kind, c := range map[scsi.Type]struct{ registrantWrites, registrantReads, strangerReads bool }{
		scsi.WriteExclusive:     {false, true, true},
		scsi.ExclusiveAccess:    {false, false, false},
		scsi.WriteExclusiveReg:  {true, true, true},
		scsi.ExclusiveAccessReg: {true, true, false},
		scsi.WriteExclusiveAll:  {true, true, true},
		scsi.ExclusiveAccessAll: {true, true, false},
	} {
		d := newDevice(t, Config{Medium: newMemory(1 << 20)})
		a, b, stranger := newInitiator(t, d, "a"), newInitiator(t, d, "b"), newInitiator(t, d, "c")
		a.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
		b.want(scsi.Good, 0, keys(0, 2, 4), persistentOut(scsi.Register, 0)...)
		a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, kind)...)
		if !a.mayWrite() || !a.mayRead() {
			t.Errorf("type %d: the holder may not", kind)
		}
		if b.mayWrite() != c.registrantWrites || b.mayRead() != c.registrantReads {
			t.Errorf("type %d: a registrant", kind)
		}
		if stranger.mayWrite() || stranger.mayRead() != c.strangerReads {
			t.Errorf("type %d: a stranger", kind)
		}
		for _, cdb := range [][]byte{ // what is allowed whoever reserved
			{scsi.Inquiry, 0, 0, 0, 96}, {scsi.TestUnitReady}, {scsi.ReadCapacity10}, {scsi.RequestSense, 0, 0, 0, 18},
			{scsi.StartStopUnit, 0, 0, 0, 1}, {scsi.PreventAllow},
			{scsi.PersistentReserveIn, scsi.ReadKeys, 0, 0, 0, 0, 0, 0, 64}, {scsi.MaintenanceIn, scsi.ReportTargetPortGroups, 9: 64},
		} {
			stranger.want(scsi.Good, 0, nil, cdb...)
		}
		stranger.want(scsi.ReservationConflict, 0, nil, scsi.StartStopUnit, 0, 0, 0, 0)
		stranger.want(scsi.ReservationConflict, 0, nil, scsi.SynchronizeCache10)
	}
}

// TestUnitAttentionsOfReservations: who is told what when somebody else changes reservations.
func TestUnitAttentionsOfReservations(t *testing.T) {
	const none = scsi.Code(0)
	for name, c := range map[string]struct {
		kind   scsi.Type
		action byte
		to     scsi.Type // the type of CDB
		list   []byte
		b, c   scsi.Code // b is registered with key 2, c is not
		held   bool      // that somebody holds a reservation afterwards
	}{
		"release, exclusive":           {scsi.WriteExclusive, scsi.Release, scsi.WriteExclusive, keys(1, 0, 0), none, none, false},
		"release, registrants only":    {scsi.WriteExclusiveReg, scsi.Release, scsi.WriteExclusiveReg, keys(1, 0, 0), scsi.ReservationsReleased, none, false},
		"release, all registrants":     {scsi.ExclusiveAccessAll, scsi.Release, scsi.ExclusiveAccessAll, keys(1, 0, 0), scsi.ReservationsReleased, none, false},
		"unregister, exclusive":        {scsi.ExclusiveAccess, scsi.Register, 0, keys(1, 0, 0), none, none, false},
		"unregister, registrants only": {scsi.ExclusiveAccessReg, scsi.Register, 0, keys(1, 0, 0), scsi.ReservationsReleased, none, false},
		"unregister, all registrants":  {scsi.WriteExclusiveAll, scsi.RegisterAndIgnore, 0, keys(0, 0, 0), none, none, true},
		"another key":                  {scsi.WriteExclusiveReg, scsi.Register, 0, keys(1, 3, 0), none, none, true},
		"clear":                        {scsi.WriteExclusive, scsi.Clear, 0, keys(1, 0, 0), scsi.ReservationsPreempted, none, false},
		"preempt a registrant":         {scsi.WriteExclusive, scsi.Preempt, scsi.WriteExclusive, keys(1, 2, 0), scsi.RegistrationsPreempted, none, true},
		"preempt and abort":            {scsi.WriteExclusive, scsi.PreemptAndAbort, scsi.WriteExclusive, keys(1, 2, 0), scsi.RegistrationsPreempted, none, true},
		"preempt all others":           {scsi.WriteExclusiveAll, scsi.Preempt, scsi.WriteExclusive, keys(1, 0, 0), scsi.RegistrationsPreempted, none, true},
		"another type by preempting":   {scsi.WriteExclusive, scsi.Preempt, scsi.WriteExclusiveReg, keys(1, 1, 0), scsi.ReservationsReleased, none, true},
		"the same type by preempting":  {scsi.WriteExclusiveReg, scsi.Preempt, scsi.WriteExclusiveReg, keys(1, 1, 0), none, none, true},
		"move":                         {scsi.WriteExclusiveReg, scsi.RegisterAndMove, 0, moveTo(1, 9, 0, "b,i,0x000000000000"), none, none, true},
		"move and leave":               {scsi.WriteExclusiveReg, scsi.RegisterAndMove, 0, moveTo(1, 9, 2, "b,i,0x000000000000"), none, none, true},
		"reserve what one holds":       {scsi.WriteExclusiveReg, scsi.Reserve, scsi.WriteExclusiveReg, keys(1, 0, 0), none, none, true},
	} {
		d := newDevice(t, Config{Medium: newMemory(1 << 20)})
		a, b, x := newInitiator(t, d, "a"), newInitiator(t, d, "b"), newInitiator(t, d, "c")
		a.want(scsi.Good, 0, keys(0, 1, 0), persistentOut(scsi.Register, 0)...)
		b.want(scsi.Good, 0, keys(0, 2, 0), persistentOut(scsi.Register, 0)...)
		a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, c.kind)...)
		a.want(scsi.Good, 0, c.list, pr(c.action, c.to, c.list)...)
		if got := [...]scsi.Code{a.attention(), b.attention(), x.attention()}; got != [...]scsi.Code{none, c.b, c.c} {
			t.Errorf("%s: %#x", name, got)
		}
		if a.do(nil, scsi.PersistentReserveIn, scsi.ReadReservation, 0, 0, 0, 0, 0, 0, 64); (len(a.in()) > 8) != c.held {
			t.Errorf("%s: %x", name, a.in())
		}
	}
}

// TestRegisterAndMove: the reservation goes to another port, which need not be there, and is kept.
func TestRegisterAndMove(t *testing.T) {
	cfg := Config{Medium: newMemory(1 << 20), Reservations: filepath.Join(t.TempDir(), "r")}
	d := newDevice(t, cfg)
	a := newInitiator(t, d, "a")
	to := func(mine, other uint64, flags byte, port string) (list []byte) {
		return moveTo(mine, other, flags, port)
	}
	const port = "b,i,0x000000000000"
	good := to(1, 2, 1, port)
	a.want(scsi.ReservationConflict, 0, good, pr(scsi.RegisterAndMove, 0, good)...) // not registered
	a.want(scsi.Good, 0, keys(0, 1, 1), persistentOut(scsi.Register, 0)...)
	a.want(scsi.CheckCondition, scsi.InvalidFieldInCDB, good, pr(scsi.RegisterAndMove, 0, good)...) // nothing is reserved
	a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusiveAll)...)
	a.want(scsi.ReservationConflict, 0, good, pr(scsi.RegisterAndMove, 0, good)...) // of a type that cannot be moved
	a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Release, scsi.WriteExclusiveAll)...)
	a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
	wrongPort := to(1, 2, 0, port)
	wrongPort[19]++
	long := append(to(1, 2, 0, port), 0, 0, 0, 0)
	for name, list := range map[string][]byte{
		"key 0": to(1, 0, 0, port), "to itself": to(1, 2, 0, "a,i,0x000000000000"), "no port": to(1, 2, 0, "b"), "another target port": wrongPort,
	} {
		if st, s := a.do(list, pr(scsi.RegisterAndMove, 0, list)...); st != scsi.CheckCondition || s.Code != scsi.InvalidFieldInParameters {
			t.Errorf("%s: %#x %+v", name, st, s)
		}
	}
	a.want(scsi.CheckCondition, scsi.ParameterListLength, long, pr(scsi.RegisterAndMove, 0, long)...)
	wrongKey := to(3, 2, 0, port)
	a.want(scsi.ReservationConflict, 0, wrongKey, pr(scsi.RegisterAndMove, 0, wrongKey)...)
	generation := func() uint32 {
		a.do(nil, scsi.PersistentReserveIn, scsi.ReadKeys, 0, 0, 0, 0, 0, 0, 64)
		return binary.BigEndian.Uint32(a.in())
	}
	before := generation()
	a.want(scsi.Good, 0, good, pr(scsi.RegisterAndMove, 0, good)...)
	if generation() != before+1 || a.mayWrite() {
		t.Error("not moved")
	}
	for range 2 {
		b := newInitiator(t, d, "b")
		if !b.mayWrite() {
			t.Error("not moved to its port")
		}
		b.want(scsi.Good, 0, nil, scsi.PersistentReserveIn, scsi.ReadReservation, 0, 0, 0, 0, 0, 0, 64)
		if key := binary.BigEndian.Uint64(b.in()[8:]); key != 2 {
			t.Error(key)
		}
		d = newDevice(t, cfg) // a restart
		a = newInitiator(t, d, "a")
	}
	a.want(scsi.ReservationConflict, 0, good, pr(scsi.RegisterAndMove, 0, good)...) // not the holder
	b := newInitiator(t, d, "b")
	back := to(2, 1, 2, "a,i,0x000000000000")
	b.want(scsi.Good, 0, back, pr(scsi.RegisterAndMove, 0, back)...)
	if !a.mayWrite() || b.mayWrite() {
		t.Error("not moved back")
	}
	b.want(scsi.ReservationConflict, 0, keys(2, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...) // it has left
}

// TestRegistrationsOfOtherPorts: SPEC_I_PT registers all that the list names, or none.
func TestRegistrationsOfOtherPorts(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	list := func(flags byte, ports ...string) []byte {
		var ids []byte
		for _, p := range ports {
			ids = scsi.AppendTransportID(ids, p)
		}
		return append(binary.BigEndian.AppendUint32(keys(0, 5, flags), uint32(len(ids))), ids...)
	}
	const first, second = "b,i,0x000000000000", "c,i,0x000000000000"
	for _, bad := range [][]byte{list(8, first, "b"), list(8, first, first), list(8, "a,i,0x000000000000"), list(9, first)} {
		a.want(scsi.CheckCondition, scsi.InvalidFieldInParameters, bad, pr(scsi.Register, 0, bad)...)
	}
	good := list(8, first, second)
	a.want(scsi.CheckCondition, scsi.ParameterListLength, good[:len(good)-1], pr(scsi.Register, 0, good[:len(good)-1])...)
	a.want(scsi.CheckCondition, scsi.InvalidFieldInParameters, good, pr(scsi.RegisterAndIgnore, 0, good)...)
	b.want(scsi.ReservationConflict, 0, keys(5, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
	a.want(scsi.Good, 0, good, pr(scsi.Register, 0, good)...)
	b.want(scsi.Good, 0, keys(5, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusiveReg)...)
	if c := newInitiator(t, d, "c"); !c.mayWrite() || !a.mayWrite() || newInitiator(t, d, "d").mayWrite() {
		t.Error("not who was registered")
	}
	a.do(nil, scsi.PersistentReserveIn, scsi.ReadFullStatus, 0, 0, 0, 0, 0, 2, 0)
	holders, n := 0, 0
	for f := a.in()[8:]; len(f) > 0; f = f[24+binary.BigEndian.Uint32(f[20:]):] {
		n++
		holders += int(f[12] & 1)
		if name, _, _, err := scsi.ParseTransportID(f[24:]); err != nil || name != string('a'+rune(n-1)) || f[12]&2 == 0 {
			t.Errorf("%x", f)
		}
	}
	if n != 3 || holders != 1 {
		t.Error(n, holders)
	}
}

// TestRegistrationsAreFew: the table of a unit does not grow beyond a limit, however they are made.
func TestRegistrationsAreFew(t *testing.T) {
	d := newDevice(t, Config{Medium: newMemory(1 << 20)})
	a := newInitiator(t, d, "a")
	var ids []byte
	for i := range maxRegistrations {
		ids = scsi.AppendTransportID(ids, Initiator{"x", [6]byte{5: byte(i)}}.String())
	}
	list := append(binary.BigEndian.AppendUint32(keys(0, 5, 8), uint32(len(ids))), ids...)
	a.want(scsi.CheckCondition, scsi.InsufficientRegistrations, list, pr(scsi.Register, 0, list)...)
	if len(d.units[0].pr.keys) != 0 {
		t.Error("some of them are registered")
	}
}

// slow has writes of a unit's files wait; the channel that it returns gets one value for each.
func slow(u *Unit) (begun chan struct{}, release func(error)) {
	write := u.write
	begun = make(chan struct{}, 10)
	errs := make(chan error)
	u.write = func(path string, v any) error {
		begun <- struct{}{}
		if err := <-errs; err != nil {
			return err
		}
		return write(path, v)
	}
	return begun, func(err error) { errs <- err }
}

// TestCommandsDoNotWaitForTheFile: while a reservation is being written others go on, judged by what was
// before; the answer comes when it is written, and then nobody gets past it.
func TestCommandsDoNotWaitForTheFile(t *testing.T) {
	cfg := Config{Medium: newMemory(1 << 20), Reservations: filepath.Join(t.TempDir(), "r")}
	d := newDevice(t, cfg)
	a, b, c := newInitiator(t, d, "a"), newInitiator(t, d, "b"), newInitiator(t, d, "c")
	a.want(scsi.Good, 0, keys(0, 1, 1), persistentOut(scsi.Register, 0)...)
	begun, release := slow(d.units[0])
	a.begin(keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusive)...)
	<-begun
	b.want(scsi.Good, 0, nil, scsi.PersistentReserveIn, scsi.ReadReservation, 0, 0, 0, 0, 0, 0, 64)
	if !b.mayWrite() || !b.mayRead() || len(a.over) > 0 {
		t.Error("answered, or in effect, before it is written")
	}
	b.begin(keys(0, 2, 1), persistentOut(scsi.Register, 0)...) // a further change waits for the first
	c.begin(nil, scsi.Reserve6)
	select {
	case <-begun:
		t.Error("two changes at once")
	case <-c.over:
		t.Error("a reservation of the old kind came between")
	default:
	}
	release(nil)
	<-a.over
	if a.task.Status != scsi.Good {
		t.Errorf("%#x", a.task.Status)
	}
	<-begun
	release(nil)
	<-b.over
	<-c.over
	if b.task.Status != scsi.Good || c.task.Status != scsi.ReservationConflict || b.mayWrite() {
		t.Errorf("%#x, %#x", b.task.Status, c.task.Status)
	}
	a.begin(keys(1, 0, 0), persistentOut(scsi.Release, scsi.WriteExclusive)...)
	<-begun
	release(errors.New("no space"))
	if <-a.over; a.task.Status != scsi.CheckCondition || b.mayWrite() {
		t.Error("in effect though it is not written")
	}
}

// TestWhatHasWaitedIsJudgedAgain: a write that waited while its port was preempted does not get through
// afterwards.
func TestWhatHasWaitedIsJudgedAgain(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	a, b, c := newInitiator(t, d, "a"), newInitiator(t, d, "b"), newInitiator(t, d, "c")
	for k, i := range []*initiator{a, b} {
		i.want(scsi.Good, 0, keys(0, uint64(k+1), 0), persistentOut(scsi.Register, 0)...)
	}
	a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusiveReg)...)
	release := m.hold()
	c2 := newInitiator(t, d, "a2")
	c2.want(scsi.Good, 0, keys(0, 3, 0), persistentOut(scsi.Register, 0)...)
	c2.begin(append(make([]byte, 512), 1), scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0) // of no blocks
	<-c2.over
	c2.begin(append(make([]byte, 512), make([]byte, 512)...), scsi.CompareAndWrite, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1)
	b.begin(make([]byte, 512), scsi.Write10, 0, 0, 0, 0, 7, 0, 0, 1) // waits
	a.want(scsi.Good, 0, keys(1, 2, 0), persistentOut(scsi.Preempt, scsi.WriteExclusiveReg)...)
	release()
	<-c2.over
	if <-b.over; b.task.Status != scsi.ReservationConflict {
		t.Errorf("%#x", b.task.Status)
	}
	if c.mayWrite() || !a.mayWrite() {
		t.Error("not the reservation that there was")
	}
}

// TestPreemptAndAbortWaitsForTheMedium: when it is answered nothing of the preempted ports can have an
// effect any more.
func TestPreemptAndAbortWaitsForTheMedium(t *testing.T) {
	m := newMemory(1 << 20)
	d := newDevice(t, Config{Medium: m})
	a, b, c := newInitiator(t, d, "a"), newInitiator(t, d, "b"), newInitiator(t, d, "c")
	for k, i := range []*initiator{a, b, c} {
		i.want(scsi.Good, 0, keys(0, uint64(k+1), 0), persistentOut(scsi.Register, 0)...)
	}
	b.want(scsi.Good, 0, keys(2, 0, 0), persistentOut(scsi.Reserve, scsi.WriteExclusiveReg)...)
	releaseOther := m.hold()
	c.begin(make([]byte, 512), scsi.Write10, 0, 0, 0, 0, 9, 0, 0, 1) // of who is not preempted
	release := m.hold()
	b.begin(make([]byte, 512), scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1)
	a.begin(keys(1, 2, 0), persistentOut(scsi.PreemptAndAbort, scsi.WriteExclusiveReg)...)
	if len(a.over) > 0 {
		t.Error("answered while the medium has a write")
	}
	release()
	<-a.over
	<-b.over
	if a.task.Status != scsi.Good || !b.task.Aborted || len(c.over) > 0 {
		t.Errorf("%#x, %v", a.task.Status, b.task.Aborted)
	}
	releaseOther()
	if <-c.over; c.task.Aborted || c.task.Status != scsi.Good {
		t.Error("a command of who is not preempted was aborted")
	}
	if a.mayWrite(); b.attention() != scsi.RegistrationsPreempted || b.mayWrite() {
		t.Error("not preempted")
	}
}

// FuzzPersistentOut proves that every PERSISTENT RESERVE OUT ends once, and leaves a state that a restart takes.
func FuzzPersistentOut(f *testing.F) {
	types := []scsi.Type{scsi.WriteExclusive, scsi.ExclusiveAccess, scsi.WriteExclusiveReg, scsi.ExclusiveAccessReg, scsi.WriteExclusiveAll, scsi.ExclusiveAccessAll}
	list := moveTo(1, 2, 1, "b,i,0x000000000000")
	f.Add(byte(scsi.RegisterAndMove), byte(0), list)
	f.Add(byte(scsi.Register), byte(0), append(keys(0, 1, 9), list[20:]...))
	for action := range byte(scsi.RegisterAndIgnore + 1) {
		f.Add(action, byte(scsi.WriteExclusiveReg), keys(1, 2, 1))
		f.Add(action, byte(scsi.ExclusiveAccessAll), keys(1, 0, 0))
	}
	f.Fuzz(func(t *testing.T, action, kind byte, list []byte) {
		cfg := Config{Medium: newMemory(64 << 10), Reservations: filepath.Join(t.TempDir(), "r")}
		d := newDevice(t, cfg)
		d.units[0].write = func(string, any) error { return nil }
		a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
		a.want(scsi.Good, 0, keys(0, 1, 1), persistentOut(scsi.Register, 0)...)
		b.want(scsi.Good, 0, keys(0, 2, 1), persistentOut(scsi.Register, 0)...)
		a.want(scsi.Good, 0, keys(1, 0, 0), persistentOut(scsi.Reserve, types[int(kind>>4)%len(types)])...)
		st, s := a.do(list, pr(action, scsi.Type(kind), list)...)
		if (st == scsi.CheckCondition) != (s.Key != 0) || len(a.over) > 0 {
			t.Fatalf("%#x %+v", st, s)
		}
		p := &d.units[0].pr
		if _, registered := p.keys[p.holder]; p.holder != "" && (!registered || !p.kind.Known()) || len(p.keys) > maxRegistrations {
			t.Fatalf("%+v", p)
		}
	})
}
