package iscsitest

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/scsi"
)

// designator is one of a unit's or its port's (SPC-4 7.8.6).
type designator struct {
	kind, association, codeSet byte
	value                      []byte
}

// The associations and types of designators that cases use.
const (
	ofUnit, ofPort                 = 0, 1
	byNAA, byRelativePort, byGroup = 3, 4, 5
)

// designators are those of page 83.
func (s *Session) designators() (all []designator) {
	in := make([]byte, 1024)
	k := s.good(s.do(inquiry(0x83, uint16(len(in))), nil, in), "INQUIRY of page 83")
	end := min(4+int(binary.BigEndian.Uint16(in[2:])), int(k.gotten()))
	for at := 4; at+4 <= end; {
		n := int(in[at+3])
		if at+4+n > end {
			break
		}
		all = append(all, designator{kind: in[at+1] & 0xf, association: in[at+1] >> 4 & 3, codeSet: in[at] & 0xf, value: in[at+4 : at+4+n]})
		at += 4 + n
	}
	return all
}

// copyBlocks sends EXTENDED COPY (LID1) of blocks of the unit to others of its own.
func (s *Session) copyBlocks(from, to uint64, n uint16) *Task {
	var id *designator
	for _, d := range s.designators() {
		if d.association == ofUnit && d.kind == byNAA {
			id = &d
		}
	}
	if id == nil || len(id.value) > 20 {
		s.t.skip("the unit has no NAA designator, by which a copy names it")
	}
	const header, target, segment = 16, 32, 28
	list := make([]byte, header+target+segment)
	list[0], list[1] = 1, 0x20 // a list identifier, and a copy that is over with its status
	binary.BigEndian.PutUint16(list[2:], target)
	binary.BigEndian.PutUint32(list[8:], segment)
	d := list[header:]
	d[0], d[4], d[5], d[7] = 0xe4, id.codeSet, id.kind, byte(len(id.value))
	copy(d[8:28], id.value)
	block := s.blockLen()
	d[29], d[30], d[31] = byte(block>>16), byte(block>>8), byte(block)
	g := list[header+target:]
	g[0] = 0x02
	binary.BigEndian.PutUint16(g[2:], segment-4)
	binary.BigEndian.PutUint16(g[10:], n)
	binary.BigEndian.PutUint64(g[12:], from)
	binary.BigEndian.PutUint64(g[20:], to)
	c := make([]byte, 16)
	c[0] = scsi.ExtendedCopy
	binary.BigEndian.PutUint32(c[10:], uint32(len(list)))
	return s.attempt("EXTENDED COPY", c, list, nil)
}

// portGroups are the target port groups, and the ports of each (SPC-4 6.37).
func (s *Session) portGroups() (states map[uint16]byte, ports map[uint16][]uint16) {
	in := make([]byte, 1024)
	c := append(binary.BigEndian.AppendUint32([]byte{scsi.MaintenanceIn, scsi.ReportTargetPortGroups, 0, 0, 0, 0}, uint32(len(in))), 0, 0)
	k := s.do(c, nil, in)
	if k.Status == scsi.CheckCondition && k.Sense.Key == scsi.IllegalRequest {
		s.t.skip("the unit has no REPORT TARGET PORT GROUPS")
	}
	s.good(k, "REPORT TARGET PORT GROUPS")
	states, ports = map[uint16]byte{}, map[uint16][]uint16{}
	end := 4 + int(binary.BigEndian.Uint32(in))
	s.t.require(end <= int(k.gotten()), "RETURN DATA LENGTH is %d, and %d bytes have come", end-4, k.gotten())
	for at := 4; at < end; {
		s.t.require(at+8 <= end && at+8+4*int(in[at+7]) <= end, "a group has %d ports, and the data end before them", in[at+7])
		id := binary.BigEndian.Uint16(in[at+2:])
		states[id] = in[at] & 0xf
		for p := range int(in[at+7]) {
			ports[id] = append(ports[id], binary.BigEndian.Uint16(in[at+8+4*p+2:]))
		}
		at += 8 + 4*int(in[at+7])
	}
	return states, ports
}

func copyCases() []Case {
	return []Case{
		unit("scsi.extended-copy", Must, "SPC-4 6.4", "EXTENDED COPY copies the blocks of its segment, and no others", Data, func(t *T, s *Session) {
			n := s.blockLen()
			around := t.pattern(24 * n)
			s.good(s.do(write10(800, 24), around, nil), "WRITE")
			s.good(s.copyBlocks(800, 810, 6), "EXTENDED COPY")
			copy(around[10*n:16*n], around[:6*n])
			s.verify(800, around)
		}),
		unit("scsi.extended-copy-beyond", Must, "SPC-4 6.4.4, SBC-3 4.5", "EXTENDED COPY from behind the last block fails, and writes nothing", Data, func(t *T, s *Session) {
			last, _ := s.capacity()
			data := t.pattern(4 * s.blockLen())
			s.good(s.do(write10(800, 4), data, nil), "WRITE")
			k := s.copyBlocks(last, 800, 4)
			t.require(k.Status == scsi.CheckCondition, "it ends with %s", k.outcome())
			// Blocks that were there to be read may have been copied.
			block := s.blockLen()
			s.verify(801, data[block:])
		}),
		unit("scsi.extended-copy-unknown", Must, "SPC-4 6.4.3", "a parameter list that is cut short ends with ILLEGAL REQUEST", 0, func(t *T, s *Session) {
			c := make([]byte, 16)
			c[0], c[13] = scsi.ExtendedCopy, 15
			k := s.attempt("EXTENDED COPY", c, make([]byte, 15), nil)
			t.require(k.Status == scsi.CheckCondition && k.Sense.Key == scsi.IllegalRequest, "a list of 15 bytes ends with %s", k.outcome())
		}),
		unit("scsi.port-groups", Must, "SPC-4 6.37, 7.8.6", "REPORT TARGET PORT GROUPS has the group and the port that page 83 names, and each group a state that there is", 0, func(t *T, s *Session) {
			states, ports := s.portGroups()
			for id, state := range states {
				t.require(state <= 4 || state == 0xe || state == 0xf, "the state of group %d is %#x", id, state)
			}
			var port, group *designator
			for _, d := range s.designators() {
				switch {
				case d.association == ofPort && d.kind == byRelativePort && len(d.value) == 4:
					port = &d
				case d.association == ofPort && d.kind == byGroup && len(d.value) == 4:
					group = &d
				}
			}
			if port == nil || group == nil {
				t.fail("page 83 does not name the port by its relative identifier and its group, and there are groups: %v", ports)
			}
			id, own := binary.BigEndian.Uint16(group.value[2:]), binary.BigEndian.Uint16(port.value[2:])
			for _, p := range ports[id] {
				if p == own {
					return
				}
			}
			t.fail("page 83 says port %d in group %d, and the groups are %v", own, id, ports)
		}),
	}
}
