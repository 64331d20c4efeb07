package partition

import (
	"errors"
	"fmt"
	"strconv"
)

// PKey is a partition key (IBTA volume 1, section 10.9.2): 15 bits that name the partition, and above them the bit of a full
// member.
type PKey uint16

const (
	// DefaultPKey names the default partition, of which all hosts are full members: what belongs to no other.
	DefaultPKey PKey = 0x7fff
	fullMember  PKey = 0x8000
)

// Membership is that of who has the key.
func (k PKey) Membership() Membership {
	switch {
	case k.Base() == 0:
		return None
	case k == k.Base():
		return Limited
	}
	return Full
}

// Base is the key without the membership bit.
func (k PKey) Base() PKey { return k &^ fullMember }

// As is the key of a member, as its table of P_Keys has it; 0, which is no key, of who is none.
func (k PKey) As(m Membership) PKey {
	switch m {
	case Full:
		return k | fullMember
	case Limited:
		return k.Base()
	}
	return 0
}

func (k PKey) String() string { return fmt.Sprintf("%#04x", uint16(k)) }

// ParsePKey reads the key of a partition: a number of 15 bits, not 0, in decimal digits or in hexadecimal ones behind 0x. It
// fails at any other text. The error is the reason.
func ParsePKey(s string) (PKey, error) {
	v, err := strconv.ParseUint(s, 0, 16)
	switch {
	case err != nil:
		return 0, errors.New("is no P_Key: write a number such as 0x0012")
	case v == 0:
		return 0, errors.New("is 0, which is no P_Key")
	case PKey(v)&fullMember != 0:
		return 0, fmt.Errorf("has the bit of full members (0x8000), which members: says of each: write %v", PKey(v).Base())
	}
	return PKey(v), nil
}

// Membership is how a host belongs to a partition.
type Membership uint8

// The memberships. A limited member talks with full members alone (IBTA volume 1, section 10.9.3).
const (
	None Membership = iota
	Limited
	Full
)

func (m Membership) String() string {
	switch m {
	case Limited:
		return "limited"
	case Full:
		return "full"
	}
	return "none"
}

// Memberships are the words for members.
func Memberships() []string { return []string{Full.String(), Limited.String()} }

// ParseMembership reads one of Memberships. It fails at any other text.
func ParseMembership(s string) (Membership, error) {
	switch s {
	case Full.String():
		return Full, nil
	case Limited.String():
		return Limited, nil
	}
	return None, errors.New("is no membership: full and limited are possible")
}

// mayTalk is what the standard says of two hosts.
func (m Membership) mayTalk(o Membership) bool {
	return m == Full && o != None || m != None && o == Full
}
