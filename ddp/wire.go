package ddp

import "encoding/binary"

// Version is the DDP version of RFC 5041, the only one (section 4.1).
const Version = 1

// Header sizes in bytes (RFC 5041 sections 4.2 and 4.3). Both include the
// ULP's octet that RDMAP uses as its control field.
const (
	TaggedHeaderLen   = 14
	UntaggedHeaderLen = 18
)

const (
	flagTagged  = 0x80
	flagLast    = 0x40
	versionMask = 0x03
)

// IsTagged reports whether a segment, of at least one byte, is of the tagged
// buffer model.
func IsTagged(seg []byte) bool { return seg[0]&flagTagged != 0 }

// Tagged is a view of a tagged segment (RFC 5041 section 4.2), header and
// payload, of at least TaggedHeaderLen bytes.
//
//	0: T L rsvd(4) DV(2) | 1: RsvdULP | 2: STag(4) | 6: TO(8)
type Tagged []byte

// Last reports the L flag: this is the message's last segment.
func (t Tagged) Last() bool { return t[0]&flagLast != 0 }

// Version is the DV field.
func (t Tagged) Version() uint8 { return t[0] & versionMask }

// ULP is the octet reserved for the ULP (RDMAP's control field).
func (t Tagged) ULP() uint8 { return t[1] }

// STag names the tagged buffer.
func (t Tagged) STag() uint32 { return binary.BigEndian.Uint32(t[2:]) }

// TO is the tagged offset in bytes of the payload.
func (t Tagged) TO() uint64 { return binary.BigEndian.Uint64(t[6:]) }

// Payload is what follows the header.
func (t Tagged) Payload() []byte { return t[TaggedHeaderLen:] }

// AppendTagged appends a tagged header to b.
func AppendTagged(b []byte, last bool, ulp uint8, stag uint32, to uint64) []byte {
	c := byte(flagTagged | Version)
	if last {
		c |= flagLast
	}
	b = append(b, c, ulp)
	b = binary.BigEndian.AppendUint32(b, stag)
	return binary.BigEndian.AppendUint64(b, to)
}

// Untagged is a view of an untagged segment (RFC 5041 section 4.3), header and
// payload, of at least UntaggedHeaderLen bytes.
//
//	0: T L rsvd(4) DV(2) | 1: RsvdULP | 2: RsvdULP(4) | 6: QN(4) | 10: MSN(4) | 14: MO(4)
type Untagged []byte

// Last reports the L flag: this is the message's last segment.
func (u Untagged) Last() bool { return u[0]&flagLast != 0 }

// Version is the DV field.
func (u Untagged) Version() uint8 { return u[0] & versionMask }

// ULP is the first octet reserved for the ULP (RDMAP's control field).
func (u Untagged) ULP() uint8 { return u[1] }

// ULPWord is the 32-bit field reserved for the ULP (RDMAP's Invalidate STag).
func (u Untagged) ULPWord() uint32 { return binary.BigEndian.Uint32(u[2:]) }

// QN is the queue number.
func (u Untagged) QN() uint32 { return binary.BigEndian.Uint32(u[6:]) }

// MSN is the message sequence number.
func (u Untagged) MSN() uint32 { return binary.BigEndian.Uint32(u[10:]) }

// MO is the message offset in bytes of the payload.
func (u Untagged) MO() uint32 { return binary.BigEndian.Uint32(u[14:]) }

// Payload is what follows the header.
func (u Untagged) Payload() []byte { return u[UntaggedHeaderLen:] }

// AppendUntagged appends an untagged header to b.
func AppendUntagged(b []byte, last bool, ulp uint8, ulpWord, qn, msn, mo uint32) []byte {
	c := byte(Version)
	if last {
		c |= flagLast
	}
	b = append(b, c, ulp)
	b = binary.BigEndian.AppendUint32(b, ulpWord)
	b = binary.BigEndian.AppendUint32(b, qn)
	b = binary.BigEndian.AppendUint32(b, msn)
	return binary.BigEndian.AppendUint32(b, mo)
}

// HeaderLen is the length in bytes of the DDP header of seg, 0 if seg is too
// short to hold it.
func HeaderLen(seg []byte) int {
	switch {
	case len(seg) >= TaggedHeaderLen && IsTagged(seg):
		return TaggedHeaderLen
	case len(seg) >= UntaggedHeaderLen && !IsTagged(seg):
		return UntaggedHeaderLen
	}
	return 0
}
