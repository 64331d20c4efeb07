package lu

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ironwarp/ironwarp/scsi"
)

// absence is whether a unit is there:
//
//	here --Withdraw--> leaving  (its LUN is taken from it, and may be another unit's)
//	here --Suspend---> changing (its LUN is kept until Add gives it to another unit)
type absence uint8

const (
	here absence = iota
	leaving
	changing
)

// Add gives the device one more unit, or a suspended LUN another one. Initiator ports that are attached
// have it from then on; of a further LUN they hear by a unit attention at all others. It fails with ErrLUN.
func (d *Device) Add(lun uint16, u *Unit) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.units[lun]
	if lun >= maxUnits || old != nil && !old.isSuspended() {
		return fmt.Errorf("LUN %d: %w", lun, ErrLUN)
	}
	if d.units == nil {
		d.units = make(map[uint16]*Unit)
	}
	d.units[lun] = u
	for _, p := range d.ports {
		n := p.newNexus(u)
		if was := p.setLocked(lun, n); was != nil { // unlocked: nobody else knows the new nexus yet
			was.leave()
			n.attend(scsi.InquiryDataChanged)
		} else {
			p.tellLocked(n)
		}
	}
	return nil
}

func (u *Unit) isSuspended() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.absence == changing
}

// Withdraw takes a LUN and its unit from the device. Its commands, those under way too, end with LOGICAL
// UNIT NOT SUPPORTED, and initiator ports hear of it by a unit attention at all other LUNs. over is closed
// when nothing of the unit is under way any more.
func (d *Device) Withdraw(lun uint16) (over <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.units[lun]
	delete(d.units, lun)
	for _, p := range d.ports {
		if p.setLocked(lun, nil) != nil {
			p.tellLocked(nil)
		}
	}
	return u.goAway(leaving)
}

// Suspend has the commands of a LUN end with BUSY until Add gives it another unit. What is under way is
// carried out. over is closed when that has ended.
func (d *Device) Suspend(lun uint16) (over <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.units[lun].goAway(changing)
}

func (u *Unit) goAway(a absence) <-chan struct{} {
	over := make(chan struct{})
	if u == nil {
		close(over)
		return over
	}
	u.mu.Lock()
	u.absence = a
	nexuses := slices.Clone(u.nexuses)
	u.mu.Unlock()
	u.settle(nil, func() {
		go func() {
			u.Close()
			for _, n := range nexuses {
				n.leave()
			}
			close(over)
		}()
	})
	return over
}

// isAwayLocked reports whether the unit of a task has gone away. It sets the status then.
func (t *Task) isAwayLocked() bool {
	switch t.nexus.unit.absence {
	case leaving:
		t.check(&scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.LogicalUnitNotSupported})
	case changing:
		t.Status, t.InLen = scsi.Busy, 0
	default:
		return false
	}
	return true
}

// setLocked gives a port another nexus at a LUN, nil for none, and returns the one that it had.
func (p *Port) setLocked(lun uint16, n *Nexus) (was *Nexus) {
	m := maps.Clone(*p.nexuses.Load())
	was = m[lun]
	if m[lun] = n; n == nil {
		delete(m, lun)
	}
	p.nexuses.Store(&m)
	return was
}

// tellLocked tells a port that it has other LUNs than before, at all but one.
func (p *Port) tellLocked(but *Nexus) {
	for _, n := range p.All() {
		if n != but {
			n.attend(scsi.ReportedLUNsChanged)
		}
	}
}

func (n *Nexus) attend(c scsi.Code) {
	n.unit.mu.Lock()
	defer n.unit.mu.Unlock()
	n.attendLocked(c)
}

// know forgets, at all LUNs of a port, that there are others than before: it has just been told which.
func (p *Port) know() {
	for _, n := range p.All() {
		n.unit.mu.Lock()
		n.attentions = slices.DeleteFunc(n.attentions, func(c scsi.Code) bool { return c == scsi.ReportedLUNsChanged })
		n.unit.mu.Unlock()
	}
}

// Resized tells initiators that the medium has another size, if it has.
func (u *Unit) Resized() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lookLocked()
}
