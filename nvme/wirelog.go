package nvme

import (
	"net/netip"
	"strconv"
)

const (
	// ErrorEntryLen is the length of an entry of the log of errors.
	ErrorEntryLen = 64
	// HealthLen is the length of the log of health.
	HealthLen = 512
	// DiscoveryEntryLen is the length of an entry of the discovery log, and of its header.
	DiscoveryEntryLen = 1024
	// ReservationLogLen is the length of the log of reservations.
	ReservationLogLen = 64
)

// ErrorEntry is an entry of the log of errors (NVMe figure 193).
type ErrorEntry struct {
	Count    uint64
	QID, ID  uint16
	Status   Status
	LBA      uint64
	NSID     uint32
	Transfer uint8 // TRTYPE
}

// Append appends the entry.
func (e ErrorEntry) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, ErrorEntryLen)...)
	x := b[at:]
	le.PutUint64(x, e.Count)
	le.PutUint16(x[8:], e.QID)
	le.PutUint16(x[10:], e.ID)
	le.PutUint16(x[12:], uint16(e.Status)<<1)
	le.PutUint16(x[14:], 0xffff) // where the fault is in the command, it does not say
	le.PutUint64(x[16:], e.LBA)
	le.PutUint32(x[24:], e.NSID)
	x[29] = e.Transfer
	return b
}

// Health is the log of health (NVMe figure 194), as far as a controller of software has it.
type Health struct {
	ReadBytes, WrittenBytes uint64
	Reads, Writes           uint64
	Hours                   uint64 // of power
	Errors                  uint64 // that the storage reported
	Entries                 uint64 // of the log of errors, of all times
	ReadOnly                bool
}

// Append appends the log.
func (h Health) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, HealthLen)...)
	x := b[at:]
	if h.ReadOnly {
		x[0] = 1 << 3
	}
	x[3] = 100                  // available spare, in percent
	le.PutUint16(x[1:], 273+25) // kelvin: there is no thermometer, and 0 is cold
	units := func(bytes uint64) uint64 { return (bytes/512 + 999) / 1000 }
	le.PutUint64(x[32:], units(h.ReadBytes))
	le.PutUint64(x[48:], units(h.WrittenBytes))
	le.PutUint64(x[64:], h.Reads)
	le.PutUint64(x[80:], h.Writes)
	le.PutUint64(x[128:], h.Hours)
	le.PutUint64(x[160:], h.Errors)
	le.PutUint64(x[176:], h.Entries)
	return b
}

// AppendFirmware appends the log of the one firmware slot.
func AppendFirmware(b []byte, revision string) []byte {
	at := len(b)
	b = append(b, make([]byte, 512)...)
	b[at] = 1
	padded(b[at+8:at+16], revision)
	return b
}

// Effect is what a command may change, of the log of commands supported and effects (NVMe figure 200).
type Effect struct {
	Admin   bool
	Opcode  Opcode
	Changes bool // the content of logical blocks
}

// AppendEffects appends that log.
func AppendEffects(b []byte, all []Effect) []byte {
	at := len(b)
	b = append(b, make([]byte, 4096)...)
	for _, e := range all {
		x := b[at:]
		if !e.Admin {
			x = x[1024:]
		}
		v := uint32(1)
		if e.Changes {
			v |= 1 << 1
		}
		le.PutUint32(x[4*int(e.Opcode):], v)
	}
	return b
}

// DiscoveryEntry is a way to a subsystem (NVMe-oF 5.3).
type DiscoveryEntry struct {
	NQN      string
	Address  netip.AddrPort
	PortID   uint16
	MaxAdmin uint16 // entries of an admin queue
	Itself   bool   // it is the discovery subsystem that is asked
}

// AppendDiscovery appends the discovery log.
func AppendDiscovery(b []byte, generation uint64, all []DiscoveryEntry) []byte {
	at := len(b)
	b = append(b, make([]byte, DiscoveryEntryLen*(1+len(all)))...)
	x := b[at:]
	le.PutUint64(x, generation)
	le.PutUint64(x[8:], uint64(len(all)))
	for _, e := range all {
		x = x[DiscoveryEntryLen:]
		a := e.Address.Addr().Unmap()
		x[0], x[1], x[2] = 1, 1, 2 // RDMA, IPv4, an NVM subsystem
		if a.Is6() {
			x[1] = 2
		}
		if e.Itself {
			x[2] = 3
		}
		x[3] = 1 << 2 // flow control of submissions may be disabled
		le.PutUint16(x[4:], e.PortID)
		le.PutUint16(x[6:], DynamicController)
		le.PutUint16(x[8:], e.MaxAdmin)
		padded(x[32:64], strconv.Itoa(int(e.Address.Port())))
		copy(x[256:511], e.NQN)
		padded(x[512:768], a.String())
		x[768], x[769], x[770] = 1, 5, 1 // connected, iWARP, RDMA_CM
	}
	return b
}

// ReservationNotice is why a host is told of a reservation (NVMe 5.14.1.9.1).
type ReservationNotice uint8

// The notices, which are also the bits of the mask of FeatureReservationNotice.
const (
	NoticeRegistrationPreempted ReservationNotice = 1
	NoticeReleased              ReservationNotice = 2
	NoticePreempted             ReservationNotice = 3
)

// AppendReservationLog appends the oldest notice, of so many.
func AppendReservationLog(b []byte, count uint64, n ReservationNotice, left uint8, nsid uint32) []byte {
	at := len(b)
	b = append(b, make([]byte, ReservationLogLen)...)
	le.PutUint64(b[at:], count)
	b[at+8], b[at+9] = byte(n), left
	le.PutUint32(b[at+12:], nsid)
	return b
}
