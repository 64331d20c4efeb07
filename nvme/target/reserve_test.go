package target_test

import (
	"encoding/binary"
	"strconv"
	"testing"

	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
	"github.com/ironwarp/ironwarp/nvme/target"
)

func itoa(n int) string { return strconv.Itoa(n) }

// reserve runs a command on a reservation.
func reserve(s *served, q *nvmetest.Queue, op nvme.Opcode, r nvme.Reservation, current, other uint64) (nvme.Completion, error) {
	c := q.New(op)
	c.SetNSID(1)
	c.SetReservation(r)
	b := binary.LittleEndian.AppendUint64(nil, current)
	if op != nvme.ReservationRelease {
		b = binary.LittleEndian.AppendUint64(b, other)
	}
	return q.Out(s.ctx, c, b)
}

// report is the type of the reservation, the number of registrants, who of them holds it, and whether it is kept.
func report(t *testing.T, s *served, q *nvmetest.Queue) (kind byte, holders []byte, kept byte) {
	t.Helper()
	c := q.New(nvme.ReservationReport)
	c.SetNSID(1)
	c.SetDWord(10, 4096/4-1)
	c.SetDWord(11, 1)
	b, e, err := q.In(s.ctx, c, 4096)
	want(t, "report", e, err, nvme.Success)
	for i := range le.Uint16(b[5:]) {
		x := b[64*(int(i)+1):]
		holders = append(holders, x[2]<<7|x[31]) // the last byte of the host's identifier
	}
	return b[4], holders, b[9]
}

// TestReservations: who may read and write under each type of reservation, holder, registrant and others.
func TestReservations(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	_, holder := s.queue(1)
	_, registrant := s.queue(2)
	_, other := s.queue(3)
	for n, q := range map[uint64]*nvmetest.Queue{0xa: holder, 0xb: registrant} {
		e, err := reserve(s, q, nvme.ReservationRegister, nvme.Reservation{}, 0, n)
		want(t, "register", e, err, nvme.Success)
	}
	for kind, may := range map[nvme.ReservationType]struct{ registrantReads, registrantWrites, otherReads, otherWrites bool }{
		nvme.WriteExclusive:         {true, false, true, false},
		nvme.ExclusiveAccess:        {false, false, false, false},
		nvme.WriteExclusiveRegs:     {true, true, true, false},
		nvme.ExclusiveAccessRegs:    {true, true, false, false},
		nvme.WriteExclusiveAllRegs:  {true, true, true, false},
		nvme.ExclusiveAccessAllRegs: {true, true, false, false},
	} {
		r := nvme.Reservation{Type: kind}
		e, err := reserve(s, holder, nvme.ReservationAcquire, r, 0xa, 0)
		want(t, "acquire", e, err, nvme.Success)
		try := func(what string, q *nvmetest.Queue, op nvme.Opcode, ok bool) {
			t.Helper()
			st := nvme.Success
			if !ok {
				st = nvme.ReservationConflict
			}
			var e nvme.Completion
			var err error
			if op == nvme.Read {
				_, e, err = q.In(s.ctx, rw(q, op, 0, 1), 512)
			} else {
				e, err = q.Inline(s.ctx, rw(q, op, 0, 1), make([]byte, 512))
			}
			want(t, "type "+itoa(int(kind))+": "+what, e, err, st)
		}
		try("the holder reads", holder, nvme.Read, true)
		try("the holder writes", holder, nvme.Write, true)
		try("a registrant reads", registrant, nvme.Read, may.registrantReads)
		try("a registrant writes", registrant, nvme.Write, may.registrantWrites)
		try("another reads", other, nvme.Read, may.otherReads)
		try("another writes", other, nvme.Write, may.otherWrites)
		e, err = reserve(s, other, nvme.ReservationAcquire, r, 0, 0)
		want(t, "another acquires", e, err, nvme.ReservationConflict)
		got, holders, _ := report(t, s, other)
		if nvme.ReservationType(got) != kind || len(holders) != 2 || holders[0] != 0x81 || holders[1]&0x80 != 0 != kind.AllRegistrants() {
			t.Errorf("type %d: the report has type %d and %x", kind, got, holders)
		}
		e, err = reserve(s, holder, nvme.ReservationRelease, nvme.Reservation{Type: kind ^ 7}, 0xa, 0)
		want(t, "release of another type", e, err, nvme.InvalidField)
		e, err = reserve(s, holder, nvme.ReservationRelease, r, 0xa, 0)
		want(t, "release", e, err, nvme.Success)
	}
}

