package lu

import (
	"bytes"
	"encoding/binary"

	"github.com/ironwarp/ironwarp/scsi"
)

// The mode pages that a unit has (SPC-4 7.5, SBC-3 6.5).
const (
	cachingPage = 0x08
	controlPage = 0x0a
	allPages    = 0x3f

	// The bits of the control page that an initiator may change.
	dsenseBit = 0x04 // of byte 2
	swpBit    = 0x08 // of byte 4
)

// The page controls of MODE SENSE.
const (
	current    = 0
	changeable = 1
	saved      = 3
)

// pageLocked returns a mode page with its header, nil if there is none.
func (u *Unit) pageLocked(code byte, control byte) []byte {
	switch code {
	case cachingPage:
		b := make([]byte, 20)
		b[0], b[1] = cachingPage, 18
		if control != changeable && u.geo.CanFlush {
			b[2] = 0x04 // WCE: what is written may be in a cache until it is flushed
		}
		return b
	case controlPage:
		b := make([]byte, 12)
		b[0], b[1] = controlPage, 10
		if control == changeable {
			b[2], b[4] = dsenseBit, swpBit
			return b
		}
		b[3] = 0x10 // commands may be carried out in any order
		binary.BigEndian.PutUint16(b[8:], 0xffff)
		if control == current {
			if u.dsense.Load() {
				b[2] = dsenseBit
			}
			if u.swp {
				b[4] = swpBit
			}
		}
		return b
	}
	return nil
}

func (t *Task) modeSense() {
	u := t.nexus.unit
	control, code, sub := t.CDB[2]>>6, t.CDB[2]&0x3f, t.CDB[3]
	ten := t.CDB[0] == scsi.ModeSense10
	if control == saved {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.SavingNotSupported})
		return
	}
	if sub != 0 && !(sub == 0xff && code == allPages) {
		t.fail(invalidField(3))
		return
	}
	u.mu.Lock()
	var pages []byte
	if code == allPages {
		pages = append(u.pageLocked(cachingPage, control), u.pageLocked(controlPage, control)...)
	} else {
		pages = u.pageLocked(code, control)
	}
	specific := byte(0)
	if u.geo.CanFUA || u.geo.CanFlush {
		specific = 0x10 // DPOFUA
	}
	if u.swp || u.readOnly() {
		specific |= 0x80
	}
	blocks := u.blocks
	u.mu.Unlock()
	if pages == nil {
		t.fail(invalidField(2))
		return
	}
	var descriptor []byte
	switch {
	case t.CDB[1]&8 != 0: // DBD
	case ten && t.CDB[1]&0x10 != 0: // LLBAA
		descriptor = binary.BigEndian.AppendUint64(nil, blocks)
		descriptor = binary.BigEndian.AppendUint64(descriptor, uint64(u.cfg.BlockSize))
	default:
		descriptor = binary.BigEndian.AppendUint32(nil, uint32(min(blocks, 1<<32-1)))
		descriptor = binary.BigEndian.AppendUint32(descriptor, u.cfg.BlockSize)
	}
	var b []byte
	if ten {
		b = []byte{0, 0, 0, specific, 0, 0, 0, byte(len(descriptor))}
		if len(descriptor) == 16 {
			b[4] = 1
		}
	} else {
		b = []byte{0, 0, specific, byte(len(descriptor))}
	}
	b = append(append(b, descriptor...), pages...)
	if ten {
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	} else {
		b[0] = byte(len(b) - 1)
	}
	t.answer(b)
}

// modeSelect changes what may be changed. Anything else has to be as it is.
func (t *Task) modeSelect() {
	u := t.nexus.unit
	if len(t.Buf) == 0 {
		t.good(0)
		return
	}
	pages, err := scsi.ParseModes(t.Buf, t.CDB[0] == scsi.ModeSelect10)
	if err != nil || uint32(len(t.Buf)) < t.Length {
		t.fail(scsi.Sense{Key: scsi.IllegalRequest, Code: scsi.ParameterListLength})
		return
	}
	u.mu.Lock()
	swp, dsense := u.swp, u.dsense.Load()
	ok := true
	for _, p := range pages {
		is, may := u.pageLocked(p.Code, current), u.pageLocked(p.Code, changeable)
		if is == nil || len(p.Payload) != len(is)-2 {
			ok = false
			break
		}
		for i, b := range p.Payload {
			is[2+i] = is[2+i]&^may[2+i] | b&may[2+i]
		}
		if !bytes.Equal(is[2:], p.Payload) {
			ok = false
			break
		}
		if p.Code == controlPage {
			dsense, swp = is[2]&dsenseBit != 0, is[4]&swpBit != 0
		}
	}
	if ok && (swp != u.swp || dsense != u.dsense.Load()) {
		u.swp = swp
		u.dsense.Store(dsense)
		u.attendOthersLocked(t.nexus, scsi.ModeParametersChanged)
	}
	u.mu.Unlock()
	if !ok {
		t.fail(invalidParameter(0))
		return
	}
	t.good(0)
}
