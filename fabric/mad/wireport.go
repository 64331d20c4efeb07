package mad

// The logical states of a port (PortState, section 14.2.5.6).
const (
	PortNoChange uint8 = 0 // in a Set
	PortDown     uint8 = 1
	PortInit     uint8 = 2
	PortArmed    uint8 = 3
	PortActive   uint8 = 4
)

// PortLinkUp is the physical state of a port whose link works (PortPhysicalState, section 14.2.5.6).
const PortLinkUp uint8 = 5

// Bits of a port's CapabilityMask (section 14.2.5.6).
const (
	CapSM          uint32 = 1 << 1
	CapNotice      uint32 = 1 << 2
	CapTrap        uint32 = 1 << 3
	CapSMDisabled  uint32 = 1 << 10
	CapClientRereg uint32 = 1 << 25
)

// PortInfoLen is the length in bytes of PortInfo.
const PortInfoLen = 64

// PortInfo is the state of a port, with the M_Key that protects it (section 14.2.5.6).
type PortInfo struct {
	MKey                  Key
	GIDPrefix             uint64
	LID                   LID
	MasterSMLID           LID
	CapabilityMask        uint32 // [CapSM] and so on
	DiagCode              uint16
	MKeyLeasePeriod       uint16 // seconds; 0: no timer
	LocalPort             uint8  // LocalPortNum
	LinkWidthEnabled      uint8
	LinkWidthSupported    uint8
	LinkWidthActive       uint8
	LinkSpeedSupported    uint8
	State                 uint8 // [PortActive] and so on
	PhysicalState         uint8 // [PortLinkUp]
	LinkDownDefault       uint8
	MKeyProtect           uint8 // M_KeyProtectBits, 0 to 3
	LMC                   uint8
	LinkSpeedActive       uint8
	LinkSpeedEnabled      uint8
	NeighborMTU           uint8 // a code such as [MTU4096]
	MasterSMSL            uint8
	VLCap                 uint8
	InitType              uint8
	VLHighLimit           uint8
	VLArbHighCap          uint8
	VLArbLowCap           uint8
	InitTypeReply         uint8
	MTUCap                uint8 // a code such as [MTU4096]
	VLStallCount          uint8
	HOQLife               uint8
	OperationalVLs        uint8
	PartitionEnforceIn    bool
	PartitionEnforceOut   bool
	FilterRawIn           bool
	FilterRawOut          bool
	MKeyViolations        uint16 // saturates
	PKeyViolations        uint16
	QKeyViolations        uint16
	GUIDCap               uint8 // entries of the table of GUIDs
	ClientReregister      bool
	TrapSuppression       uint8 // MulticastPKeyTrapSuppressionEnabled
	SubnetTimeOut         uint8 // 4.096 µs times 2 to this
	RespTime              uint8 // RespTimeValue
	LocalPhyErrors        uint8
	OverrunErrors         uint8
	MaxCreditHint         uint16
	LinkRoundTripLatency  uint32
	CapabilityMask2       uint16
	LinkSpeedExtActive    uint8
	LinkSpeedExtSupported uint8
	LinkSpeedExtEnabled   uint8
}

