package lu

import (
	"maps"
	"slices"

	"github.com/ironwarp/ironwarp/scsi"
)

// change is what one PERSISTENT RESERVE OUT does.
type change struct {
	action     byte
	kind       scsi.Type
	canKeep    bool
	p          persistent
	me         string
	list       scsi.PersistentList
	move       scsi.MoveList // of RegisterAndMove
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

func invalidInList(at uint16) *scsi.Sense {
	s := invalidParameter(at)
	return &s
}

func (x *change) apply() *scsi.Sense {
	p, l := &x.p, &x.list
	mine, registered := p.keys[x.me]
	switch {
	case x.action == scsi.Register || x.action == scsi.RegisterAndIgnore:
		return x.register(mine, registered)
	case x.action == scsi.RegisterAndMove && (!registered || x.move.Key != mine),
		x.action != scsi.RegisterAndMove && (!registered || l.Key != mine):
		x.conflict = true
		return nil
	}
	switch x.action {
	case scsi.RegisterAndMove:
		return x.registerAndMove()
	case scsi.Reserve:
		if !x.kind.Known() {
			s := invalidField(2)
			return &s
		}
		if p.holder != "" {
			x.conflict = !p.holds(x.me) || p.kind != x.kind
			return nil
		}
		p.holder, p.kind, x.changed = x.me, x.kind, true
	case scsi.Release:
		switch {
		case p.holder == "" || !p.holds(x.me):
			return nil // SPC-4 5.12.11.2: it ends with GOOD
		case p.kind != x.kind:
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
		return x.preempt()
	}
	return nil
}

// preempt ends the registrations of a key, and takes the reservation over if it was held by it
// (SPC-4 5.12.11.4).
func (x *change) preempt() *scsi.Sense {
	p, key := &x.p, x.list.ActionKey
	all := p.holder != "" && p.kind.AllRegistrants()
	takes := p.holder != "" && (all && key == 0 || !all && p.keys[p.holder] == key)
	if takes && !x.kind.Known() {
		s := invalidField(2)
		return &s
	}
	if key == 0 && !all {
		return invalidInList(8)
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
		p.holder, p.kind = x.me, x.kind
	}
	for _, port := range x.removed {
		x.remove(port)
		x.attentions = append(x.attentions, attention{port, scsi.RegistrationsPreempted})
	}
	if takes && old != x.kind {
		x.tellOthers(scsi.ReservationsReleased)
	}
	return nil
}

// register is REGISTER and REGISTER AND IGNORE EXISTING KEY (SPC-4 5.12.7). There is one target port, so
// that ALL_TG_PT says nothing.
func (x *change) register(mine uint64, registered bool) *scsi.Sense {
	p, l := &x.p, &x.list
	switch {
	case l.SpecifyPorts && (x.action == scsi.RegisterAndIgnore || registered), l.APTPL && !x.canKeep:
		return invalidInList(20)
	case x.action == scsi.Register && (registered && l.Key != mine || !registered && l.Key != 0):
		x.conflict = true
		return nil
	case !registered && l.ActionKey == 0:
		return nil
	}
	x.changed, p.aptpl = true, l.APTPL
	p.generation++
	if l.ActionKey == 0 {
		x.remove(x.me)
		return nil
	}
	p.keys[x.me] = l.ActionKey
	for rest := l.TransportIDs; len(rest) > 0; {
		port, after, ok := parsePort(rest)
		if _, taken := p.keys[port]; !ok || taken {
			return invalidInList(uint16(28 + len(l.TransportIDs) - len(rest)))
		}
		p.keys[port], rest = l.ActionKey, after
	}
	return x.tooMany()
}

func (x *change) tooMany() *scsi.Sense {
	if len(x.p.keys) > maxRegistrations {
		return &scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.InsufficientRegistrations}
	}
	return nil
}

// parsePort reads a TransportID and returns the name of the port as in persistent.
func parsePort(b []byte) (port string, rest []byte, ok bool) {
	name, isid, rest, err := scsi.ParseTransportID(b)
	return Initiator{name, isid}.String(), rest, err == nil
}

// registerAndMove registers another port, and has it hold the reservation (SPC-4 5.12.8).
func (x *change) registerAndMove() *scsi.Sense {
	p, m := &x.p, &x.move
	port, rest, ok := parsePort(m.TransportID)
	switch {
	case p.holder == "":
		s := invalidField(1)
		return &s
	case p.holder != x.me || p.kind.AllRegistrants():
		x.conflict = true
		return nil
	case m.ActionKey == 0:
		return invalidInList(8)
	case m.APTPL && !x.canKeep:
		return invalidInList(17)
	case m.TargetPort != targetPort:
		return invalidInList(18)
	case !ok || len(rest) > 0 || port == x.me:
		return invalidInList(24)
	}
	x.changed, p.aptpl = true, m.APTPL
	p.generation++
	p.keys[port], p.holder = m.ActionKey, port
	if m.Unregister {
		delete(p.keys, x.me)
	}
	return x.tooMany()
}
