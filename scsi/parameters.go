package scsi

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
)

// ErrList means that a parameter list is not what its command needs.
var ErrList = errors.New("scsi: malformed parameter list")

// Range is a run of logical blocks.
type Range struct {
	LBA    uint64
	Blocks uint32
}

// ParseUnmap returns the ranges of an UNMAP parameter list (SBC-3 5.28.2). It fails with ErrList if
// there are more than most.
func ParseUnmap(b []byte, most int) ([]Range, error) {
	if len(b) < 8 {
		return nil, ErrList
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	b = b[8:]
	if n%16 != 0 || n > len(b) || n/16 > most {
		return nil, ErrList
	}
	all := make([]Range, 0, n/16)
	for b = b[:n]; len(b) > 0; b = b[16:] {
		all = append(all, Range{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])})
	}
	return all, nil
}

// Type is the type of a persistent reservation (SPC-4 table 42).
type Type uint8

// The types of persistent reservations.
const (
	WriteExclusive     Type = 1
	ExclusiveAccess    Type = 3
	WriteExclusiveReg  Type = 5 // registrants only
	ExclusiveAccessReg Type = 6
	WriteExclusiveAll  Type = 7 // all registrants
	ExclusiveAccessAll Type = 8
)

// Known reports whether the type is one of the constants.
func (t Type) Known() bool {
	return t == WriteExclusive || t == ExclusiveAccess || t >= WriteExclusiveReg && t <= ExclusiveAccessAll
}

// AllRegistrants reports whether every registrant holds a reservation of the type.
func (t Type) AllRegistrants() bool { return t == WriteExclusiveAll || t == ExclusiveAccessAll }

// RegistrantsOnly reports whether a reservation of the type is for registrants, or for all of them.
func (t Type) RegistrantsOnly() bool { return t >= WriteExclusiveReg }

// Exclusive reports whether others may not even read.
func (t Type) Exclusive() bool {
	return t == ExclusiveAccess || t == ExclusiveAccessReg || t == ExclusiveAccessAll
}

// The service actions of PERSISTENT RESERVE IN and OUT (SPC-4 6.15 and 6.16).
const (
	ReadKeys           = 0
	ReadReservation    = 1
	ReportCapabilities = 2
	ReadFullStatus     = 3

	Register          = 0
	Reserve           = 1
	Release           = 2
	Clear             = 3
	Preempt           = 4
	PreemptAndAbort   = 5
	RegisterAndIgnore = 6
	RegisterAndMove   = 7
)

// PersistentList is the parameter list of PERSISTENT RESERVE OUT but for RegisterAndMove.
type PersistentList struct {
	Key, ActionKey                uint64
	SpecifyPorts, AllPorts, APTPL bool
	// TransportIDs are those of the further initiator ports, if SpecifyPorts.
	TransportIDs []byte
}

const persistentListLen = 24

// ParsePersistent reads the list (SPC-4 6.16.3). It fails with ErrList if it is not as long as it
// has to be: 24 bytes, unless SPEC_I_PT is set.
func ParsePersistent(b []byte) (p PersistentList, err error) {
	if len(b) < persistentListLen {
		return p, ErrList
	}
	f := b[20]
	p = PersistentList{
		Key: binary.BigEndian.Uint64(b), ActionKey: binary.BigEndian.Uint64(b[8:]),
		SpecifyPorts: f&8 != 0, AllPorts: f&4 != 0, APTPL: f&1 != 0,
	}
	if b = b[persistentListLen:]; p.SpecifyPorts {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) != uint64(len(b)-4) {
			return p, ErrList
		}
		p.TransportIDs, b = b[4:], nil
	}
	if len(b) > 0 {
		return p, ErrList
	}
	return p, nil
}

// MoveList is the parameter list of PERSISTENT RESERVE OUT with RegisterAndMove.
type MoveList struct {
	Key, ActionKey    uint64
	Unregister, APTPL bool
	TargetPort        uint16 // its relative identifier
	TransportID       []byte
}

// ParseMove reads the list (SPC-4 6.16.4). It fails with ErrList.
func ParseMove(b []byte) (m MoveList, err error) {
	if len(b) < persistentListLen || uint64(binary.BigEndian.Uint32(b[20:])) != uint64(len(b)-persistentListLen) {
		return m, ErrList
	}
	return MoveList{
		Key: binary.BigEndian.Uint64(b), ActionKey: binary.BigEndian.Uint64(b[8:]),
		Unregister: b[17]&2 != 0, APTPL: b[17]&1 != 0,
		TargetPort: binary.BigEndian.Uint16(b[18:]), TransportID: b[persistentListLen:],
	}, nil
}

