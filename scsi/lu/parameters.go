package lu

import (
	"encoding/binary"
	"slices"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/scsi"
)

// answer ends the task with parameter data, cut to the allocation length.
func (t *Task) answer(b []byte) { t.good(uint32(copy(t.Buf[:t.Length], b))) }

func (t *Task) testUnitReady() { t.good(0) }

func (t *Task) requestSense() {
	u := t.nexus.unit
	var s scsi.Sense
	u.mu.Lock()
	switch {
	case u.isAbsent():
		s = scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.LogicalUnitNotSupported}
	case len(t.nexus.attentions) > 0:
		s = scsi.Sense{Key: scsi.UnitAttention, Code: t.nexus.attentions[0]}
		t.nexus.attentions = append(t.nexus.attentions[:0], t.nexus.attentions[1:]...)
	case u.erasureSenseLocked(false) != nil:
		s = *u.erasureSenseLocked(false)
	case u.ejected:
		s = scsi.Sense{Key: scsi.NotReady, Code: scsi.MediumNotPresent}
	}
	u.mu.Unlock()
	t.answer(scsi.AppendSense(nil, &s, t.CDB[1]&1 != 0))
}

const vendor = "IronWarp"

// versions are the version descriptors of INQUIRY: SAM-5, iSCSI, SPC-4, SBC-3.
var versions = []uint16{0x00a0, 0x0960, 0x0460, 0x04c0}

