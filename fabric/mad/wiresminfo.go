package mad

// SMState is what a subnet manager is (section 14.4.1).
type SMState uint8

// The states.
const (
	SMNotActive   SMState = 0
	SMDiscovering SMState = 1
	SMStandby     SMState = 2
	SMMaster      SMState = 3
)

var smStateNames = [...]string{"NOTACTIVE", "DISCOVERING", "STANDBY", "MASTER"}

// String returns the state's name.
func (s SMState) String() string {
	if int(s) < len(smStateNames) {
		return smStateNames[s]
	}
	return "unknown"
}

// The modifiers of a Set of SMInfo: what one manager tells another to do (section 14.4.3).
const (
	SMHandover    uint32 = 1
	SMAcknowledge uint32 = 2
	SMDisable     uint32 = 3
	SMToStandby   uint32 = 4
	SMDiscover    uint32 = 5
)

// SMInfoLen is the length in bytes of SMInfo.
const SMInfoLen = 21

// SMInfo is a subnet manager's view of itself (section 14.2.5.13).
type SMInfo struct {
	GUID     GUID   // of its port
	SMKey    Key    // zero to those who are not to know it
	ActCount uint32 // grows as long as the manager works
	Priority uint8  // 0 to 15
	State    SMState
}

func (r *SMInfo) fields(c *coder) {
	field(c, &r.GUID, 64)
	field(c, &r.SMKey, 64)
	field(c, &r.ActCount, 32)
	field(c, &r.Priority, 4)
	field(c, &r.State, 4)
}

// Append appends the attribute's bytes to b.
func (r SMInfo) Append(b []byte) []byte {
	b, c := extend(b, SMInfoLen)
	r.fields(&c)
	return b
}

// ParseSMInfo parses an attribute. It fails with [ErrFormat] for another length than [SMInfoLen].
func ParseSMInfo(b []byte) (r SMInfo, err error) {
	c, err := read("SMInfo", b, SMInfoLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// SMInfoRecordLen is the length in bytes of an SMInfoRecord.
const SMInfoRecordLen = 25

// SMInfoRecord is a subnet manager as the SA knows it (section 15.2.5.9).
type SMInfoRecord struct {
	LID    LID
	SMInfo SMInfo
}

func (r *SMInfoRecord) fields(c *coder) {
	field(c, &r.LID, 16)
	c.reserved(16)
	r.SMInfo.fields(c)
}

// Append appends the attribute's bytes to b.
func (r SMInfoRecord) Append(b []byte) []byte {
	b, c := extend(b, SMInfoRecordLen)
	r.fields(&c)
	return b
}

// ParseSMInfoRecord parses an attribute. It fails with [ErrFormat] for another length than [SMInfoRecordLen].
func ParseSMInfoRecord(b []byte) (r SMInfoRecord, err error) {
	c, err := read("SMInfoRecord", b, SMInfoRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of an SMInfoRecord (section 15.2.5.9).
const (
	SMInfoMaskLID      Mask = 1 << 0
	SMInfoMaskGUID     Mask = 1 << 2
	SMInfoMaskSMKey    Mask = 1 << 3
	SMInfoMaskActCount Mask = 1 << 4
	SMInfoMaskPriority Mask = 1 << 5
	SMInfoMaskState    Mask = 1 << 6
)
