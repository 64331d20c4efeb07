package directory

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/transport"
)

// Kind is what a service is.
type Kind uint8

// The kinds. Other is what a service is that no IronWarp has announced.
const (
	Other  Kind = 0
	Export Kind = 1 // a disk that peers attach
	Target Kind = 2 // of iSCSI
)

func (k Kind) String() string {
	switch k {
	case Export:
		return "export"
	case Target:
		return "target"
	}
	return "other"
}

// Service is a service of a host.
type Service struct {
	Name     string // 1 to 63 bytes
	Kind     Kind
	Port     uint16 // TCP's, or SCTP's
	Carriers []transport.Kind
	Size     uint64 // bytes, of an export
	PKey     uint16 // of the partition that it is in; 0: the default one

	// The following are the directory's.
	ID    uint64   // ServiceID
	Host  mad.GUID // whose it is
	Lease uint32   // seconds, or mad.ServiceLeaseInfinite
}

// dataVersion is the version of ServiceData: bytes 0 to 2 of ServiceData8 are it, the kind and the carriers, one bit each;
// ServiceData16 begins with the port, ServiceData64 with the size.
const dataVersion = 1

// localID begins the ServiceIDs that whoever administers a host assigns (IBTA volume 1, A3.2.3).
const localID = 0x02

// defaultPKey is the P_Key of the default partition, with full membership.
const defaultPKey = 0xffff

// fullMember is the P_Key's bit of full members.
const fullMember = 0x8000

// IDOf is the ServiceID of a service: the same on each host that has one of this name and kind.
func IDOf(k Kind, name string) uint64 {
	sum := sha256.Sum256(append([]byte{byte(k)}, name...))
	return localID<<56 | binary.BigEndian.Uint64(sum[:])>>8
}

// record is the service as a host announces it. It fails where the name can't be one.
func (s *Service) record(host mad.GID, key mad.ServiceKey) (r mad.ServiceRecord, err error) {
	if r.Name, err = mad.MakeName(s.Name); err != nil {
		return r, fmt.Errorf("announce service %q: %w", s.Name, err)
	}
	r.ID, r.GID, r.PKey, r.Key, r.Lease = IDOf(s.Kind, s.Name), host, defaultPKey, key, uint32(lease.Seconds())
	if s.PKey != 0 {
		r.PKey = s.PKey | fullMember
	}
	r.Data8[0], r.Data8[1] = dataVersion, uint8(s.Kind)
	for _, k := range s.Carriers {
		r.Data8[2] |= 1 << k
	}
	r.Data16[0], r.Data64[0] = s.Port, s.Size
	return r, nil
}

// serviceOf is what a record says. It fails where its name can't be printed.
func serviceOf(r mad.ServiceRecord) (s Service, err error) {
	if s.Name, err = r.Name.Text(); err != nil {
		return s, err
	}
	s.ID, s.Host, s.Lease, s.PKey = r.ID, r.GID.GUID(), r.Lease, r.PKey&^fullMember
	if r.Data8[0] != dataVersion {
		return s, nil
	}
	if k := Kind(r.Data8[1]); k == Export || k == Target {
		s.Kind = k
	}
	for _, k := range []transport.Kind{transport.TCP, transport.SCTP, transport.SCTPUDP} {
		if r.Data8[2]&(1<<k) != 0 {
			s.Carriers = append(s.Carriers, k)
		}
	}
	s.Port, s.Size = r.Data16[0], r.Data64[0]
	return s, nil
}
