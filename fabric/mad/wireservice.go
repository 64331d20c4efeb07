package mad

// ServiceLeaseInfinite is the lease of a service that does not end (section 15.2.5.14).
const ServiceLeaseInfinite = 0xffff_ffff

// ServiceRecordLen is the length in bytes of a ServiceRecord.
const ServiceRecordLen = 176

// ServiceRecord says where a service is (section 15.2.5.14).
type ServiceRecord struct {
	ID     uint64 // ServiceID
	GID    GID    // ServiceGID: the port that has the service
	PKey   uint16
	Lease  uint32 // seconds, or [ServiceLeaseInfinite]
	Key    ServiceKey
	Name   Name // ServiceName
	Data8  [16]uint8
	Data16 [8]uint16
	Data32 [4]uint32
	Data64 [2]uint64
}

func (r *ServiceRecord) fields(c *coder) {
	field(c, &r.ID, 64)
	c.bytes(r.GID[:])
	field(c, &r.PKey, 16)
	c.reserved(16)
	field(c, &r.Lease, 32)
	c.bytes(r.Key[:])
	c.bytes(r.Name[:])
	c.bytes(r.Data8[:])
	for i := range r.Data16 {
		field(c, &r.Data16[i], 16)
	}
	for i := range r.Data32 {
		field(c, &r.Data32[i], 32)
	}
	for i := range r.Data64 {
		field(c, &r.Data64[i], 64)
	}
}

// Append appends the attribute's bytes to b.
func (r ServiceRecord) Append(b []byte) []byte {
	b, c := extend(b, ServiceRecordLen)
	r.fields(&c)
	return b
}

// ParseServiceRecord parses an attribute. It fails with [ErrFormat] for another length than [ServiceRecordLen].
func ParseServiceRecord(b []byte) (r ServiceRecord, err error) {
	c, err := read("ServiceRecord", b, ServiceRecordLen)
	if err == nil {
		r.fields(&c)
	}
	return r, err
}

// The components of a ServiceRecord (section 15.2.5.14).
const (
	ServiceMaskID Mask = 1 << iota
	ServiceMaskGID
	ServiceMaskPKey
	_ // reserved
	ServiceMaskLease
	ServiceMaskKey
	ServiceMaskName
	ServiceMaskData8  Mask = 0xffff << 7 // one bit for each of the 16 numbers; of the rest likewise
	ServiceMaskData16 Mask = 0xff << 23
	ServiceMaskData32 Mask = 0xf << 31
	ServiceMaskData64 Mask = 0x3 << 35
)
