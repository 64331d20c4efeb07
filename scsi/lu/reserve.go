package lu

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/ironwarp/ironwarp/scsi"
)

// reserve6 reserves the whole unit for a nexus (SPC-2 7.21). While there are registrations such
// reservations are refused (SPC-4 5.12.3).
func (t *Task) reserve6() {
	u, n := t.nexus.unit, t.nexus
	u.mu.Lock()
	conflict := len(u.pr.keys) > 0
	if !conflict {
		u.reservedBy = n
	}
	u.mu.Unlock()
	t.decide(conflict)
}

func (t *Task) release6() {
	u, n := t.nexus.unit, t.nexus
	u.mu.Lock()
	conflict := len(u.pr.keys) > 0
	if u.reservedBy == n {
		u.reservedBy = nil
	}
	u.mu.Unlock()
	t.decide(conflict)
}

func (t *Task) decide(conflict bool) {
	if conflict {
		t.Status = scsi.ReservationConflict
		t.end()
		return
	}
	t.good(0)
}

// persistent is the state of persistent reservations (SPC-4 5.12). Names are those of initiator
// ports.
type persistent struct {
	keys       map[string]uint64 // who is registered
	holder     string            // who reserved; "" if there is no reservation
	kind       scsi.Type
	generation uint32
	aptpl      bool
}

// kept is what a file has of it.
type kept struct {
	Keys   map[string]uint64 `json:"keys"`
	Holder string            `json:"holder,omitempty"`
	Type   scsi.Type         `json:"type,omitempty"`
}

// load reads the file. One that is not there means that there is nothing. It fails with the file
// system's error, and if the file is not what save writes.
func (p *persistent) load(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if _, registered := k.Keys[k.Holder]; err == nil && k.Holder != "" && (!registered || !k.Type.Known()) {
		err = fmt.Errorf("%s: the reservation is of nobody who is registered", path)
	}
	if err != nil {
		return err
	}
	if len(k.Keys) > 0 {
		*p = persistent{keys: k.Keys, holder: k.Holder, kind: k.Type, aptpl: true}
	}
	return nil
}

// kept returns what is written to the file: the state while APTPL is set, nothing otherwise.
func (p *persistent) kept() kept {
	if !p.aptpl {
		return kept{Keys: map[string]uint64{}}
	}
	return kept{p.keys, p.holder, p.kind}
}

func (p *persistent) clone() persistent {
	c := *p
	c.keys = maps.Clone(p.keys)
	return c
}

// holds reports whether a port holds the reservation.
func (p *persistent) holds(port string) bool {
	_, registered := p.keys[port]
	return p.holder == port && port != "" || p.holder != "" && p.kind.AllRegistrants() && registered
}

func (t *Task) persistentIn() {
	u := t.nexus.unit
	be := binary.BigEndian
	u.mu.Lock()
	if u.reservedBy != nil {
		u.mu.Unlock()
		t.decide(true)
		return
	}
	p := &u.pr
	b := be.AppendUint32(nil, p.generation)
	b = append(b, 0, 0, 0, 0)
	switch scsi.ServiceAction(t.CDB[:]) {
	case scsi.ReadKeys:
		for _, port := range slices.Sorted(maps.Keys(p.keys)) {
			b = be.AppendUint64(b, p.keys[port])
		}
	case scsi.ReadReservation:
		if p.holder != "" {
			key := p.keys[p.holder]
			if p.kind.AllRegistrants() {
				key = 0
			}
			b = be.AppendUint64(b, key)
			b = append(b, 0, 0, 0, 0, 0, byte(p.kind), 0, 0)
		}
	case scsi.ReportCapabilities:
		b = []byte{0, 8, 0x0c, 0x80, 0xea, 0x01, 0, 0} // SIP_C, ATP_C, TMV, and all six types
		if u.cfg.Reservations != "" {
			b[2] |= 1 // PTPL_C
		}
		if p.aptpl {
			b[3] |= 1
		}
	case scsi.ReadFullStatus:
		for _, port := range slices.Sorted(maps.Keys(p.keys)) {
			flags, kind := byte(2), byte(0) // ALL_TG_PT: there is one
			if p.holds(port) {
				flags, kind = 3, byte(p.kind)
			}
			b = be.AppendUint64(b, p.keys[port])
			b = append(b, 0, 0, 0, 0, flags, kind, 0, 0, 0, 0)
			b = be.AppendUint16(b, 1)
			id := scsi.AppendTransportID(nil, port)
			b = be.AppendUint32(b, uint32(len(id)))
			b = append(b, id...)
		}
	}
	u.mu.Unlock()
	if scsi.ServiceAction(t.CDB[:]) != scsi.ReportCapabilities {
		be.PutUint32(b[4:], uint32(len(b)-8))
	}
	t.answer(b)
}

// preparePersistent reads PERSISTENT RESERVE OUT. One of them at a time changes what there is.
func preparePersistent(t *Task) {
	parameterLong(5)(t)
	t.excludeState()
}

// persistentOut changes registrations and the reservation. What it changes is in the file, if it is
// to be, before it ends with GOOD. Other commands do not wait for that: until then they are judged by
// what was before.
func (t *Task) persistentOut() {
	u := t.nexus.unit
	x := change{me: t.nexus.port.key, canKeep: u.cfg.Reservations != ""}
	var err error
	if x.action = scsi.ServiceAction(t.CDB[:]); x.action == scsi.RegisterAndMove {
		x.move, err = scsi.ParseMove(t.Buf)
	} else {
		x.list, err = scsi.ParsePersistent(t.Buf)
	}
	if err != nil {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.ParameterListLength})
		return
	}
	x.kind = scsi.Type(t.CDB[2] & 0xf)
	u.mu.Lock()
	x.p = u.pr.clone()
	kept := x.p.aptpl
	var sense *scsi.Sense
	switch scoped := x.action == scsi.Reserve || x.action == scsi.Release || x.action == scsi.Preempt || x.action == scsi.PreemptAndAbort; {
	case u.reservedBy != nil:
		x.conflict = true
	case scoped && t.CDB[2]>>4 != 0:
		s := invalidField(2)
		sense = &s
	default:
		sense = x.apply()
	}
	u.mu.Unlock()
	switch {
	case sense != nil:
		t.fail(*sense)
	case x.conflict || !x.changed:
		t.decide(x.conflict)
	case x.canKeep && (kept || x.p.aptpl):
		go func() {
			err := u.write(u.cfg.Reservations, x.p.kept())
			t.nexus.port.elsewhere(func() {
				if err != nil {
					t.fail(scsi.Sense{Key: scsi.HardwareError, Code: scsi.InternalTargetFailure})
				} else {
					t.commit(&x)
				}
			})
		}()
	default:
		t.commit(&x)
	}
}

// commit has a change take effect, and ends the task.
func (t *Task) commit(x *change) {
	u := t.nexus.unit
	u.mu.Lock()
	u.pr = x.p
	for _, a := range x.attentions {
		for _, o := range u.nexuses {
			if o.port.key == a.port {
				o.attendLocked(a.code)
			}
		}
	}
	u.mu.Unlock()
	if x.action == scsi.PreemptAndAbort {
		t.nexus.Abort(func(o *Task) bool { return o != t && slices.Contains(x.removed, o.nexus.port.key) }, func() { t.good(0) })
		return
	}
	t.good(0)
}
