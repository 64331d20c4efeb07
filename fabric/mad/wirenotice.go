package mad

import "fmt"

// Lengths in bytes of a Notice in an SA MAD, of one in an SMP, which ends before IssuerGID, and of its details (section 13.4.8.2).
const (
	NoticeLen     = 80
	SMPNoticeLen  = 64
	NoticeDataLen = 54
)

// NoticeType is the severity or subject of a notice (section 13.4.8.2).
type NoticeType uint8

// The types. NoticeSecurity is reserved for the trusted.
const (
	NoticeFatal    NoticeType = 0
	NoticeUrgent   NoticeType = 1
	NoticeSecurity NoticeType = 2
	NoticeSM       NoticeType = 3 // subnet management
	NoticeInfo     NoticeType = 4
	NoticeEmpty    NoticeType = 0x7f
)

// The traps, generic notices by number (section 14.2.5.1).
const (
	TrapGIDInService    uint16 = 64 // a port has come: details GIDDetails
	TrapGIDOutOfService uint16 = 65 // a port is gone
	TrapGroupCreated    uint16 = 66 // a multicast group
	TrapGroupDeleted    uint16 = 67
	TrapLinkState       uint16 = 128 // of a switch's port
	TrapCapabilityMask  uint16 = 144 // details CapabilityDetails
	TrapMKey            uint16 = 256 // a wrong M_Key: details MKeyDetails
	TrapPKey            uint16 = 257 // a wrong P_Key: details KeyDetails
	TrapQKey            uint16 = 258 // a wrong Q_Key: details KeyDetails
	TrapSwitchPKey      uint16 = 259 // a switch has seen a wrong P_Key
	firstSecurityTrap          = TrapMKey
	lastSecurityTrap           = TrapSwitchPKey
	firstGIDTrap               = TrapGIDInService
	lastGIDTrap                = TrapGroupDeleted
)

// SecurityTrap reports whether a generic notice with this trap number is about security.
func SecurityTrap(number uint16) bool {
	return number >= firstSecurityTrap && number <= lastSecurityTrap
}

// Vendor is the identifier of IronWarp's notices. It is an OUI with the bit of local administration, so it is assigned
// to nobody: IBTA has no traps for these events.
const Vendor uint32 = 0x02_4957

// The notices of [Vendor], by DeviceID in place of a trap number.
const (
	VendorExportCome    uint16 = 1 // details ExportDetails
	VendorExportGone    uint16 = 2 // details ExportDetails
	VendorExportResized uint16 = 3 // details ExportDetails, with the new size
	VendorPathGone      uint16 = 4 // details PathDetails
	VendorPathBack      uint16 = 5 // details PathDetails
	VendorEventsLost    uint16 = 6 // the subscriber was not told of some events, and reads the records anew
)

// Notice is an event that an agent reports by a trap, or the SA by a report (section 13.4.8.2).
type Notice struct {
	Generic      bool // otherwise a vendor's
	Type         NoticeType
	ProducerType uint32 // 24 bits: a node's type or [ProducerManager], or the vendor's identifier
	TrapNumber   uint16 // or the vendor's DeviceID
	IssuerLID    LID
	Toggle       bool
	Count        uint16 // 15 bits
	Data         [NoticeDataLen]byte
	IssuerGID    GID
}

func (n *Notice) fields(c *coder) {
	c.flag(&n.Generic)
	field(c, &n.Type, 7)
	field(c, &n.ProducerType, 24)
	field(c, &n.TrapNumber, 16)
	field(c, &n.IssuerLID, 16)
	c.flag(&n.Toggle)
	field(c, &n.Count, 15)
	c.bytes(n.Data[:])
	c.bytes(n.IssuerGID[:])
}

// Append appends the 80 bytes of a notice to b. An SMP takes the first 64.
func (n Notice) Append(b []byte) []byte {
	b, c := extend(b, NoticeLen)
	n.fields(&c)
	return b
}

// ParseNotice parses a notice of 80 bytes, or one of 64 from an SMP, whose IssuerGID is zero. It fails with [ErrFormat] for
// another length.
func ParseNotice(b []byte) (n Notice, err error) {
	if len(b) == SMPNoticeLen {
		b = append(b[:SMPNoticeLen:SMPNoticeLen], make([]byte, NoticeLen-SMPNoticeLen)...)
	}
	c, err := read("Notice", b, NoticeLen)
	if err == nil {
		n.fields(&c)
	}
	return n, err
}

// Security reports whether the notice is one of those that only the trusted may see: by its type, or by its number.
func (n *Notice) Security() bool {
	return n.Type == NoticeSecurity || n.Generic && SecurityTrap(n.TrapNumber)
}

// is reports whether n is a generic notice (vendor 0) or a vendor's, with a number from first to last. It fails with
// [ErrFormat] otherwise.
func (n *Notice) is(vendor uint32, first, last uint16) error {
	if n.Generic == (vendor == 0) && (n.Generic || n.ProducerType == vendor) && n.TrapNumber >= first && n.TrapNumber <= last {
		return nil
	}
	return fmt.Errorf("notice %d (generic: %v, producer %#06x) has no such details: %w", n.TrapNumber, n.Generic, n.ProducerType, ErrFormat)
}

// GIDDetails is what has come or gone: the details of traps 64 to 67.
type GIDDetails struct {
	GID GID
}

func (d *GIDDetails) fields(c *coder) {
	c.reserved(48)
	c.bytes(d.GID[:])
}

// Set makes the details those of n.
func (d GIDDetails) Set(n *Notice) { d.fields(n.details()) }

