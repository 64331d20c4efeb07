package iscsitest

import (
	"encoding/binary"
	"fmt"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi"
)

// reserve sends PERSISTENT RESERVE OUT.
func (s *Session) reserve(action, kind byte, key, serviceKey uint64) *Task {
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], serviceKey)
	return s.attempt("PERSISTENT RESERVE OUT", persistentOut(action, kind, 24), list, nil)
}

// keys are the keys that are registered, and the generation.
func (s *Session) keys() (generation uint32, keys []uint64) {
	in := make([]byte, 1024)
	k := s.good(s.attempt("PERSISTENT RESERVE IN", persistentIn(scsi.ReadKeys, 1024), nil, in), "READ KEYS")
	n := min(int(binary.BigEndian.Uint32(in[4:])), int(k.gotten())-8)
	for at := 8; at+8 <= 8+n; at += 8 {
		keys = append(keys, binary.BigEndian.Uint64(in[at:]))
	}
	return binary.BigEndian.Uint32(in), keys
}

// reservation is the key and the type of the reservation; held is false if there is none.
func (s *Session) reservation() (key uint64, kind byte, held bool) {
	in := make([]byte, 64)
	k := s.good(s.attempt("PERSISTENT RESERVE IN", persistentIn(scsi.ReadReservation, 64), nil, in), "READ RESERVATION")
	if binary.BigEndian.Uint32(in[4:]) < 16 || k.gotten() < 24 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(in[8:]), in[21] & 0xf, true
}

// Keys of registrations: nobody else is to have them.
const (
	keyOf1 = 0x4957_7465_7374_0001
	keyOf2 = 0x4957_7465_7374_0002
	keyOf3 = 0x4957_7465_7374_0003
)

// registered is a case with n initiators, each of which is registered with its key. Whatever the case leaves
// behind of them is taken away.
func registered(id string, says string, n int, run func(t *T, all []*Session)) Case {
	return Case{ID: "reservation." + id, Source: "SPC-4 5.13, 6.16", Says: says, Need: Data, run: func(t *T) {
		var all []*Session
		for i := range n {
			all = append(all, t.login(options{initiator: i}).ready())
		}
		if _, keys := all[0].keys(); len(keys) > 0 {
			t.skip("others are registered, with the keys %x", keys)
		}
		t.defers(func() {
			s := t.login(options{initiator: n})
			for range 4 {
				s.ready()
				if k := s.reserve(scsi.RegisterAndIgnore, 0, 0, keyOf3+1); k.Status == scsi.Good {
					s.reserve(scsi.Clear, 0, keyOf3+1, 0)
					return
				}
			}
		})
		for i, s := range all {
			k := s.reserve(scsi.Register, 0, 0, keyOf1+uint64(i))
			if i == 0 && k.Status == scsi.ReservationConflict { // nobody is registered, so this is the other kind
				t.skip("others have reserved the unit, by RESERVE (6)")
			}
			s.good(k, "REGISTER")
		}
		run(t, all)
	}}
}

// access is what somebody may do while a reservation of a type is held, with blocks of n bytes.
func (s *Session) access(n int) (reads, writes bool) {
	reads = s.do(read10(900, 1), nil, make([]byte, n)).Status != scsi.ReservationConflict
	writes = s.do(write10(900, 1), make([]byte, n), nil).Status != scsi.ReservationConflict
	return reads, writes
}