func (r *PortInfo) fields(c *coder) {
	field(c, &r.MKey, 64)
	field(c, &r.GIDPrefix, 64)
	field(c, &r.LID, 16)
	field(c, &r.MasterSMLID, 16)
	field(c, &r.CapabilityMask, 32)
	field(c, &r.DiagCode, 16)
	field(c, &r.MKeyLeasePeriod, 16)
	field(c, &r.LocalPort, 8)
	field(c, &r.LinkWidthEnabled, 8)
	field(c, &r.LinkWidthSupported, 8)
	field(c, &r.LinkWidthActive, 8)
	field(c, &r.LinkSpeedSupported, 4)
	field(c, &r.State, 4)
	field(c, &r.PhysicalState, 4)
	field(c, &r.LinkDownDefault, 4)
	field(c, &r.MKeyProtect, 2)
	c.reserved(3)
	field(c, &r.LMC, 3)
	field(c, &r.LinkSpeedActive, 4)
	field(c, &r.LinkSpeedEnabled, 4)
	field(c, &r.NeighborMTU, 4)
	field(c, &r.MasterSMSL, 4)
	field(c, &r.VLCap, 4)
	field(c, &r.InitType, 4)
	field(c, &r.VLHighLimit, 8)
	field(c, &r.VLArbHighCap, 8)
	field(c, &r.VLArbLowCap, 8)
	field(c, &r.InitTypeReply, 4)
	field(c, &r.MTUCap, 4)
	field(c, &r.VLStallCount, 3)
	field(c, &r.HOQLife, 5)
	field(c, &r.OperationalVLs, 4)
	c.flag(&r.PartitionEnforceIn)
	c.flag(&r.PartitionEnforceOut)
	c.flag(&r.FilterRawIn)
	c.flag(&r.FilterRawOut)
	field(c, &r.MKeyViolations, 16)
	field(c, &r.PKeyViolations, 16)
	field(c, &r.QKeyViolations, 16)
	field(c, &r.GUIDCap, 8)
	c.flag(&r.ClientReregister)
	field(c, &r.TrapSuppression, 2)
	field(c, &r.SubnetTimeOut, 5)
	c.reserved(3)
	field(c, &r.RespTime, 5)
	field(c, &r.LocalPhyErrors, 4)
	field(c, &r.OverrunErrors, 4)
	field(c, &r.MaxCreditHint, 16)
	c.reserved(8)
	field(c, &r.LinkRoundTripLatency, 24)
	field(c, &r.CapabilityMask2, 16)
	field(c, &r.LinkSpeedExtActive, 4)
	field(c, &r.LinkSpeedExtSupported, 4)
	c.reserved(3)
	field(c, &r.LinkSpeedExtEnabled, 5)
}

// Append appends the attribute's bytes to b.
func (r PortInfo) Append(b []byte) []byte {
	b, c := extend(b, PortInfoLen)
	r.fields(&c)
	return b
}

// ParsePortInfo parses an attribute. It fails with [ErrFormat] for another length than [PortInfoLen].
func ParsePortInfo(b []byte) (r PortInfo, err error) {
	c, err := read("PortInfo", b, PortInfoLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// PortInfoRecordLen is the length in bytes of a PortInfoRecord.
const PortInfoRecordLen = 68

// PortInfoRecord is a port's state as the SA knows it (section 15.2.5.3).
type PortInfoRecord struct {
	EndportLID LID
	PortNum    uint8
	Options    uint8
	PortInfo   PortInfo
}

func (r *PortInfoRecord) fields(c *coder) {
	field(c, &r.EndportLID, 16)
	field(c, &r.PortNum, 8)
	field(c, &r.Options, 8)
	r.PortInfo.fields(c)
}

// Append appends the attribute's bytes to b.
func (r PortInfoRecord) Append(b []byte) []byte {
	b, c := extend(b, PortInfoRecordLen)
	r.fields(&c)
	return b
}

// ParsePortInfoRecord parses an attribute. It fails with [ErrFormat] for another length than [PortInfoRecordLen].
func ParsePortInfoRecord(b []byte) (r PortInfoRecord, err error) {
	c, err := read("PortInfoRecord", b, PortInfoRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of a PortInfoRecord (section 15.2.5.3).
const (
	PortMaskEndportLID Mask = 1 << 0
	PortMaskPortNum    Mask = 1 << 1
	PortMaskMKey       Mask = 1 << 3
	PortMaskLID        Mask = 1 << 5
	PortMaskCapability Mask = 1 << 7
	PortMaskState      Mask = 1 << 15
)

// PKeysPerBlock is the number of entries in a block of a port's P_Key table (section 14.2.5.7).
const PKeysPerBlock = 32

// PKeyTableLen is the length in bytes of P_KeyTable.
const PKeyTableLen = 64

// PKeyTable is a block of a port's table of P_Keys (section 14.2.5.7). The lower half of the modifier of its MAD is the block's
// number. The highest bit of a P_Key is full membership; an entry without base key is not in use.
type PKeyTable struct {
	PKeys [PKeysPerBlock]uint16
}

func (r *PKeyTable) fields(c *coder) {
	for i := range r.PKeys {
		field(c, &r.PKeys[i], 16)
	}
}

// Append appends the attribute's bytes to b.
func (r PKeyTable) Append(b []byte) []byte {
	b, c := extend(b, PKeyTableLen)
	r.fields(&c)
	return b
}

// ParsePKeyTable parses an attribute. It fails with [ErrFormat] for another length than [PKeyTableLen].
func ParsePKeyTable(b []byte) (r PKeyTable, err error) {
	c, err := read("PKeyTable", b, PKeyTableLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}
