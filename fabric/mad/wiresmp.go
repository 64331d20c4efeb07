package mad

import "fmt"

// Lengths of SMPs in bytes (section 14.2.1).
const (
	SMPDataLen = 64
	SMPPathLen = 64 // of a directed route: one byte for each hop, from hop 1 on
)

// SMPClassVersion is the version of the subnet management classes (section 14.2.1).
const SMPClassVersion = 1

// smpReturning is the bit D of a directed route SMP, where other MADs have the status's highest bit.
const smpReturning Status = 0x8000

// SMP is a MAD of the classes of subnet management (sections 14.2.1.1 and 14.2.1.2). In one that is LID routed the
// fields of the directed route are reserved.
type SMP struct {
	Header
	MKey        Key
	SLID, DLID  LID // DrSLID and DrDLID: where the directed part of the route begins and ends
	Data        [SMPDataLen]byte
	InitialPath [SMPPathLen]uint8
	ReturnPath  [SMPPathLen]uint8
}

func (s *SMP) fields(c *coder) {
	s.Header.fields(c)
	field(c, &s.MKey, 64)
	field(c, &s.SLID, 16)
	field(c, &s.DLID, 16)
	c.reserved(28 * 8)
	c.bytes(s.Data[:])
	c.bytes(s.InitialPath[:])
	c.bytes(s.ReturnPath[:])
}

// ParseSMP parses a MAD of the classes of subnet management. It fails with [ErrFormat] for another class.
func ParseSMP(m *MAD) (s SMP, err error) {
	if c := m.Class(); c != ClassSubn && c != ClassSubnDirected {
		return s, fmt.Errorf("MAD of class %#02x, subnet management is %#02x and %#02x: %w", uint8(c), uint8(ClassSubn), uint8(ClassSubnDirected), ErrFormat)
	}
	s.fields(&coder{b: m[:]})
	return s, nil
}

// MAD returns the MAD's 256 bytes.
func (s *SMP) MAD() (m MAD) {
	s.fields(&coder{b: m[:], put: true})
	return m
}

// HopPointer is where on its directed route the SMP is.
func (s *SMP) HopPointer() uint8 { return uint8(s.ClassSpecific >> 8) }

// HopCount is the length of the directed route.
func (s *SMP) HopCount() uint8 { return uint8(s.ClassSpecific) }

// SetHops sets hop pointer and hop count.
func (s *SMP) SetHops(pointer, count uint8) { s.ClassSpecific = uint16(pointer)<<8 | uint16(count) }

// Returning reports whether a directed route SMP is on its way back.
func (s *SMP) Returning() bool { return s.Class == ClassSubnDirected && s.Status&smpReturning != 0 }

// Answer returns the head of an answer to s, on its way back: the same transaction, attribute, modifier and route, no
// M_Key, no data. The method is the one that answers, or the request's with the response bit if there is none.
func (s *SMP) Answer(status Status) (a SMP) {
	a.Header = s.Header
	a.Status = status
	method, ok := s.Method.Answer()
	if !ok {
		method = s.Method | MethodResponse
	}
	a.Method = method
	if s.Class == ClassSubnDirected {
		a.Status |= smpReturning
		a.SLID, a.DLID = s.SLID, s.DLID
		a.InitialPath, a.ReturnPath = s.InitialPath, s.ReturnPath
	}
	return a
}
