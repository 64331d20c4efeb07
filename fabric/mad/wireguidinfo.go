package mad

// GUIDsPerBlock is the number of GUIDs in a block of a port's table (section 14.2.5.5).
const GUIDsPerBlock = 8

// GUIDInfoLen is the length in bytes of GUIDInfo.
const GUIDInfoLen = 64

// GUIDInfo is a block of a port's table of GUIDs (section 14.2.5.5); the modifier of its MAD is the block's number.
type GUIDInfo struct {
	GUIDs [GUIDsPerBlock]GUID
}

func (r *GUIDInfo) fields(c *coder) {
	for i := range r.GUIDs {
		field(c, &r.GUIDs[i], 64)
	}
}

// Append appends the attribute's bytes to b.
func (r GUIDInfo) Append(b []byte) []byte {
	b, c := extend(b, GUIDInfoLen)
	r.fields(&c)
	return b
}

// ParseGUIDInfo parses an attribute. It fails with [ErrFormat] for another length than [GUIDInfoLen].
func ParseGUIDInfo(b []byte) (r GUIDInfo, err error) {
	c, err := read("GUIDInfo", b, GUIDInfoLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// GUIDInfoRecordLen is the length in bytes of a GUIDInfoRecord.
const GUIDInfoRecordLen = 72

// GUIDInfoRecord is a block of a port's table of GUIDs (section 15.2.5.18). The first GUID of block 0 is the port's own,
// the others are aliases. In a Set, a zero GUID asks the SA to assign one.
type GUIDInfoRecord struct {
	LID      LID // the port's: with BlockNum the record's identifier (RID)
	BlockNum uint8
	GUIDs    [GUIDsPerBlock]GUID
}

func (r *GUIDInfoRecord) fields(c *coder) {
	field(c, &r.LID, 16)
	field(c, &r.BlockNum, 8)
	c.reserved(40)
	for i := range r.GUIDs {
		field(c, &r.GUIDs[i], 64)
	}
}

// Append appends the attribute's bytes to b.
func (r GUIDInfoRecord) Append(b []byte) []byte {
	b, c := extend(b, GUIDInfoRecordLen)
	r.fields(&c)
	return b
}

// ParseGUIDInfoRecord parses an attribute. It fails with [ErrFormat] for another length than [GUIDInfoRecordLen].
func ParseGUIDInfoRecord(b []byte) (r GUIDInfoRecord, err error) {
	c, err := read("GUIDInfoRecord", b, GUIDInfoRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of a GUIDInfoRecord (section 15.2.5.18).
const (
	GUIDInfoMaskLID      Mask = 1 << 0
	GUIDInfoMaskBlockNum Mask = 1 << 1
	GUIDInfoMaskGUIDs    Mask = 0xff << 4 // all of them
)

// GUIDInfoMaskGUID returns the mask's bit for GUID i, 0 to 7, of the block.
func GUIDInfoMaskGUID(i int) Mask { return 1 << (4 + i) }
