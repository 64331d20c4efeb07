package mad

import "fmt"

// SADataLen is the length in bytes of the data of an SA MAD (section 15.2.1).
const SADataLen = 200

// SAClassVersion is the version of the class SubnAdm (section 15.2.1).
const SAClassVersion = 2

// Mask says which components of an SA MAD's record are meant: bit n stands for the record's nth component
// (section 15.2.2). Each record has its constants.
type Mask uint64

// Has reports whether all components of part are in m.
func (m Mask) Has(part Mask) bool { return m&part == part }

// RMPPType is the type of a segment of the reliable multi-packet protocol (section 13.6.2).
type RMPPType uint8

// The types of segments. RMPPNone is a MAD without RMPP.
const (
	RMPPNone  RMPPType = 0
	RMPPData  RMPPType = 1
	RMPPStop  RMPPType = 2 // the receiver has no room: it may be tried again
	RMPPAck   RMPPType = 3
	RMPPAbort RMPPType = 4
)

// The flags of a segment (section 13.6.2.1).
const (
	RMPPActive uint8 = 1
	RMPPFirst  uint8 = 2
	RMPPLast   uint8 = 4
)

// RMPPStatus says why a transfer was stopped or aborted (section 13.6.2.1).
type RMPPStatus uint8

// The reasons.
const (
	RMPPNormal             RMPPStatus = 0
	RMPPResourcesExhausted RMPPStatus = 1 // the only one of a STOP
	RMPPTotalTimeTooLong   RMPPStatus = 118
	RMPPInconsistentLast   RMPPStatus = 119 // last segment and payload length disagree
	RMPPInconsistentFirst  RMPPStatus = 120 // first segment and segment number disagree
	RMPPBadType            RMPPStatus = 121
	RMPPWindowTooSmall     RMPPStatus = 122 // NewWindowLast is below the segment acknowledged
	RMPPSegmentTooBig      RMPPStatus = 123 // an ACK of what was not sent
	RMPPIllegalStatus      RMPPStatus = 124
	RMPPUnsupportedVersion RMPPStatus = 125
	RMPPTooManyRetries     RMPPStatus = 126
	RMPPUnspecified        RMPPStatus = 127
)

// RMPPVersion is the version of RMPP (section 13.6.2.1).
const RMPPVersion = 1

// RMPP is the header of a segment (section 13.6.2.1).
type RMPP struct {
	Version      uint8 // RMPPVersion, or 0 in a MAD without RMPP
	Type         RMPPType
	ResponseTime uint8 // RRespTime, 5 bits: 31 means that none is given
	Flags        uint8 // 3 bits
	Status       RMPPStatus
	Segment      uint32 // SegmentNumber, from 1; in an ACK the last segment received in order
	Length       uint32 // PayloadLength in bytes, as [Sender] counts; in an ACK NewWindowLast
}

func (r *RMPP) fields(c *coder) {
	field(c, &r.Version, 8)
	field(c, &r.Type, 8)
	field(c, &r.ResponseTime, 5)
	field(c, &r.Flags, 3)
	field(c, &r.Status, 8)
	field(c, &r.Segment, 32)
	field(c, &r.Length, 32)
}

// Active reports whether the MAD is a segment of a transfer.
func (r *RMPP) Active() bool { return r.Flags&RMPPActive != 0 }

// SA is a MAD of the class SubnAdm (section 15.2.1).
type SA struct {
	Header
	RMPP            RMPP
	Key             Key    // SA_Key, in older versions SM_Key; zero from an untrusted requester
	AttributeOffset uint16 // from one record of a table to the next, in units of 8 bytes
	ComponentMask   Mask
	Data            [SADataLen]byte
}

func (s *SA) fields(c *coder) {
	s.Header.fields(c)
	s.RMPP.fields(c)
	field(c, &s.Key, 64)
	field(c, &s.AttributeOffset, 16)
	c.reserved(16)
	field(c, &s.ComponentMask, 64)
	c.bytes(s.Data[:])
}

// ParseSA parses a MAD of the class SubnAdm. It fails with [ErrFormat] for another class.
// The version of the class is not judged, since an answer says [StatusBadVersion] about it.
func ParseSA(m *MAD) (s SA, err error) {
	if m.Class() != ClassSubnAdm {
		return s, fmt.Errorf("MAD of class %#02x, SubnAdm is %#02x: %w", uint8(m.Class()), uint8(ClassSubnAdm), ErrFormat)
	}
	s.fields(&coder{b: m[:]})
	return s, nil
}

// MAD returns the MAD's 256 bytes.
func (s *SA) MAD() (m MAD) {
	s.fields(&coder{b: m[:], put: true})
	return m
}

// Answer returns the head of an answer to s: the same transaction and attribute, no SA_Key, no data. The method is the one
// that answers, or the request's with the response bit if there is none.
func (s *SA) Answer(status Status) (a SA) {
	a.Header = s.Header
	a.Status = status
	method, ok := s.Method.Answer()
	if !ok {
		method = s.Method | MethodResponse
	}
	a.Method = method
	a.ComponentMask = s.ComponentMask
	return a
}

// Record is an attribute that is a row of the SA's tables.
type Record interface {
	// Append appends the record's bytes to b.
	Append(b []byte) []byte
}

// Offset returns the AttributeOffset for records of length bytes: rows begin at multiples of 8 bytes (section 15.2.1).
func Offset(length int) uint16 { return uint16((length + 7) / 8) }

// AppendRow appends a record and fills up its row.
func AppendRow(b []byte, r Record) []byte {
	start := len(b)
	b = r.Append(b)
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// Rows returns the records of a table: rows of offset*8 bytes, of which the first length are a record. The last row may lack
// its filling. It fails with [ErrFormat] if rows are shorter than a record or the table ends within a record.
func Rows(table []byte, offset uint16, length int) (rows [][]byte, err error) {
	if len(table) == 0 {
		return nil, nil
	}
	step := int(offset) * 8
	if step < length {
		return nil, fmt.Errorf("table whose AttributeOffset of %d bytes is below a record's %d: %w", step, length, ErrFormat)
	}
	for len(table) > 0 {
		if len(table) < length {
			return nil, fmt.Errorf("table that ends with %d of a record's %d bytes: %w", len(table), length, ErrFormat)
		}
		rows = append(rows, table[:length])
		table = table[min(step, len(table)):]
	}
	return rows, nil
}
