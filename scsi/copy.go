package scsi

import (
	"bytes"
	"encoding/binary"
)

// The lengths in bytes of what a parameter list of EXTENDED COPY (LID1) consists of.
const (
	CopyHeaderLen  = 16
	CopyTargetLen  = 32 // of a target descriptor, which later standards call a CSCD descriptor
	CopySegmentLen = 28 // of a segment descriptor from block to block
)

// The types of descriptors of EXTENDED COPY that are known.
const (
	CopyBlockToBlock   = 0x02
	CopyIdentification = 0xe4
)

// CopyLimits bound a parameter list of EXTENDED COPY.
type CopyLimits struct{ Targets, Segments, Descriptors int } // Descriptors: bytes of all of them

// CopyTarget is a logical unit that a copy has to do with (SPC-4 6.4.5.2).
type CopyTarget struct {
	Device     byte // its peripheral device type
	Designator Designator
	Block      uint32 // the length of its logical blocks in bytes
}

// CopySegment is a run of logical blocks to be copied (SPC-4 6.4.6.3).
type CopySegment struct {
	From, To       uint16 // numbers of targets
	ToBlocks       bool   // Blocks counts those of the destination (DC)
	Blocks         uint16
	FromLBA, ToLBA uint64
}

// The values of LIST ID USAGE (SPC-4 table 103).
const (
	CopyKeeps     = 0 // status and data are kept for RECEIVE COPY RESULTS
	CopyDiscards  = 2 // data are not
	CopyAnonymous = 3 // nothing is, and there is no list identifier
)

// CopyList is a parameter list of EXTENDED COPY (LID1).
type CopyList struct {
	ID, Usage byte
	Targets   []CopyTarget
	Segments  []CopySegment
}

// ParseCopy reads a list (SPC-4 6.4.3). Nothing is allocated for more than what the limits allow. If
// it is not as it should be it returns why; the slices of the list are those of b.
func ParseCopy(b []byte, most CopyLimits) (l CopyList, why *Sense) {
	bad := func(c Code, at int) (CopyList, *Sense) {
		return CopyList{}, &Sense{Key: IllegalRequest, Code: c, Field: uint16(at), HasField: true, InData: true}
	}
	be := binary.BigEndian
	if len(b) < CopyHeaderLen {
		return CopyList{}, &Sense{Key: IllegalRequest, Code: ParameterListLength}
	}
	l.ID, l.Usage = b[0], b[1]>>3&3
	targets, segments, inline := uint64(be.Uint16(b[2:])), uint64(be.Uint32(b[8:])), be.Uint32(b[12:])
	switch {
	case targets+segments > uint64(most.Descriptors) || CopyHeaderLen+targets+segments+uint64(inline) > uint64(len(b)):
		return CopyList{}, &Sense{Key: IllegalRequest, Code: ParameterListLength}
	case inline > 0:
		return bad(InlineDataTooLong, 12)
	case l.Usage == 1 || l.Usage == CopyAnonymous && l.ID != 0:
		return bad(InvalidFieldInParameters, 1)
	case targets%CopyTargetLen != 0:
		return bad(InvalidFieldInParameters, 2)
	case targets/CopyTargetLen > uint64(most.Targets):
		return bad(TooManyTargets, 2)
	}
	at := CopyHeaderLen
	for end := at + int(targets); at < end; at += CopyTargetLen {
		d := b[at : at+CopyTargetLen]
		if d[0] != CopyIdentification {
			return bad(UnsupportedTarget, at)
		}
		n := int(d[7])
		if n > 20 {
			return bad(InvalidFieldInParameters, at+7)
		}
		l.Targets = append(l.Targets, CopyTarget{
			Device:     d[1] & 0x1f,
			Designator: Designator{CodeSet: d[4] & 0xf, Association: d[5] >> 4 & 3, Type: d[5] & 0xf, Value: d[8 : 8+n]},
			Block:      be.Uint32(d[28:]) & 0xffffff,
		})
	}
	for end := at + int(segments); at < end; at += CopySegmentLen {
		d := b[at:end]
		switch {
		case d[0] != CopyBlockToBlock:
			return bad(UnsupportedSegment, at)
		case len(d) < CopySegmentLen:
			return CopyList{}, &Sense{Key: IllegalRequest, Code: ParameterListLength}
		case be.Uint16(d[2:]) != CopySegmentLen-4:
			return bad(InvalidFieldInParameters, at+2)
		case len(l.Segments) == most.Segments:
			return bad(TooManySegments, 8)
		}
		l.Segments = append(l.Segments, CopySegment{
			From: be.Uint16(d[4:]), To: be.Uint16(d[6:]), ToBlocks: d[1]&2 != 0,
			Blocks: be.Uint16(d[10:]), FromLBA: be.Uint64(d[12:]), ToLBA: be.Uint64(d[20:]),
		})
	}
	return l, nil
}

// Equal reports whether two designators are the same, whatever protocol they are of.
func (d *Designator) Equal(o *Designator) bool {
	return d.CodeSet == o.CodeSet && d.Association == o.Association && d.Type == o.Type && bytes.Equal(d.Value, o.Value)
}