func reservationCases() []Case {
	types := []struct {
		kind            byte
		name            string
		reads, writes   bool // who is not registered
		registered, all bool // who is registered may do all; all of them hold it
	}{
		{1, "Write Exclusive", true, false, false, false},
		{3, "Exclusive Access", false, false, false, false},
		{5, "Write Exclusive - Registrants Only", true, false, true, false},
		{6, "Exclusive Access - Registrants Only", false, false, true, false},
		{7, "Write Exclusive - All Registrants", true, false, true, true},
		{8, "Exclusive Access - All Registrants", false, false, true, true},
	}
	var all []Case
	for _, x := range types {
		all = append(all, registered(fmt.Sprintf("type-%d", x.kind), fmt.Sprintf("a reservation of type %s lets in whom it lets in (SPC-4 table 45)", x.name), 2, func(t *T, all []*Session) {
			third := t.login(options{initiator: 2}).ready()
			s := all[0]
			n := s.blockLen()
			s.good(s.reserve(scsi.Reserve, x.kind, keyOf1, 0), "RESERVE")
			key, kind, held := all[1].reservation()
			t.require(held && kind == x.kind && (key == keyOf1 || x.all && key == 0), "READ RESERVATION says held %t, type %d, key %x", held, kind, key)
			for i, who := range []struct {
				s             *Session
				name          string
				reads, writes bool
			}{{s, "the holder", true, true}, {all[1], "a registrant", x.reads || x.registered, x.registered}, {third, "who is not registered", x.reads, x.writes}} {
				reads, writes := who.s.access(n)
				t.require(reads == who.reads && writes == who.writes, "%d: %s may read: %t, write: %t; in place of %t, %t", i, who.name, reads, writes, who.reads, who.writes)
			}
			s.good(s.reserve(scsi.Release, x.kind, keyOf1, 0), "RELEASE")
			_, _, held = s.reservation()
			t.require(!held, "the reservation is held after RELEASE")
			if _, writes := third.access(n); !writes {
				t.fail("who is not registered gets a conflict after RELEASE")
			}
		}))
	}
	return append(all,
		registered("register", "REGISTER adds a key, changes it and takes it away, and PRGENERATION counts that", 1, func(t *T, all []*Session) {
			s := all[0]
			g, keys := s.keys()
			t.require(len(keys) == 1 && keys[0] == keyOf1, "READ KEYS says %x", keys)
			s.good(s.reserve(scsi.Register, 0, keyOf1, keyOf2), "REGISTER of another key")
			h, keys := s.keys()
			t.require(len(keys) == 1 && keys[0] == keyOf2 && h == g+1, "READ KEYS says %x and PRGENERATION %d after %d", keys, h, g)
			s.good(s.reserve(scsi.Register, 0, keyOf2, 0), "REGISTER of no key")
			_, keys = s.keys()
			t.require(len(keys) == 0, "READ KEYS says %x", keys)
		}),
		registered("wrong-key", "a service action with a key that is not one's own is a RESERVATION CONFLICT", 1, func(t *T, all []*Session) {
			for _, action := range []byte{scsi.Register, scsi.Reserve, scsi.Clear} {
				k := all[0].reserve(action, 1, keyOf3, keyOf2)
				t.require(k.Status == scsi.ReservationConflict, "service action %d ends with %s", action, k.outcome())
			}
		}),
		registered("second", "RESERVE while another holds a reservation is a RESERVATION CONFLICT", 2, func(t *T, all []*Session) {
			all[0].good(all[0].reserve(scsi.Reserve, 1, keyOf1, 0), "RESERVE")
			k := all[1].reserve(scsi.Reserve, 1, keyOf2, 0)
			t.require(k.Status == scsi.ReservationConflict, "it ends with %s", k.outcome())
			all[0].good(all[0].reserve(scsi.Reserve, 1, keyOf1, 0), "RESERVE of the same by the holder")
		}),
		registered("release-of-another", "RELEASE by a registrant that is not the holder does nothing and is GOOD", 2, func(t *T, all []*Session) {
			all[0].good(all[0].reserve(scsi.Reserve, 1, keyOf1, 0), "RESERVE")
			all[1].good(all[1].reserve(scsi.Release, 1, keyOf2, 0), "RELEASE by another")
			_, _, held := all[0].reservation()
			t.require(held, "the reservation is gone")
		}),
		registered("preempt", "PREEMPT takes the reservation and the registration of another, who gets a unit attention", 2, func(t *T, all []*Session) {
			a, b := all[0], all[1]
			a.good(a.reserve(scsi.Reserve, 3, keyOf1, 0), "RESERVE")
			b.good(b.reserve(scsi.Preempt, 3, keyOf2, keyOf1), "PREEMPT")
			key, kind, held := b.reservation()
			t.require(held && key == keyOf2 && kind == 3, "READ RESERVATION says held %t, type %d, key %x", held, kind, key)
			_, keys := b.keys()
			t.require(len(keys) == 1 && keys[0] == keyOf2, "READ KEYS says %x", keys)
			k := a.once([]byte{scsi.TestUnitReady}, nil, nil)
			t.require(k.Status == scsi.CheckCondition && k.Sense.Key == scsi.UnitAttention && (k.Sense.Code == scsi.RegistrationsPreempted || k.Sense.Code == scsi.ReservationsPreempted), "the next command of who was preempted ends with %s", k.outcome())
		}),
		registered("clear", "CLEAR takes all registrations and the reservation away, and tells the others", 2, func(t *T, all []*Session) {
			a, b := all[0], all[1]
			a.good(a.reserve(scsi.Reserve, 1, keyOf1, 0), "RESERVE")
			b.good(b.reserve(scsi.Clear, 0, keyOf2, 0), "CLEAR")
			_, keys := b.keys()
			_, _, held := b.reservation()
			t.require(len(keys) == 0 && !held, "after CLEAR keys are %x, and a reservation is held: %t", keys, held)
			k := a.once([]byte{scsi.TestUnitReady}, nil, nil)
			t.require(k.Status == scsi.CheckCondition && k.Sense.Key == scsi.UnitAttention && k.Sense.Code == scsi.ReservationsPreempted, "the next command of the other ends with %s", k.outcome())
		}),
		registered("nexus-loss", "registrations and a reservation stay when their initiator logs out", 1, func(t *T, all []*Session) {
			all[0].good(all[0].reserve(scsi.Reserve, 1, keyOf1, 0), "RESERVE")
			all[0].logout(iscsi.CloseSession, all[0].cid)
			s := t.login(options{initiator: 1}).ready()
			_, keys := s.keys()
			key, _, held := s.reservation()
			t.require(len(keys) == 1 && held && key == keyOf1, "keys are %x, and a reservation is held: %t, by %x", keys, held, key)
			s = t.login(options{}).ready()
			s.good(s.reserve(scsi.Release, 1, keyOf1, 0), "RELEASE after another login")
		}),
		registered("unregister-releases", "who takes his registration away gives his reservation up, and is not told of that himself", 2, func(t *T, all []*Session) {
			s := all[0]
			s.good(s.reserve(scsi.Reserve, 1, keyOf1, 0), "RESERVE")
			s.good(s.reserve(scsi.Register, 0, keyOf1, 0), "REGISTER of no key")
			k := s.once([]byte{scsi.TestUnitReady}, nil, nil)
			t.require(!k.HasSense || k.Sense.Code != scsi.ReservationsReleased, "TEST UNIT READY of who has given it up ends with %s", k.outcome())
			_, _, held := s.reservation()
			t.require(!held, "the reservation is still held")
		}),
		registered("full-status", "READ FULL STATUS names each registrant, its key and its port", 2, func(t *T, all []*Session) {
			in := make([]byte, 4096)
			k := all[0].attempt("READ FULL STATUS", persistentIn(scsi.ReadFullStatus, 4096), nil, in)
			if k.Sense.Code == scsi.InvalidFieldInCDB {
				t.skip("the unit has no READ FULL STATUS")
			}
			all[0].good(k, "READ FULL STATUS")
			found := map[string]uint64{}
			end := 8 + min(int(binary.BigEndian.Uint32(in[4:])), int(k.gotten())-8)
			for at := 8; at+24 <= end; {
				n := int(binary.BigEndian.Uint32(in[at+20:]))
				t.require(at+24+n <= end, "a descriptor of %d bytes is longer than the data", n)
				name, _, _, err := scsi.ParseTransportID(in[at+24 : at+24+n])
				t.require(err == nil, "a TransportID can't be read: %x", in[at+24:at+24+n])
				found[name] = binary.BigEndian.Uint64(in[at:])
				at += 24 + n
			}
			for i := range 2 {
				t.require(found[t.target.initiator(i)] == keyOf1+uint64(i), "it names %v", found)
			}
		}),
		Case{ID: "reservation.reserve-6", Source: "SPC-2 5.5, 7.21", Says: "RESERVE (6) shuts others out, of MODE SENSE as of READ, until RELEASE (6)", Need: Data, run: func(t *T) {
			a, b := t.login(options{}).ready(), t.login(options{initiator: 1}).ready()
			k := a.attempt("RESERVE (6)", []byte{scsi.Reserve6, 0, 0, 0, 0, 0}, nil, nil)
			if k.Status == scsi.ReservationConflict {
				t.skip("others have reserved the unit, or are registered")
			}
			a.good(k, "RESERVE (6)")
			t.defers(func() { a.do([]byte{scsi.Release6, 0, 0, 0, 0, 0}, nil, nil) })
			n := a.blockLen()
			k = b.do(read10(0, 1), nil, make([]byte, n))
			t.require(k.Status == scsi.ReservationConflict, "READ of another ends with %s", k.outcome())
			k = b.do([]byte{scsi.ModeSense6, 0, 0x3f, 0, 255, 0}, nil, make([]byte, 255))
			t.require(k.Status == scsi.ReservationConflict, "MODE SENSE of another ends with %s", k.outcome())
			b.good(b.do(inquiry(-1, 36), nil, make([]byte, 36)), "INQUIRY of another")
			a.good(a.do([]byte{scsi.Release6, 0, 0, 0, 0, 0}, nil, nil), "RELEASE (6)")
			b.good(b.do(read10(0, 1), nil, make([]byte, n)), "READ of the other after RELEASE (6)")
		}},
	)
}
