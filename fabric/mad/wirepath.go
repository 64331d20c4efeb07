package mad

// Selector says how a component with a selector is compared with the value asked for (section 15.2.5.16).
type Selector uint8

// The selectors.
const (
	SelectGreater Selector = 0
	SelectLess    Selector = 1
	SelectExactly Selector = 2
	SelectLargest Selector = 3 // of a packet's lifetime: the smallest
)

// The codes of an MTU that a path or port has (section 14.2.5.6), and those of the rates of 2.5 and 100 Gb/s (section 15.2.5.16).
const (
	MTU256  uint8 = 1
	MTU512  uint8 = 2
	MTU1024 uint8 = 3
	MTU2048 uint8 = 4
	MTU4096 uint8 = 5

	Rate2G5  uint8 = 2
	Rate100G uint8 = 16
)

// PathRecordLen is the length in bytes of a PathRecord.
const PathRecordLen = 64

// PathRecord is a way from one port to another (section 15.2.5.16).
type PathRecord struct {
	ServiceID        uint64
	DGID             GID
	SGID             GID
	DLID             LID
	SLID             LID
	RawTraffic       bool
	FlowLabel        uint32 // 20 bits
	HopLimit         uint8
	TClass           uint8
	Reversible       bool
	NumbPath         uint8 // 7 bits: the most paths to return
	PKey             uint16
	QoSClass         uint16 // 12 bits
	SL               uint8  // 4 bits
	MTUSelector      Selector
	MTU              uint8 // a code such as [MTU4096]
	RateSelector     Selector
	Rate             uint8 // a code such as [Rate100G]
	LifeTimeSelector Selector
	LifeTime         uint8 // PacketLifeTime: 4.096 µs times 2 to this
	Preference       uint8 // lower is better
}

func (r *PathRecord) fields(c *coder) {
	field(c, &r.ServiceID, 64)
	c.bytes(r.DGID[:])
	c.bytes(r.SGID[:])
	field(c, &r.DLID, 16)
	field(c, &r.SLID, 16)
	c.flag(&r.RawTraffic)
	c.reserved(3)
	field(c, &r.FlowLabel, 20)
	field(c, &r.HopLimit, 8)
	field(c, &r.TClass, 8)
	c.flag(&r.Reversible)
	field(c, &r.NumbPath, 7)
	field(c, &r.PKey, 16)
	field(c, &r.QoSClass, 12)
	field(c, &r.SL, 4)
	field(c, &r.MTUSelector, 2)
	field(c, &r.MTU, 6)
	field(c, &r.RateSelector, 2)
	field(c, &r.Rate, 6)
	field(c, &r.LifeTimeSelector, 2)
	field(c, &r.LifeTime, 6)
	field(c, &r.Preference, 8)
	c.reserved(48)
}

// Append appends the attribute's bytes to b.
func (r PathRecord) Append(b []byte) []byte {
	b, c := extend(b, PathRecordLen)
	r.fields(&c)
	return b
}

// ParsePathRecord parses an attribute. It fails with [ErrFormat] for another length than [PathRecordLen].
func ParsePathRecord(b []byte) (r PathRecord, err error) {
	c, err := read("PathRecord", b, PathRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of a PathRecord (section 15.2.5.16).
const (
	PathMaskServiceID Mask = 3 // its upper and its lower half
	PathMaskDGID      Mask = 1 << (iota + 1)
	PathMaskSGID
	PathMaskDLID
	PathMaskSLID
	PathMaskRawTraffic
	_ // reserved
	PathMaskFlowLabel
	PathMaskHopLimit
	PathMaskTClass
	PathMaskReversible
	PathMaskNumbPath
	PathMaskPKey
	PathMaskQoSClass
	PathMaskSL
	PathMaskMTUSelector
	PathMaskMTU
	PathMaskRateSelector
	PathMaskRate
	PathMaskLifeTimeSelector
	PathMaskLifeTime
)
