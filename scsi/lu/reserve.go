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

	"github.com/ironwarp/ironwarp/internal/wholefile"
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

// save writes the file: the state while APTPL is set, nothing otherwise.
func (p *persistent) save(path string) error {
	if path == "" {
		return nil
	}
	k := kept{Keys: map[string]uint64{}}
	if p.aptpl {
		k = kept{p.keys, p.holder, p.kind}
	}
	return wholefile.WriteJSON(path, k)
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
		b = []byte{0, 8, 0, 0x80, 0xea, 0x01, 0, 0} // TMV, and all six types
		if u.cfg.Reservations != "" {
			b[2] = 1 // PTPL_C
		}
		if p.aptpl {
			b[3] |= 1
		}
	case scsi.ReadFullStatus:
		for _, port := range slices.Sorted(maps.Keys(p.keys)) {
			flags, kind := byte(0), byte(0)
			if p.holds(port) {
				flags, kind = 1, byte(p.kind)
			}
			b = be.AppendUint64(b, p.keys[port])
			b = append(b, 0, 0, 0, 0, flags, kind, 0, 0, 0, 0)
			b = be.AppendUint16(b, 1)
			id := transportID(port)
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

// transportID makes a TransportID of the name of a port.
func transportID(port string) []byte {
	b := append([]byte{0x45, 0, 0, 0}, port...)
	b = append(b, make([]byte, 4-len(b)%4)...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
	return b
}

// persistentOut changes registrations and the reservation. What it changes is in the file, if it is
// to be, before it ends with GOOD. The unit waits for that: its other commands have to be judged by
// the new state.
func (t *Task) persistentOut() {
	u, n := t.nexus.unit, t.nexus
	list, err := scsi.ParsePersistent(t.Buf)
	if err != nil {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.ParameterListLength})
		return
	}
	action, kind := scsi.ServiceAction(t.CDB[:]), scsi.Type(t.CDB[2]&0xf)
	u.mu.Lock()
	x := change{p: u.pr.clone(), me: n.port.key, list: list}
	var sense *scsi.Sense
	switch {
	case u.reservedBy != nil:
		x.conflict = true
	case action != scsi.Register && action != scsi.RegisterAndIgnore && action != scsi.Clear && t.CDB[2]>>4 != 0:
		s := invalidField(2)
		sense = &s
	default:
		sense = x.apply(action, kind, u.cfg.Reservations != "")
	}
	if sense == nil && !x.conflict && x.changed {
		if x.p.save(u.cfg.Reservations) != nil {
			sense = &scsi.Sense{Key: scsi.HardwareError, Code: scsi.InternalTargetFailure}
		} else {
			u.pr = x.p
			for _, a := range x.attentions {
				for _, o := range u.nexuses {
					if o.port.key == a.port {
						o.attendLocked(a.code)
					}
				}
			}
		}
	}
	u.mu.Unlock()
	switch {
	case sense != nil:
		t.fail(*sense)
		return
	case x.conflict:
		t.decide(true)
		return
	case action == scsi.PreemptAndAbort:
		n.Abort(func(o *Task) bool { return o != t && slices.Contains(x.removed, o.nexus.port.key) }, func() { t.good(0) })
		return
	}
	t.good(0)
}

// change is what one PERSISTENT RESERVE OUT does.
type change struct {
	p          persistent
	me         string
	list       scsi.PersistentList
	conflict   bool
	changed    bool
	removed    []string
	attentions []attention
}

type attention struct {
	port string
	code scsi.Code
}

func (x *change) tellOthers(c scsi.Code) {
	for port := range x.p.keys {
		if port != x.me {
			x.attentions = append(x.attentions, attention{port, c})
		}
	}
}

// remove ends a registration, and the reservation if it was the last that held it.
func (x *change) remove(port string) {
	held := x.p.holder == port
	delete(x.p.keys, port)
	switch {
	case x.p.holder != "" && x.p.kind.AllRegistrants():
		if len(x.p.keys) == 0 {
			x.p.holder = ""
		} else if held {
			x.p.holder = slices.Sorted(maps.Keys(x.p.keys))[0] // any of them holds it
		}
	case held:
		x.p.holder = ""
		if x.p.kind.RegistrantsOnly() {
			x.tellOthers(scsi.ReservationsReleased)
		}
	}
}

func (x *change) apply(action byte, kind scsi.Type, canKeep bool) *scsi.Sense {
	p, l := &x.p, &x.list
	mine, registered := p.keys[x.me]
	if action == scsi.Register || action == scsi.RegisterAndIgnore {
		switch {
		case l.SpecifyPorts || l.AllPorts || l.APTPL && !canKeep:
			s := invalidParameter(20)
			return &s
		case action == scsi.Register && (registered && l.Key != mine || !registered && l.Key != 0):
			x.conflict = true
			return nil
		case !registered && l.ActionKey == 0:
			return nil
		case !registered && len(p.keys) == maxRegistrations:
			return &scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InsufficientRegistrations}
		}
		x.changed, p.aptpl = true, l.APTPL
		p.generation++
		if l.ActionKey == 0 {
			x.remove(x.me)
		} else {
			p.keys[x.me] = l.ActionKey
		}
		return nil
	}
	if !registered || l.Key != mine {
		x.conflict = true
		return nil
	}
	switch action {
	case scsi.Reserve:
		if !kind.Known() {
			s := invalidField(2)
			return &s
		}
		if p.holder != "" {
			x.conflict = !p.holds(x.me) || p.kind != kind
			return nil
		}
		p.holder, p.kind, x.changed = x.me, kind, true
	case scsi.Release:
		switch {
		case p.holder == "" || !p.holds(x.me):
			return nil // SPC-4 5.12.11.2: it ends with GOOD
		case p.kind != kind:
			return &scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InvalidRelease}
		}
		p.holder, x.changed = "", true
		if p.kind.RegistrantsOnly() {
			x.tellOthers(scsi.ReservationsReleased)
		}
	case scsi.Clear:
		x.tellOthers(scsi.ReservationsPreempted)
		p.keys, p.holder, x.changed = map[string]uint64{}, "", true
		p.generation++
	case scsi.Preempt, scsi.PreemptAndAbort:
		return x.preempt(kind)
	}
	return nil
}

// preempt ends the registrations of a key, and takes the reservation over if it was held by it
// (SPC-4 5.12.11.4).
func (x *change) preempt(kind scsi.Type) *scsi.Sense {
	p, key := &x.p, x.list.ActionKey
	all := p.holder != "" && p.kind.AllRegistrants()
	takes := p.holder != "" && (all && key == 0 || !all && p.keys[p.holder] == key)
	if takes && !kind.Known() {
		s := invalidField(2)
		return &s
	}
	if key == 0 && !all {
		s := invalidParameter(8)
		return &s
	}
	for port, k := range p.keys {
		if k == key && port != x.me || all && key == 0 && port != x.me {
			x.removed = append(x.removed, port)
		}
	}
	if len(x.removed) == 0 && !takes {
		x.conflict = true
		return nil
	}
	x.changed = true
	p.generation++
	old := p.kind
	if takes {
		p.holder, p.kind = x.me, kind
	}
	for _, port := range x.removed {
		x.remove(port)
		x.attentions = append(x.attentions, attention{port, scsi.RegistrationsPreempted})
	}
	if takes && old != kind && old.RegistrantsOnly() {
		x.tellOthers(scsi.ReservationsReleased)
	}
	return nil
}