func (t *Task) inquiry() {
	u := t.nexus.unit
	page := t.CDB[2]
	if t.CDB[1]&1 != 0 {
		if b := u.vpd(t.nexus.port, page); b != nil {
			b[1] = page
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
			t.answer(b)
			return
		}
	}
	if t.CDB[1]&3 != 0 || page != 0 { // EVPD of an unknown page, CMDDT, or a page without EVPD
		t.fail(invalidField(2))
		return
	}
	b := []byte{0, 0, 6, 0x12, 0, 0x18, 0, 2} // SPC-4, HISUP, TPGS implicit, 3PC, CMDQUE
	if u.isAbsent() {
		b[0] = 0x7f
	}
	if u.cfg.Removable {
		b[1] = 0x80
	}
	b = scsi.AppendPadded(b, vendor, 8)
	b = scsi.AppendPadded(b, u.cfg.Product, 16)
	b = scsi.AppendPadded(b, "0001", 4)
	b = append(b, make([]byte, 22)...)
	for _, v := range versions {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	b = append(b, make([]byte, 96-len(b))...)
	b[4] = byte(len(b) - 5)
	t.answer(b)
}

// vpd returns a page of vital product data (SPC-4 7.8), nil if there is no such page.
func (u *Unit) vpd(p *Port, page byte) []byte {
	b := make([]byte, 4, 256)
	be := binary.BigEndian
	if u.isAbsent() {
		b[0] = 0x7f
		if page == 0 {
			return append(b, 0)
		}
		return nil
	}
	switch page {
	case 0x00:
		return append(b, 0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2)
	case 0x80:
		return append(b, u.cfg.Serial...)
	case 0x83:
		id := u.cfg.Medium.Identity().Disk
		t10 := scsi.AppendPadded(nil, vendor, 8)
		b = scsi.AppendDesignator(b, scsi.Designator{CodeSet: scsi.ASCII, Type: scsi.TypeT10, Value: append(t10, id.String()...)})
		b = scsi.AppendDesignator(b, u.naa())
		group := be.AppendUint16([]byte{0, 0}, p.device.PortalGroup)
		b = scsi.AppendDesignator(b, scsi.Designator{Protocol: scsi.ProtocolISCSI, CodeSet: scsi.Binary, Association: scsi.OfPort, Type: scsi.TypeRelative, Value: []byte{0, 0, 0, targetPort}})
		b = scsi.AppendDesignator(b, scsi.Designator{Protocol: scsi.ProtocolISCSI, CodeSet: scsi.Binary, Association: scsi.OfPort, Type: scsi.TypeGroup, Value: group})
		port := []byte(p.device.Name + ",t,0x")
		const digits = "0123456789abcdef"
		for s := 12; s >= 0; s -= 4 {
			port = append(port, digits[p.device.PortalGroup>>s&15])
		}
		b = scsi.AppendDesignator(b, scsi.Designator{Protocol: scsi.ProtocolISCSI, CodeSet: scsi.UTF8, Association: scsi.OfPort, Type: scsi.TypeName, Value: port})
		return scsi.AppendDesignator(b, scsi.Designator{Protocol: scsi.ProtocolISCSI, CodeSet: scsi.UTF8, Association: scsi.OfTarget, Type: scsi.TypeName, Value: []byte(p.device.Name)})
	case 0x86:
		b = append(b, make([]byte, 60)...)
		b[5] = 7 // SIMPSUP, ORDSUP, HEADSUP
		if u.geo.CanFlush {
			b[6] = 1 // V_SUP: there is a volatile cache
		}
		return b
	case 0x8f:
		return appendThirdParty(b)
	case 0xb0: // Block Limits (SBC-3 6.6.4)
		b = append(b, make([]byte, 60)...)
		b[5] = byte(u.maxCompare())
		be.PutUint16(b[6:], uint16(max(1, u.geo.PreferredBlock>>u.shift)))
		be.PutUint32(b[8:], MaxTransfer>>u.shift)
		be.PutUint32(b[12:], MaxTransfer>>u.shift)
		be.PutUint32(b[16:], MaxTransfer>>u.shift)
		if u.canZero() {
			be.PutUint32(b[20:], maxUnmap>>u.shift)
			be.PutUint32(b[24:], maxUnmapRanges)
			be.PutUint32(b[28:], uint32(u.perPhysical()))
		}
		be.PutUint64(b[36:], maxWriteSame>>u.shift)
		return b
	case 0xb1: // Block Device Characteristics
		b = append(b, make([]byte, 60)...)
		b[5] = 1 // no rotation
		if u.geo.Rotational {
			b[4], b[5] = 0, 0
		}
		if u.cfg.Sanitize != "" && u.canZero() {
			b[7] = 1 << 6 // WABEREQ: after BLOCK ERASE reads are without error
		}
		return b
	case 0xb2: // Logical Block Provisioning
		b = append(b, 0, 0, 0, 0)
		if u.canZero() {
			b[5] = 0xe4 // LBPU, LBPWS, LBPWS10, LBPRZ: what is unmapped is zeroed
			b[6] = 2    // thin
		}
		return b
	}
	return nil
}

// naa is the name of the unit by which EXTENDED COPY finds it, too: locally assigned, from the
// identity of the medium.
func (u *Unit) naa() scsi.Designator {
	id := u.cfg.Medium.Identity().Disk
	id[0] = 0x30 | id[0]&0xf
	return scsi.Designator{CodeSet: scsi.Binary, Type: scsi.TypeNAA, Value: id[:8]}
}

// perPhysical is how many logical blocks a physical one has.
func (u *Unit) perPhysical() int {
	n := 1
	for uint32(n)<<u.shift < u.geo.PreferredBlock && n < 1<<7 {
		n *= 2
	}
	return n
}

func (t *Task) reportLUNs() {
	d := t.nexus.port.device
	if t.CDB[2] > 2 {
		t.fail(invalidField(2))
		return
	}
	var luns []uint16
	if t.CDB[2] != 1 { // well known units: there are none
		d.mu.Lock()
		for n := range d.units {
			luns = append(luns, n)
		}
		d.mu.Unlock()
	}
	t.nexus.port.know()
	slices.Sort(luns)
	b := make([]byte, 8)
	binary.BigEndian.PutUint32(b, uint32(8*len(luns)))
	for _, n := range luns {
		f := scsi.PutLUN(n)
		b = append(b, f[:]...)
	}
	t.answer(b)
}

func (t *Task) readCapacity10() {
	u := t.nexus.unit
	u.mu.Lock()
	u.lookLocked()
	last := u.blocks - 1
	u.mu.Unlock()
	b := binary.BigEndian.AppendUint32(nil, uint32(min(last, 1<<32-1)))
	t.answer(binary.BigEndian.AppendUint32(b, u.cfg.BlockSize))
}

func (t *Task) readCapacity16() {
	u := t.nexus.unit
	u.mu.Lock()
	u.lookLocked()
	last := u.blocks - 1
	u.mu.Unlock()
	b := binary.BigEndian.AppendUint64(nil, last)
	b = binary.BigEndian.AppendUint32(b, u.cfg.BlockSize)
	b = append(b, make([]byte, 20)...)
	for n := u.perPhysical(); n > 1; n /= 2 {
		b[13]++
	}
	if u.canZero() {
		b[14] = 0xc0 // LBPME, LBPRZ
	}
	t.answer(b)
}

func (t *Task) portGroups() {
	if t.CDB[1]>>5 > 1 {
		t.fail(invalidField(1))
		return
	}
	b := make([]byte, 4, 24)
	if t.CDB[1]>>5 == 1 { // the extended header
		b = append(b, 0x10, 0, 0, 0)
	}
	b = append(b, 0, 1) // active and optimized; that alone is supported
	b = binary.BigEndian.AppendUint16(b, t.nexus.port.device.PortalGroup)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, targetPort)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.answer(b)
}

