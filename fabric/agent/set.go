package agent

import (
	"slices"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// set takes a valid Set: of the list below, or nothing of it.
//
//	PortInfo    M_Key, M_KeyProtectBits, M_KeyLeasePeriod; M_KeyViolations to 0;
//	            PortState to Armed (drain: no new stream begins) and back to Active
//	P_KeyTable  which of the configured partitions the host is in, and as what kind of member
func (a *Agent) set(from Requester, request *mad.SMP) Result {
	switch {
	case a.c.ReadOnly:
	case request.Attribute == mad.AttrPortInfo:
		return a.setPortInfo(from, request)
	case request.Attribute == mad.AttrPKeyTable:
		return a.setPKeys(from, request)
	}
	a.event(Event{Kind: SetRefused, From: from, Method: request.Method, Attribute: request.Attribute})
	return refuse(request, mad.StatusUnsupportedAttribute)
}

// sameBesidesList reports whether PortInfo wants nothing that is not on the list. Zero in a component that has
// "no change" stands for the current value.
func sameBesidesList(wanted, current mad.PortInfo) bool {
	for _, c := range []struct{ to, of *uint8 }{
		{&wanted.LinkWidthEnabled, &current.LinkWidthEnabled}, {&wanted.LinkSpeedEnabled, &current.LinkSpeedEnabled},
		{&wanted.PhysicalState, &current.PhysicalState}, {&wanted.LinkDownDefault, &current.LinkDownDefault},
		{&wanted.OperationalVLs, &current.OperationalVLs},
	} {
		if *c.to == 0 {
			*c.to = *c.of
		}
	}
	wanted.MKey, wanted.MKeyProtect, wanted.MKeyLeasePeriod = current.MKey, current.MKeyProtect, current.MKeyLeasePeriod
	wanted.MKeyViolations = current.MKeyViolations
	switch wanted.State {
	case mad.PortNoChange, mad.PortArmed, mad.PortActive:
		wanted.State = current.State
	}
	return wanted == current
}

func (a *Agent) setPortInfo(from Requester, request *mad.SMP) (r Result) {
	wanted, err := mad.ParsePortInfo(request.Data[:])
	if err != nil || request.Modifier > localPort || !sameBesidesList(wanted, a.portInfo()) {
		a.event(Event{Kind: SetRefused, From: from, Method: request.Method, Attribute: request.Attribute})
		return refuse(request, mad.StatusInvalidField)
	}
	before := *a.guard.keys.fields()
	a.guard.set(KeyFields{MKey: wanted.MKey, Protect: wanted.MKeyProtect, LeasePeriod: wanted.MKeyLeasePeriod})
	if wanted.MKeyViolations == 0 {
		a.guard.violations = 0
	}
	if before != *a.guard.keys.fields() {
		r.Changed = true
		a.event(Event{Kind: KeysSet, From: from, Before: before, After: *a.guard.keys.fields()})
	}
	if drain := wanted.State == mad.PortArmed; wanted.State != mad.PortNoChange && drain != a.drained {
		a.drained = drain
		r.Changed, r.Drain = true, &drain
		kind := Undrained
		if drain {
			kind = Drained
		}
		a.event(Event{Kind: kind, From: from})
	}
	r.Answer = a.answerPortInfo(request, keyMatches).Answer
	return r
}

func (a *Agent) setPKeys(from Requester, request *mad.SMP) Result {
	table, err := mad.ParsePKeyTable(request.Data[:])
	first, ok := a.pkeyBlock(request)
	if err == nil && ok {
		wanted := slices.Clone(a.pkeys)
		copy(wanted[first:], table.PKeys[:])
		if a.mayHave(wanted) {
			changed := !slices.Equal(wanted, a.pkeys)
			a.pkeys = wanted
			r := a.answerPKeys(request)
			if changed {
				r.Changed, r.PKeys = true, used(wanted)
				a.event(Event{Kind: PKeysSet, From: from})
			}
			return r
		}
	}
	a.event(Event{Kind: SetRefused, From: from, Method: request.Method, Attribute: request.Attribute})
	return refuse(request, mad.StatusInvalidField)
}

// mayHave reports whether the table has partitions of the configuration, each once at most.
func (a *Agent) mayHave(table []uint16) bool {
	allowed := make(map[uint16]uint16, len(a.c.PKeys))
	for _, k := range a.c.PKeys {
		allowed[base(k)] = k
	}
	seen := make(map[uint16]bool, len(table))
	for _, k := range used(table) {
		if seen[base(k)] || !withinConfiguration(k, allowed[base(k)]) {
			return false
		}
		seen[base(k)] = true
	}
	return true
}
