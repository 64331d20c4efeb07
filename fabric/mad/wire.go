package mad

import (
	"encoding/binary"
	"fmt"
)

// Lengths in bytes.
const (
	GRHLen    = 40              // section 8.3
	MADLen    = 256             // section 13.4.2
	HeaderLen = 24              // section 13.4.3
	PacketLen = GRHLen + MADLen // what one RDMAP Send carries
)

// GRH is the global route header in front of a MAD (section 8.3). The zero GRH means that there is none:
// a receiver of datagrams finds these 40 bytes whether the sender has filled them in or not.
type GRH struct {
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	SGID, DGID   GID
}

const (
	ipVersion  = 6    // IPVer of each GRH
	nextHeader = 0x1b // NxtHdr: an IBA transport
	madPayLen  = 280  // PayLen: BTH, DETH, MAD and ICRC, as they follow the GRH on InfiniBand
)

// Present reports whether there is a GRH.
func (g GRH) Present() bool { return g != GRH{} }

func (g *GRH) fields(c *coder) error {
	version, length, next := uint8(ipVersion), uint16(madPayLen), uint8(nextHeader)
	field(c, &version, 4)
	field(c, &g.TrafficClass, 8)
	field(c, &g.FlowLabel, 20)
	field(c, &length, 16)
	field(c, &next, 8)
	field(c, &g.HopLimit, 8)
	c.bytes(g.SGID[:])
	c.bytes(g.DGID[:])
	if version != ipVersion || next != nextHeader {
		return fmt.Errorf("GRH with IPVer %d and NxtHdr %#02x, it has %d and %#02x: %w", version, next, ipVersion, nextHeader, ErrFormat)
	}
	return nil
}

// Packet is a MAD and the GRH before it.
type Packet struct {
	GRH GRH
	MAD MAD
}

// Append appends the packet's 296 bytes to b.
func (p *Packet) Append(b []byte) []byte {
	b, c := extend(b, GRHLen)
	if p.GRH.Present() {
		p.GRH.fields(&c) // what it writes is right
	}
	return append(b, p.MAD[:]...)
}

// ParsePacket parses what one RDMAP Send carried. It fails with [ErrFormat] for another length than 296 bytes, a GRH of
// another version, and a MAD of another base version.
func ParsePacket(b []byte) (p Packet, err error) {
	if len(b) != PacketLen {
		return p, fmt.Errorf("message of %d bytes, a GRH and a MAD have %d: %w", len(b), PacketLen, ErrFormat)
	}
	if [GRHLen]byte(b) != [GRHLen]byte{} {
		if err := p.GRH.fields(&coder{b: b[:GRHLen]}); err != nil {
			return p, err
		}
	}
	p.MAD = MAD(b[GRHLen:])
	if v := p.MAD[0]; v != BaseVersion {
		return p, fmt.Errorf("MAD of base version %d, only %d is known: %w", v, BaseVersion, ErrFormat)
	}
	return p, nil
}

// MAD is a management datagram.
type MAD [MADLen]byte

// BaseVersion is the version of the common header (section 13.4.3).
const BaseVersion = 1

// Class is a management class (section 13.4.4).
type Class uint8

// The classes.
const (
	ClassSubn         Class = 0x01 // subnet management, LID routed
	ClassSubnAdm      Class = 0x03 // subnet administration
	ClassSubnDirected Class = 0x81 // subnet management, directed route
)

// Method is what a MAD asks for, or answers (section 13.4.5).
type Method uint8

// The methods of all classes, and those of subnet administration (sections 13.4.5, 15.2.3). The highest bit, [MethodResponse], marks answers.
const (
	MethodGet          Method = 0x01
	MethodSet          Method = 0x02
	MethodSend         Method = 0x03
	MethodTrap         Method = 0x05
	MethodReport       Method = 0x06
	MethodTrapRepress  Method = 0x07
	MethodGetTable     Method = 0x12
	MethodDelete       Method = 0x15
	MethodResponse     Method = 0x80
	MethodGetResp      Method = 0x81 // also answers Set
	MethodReportResp   Method = 0x86
	MethodGetTableResp Method = 0x92
	MethodDeleteResp   Method = 0x95
)

var methodNames = map[Method]string{
	MethodGet: "Get", MethodSet: "Set", MethodSend: "Send", MethodTrap: "Trap", MethodReport: "Report",
	MethodTrapRepress: "TrapRepress", MethodGetTable: "GetTable", MethodDelete: "Delete", MethodGetResp: "GetResp",
	MethodReportResp: "ReportResp", MethodGetTableResp: "GetTableResp", MethodDeleteResp: "DeleteResp",
}

// String returns the method's name.
func (m Method) String() string {
	if s, ok := methodNames[m]; ok {
		return s
	}
	return fmt.Sprintf("method %#02x", uint8(m))
}

// Response reports whether m is an answer. TrapRepress is none: it answers a Trap, but has no response bit.
func (m Method) Response() bool { return m&MethodResponse != 0 }

// Answer returns the method that answers m, and whether there is one.
func (m Method) Answer() (Method, bool) {
	switch m {
	case MethodGet, MethodSet:
		return MethodGetResp, true
	case MethodReport, MethodGetTable, MethodDelete:
		return m | MethodResponse, true
	case MethodTrap:
		return MethodTrapRepress, true
	}
	return 0, false
}

// Status is the status of an answer (section 13.4.7); its upper byte belongs to the class. In directed route SMPs the
// highest bit is the direction, not status ([SMP.Returning]).
type Status uint16

