package block

import "encoding/binary"

// StatusLen is the length in bytes of the answer of OpStatus: what the smallest I/O of a
// session takes, and room for 512 extents.
const StatusLen = 4096

// extentLen is the length in bytes of an extent in an answer: {u32 length, u32 state},
// little-endian. A length of 0 ends the answer before its buffer does.
const extentLen = 8

// MaxExtents is how many extents an answer has at most.
const MaxExtents = StatusLen / extentLen

// State describes the content of an extent; the values are those of NBD's base:allocation.
type State uint32

// The bits of a State.
const (
	Hole State = 1 << iota // no space is allocated
	Zero                   // reads as zeroes

	stateMask = Hole | Zero
)

// Extent is a part of a range and its state.
type Extent struct {
	Length uint32 // bytes
	State  State
}

// PutExtents writes the answer of OpStatus to buf, of StatusLen bytes: at most MaxExtents
// extents, from the beginning of the range on.
func PutExtents(buf []byte, extents []Extent) {
	clear(buf[len(extents)*extentLen:])
	for i, e := range extents {
		binary.LittleEndian.PutUint32(buf[i*extentLen:], e.Length)
		binary.LittleEndian.PutUint32(buf[i*extentLen+4:], uint32(e.State))
	}
}

// ParseExtents reads the answer of OpStatus about n bytes, in units of align, which
// nobody need have written with care. It returns at least one extent, none of them empty,
// and at most n bytes in all. What is no extent ends the answer, and a range about which
// it says nothing is data.
func ParseExtents(buf []byte, n, align uint32) []Extent {
	var all []Extent
	for ; n > 0 && len(buf) >= extentLen; buf = buf[extentLen:] {
		e := Extent{binary.LittleEndian.Uint32(buf), State(binary.LittleEndian.Uint32(buf[4:])) & stateMask}
		if e.Length == 0 || e.Length%align != 0 {
			break
		}
		e.Length = min(e.Length, n)
		n -= e.Length
		if last := len(all) - 1; last >= 0 && all[last].State == e.State {
			all[last].Length += e.Length
		} else {
			all = append(all, e)
		}
	}
	if all == nil {
		all = []Extent{{Length: n}}
	}
	return all
}