func (t *Task) supportedTMFs() {
	// ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET
	b := []byte{0x80 | 0x40 | 0x10 | 0x08 | 0x02, 0, 0, 0}
	if t.CDB[2]&0x80 != 0 {
		b = append(b, make([]byte, 12)...)
		b[3] = 12
	}
	t.answer(b)
}

func (t *Task) supportedCommands() {
	be := binary.BigEndian
	timeouts := t.CDB[2]&0x80 != 0
	descriptor := []byte{0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if how := t.CDB[2] & 7; how != 0 {
		t.oneCommand(how, timeouts, descriptor)
		return
	}
	b := make([]byte, 4)
	for i := range commands {
		c := &commands[i]
		if !t.nexus.unit.has(c) {
			continue
		}
		row := []byte{c.opcode, 0, 0, 0, 0, 0, 0, byte(1 + len(c.usage))}
		if c.action != none {
			row[3], row[5] = byte(c.action), 1
		}
		if timeouts {
			row[5] |= 2
		}
		b = append(b, row...)
		if timeouts {
			b = append(b, descriptor...)
		}
	}
	be.PutUint32(b, uint32(len(b)-4))
	t.answer(b)
}

// oneCommand tells about the command that the CDB names.
func (t *Task) oneCommand(how byte, timeouts bool, descriptor []byte) {
	u := t.nexus.unit
	opcode, action := t.CDB[3], int(binary.BigEndian.Uint16(t.CDB[4:]))
	var found *command
	hasActions := false
	for _, c := range byOpcode[opcode] {
		hasActions = hasActions || c.action != none
		if (c.action == none || c.action == action) && u.has(c) {
			found = c
		}
	}
	switch {
	case how > 3, how == 1 && hasActions, how == 2 && !hasActions && u.knows(opcode):
		t.fail(invalidField(2))
		return
	case how == 3 && !hasActions && action != 0:
		found = nil
	}
	if found == nil {
		t.answer([]byte{0, 1, 0, 0}) // not supported
		return
	}
	b := []byte{0, 3, 0, byte(1 + len(found.usage)), found.opcode}
	b = append(b, found.usage...)
	if timeouts {
		b[1] |= 0x80
		b = append(b, descriptor...)
	}
	t.answer(b)
}

// defects: there are none that the medium does not hide.
func (t *Task) defects() {
	if t.CDB[0] == scsi.ReadDefectData10 {
		t.answer([]byte{0, t.CDB[2] & 0x1f, 0, 0})
		return
	}
	t.answer([]byte{0, t.CDB[1] & 0x1f, 0, 0, 0, 0, 0, 0})
}

func (t *Task) startStop() {
	u, n := t.nexus.unit, t.nexus
	f := t.CDB[4]
	if f&0xf0 != 0 || f&2 == 0 { // a power condition, or no loading and ejecting: nothing to do
		t.good(0)
		return
	}
	if !u.cfg.Removable {
		t.fail(invalidField(4))
		return
	}
	u.mu.Lock()
	prevented := u.preventedLocked()
	if eject := f&1 == 0; !prevented && eject != u.ejected {
		if u.ejected = eject; !eject {
			u.attendOthersLocked(n, scsi.MediumMayHaveChanged)
		}
	}
	u.mu.Unlock()
	switch {
	case prevented:
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.MediumRemovalPrevented})
	case f&5 == 0 && u.geo.CanFlush: // what is ejected is on the medium, unless NO_FLUSH
		t.do(block.OpFlush, nil, 0, 0, 0, finished)
	default:
		t.good(0)
	}
}

func (t *Task) prevent() {
	u := t.nexus.unit
	if !u.cfg.Removable && t.CDB[4]&3 != 0 {
		t.fail(invalidField(4))
		return
	}
	u.mu.Lock()
	t.nexus.prevents = t.CDB[4]&1 != 0
	u.mu.Unlock()
	t.good(0)
}
