package nvme

import "github.com/ironwarp/ironwarp/block"

const (
	// RangeLen is the length of a range of Dataset Management.
	RangeLen = 16
	// MaxRanges is how many of them a command has at most.
	MaxRanges = 256
)

// Range is a range of Dataset Management.
type Range struct {
	SLBA   uint64
	Blocks uint32
}

// ParseRanges parses the data of Dataset Management. It fails with ErrFormat if they are no whole ranges.
func ParseRanges(b []byte) ([]Range, error) {
	if len(b)%RangeLen != 0 || len(b) > MaxRanges*RangeLen {
		return nil, short("a list of ranges", len(b), MaxRanges*RangeLen)
	}
	all := make([]Range, 0, len(b)/RangeLen)
	for ; len(b) > 0; b = b[RangeLen:] {
		all = append(all, Range{le.Uint64(b[8:]), le.Uint32(b[4:])})
	}
	return all, nil
}

// Append appends the range.
func (r Range) Append(b []byte) []byte {
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, r.Blocks)
	return le.AppendUint64(b, r.SLBA)
}

// ReservationType is the type of a reservation (NVMe figure 305).
type ReservationType uint8

// The types.
const (
	WriteExclusive         ReservationType = 1
	ExclusiveAccess        ReservationType = 2
	WriteExclusiveRegs     ReservationType = 3 // registrants only
	ExclusiveAccessRegs    ReservationType = 4
	WriteExclusiveAllRegs  ReservationType = 5
	ExclusiveAccessAllRegs ReservationType = 6
)

// Known reports whether there is such a type.
func (t ReservationType) Known() bool { return t >= WriteExclusive && t <= ExclusiveAccessAllRegs }

// AllRegistrants reports whether all registrants hold the reservation.
func (t ReservationType) AllRegistrants() bool { return t >= WriteExclusiveAllRegs }

// Registrants reports whether registrants have the access that the holder has.
func (t ReservationType) Registrants() bool { return t >= WriteExclusiveRegs }

// KeepsReads reports whether others may not read either.
func (t ReservationType) KeepsReads() bool { return t%2 == 0 }

// The actions of Reservation Register, Acquire and Release, in the three lowest bits of dword 10.
const (
	ActionRegister   = 0
	ActionUnregister = 1
	ActionReplace    = 2

	ActionAcquire      = 0
	ActionPreempt      = 1
	ActionPreemptAbort = 2

	ActionRelease = 0
	ActionClear   = 1
)

// Reservation is what a Reservation Register, Acquire or Release has in its entry (NVMe 6.10 to 6.13).
type Reservation struct {
	Action    uint8
	IgnoreKey bool            // IEKEY
	Type      ReservationType // of Acquire and Release
	Persist   uint8           // CPTPL of Register: 0 no change, 2 not through power loss, 3 through it
}

// Reservation parses these fields.
func (c Command) Reservation() Reservation {
	d := c.DWord(10)
	return Reservation{uint8(d & 7), d&8 != 0, ReservationType(d >> 8), uint8(d >> 30)}
}

// SetReservation sets them.
func (c Command) SetReservation(r Reservation) {
	d := uint32(r.Action) | uint32(r.Type)<<8 | uint32(r.Persist)<<30
	if r.IgnoreKey {
		d |= 8
	}
	c.SetDWord(10, d)
}

// ParseKeys parses the data of Reservation Register (CRKEY, NRKEY) and Acquire (CRKEY, PRKEY), of 16 bytes, and of
// Release, of 8. It fails with ErrFormat for other lengths.
func ParseKeys(b []byte) (current, other uint64, err error) {
	switch len(b) {
	case 16:
		other = le.Uint64(b[8:])
	case 8:
	default:
		return 0, 0, short("the keys of a reservation", len(b), 16)
	}
	return le.Uint64(b), other, nil
}

// Registrant is a host that is registered, in a report.
type Registrant struct {
	Controller uint16 // 0xffff: the host has none now
	Holds      bool
	Key        uint64
	Host       block.ID
}

// AppendReport appends the report on a reservation in the extended format, which hosts with identifiers of 128 bits
// ask for (NVMe figure 313); t is 0 if there is no reservation.
func AppendReport(b []byte, generation uint32, t ReservationType, kept bool, all []Registrant) []byte {
	at := len(b)
	b = append(b, make([]byte, 64*(1+len(all)))...)
	x := b[at:]
	le.PutUint32(x, generation)
	x[4] = byte(t)
	le.PutUint16(x[5:], uint16(len(all)))
	if kept {
		x[9] = 1
	}
	for _, r := range all {
		x = x[64:]
		le.PutUint16(x, r.Controller)
		if r.Holds {
			x[2] = 1
		}
		le.PutUint64(x[8:], r.Key)
		copy(x[16:], r.Host[:])
	}
	return b
}