// The status of all classes (section 13.4.7), and that of subnet administration (section 15.2.6).
const (
	StatusOK                     Status = 0x0000
	StatusBusy                   Status = 0x0001
	StatusRedirect               Status = 0x0002
	StatusBadVersion             Status = 0x0004 // base or class version, or class unknown
	StatusUnsupportedMethod      Status = 0x0008
	StatusUnsupportedAttribute   Status = 0x000c // the combination of method and attribute
	StatusInvalidField           Status = 0x001c
	StatusNoResources            Status = 0x0100
	StatusReqInvalid             Status = 0x0200
	StatusNoRecords              Status = 0x0300
	StatusTooManyRecords         Status = 0x0400 // more than one for a Get
	StatusInvalidGID             Status = 0x0500
	StatusInsufficientComponents Status = 0x0600
	StatusDenied                 Status = 0x0700
)

var statusNames = map[Status]string{
	StatusOK: "OK", StatusBusy: "busy", StatusRedirect: "redirection required", StatusBadVersion: "bad version",
	StatusUnsupportedMethod: "unsupported method", StatusUnsupportedAttribute: "unsupported method and attribute",
	StatusInvalidField: "invalid field", StatusNoResources: "no resources", StatusReqInvalid: "invalid request",
	StatusNoRecords: "no records", StatusTooManyRecords: "too many records", StatusInvalidGID: "invalid GID",
	StatusInsufficientComponents: "insufficient components", StatusDenied: "request denied",
}

// String returns the status in words.
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %#04x", uint16(s))
}

// Attribute says what a MAD is about. Its numbers have a meaning within a class.
type Attribute uint16

// The attributes of all classes (section 13.4.8).
const (
	AttrClassPortInfo Attribute = 0x0001
	AttrNotice        Attribute = 0x0002
	AttrInformInfo    Attribute = 0x0003
)

// The attributes of subnet management (section 14.2.5).
const (
	AttrNodeDescription Attribute = 0x0010
	AttrNodeInfo        Attribute = 0x0011
	AttrGUIDInfo        Attribute = 0x0014
	AttrPortInfo        Attribute = 0x0015
	AttrPKeyTable       Attribute = 0x0016
	AttrSMInfo          Attribute = 0x0020
)

// The attributes of subnet administration (section 15.2.5).
const (
	AttrNodeRecord       Attribute = 0x0011
	AttrPortInfoRecord   Attribute = 0x0012
	AttrSMInfoRecord     Attribute = 0x0018
	AttrGUIDInfoRecord   Attribute = 0x0030
	AttrServiceRecord    Attribute = 0x0031
	AttrPathRecord       Attribute = 0x0035
	AttrMCMemberRecord   Attribute = 0x0038
	AttrInformInfoRecord Attribute = 0x00f3
)

var attributeNames = map[Class]map[Attribute]string{
	ClassSubn: {
		AttrNotice: "Notice", AttrNodeDescription: "NodeDescription", AttrNodeInfo: "NodeInfo", AttrGUIDInfo: "GUIDInfo",
		AttrPortInfo: "PortInfo", AttrPKeyTable: "P_KeyTable", AttrSMInfo: "SMInfo",
	},
	ClassSubnAdm: {
		AttrClassPortInfo: "ClassPortInfo", AttrNotice: "Notice", AttrInformInfo: "InformInfo", AttrNodeRecord: "NodeRecord",
		AttrPortInfoRecord: "PortInfoRecord", AttrSMInfoRecord: "SMInfoRecord", AttrGUIDInfoRecord: "GUIDInfoRecord",
		AttrServiceRecord: "ServiceRecord", AttrPathRecord: "PathRecord", AttrMCMemberRecord: "MCMemberRecord",
		AttrInformInfoRecord: "InformInfoRecord",
	},
}

// Name returns the attribute's name in a class.
func (a Attribute) Name(c Class) string {
	if c == ClassSubnDirected {
		c = ClassSubn
	}
	if s, ok := attributeNames[c][a]; ok {
		return s
	}
	return fmt.Sprintf("attribute %#04x of class %#02x", uint16(a), uint8(c))
}

// Header is the common header of MADs (section 13.4.3). Its base version is always [BaseVersion].
type Header struct {
	Class         Class
	ClassVersion  uint8 // 1 for subnet management, 2 for subnet administration
	Method        Method
	Status        Status
	ClassSpecific uint16 // hop pointer and hop count of a directed route SMP
	TransactionID uint64 // the requester's; answers repeat it
	Attribute     Attribute
	Modifier      uint32
}

func (h *Header) fields(c *coder) {
	version := uint8(BaseVersion)
	field(c, &version, 8)
	field(c, &h.Class, 8)
	field(c, &h.ClassVersion, 8)
	field(c, &h.Method, 8)
	field(c, &h.Status, 16)
	field(c, &h.ClassSpecific, 16)
	field(c, &h.TransactionID, 64)
	field(c, &h.Attribute, 16)
	c.reserved(16)
	field(c, &h.Modifier, 32)
}

// Header returns the common header.
func (m *MAD) Header() (h Header) {
	h.fields(&coder{b: m[:HeaderLen]})
	return h
}

// SetHeader writes the common header and leaves what follows.
func (m *MAD) SetHeader(h Header) {
	clear(m[:HeaderLen])
	h.fields(&coder{b: m[:HeaderLen], put: true})
}

// Class returns the management class.
func (m *MAD) Class() Class { return Class(m[1]) }

// TransactionID returns the transaction's identifier.
func (m *MAD) TransactionID() uint64 { return binary.BigEndian.Uint64(m[8:]) }
