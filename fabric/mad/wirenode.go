package mad

// The types of nodes (section 14.2.5.3), which are also the producers of notices (section 13.4.8.2).
const (
	NodeCA     uint8 = 1
	NodeSwitch uint8 = 2
	NodeRouter uint8 = 3

	ProducerManager uint32 = 4 // a class manager, in notices only
)

// NodeInfoLen is the length in bytes of NodeInfo.
const NodeInfoLen = 40

// NodeInfo describes a node (section 14.2.5.3).
type NodeInfo struct {
	BaseVersion     uint8
	ClassVersion    uint8
	Type            uint8 // [NodeCA] and so on
	Ports           uint8 // NumPorts
	SystemImageGUID GUID
	NodeGUID        GUID
	PortGUID        GUID
	PartitionCap    uint16 // entries of the P_Key table
	DeviceID        uint16
	Revision        uint32
	LocalPort       uint8  // LocalPortNum
	VendorID        uint32 // 24 bits
}

func (r *NodeInfo) fields(c *coder) {
	field(c, &r.BaseVersion, 8)
	field(c, &r.ClassVersion, 8)
	field(c, &r.Type, 8)
	field(c, &r.Ports, 8)
	field(c, &r.SystemImageGUID, 64)
	field(c, &r.NodeGUID, 64)
	field(c, &r.PortGUID, 64)
	field(c, &r.PartitionCap, 16)
	field(c, &r.DeviceID, 16)
	field(c, &r.Revision, 32)
	field(c, &r.LocalPort, 8)
	field(c, &r.VendorID, 24)
}

// Append appends the attribute's bytes to b.
func (r NodeInfo) Append(b []byte) []byte {
	b, c := extend(b, NodeInfoLen)
	r.fields(&c)
	return b
}

// ParseNodeInfo parses an attribute. It fails with [ErrFormat] for another length than [NodeInfoLen].
func ParseNodeInfo(b []byte) (r NodeInfo, err error) {
	c, err := read("NodeInfo", b, NodeInfoLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// NodeRecordLen is the length in bytes of a NodeRecord.
const NodeRecordLen = 108

// NodeRecord is a node as the SA knows it (section 15.2.5.2).
type NodeRecord struct {
	LID         LID
	NodeInfo    NodeInfo
	Description Name
}

func (r *NodeRecord) fields(c *coder) {
	field(c, &r.LID, 16)
	c.reserved(16)
	r.NodeInfo.fields(c)
	c.bytes(r.Description[:])
}

// Append appends the attribute's bytes to b.
func (r NodeRecord) Append(b []byte) []byte {
	b, c := extend(b, NodeRecordLen)
	r.fields(&c)
	return b
}

// ParseNodeRecord parses an attribute. It fails with [ErrFormat] for another length than [NodeRecordLen].
func ParseNodeRecord(b []byte) (r NodeRecord, err error) {
	c, err := read("NodeRecord", b, NodeRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of a NodeRecord (section 15.2.5.2).
const (
	NodeMaskLID             Mask = 1 << 0
	NodeMaskType            Mask = 1 << 4
	NodeMaskSystemImageGUID Mask = 1 << 6
	NodeMaskNodeGUID        Mask = 1 << 7
	NodeMaskPortGUID        Mask = 1 << 8
	NodeMaskDescription     Mask = 1 << 14
)