// GID returns the details of traps 64 to 67. It fails with [ErrFormat] for another notice.
func (n *Notice) GID() (d GIDDetails, err error) {
	if err = n.is(0, firstGIDTrap, lastGIDTrap); err == nil {
		d.fields(&coder{b: n.Data[:]})
	}
	return d, err
}

func (n *Notice) details() *coder {
	n.Data = [NoticeDataLen]byte{}
	return &coder{b: n.Data[:], put: true}
}

// CapabilityDetails says that a port's capabilities have changed: the details of trap 144.
type CapabilityDetails struct {
	LID            LID
	LocalChanges   bool // OtherLocalChanges
	CapabilityMask uint32
	Changes        uint16 // which others: bit 0 NodeDescription, 1 LinkWidthEnabled, 2 LinkSpeedEnabled
}

func (d *CapabilityDetails) fields(c *coder) {
	c.reserved(16)
	field(c, &d.LID, 16)
	c.reserved(15)
	c.flag(&d.LocalChanges)
	field(c, &d.CapabilityMask, 32)
	field(c, &d.Changes, 16)
}

// Set makes the details those of n.
func (d CapabilityDetails) Set(n *Notice) { d.fields(n.details()) }

// Capability returns the details of trap 144. It fails with [ErrFormat] for another notice.
func (n *Notice) Capability() (d CapabilityDetails, err error) {
	if err = n.is(0, TrapCapabilityMask, TrapCapabilityMask); err == nil {
		d.fields(&coder{b: n.Data[:]})
	}
	return d, err
}

// TrapPathLen is how much of a return path fits in the details of trap 256, in bytes.
const TrapPathLen = 30

// MKeyDetails is an SMP with a wrong M_Key: the details of trap 256.
type MKeyDetails struct {
	LID           LID // where it came from
	DrSLID        LID
	Method        Method
	Attribute     Attribute
	Modifier      uint32
	MKey          Key // the wrong one
	Directed      bool
	PathTruncated bool
	HopCount      uint8 // 6 bits
	ReturnPath    [TrapPathLen]uint8
}

func (d *MKeyDetails) fields(c *coder) {
	c.reserved(16)
	field(c, &d.LID, 16)
	field(c, &d.DrSLID, 16)
	field(c, &d.Method, 8)
	c.reserved(8)
	field(c, &d.Attribute, 16)
	field(c, &d.Modifier, 32)
	field(c, &d.MKey, 64)
	c.reserved(8)
	c.flag(&d.Directed)
	c.flag(&d.PathTruncated)
	field(c, &d.HopCount, 6)
	c.bytes(d.ReturnPath[:])
}

// Set makes the details those of n.
func (d MKeyDetails) Set(n *Notice) { d.fields(n.details()) }

// MKey returns the details of trap 256. It fails with [ErrFormat] for another notice.
func (n *Notice) MKey() (d MKeyDetails, err error) {
	if err = n.is(0, TrapMKey, TrapMKey); err == nil {
		d.fields(&coder{b: n.Data[:]})
	}
	return d, err
}

// KeyDetails is a packet with a wrong P_Key or Q_Key: the details of traps 257 and 258.
type KeyDetails struct {
	LID1, LID2 LID // its source and its destination
	Key        uint32
	SL         uint8  // 4 bits
	QP1, QP2   uint32 // 24 bits
	GID1, GID2 GID
}

func (d *KeyDetails) fields(c *coder) {
	c.reserved(16)
	field(c, &d.LID1, 16)
	field(c, &d.LID2, 16)
	field(c, &d.Key, 32)
	field(c, &d.SL, 4)
	c.reserved(4)
	field(c, &d.QP1, 24)
	c.reserved(8)
	field(c, &d.QP2, 24)
	c.bytes(d.GID1[:])
	c.bytes(d.GID2[:])
}

// Set makes the details those of n.
func (d KeyDetails) Set(n *Notice) { d.fields(n.details()) }

// WrongKey returns the details of traps 257 and 258. It fails with [ErrFormat] for another notice.
func (n *Notice) WrongKey() (d KeyDetails, err error) {
	if err = n.is(0, TrapPKey, TrapQKey); err == nil {
		d.fields(&coder{b: n.Data[:]})
	}
	return d, err
}

// ExportDetails is an export that has come, gone or changed its size. Its name is in its ServiceRecord.
type ExportDetails struct {
	ServiceID uint64
	Port      GUID   // the host that has it
	Size      uint64 // bytes
}

func (d *ExportDetails) fields(c *coder) {
	c.reserved(48)
	field(c, &d.ServiceID, 64)
	field(c, &d.Port, 64)
	field(c, &d.Size, 64)
}

// Set makes the details those of n.
func (d ExportDetails) Set(n *Notice) { d.fields(n.details()) }

// Export returns the details of [VendorExportCome], [VendorExportGone] and [VendorExportResized]. It fails with [ErrFormat]
// for another notice.
func (n *Notice) Export() (d ExportDetails, err error) {
	if err = n.is(Vendor, VendorExportCome, VendorExportResized); err == nil {
		d.fields(&coder{b: n.Data[:]})
	}
	return d, err
}

// PathDetails is a path that is gone or back.
type PathDetails struct {
	SGID, DGID GID
}

func (d *PathDetails) fields(c *coder) {
	c.reserved(48)
	c.bytes(d.SGID[:])
	c.bytes(d.DGID[:])
}

// Set makes the details those of n.
func (d PathDetails) Set(n *Notice) { d.fields(n.details()) }

// Path returns the details of [VendorPathGone] and [VendorPathBack]. It fails with [ErrFormat] for another notice.
func (n *Notice) Path() (d PathDetails, err error) {
	if err = n.is(Vendor, VendorPathGone, VendorPathBack); err == nil {
		d.fields(&coder{b: n.Data[:]})
	}
	return d, err
}
