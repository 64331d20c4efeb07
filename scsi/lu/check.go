package lu

import "github.com/ironwarp/ironwarp/scsi"

// checkLocked decides whether a command may run, in the order of SAM-5 5.3.3 and SPC-4: a unit
// attention, then reservations, then the medium, then what is wrong with the CDB. If not it sets
// the status.
func (t *Task) checkLocked() bool {
	n := t.nexus
	u := n.unit
	no := func(k scsi.Key, c scsi.Code) bool {
		t.check(&scsi.Sense{Key: k, Code: c})
		return false
	}
	if t.isAwayLocked() {
		return false
	}
	var f flags
	if t.cmd != nil {
		f = t.cmd.flags
	}
	if f&always == 0 {
		if u.isAbsent() {
			return no(scsi.IllegalRequest, scsi.LogicalUnitNotSupported)
		}
		if len(n.attentions) > 0 && !t.part {
			c := n.attentions[0]
			n.attentions = append(n.attentions[:0], n.attentions[1:]...)
			return no(scsi.UnitAttention, c)
		}
	}
	if !u.isAbsent() && t.cmd != nil && t.barredLocked() {
		return false
	}
	switch {
	case f&medium != 0 && u.ejected:
		return no(scsi.NotReady, scsi.MediumNotPresent)
	case f&writes != 0 && (u.swp || u.readOnly()):
		return no(scsi.DataProtect, scsi.WriteProtected)
	case t.bad:
		t.check(&t.early)
		return false
	}
	if f&medium != 0 && t.n > 0 {
		if t.lba >= u.blocks || uint64(t.n) > u.blocks-t.lba {
			if u.lookLocked(); t.lba >= u.blocks || uint64(t.n) > u.blocks-t.lba {
				t.check(&scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.LBAOutOfRange, Info: t.lba, HasInfo: true})
				return false
			}
		}
	} else if f&medium != 0 && t.lba > u.blocks {
		return no(scsi.IllegalRequest, scsi.LBAOutOfRange) // SBC-3 4.5.1: also of no blocks
	}
	return true
}

// barredLocked reports whether what others have done stands against a command: a reservation, that
// they sanitize the unit, or that it was taken away. It sets the status then. A command that has waited is asked again.
func (t *Task) barredLocked() bool {
	u := t.nexus.unit
	if t.isAwayLocked() {
		return true
	}
	if t.nexus.conflictsLocked(t, t.cmd.flags) {
		t.Status = scsi.ReservationConflict
		return true
	}
	if t.cmd.flags&always == 0 {
		if s := u.erasureSenseLocked(t.CDB[0] == scsi.Sanitize); s != nil {
			t.check(s)
			return true
		}
	}
	return false
}

// conflictsLocked reports whether a reservation of another nexus stands against a command.
func (n *Nexus) conflictsLocked(t *Task, f flags) bool {
	u := n.unit
	if u.reservedBy != nil && u.reservedBy != n {
		switch t.CDB[0] { // SPC-2 table 9
		case scsi.Inquiry, scsi.ReportLUNs, scsi.RequestSense, scsi.Release6:
			return false
		case scsi.PreventAllow:
			return t.CDB[4]&3 != 0
		}
		return true
	}
	if u.pr.holder == "" || f&anyone != 0 || f&(writes|changes|reads) == 0 {
		return false
	}
	p := &u.pr
	_, registered := p.keys[n.port.key]
	if p.holder == n.port.key || p.kind.RegistrantsOnly() && registered {
		return false
	}
	switch t.CDB[0] { // SPC-4 table 40, SBC-3 table 4
	case scsi.PreventAllow:
		return t.CDB[4]&3 != 0
	case scsi.StartStopUnit:
		return t.CDB[4] != 1 // all but START
	}
	return f&(writes|changes) != 0 || p.kind.Exclusive()
}