// TestReservationFaults: keys that are wrong, types and actions that there are not.
func TestReservationFaults(t *testing.T) {
	s := serve(t, target.Config{}, target.Subsystem{}, nil)
	_, q := s.queue(1)
	e, err := reserve(s, q, nvme.ReservationAcquire, nvme.Reservation{Type: 1}, 0, 0)
	want(t, "acquire without registration", e, err, nvme.ReservationConflict)
	e, err = reserve(s, q, nvme.ReservationRegister, nvme.Reservation{Action: nvme.ActionUnregister}, 0, 0)
	want(t, "unregister without registration", e, err, nvme.ReservationConflict)
	e, err = reserve(s, q, nvme.ReservationRegister, nvme.Reservation{}, 0, 1)
	want(t, "register", e, err, nvme.Success)
	for what, c := range map[string]struct {
		op nvme.Opcode
		r  nvme.Reservation
		a  uint64
		st nvme.Status
	}{
		"register with another key":    {nvme.ReservationRegister, nvme.Reservation{}, 1, nvme.ReservationConflict},
		"register in a way of none":    {nvme.ReservationRegister, nvme.Reservation{Action: 5}, 1, nvme.InvalidField},
		"keep it in a way of none":     {nvme.ReservationRegister, nvme.Reservation{Persist: 1}, 1, nvme.InvalidField},
		"acquire with another key":     {nvme.ReservationAcquire, nvme.Reservation{Type: 1}, 9, nvme.ReservationConflict},
		"acquire a type of none":       {nvme.ReservationAcquire, nvme.Reservation{Type: 7}, 1, nvme.InvalidField},
		"acquire in a way of none":     {nvme.ReservationAcquire, nvme.Reservation{Action: 3, Type: 1}, 1, nvme.InvalidField},
		"preempt a key of nobody":      {nvme.ReservationAcquire, nvme.Reservation{Action: nvme.ActionPreempt, Type: 1}, 1, nvme.ReservationConflict},
		"release with another key":     {nvme.ReservationRelease, nvme.Reservation{Type: 1}, 9, nvme.ReservationConflict},
		"release what is not reserved": {nvme.ReservationRelease, nvme.Reservation{Type: 1}, 1, nvme.Success},
		"release in a way of none":     {nvme.ReservationRelease, nvme.Reservation{Action: 2}, 1, nvme.InvalidField},
	} {
		e, err := reserve(s, q, c.op, c.r, c.a, 77)
		want(t, what, e, err, c.st)
	}
	c := q.New(nvme.ReservationReport)
	c.SetNSID(1)
	c.SetDWord(10, 15)
	_, e, err = q.In(s.ctx, c, 64)
	want(t, "a report for identifiers of 64 bits", e, err, nvme.HostIDInconsistent)
}

// TestPreemptAndAbort is answered when nothing of the preempted host is at the storage, and that host is told.
func TestPreemptAndAbort(t *testing.T) {
	held := newHeld()
	s := serve(t, target.Config{}, target.Subsystem{}, held.on)
	oldHost, old := s.queue(1)
	_, q := s.queue(2)
	for n, x := range map[uint64]*nvmetest.Queue{0xa: old, 0xb: q} {
		e, err := reserve(s, x, nvme.ReservationRegister, nvme.Reservation{}, 0, n)
		want(t, "register", e, err, nvme.Success)
	}
	e, err := reserve(s, old, nvme.ReservationAcquire, nvme.Reservation{Type: nvme.WriteExclusive}, 0xa, 0)
	want(t, "acquire", e, err, nvme.Success)
	event := oldHost.Admin.New(nvme.AdminAsyncEvent)
	if err := oldHost.Admin.Send(event); err != nil {
		t.Fatal(err)
	}
	held.hold()
	w := with(rw(old, nvme.Write, 0, 1), nvme.SGL{Type: nvme.DataBlockOffset, Length: 512})
	if err := old.Send(append(w, make([]byte, 512)...)); err != nil {
		t.Fatal(err)
	}
	<-held.came
	answered := make(chan nvme.Completion, 1)
	go func() {
		e, err := reserve(s, q, nvme.ReservationAcquire, nvme.Reservation{Action: nvme.ActionPreemptAbort, Type: nvme.WriteExclusive}, 0xb, 0xa)
		if err != nil {
			t.Error(err)
		}
		answered <- e
	}()
	e, err = oldHost.Admin.Wait(s.ctx, event.ID()) // by then the reservation has changed
	want(t, "the preempted host is told", e, err, nvme.Success)
	if nvme.AsyncEvent(e.Result) != nvme.EventReservationChanged {
		t.Errorf("event %#x", e.Result)
	}
	b, e, err := logPage(s, oldHost.Admin, nvme.LogReservation, 64, 0, false)
	want(t, "log", e, err, nvme.Success)
	if nvme.ReservationNotice(b[8]) != nvme.NoticeRegistrationPreempted || b[9] != 0 || le.Uint32(b[12:]) != 1 {
		t.Errorf("%x", b[:16])
	}
	select {
	case <-answered:
		t.Error("answered while a write of the preempted host is at the storage")
	default:
	}
	held.release()
	if e := <-answered; e.Status != nvme.Success {
		t.Error(e.Status)
	}
	e, err = old.Wait(s.ctx, w.ID())
	want(t, "the write from before", e, err, nvme.Success)
	e, err = old.Inline(s.ctx, rw(old, nvme.Write, 0, 1), make([]byte, 512))
	want(t, "a write of the preempted host", e, err, nvme.ReservationConflict)
}

// TestReservationsThatAreKept are there when the namespace is made anew, as by another daemon; others are not.
func TestReservationsThatAreKept(t *testing.T) {
	for _, persist := range []uint8{3, 2} {
		s := serve(t, target.Config{}, target.Subsystem{}, nil)
		_, q := s.queue(1)
		e, err := reserve(s, q, nvme.ReservationRegister, nvme.Reservation{Persist: persist}, 0, 5)
		want(t, "register", e, err, nvme.Success)
		e, err = reserve(s, q, nvme.ReservationAcquire, nvme.Reservation{Type: nvme.ExclusiveAccess}, 5, 0)
		want(t, "acquire", e, err, nvme.Success)
		<-s.server.Detach(subsystemNQN, 1)
		ns, err := target.NewNamespace(target.NamespaceConfig{Medium: s.store, Reservations: s.file + ".reservations"})
		if err == nil {
			err = s.server.Attach(subsystemNQN, 1, ns)
		}
		if err != nil {
			t.Fatal(err)
		}
		kind, holders, kept := report(t, s, q)
		if persist == 3 && (kind != 2 || len(holders) != 1 || holders[0] != 0x81 || kept != 1) || persist == 2 && (kind != 0 || len(holders) != 0) {
			t.Errorf("CPTPL %d: type %d, %x, kept %d", persist, kind, holders, kept)
		}
	}
}
