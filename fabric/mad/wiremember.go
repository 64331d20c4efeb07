package mad

// MCMemberRecordLen is the length in bytes of an MCMemberRecord.
const MCMemberRecordLen = 52

// MCMemberRecord is a multicast group and one port's membership (section 15.2.5.17).
type MCMemberRecord struct {
	MGID             GID
	PortGID          GID
	QKey             uint32
	MLID             LID
	MTUSelector      Selector
	MTU              uint8 // a code such as [MTU4096]
	TClass           uint8
	PKey             uint16
	RateSelector     Selector
	Rate             uint8 // a code such as [Rate100G]
	LifeTimeSelector Selector
	LifeTime         uint8  // PacketLifeTime: 4.096 µs times 2 to this
	SL               uint8  // 4 bits
	FlowLabel        uint32 // 20 bits
	HopLimit         uint8
	Scope            uint8 // 4 bits
	JoinState        uint8 // 4 bits: [JoinFull] and so on
	ProxyJoin        bool
}

func (r *MCMemberRecord) fields(c *coder) {
	c.bytes(r.MGID[:])
	c.bytes(r.PortGID[:])
	field(c, &r.QKey, 32)
	field(c, &r.MLID, 16)
	field(c, &r.MTUSelector, 2)
	field(c, &r.MTU, 6)
	field(c, &r.TClass, 8)
	field(c, &r.PKey, 16)
	field(c, &r.RateSelector, 2)
	field(c, &r.Rate, 6)
	field(c, &r.LifeTimeSelector, 2)
	field(c, &r.LifeTime, 6)
	field(c, &r.SL, 4)
	field(c, &r.FlowLabel, 20)
	field(c, &r.HopLimit, 8)
	field(c, &r.Scope, 4)
	field(c, &r.JoinState, 4)
	c.flag(&r.ProxyJoin)
	c.reserved(23)
}

// Append appends the attribute's bytes to b.
func (r MCMemberRecord) Append(b []byte) []byte {
	b, c := extend(b, MCMemberRecordLen)
	r.fields(&c)
	return b
}

// ParseMCMemberRecord parses an attribute. It fails with [ErrFormat] for another length than [MCMemberRecordLen].
func ParseMCMemberRecord(b []byte) (r MCMemberRecord, err error) {
	c, err := read("MCMemberRecord", b, MCMemberRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The bits of JoinState: how a port is a member of a group (section 15.2.5.17).
const (
	JoinFull         uint8 = 1
	JoinNonMember    uint8 = 2
	JoinSendOnly     uint8 = 4
	JoinSendOnlyFull uint8 = 8
)

// The components of an MCMemberRecord (section 15.2.5.17).
const (
	MemberMaskMGID Mask = 1 << iota
	MemberMaskPortGID
	MemberMaskQKey
	MemberMaskMLID
	MemberMaskMTUSelector
	MemberMaskMTU
	MemberMaskTClass
	MemberMaskPKey
	MemberMaskRateSelector
	MemberMaskRate
	MemberMaskLifeTimeSelector
	MemberMaskLifeTime
	MemberMaskSL
	MemberMaskFlowLabel
	MemberMaskHopLimit
	MemberMaskScope
	MemberMaskJoinState
	MemberMaskProxyJoin
)