// ParseTransportID reads the TransportID at the beginning of b, which is of an iSCSI initiator port
// and not only of its device, and returns what follows it. It fails with ErrList.
func ParseTransportID(b []byte) (name string, isid [6]byte, rest []byte, err error) {
	if len(b) < 4 || b[0] != 0x40|ProtocolISCSI {
		return "", isid, nil, ErrList
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n < 20 || n%4 != 0 || n > len(b)-4 {
		return "", isid, nil, ErrList
	}
	text, rest := b[4:4+n], b[4+n:]
	text, padding, ok := bytes.Cut(text, []byte{0})
	at := len(text) - isidTextLen
	if !ok || len(bytes.Trim(padding, "\x00")) > 0 || at <= 0 || at > maxName || string(text[at:at+len(isidPrefix)]) != isidPrefix {
		return "", isid, nil, ErrList
	}
	if _, err := hex.Decode(isid[:], text[at+len(isidPrefix):]); err != nil {
		return "", isid, nil, ErrList
	}
	for _, c := range text[:at] {
		if c <= ' ' || c == 0x7f {
			return "", isid, nil, ErrList
		}
	}
	return string(text[:at]), isid, rest, nil
}

const (
	maxName     = 223 // of an iSCSI name (RFC 7143 section 4.2.7.2)
	isidPrefix  = ",i,0x"
	isidTextLen = len(isidPrefix) + 12
)

// AppendTransportID appends the TransportID of an iSCSI initiator port (SPC-4 7.6.4.6), whose name
// is that of the initiator, ",i,0x" and the ISID.
func AppendTransportID(b []byte, port string) []byte {
	at := len(b)
	b = append(b, 0x40|ProtocolISCSI, 0, 0, 0)
	b = append(b, port...)
	b = append(b, make([]byte, 4-len(port)%4)...)
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at-4))
	return b
}

// OverwriteList is the parameter list of SANITIZE with Overwrite.
type OverwriteList struct {
	Count   int
	Invert  bool
	Pattern []byte
}

// ParseOverwrite reads the list for logical blocks of a length in bytes (SBC-3 5.25.2). It fails
// with ErrList.
func ParseOverwrite(b []byte, block uint32) (o OverwriteList, err error) {
	if len(b) < 4 {
		return o, ErrList
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	o = OverwriteList{Count: int(b[0] & 0x1f), Invert: b[0]&0x80 != 0, Pattern: b[4:]}
	if b[0]&0x60 != 0 || b[1] != 0 || o.Count == 0 || n == 0 || n > int(block) || n != len(o.Pattern) {
		return o, ErrList
	}
	return o, nil
}

// Page is a mode page: its code, and what follows the two bytes of its header.
type Page struct {
	Code    byte
	Payload []byte
}

// ParseModes returns the pages of a MODE SELECT parameter list of 6 or 10 bytes CDBs (SPC-4 7.5).
// It fails with ErrList.
func ParseModes(b []byte, ten bool) (all []Page, err error) {
	header, descriptors := 4, 0
	if ten {
		header = 8
	}
	if len(b) < header {
		return nil, ErrList
	}
	if ten {
		descriptors = int(binary.BigEndian.Uint16(b[6:]))
	} else {
		descriptors = int(b[3])
	}
	if len(b) < header+descriptors {
		return nil, ErrList
	}
	for b = b[header+descriptors:]; len(b) > 0; {
		if len(b) < 2 || b[0]&0x40 != 0 || len(b) < 2+int(b[1]) {
			return nil, ErrList
		}
		all = append(all, Page{b[0] & 0x3f, b[2 : 2+int(b[1])]})
		b = b[2+int(b[1]):]
	}
	return all, nil
}

// Designator is one of the names of a logical unit or of a port in VPD page 83h (SPC-4 7.8.6.2).
type Designator struct {
	Protocol, CodeSet, Association, Type byte
	Value                                []byte
}

// The fields of designators.
const (
	ProtocolISCSI = 5
	Binary        = 1
	ASCII         = 2
	UTF8          = 3
	OfUnit        = 0
	OfPort        = 1
	OfTarget      = 2
	TypeT10       = 1
	TypeNAA       = 3
	TypeRelative  = 4
	TypeGroup     = 5
	TypeName      = 8
)

// AppendDesignator appends a designator.
func AppendDesignator(b []byte, d Designator) []byte {
	second := d.Association<<4 | d.Type
	if d.Association != OfUnit {
		second |= 0x80
	}
	value := d.Value
	if d.Type == TypeName { // ends with a NUL, and is padded to 4 bytes
		value = append(append([]byte(nil), value...), make([]byte, 4-len(value)%4)...)
	}
	return append(append(b, d.Protocol<<4|d.CodeSet, second, 0, byte(len(value))), value...)
}

// AppendPadded appends s as a field of n bytes, cut or filled with spaces; what is not ASCII
// becomes a question mark (SPC-4 4.4.1).
func AppendPadded(b []byte, s string, n int) []byte {
	for i := range n {
		c := byte(' ')
		if i < len(s) {
			if c = s[i]; c < 0x20 || c > 0x7e {
				c = '?'
			}
		}
		b = append(b, c)
	}
	return b
}
