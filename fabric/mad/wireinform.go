package mad

// The values of an InformInfo that stand for all (section 13.4.8.3).
const (
	InformAllLIDs      LID    = 0xffff // as LIDBegin
	InformAllTypes     uint16 = 0xffff
	InformAllTraps     uint16 = 0xffff
	InformAllProducers uint32 = 0xff_ffff
)

// InformInfoLen is the length in bytes of InformInfo.
const InformInfoLen = 36

// InformInfo subscribes to notices, or ends that (section 13.4.8.3).
type InformInfo struct {
	GID          GID // of which port; zero: LIDBegin to LIDEnd
	LIDBegin     LID // or [InformAllLIDs]
	LIDEnd       LID
	Generic      uint8  // 1: of a generic notice, 0: of a vendor's, 0xff: any
	Subscribe    uint8  // 1: begin, 0: end
	Type         uint16 // a [NoticeType], or [InformAllTypes]
	TrapNumber   uint16 // or the vendor's DeviceID, or [InformAllTraps]
	QPN          uint32 // 24 bits: where the reports go
	RespTime     uint8  // 5 bits: RespTimeValue
	ProducerType uint32 // 24 bits: a node's type or the vendor's identifier, or [InformAllProducers]
}

func (r *InformInfo) fields(c *coder) {
	c.bytes(r.GID[:])
	field(c, &r.LIDBegin, 16)
	field(c, &r.LIDEnd, 16)
	c.reserved(16)
	field(c, &r.Generic, 8)
	field(c, &r.Subscribe, 8)
	field(c, &r.Type, 16)
	field(c, &r.TrapNumber, 16)
	field(c, &r.QPN, 24)
	c.reserved(3)
	field(c, &r.RespTime, 5)
	c.reserved(8)
	field(c, &r.ProducerType, 24)
}

// Append appends the attribute's bytes to b.
func (r InformInfo) Append(b []byte) []byte {
	b, c := extend(b, InformInfoLen)
	r.fields(&c)
	return b
}

// ParseInformInfo parses an attribute. It fails with [ErrFormat] for another length than [InformInfoLen].
func ParseInformInfo(b []byte) (r InformInfo, err error) {
	c, err := read("InformInfo", b, InformInfoLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// InformInfoRecordLen is the length in bytes of an InformInfoRecord.
const InformInfoRecordLen = 60

// InformInfoRecord is one subscription (section 15.2.5.12).
type InformInfoRecord struct {
	SubscriberGID GID
	Enum          uint16 // tells apart those of one subscriber
	InformInfo    InformInfo
}

func (r *InformInfoRecord) fields(c *coder) {
	c.bytes(r.SubscriberGID[:])
	field(c, &r.Enum, 16)
	c.reserved(48)
	r.InformInfo.fields(c)
}

// Append appends the attribute's bytes to b.
func (r InformInfoRecord) Append(b []byte) []byte {
	b, c := extend(b, InformInfoRecordLen)
	r.fields(&c)
	return b
}

// ParseInformInfoRecord parses an attribute. It fails with [ErrFormat] for another length than [InformInfoRecordLen].
func ParseInformInfoRecord(b []byte) (r InformInfoRecord, err error) {
	c, err := read("InformInfoRecord", b, InformInfoRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of an InformInfoRecord (section 15.2.5.12).
const (
	InformMaskSubscriberGID Mask = 1 << 0
	InformMaskEnum          Mask = 1 << 1
	InformMaskGID           Mask = 1 << 3
	InformMaskLIDBegin      Mask = 1 << 4
	InformMaskLIDEnd        Mask = 1 << 5
	InformMaskGeneric       Mask = 1 << 7
	InformMaskSubscribe     Mask = 1 << 8
	InformMaskType          Mask = 1 << 9
	InformMaskTrapNumber    Mask = 1 << 10
	InformMaskQPN           Mask = 1 << 11
	InformMaskRespTime      Mask = 1 << 13
	InformMaskProducerType  Mask = 1 << 15
)
