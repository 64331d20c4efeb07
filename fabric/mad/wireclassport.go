package mad

// ClassPortInfoLen is the length in bytes of ClassPortInfo.
const ClassPortInfoLen = 72

// ClassPortInfo says what an agent or manager can do, and where else to ask (section 13.4.8.1).
type ClassPortInfo struct {
	BaseVersion     uint8
	ClassVersion    uint8
	CapabilityMask  uint16
	CapabilityMask2 uint32 // 27 bits
	RespTime        uint8  // RespTimeValue: 4.096 µs times 2 to this
	RedirectGID     GID
	RedirectTC      uint8
	RedirectSL      uint8
	RedirectFL      uint32
	RedirectLID     LID
	RedirectPKey    uint16
	RedirectQP      uint32
	RedirectQKey    uint32
	TrapGID         GID
	TrapTC          uint8
	TrapSL          uint8
	TrapFL          uint32
	TrapLID         LID
	TrapPKey        uint16
	TrapHL          uint8
	TrapQP          uint32
	TrapQKey        uint32
}

func (r *ClassPortInfo) fields(c *coder) {
	field(c, &r.BaseVersion, 8)
	field(c, &r.ClassVersion, 8)
	field(c, &r.CapabilityMask, 16)
	field(c, &r.CapabilityMask2, 27)
	field(c, &r.RespTime, 5)
	c.bytes(r.RedirectGID[:])
	field(c, &r.RedirectTC, 8)
	field(c, &r.RedirectSL, 4)
	field(c, &r.RedirectFL, 20)
	field(c, &r.RedirectLID, 16)
	field(c, &r.RedirectPKey, 16)
	c.reserved(8)
	field(c, &r.RedirectQP, 24)
	field(c, &r.RedirectQKey, 32)
	c.bytes(r.TrapGID[:])
	field(c, &r.TrapTC, 8)
	field(c, &r.TrapSL, 4)
	field(c, &r.TrapFL, 20)
	field(c, &r.TrapLID, 16)
	field(c, &r.TrapPKey, 16)
	field(c, &r.TrapHL, 8)
	field(c, &r.TrapQP, 24)
	field(c, &r.TrapQKey, 32)
}

// Append appends the attribute's bytes to b.
func (r ClassPortInfo) Append(b []byte) []byte {
	b, c := extend(b, ClassPortInfoLen)
	r.fields(&c)
	return b
}

// ParseClassPortInfo parses an attribute. It fails with [ErrFormat] for another length than [ClassPortInfoLen].
func ParseClassPortInfo(b []byte) (r ClassPortInfo, err error) {
	c, err := read("ClassPortInfo", b, ClassPortInfoLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}
