package mad

import (
	"errors"
	"fmt"
)

// ErrFormat means that bytes are not what they should be: their number or a version is wrong.
var ErrFormat = errors.New("mad: format error")

// coder is one direction of the codec. An attribute lists its fields once, in the order and with the widths
// of IBTA's tables, in a method named fields, which reads them from b or writes them to it. So what is
// parsed and what is appended cannot differ.
type coder struct {
	b   []byte
	at  int // the next field, in bits from the start of b
	put bool
}

// extend appends n zero bytes to b, and returns the coder that writes them.
func extend(b []byte, n int) ([]byte, coder) {
	start := len(b)
	for range n {
		b = append(b, 0)
	}
	return b, coder{b: b[start:], put: true}
}

// read returns the coder that reads the attribute called name. It fails unless b has n bytes.
func read(name string, b []byte, n int) (coder, error) {
	if len(b) != n {
		return coder{}, fmt.Errorf("%s of %d bytes, it has %d: %w", name, len(b), n, ErrFormat)
	}
	return coder{b: b}, nil
}

// reserved passes over reserved bits.
func (c *coder) reserved(width int) { c.at += width }

// bytes codes whole bytes at a byte's boundary.
func (c *coder) bytes(v []byte) {
	at := c.at / 8
	if c.put {
		copy(c.b[at:], v)
	} else {
		copy(v, c.b[at:])
	}
	c.at += 8 * len(v)
}

// flag codes one bit.
func (c *coder) flag(v *bool) {
	var bit uint8
	if *v {
		bit = 1
	}
	field(c, &bit, 1)
	*v = bit == 1
}

// field codes a number of width bits, most significant first. What does not fit in them is not written.
func field[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, v *T, width int) {
	first, last := c.at/8, (c.at+width-1)/8
	spare := 8*(last+1) - c.at - width // bits of the last byte that follow the field
	c.at += width
	if c.put {
		n := uint64(*v)
		for i := last; i >= first; i-- {
			mask := ^byte(0)
			if i == first {
				mask = byte(0xff >> (8 - (width + spare - 8*(last-first))))
			}
			if i == last {
				c.b[i] |= byte(n<<spare) & mask
				n >>= 8 - spare
				continue
			}
			c.b[i] |= byte(n) & mask
			n >>= 8
		}
		return
	}
	var n uint64
	for i := first; i < last; i++ {
		n = n<<8 | uint64(c.b[i])
	}
	n = n<<(8-spare) | uint64(c.b[last])>>spare
	if width < 64 {
		n &= 1<<width - 1
	}
	*v = T(n)
}
