package sa

import "github.com/ironwarp/ironwarp/fabric/mad"

// A layout has the widths in bits of a record's components, reserved ones included, in the order of the component mask's bits
// (section 15.2.2).
type layout []int

func repeat(n, width int) (l layout) {
	for range n {
		l = append(l, width)
	}
	return l
}

func join(parts ...layout) (l layout) {
	for _, p := range parts {
		l = append(l, p...)
	}
	return l
}

// The layouts of the records that are searched.
var (
	serviceLayout  = join(layout{64, 128, 16, 16, 32, 128, 512}, repeat(16, 8), repeat(8, 16), repeat(4, 32), repeat(2, 64))
	pathLayout     = layout{32, 32, 128, 128, 16, 16, 1, 3, 20, 8, 8, 1, 7, 16, 12, 4, 2, 6, 2, 6, 2, 6}
	memberLayout   = layout{128, 128, 32, 16, 2, 6, 8, 16, 2, 6, 2, 6, 4, 20, 8, 4, 4, 1}
	guidInfoLayout = join(layout{16, 8, 8, 32}, repeat(mad.GUIDsPerBlock, 64))
	informLayout   = layout{128, 16, 48, 128, 16, 16, 16, 8, 8, 16, 16, 24, 3, 5, 8, 24}
	nodeLayout     = layout{16, 16, 8, 8, 8, 8, 64, 64, 64, 16, 16, 32, 8, 24, 512}
	portLayout     = layout{16, 8, 8, 64, 64, 16, 16, 32, 16, 16, 8, 8, 8, 8, 4, 4, 4, 4, 2, 3, 3}
	smInfoLayout   = layout{16, 16, 64, 64, 32, 4, 4}
)

// A pattern is what a request asks for: bits of a record that are compared, and their values, both from the first byte on that
// has such bits to the last. A mask without bits matches all.
type pattern struct {
	bits, want []byte
	at         int
}

// pattern returns the pattern of a request's components. Bits of the mask that no component has are ignored.
func (l layout) pattern(mask mad.Mask, want []byte) pattern {
	bits := make([]byte, len(want))
	at := 0
	for i, width := range l {
		if mask&(1<<i) != 0 {
			for b := at; b < at+width; b++ {
				bits[b/8] |= 0x80 >> (b % 8)
			}
		}
		at += width
	}
	first, last := 0, len(bits)
	for last > 0 && bits[last-1] == 0 {
		last--
	}
	for first < last && bits[first] == 0 {
		first++
	}
	return pattern{bits[first:last], want[first:last], first}
}

// matches reports whether a record of the wire is as asked for.
func (p pattern) matches(record []byte) bool {
	record = record[p.at:]
	for i, m := range p.bits {
		if (record[i]^p.want[i])&m != 0 {
			return false
		}
	}
	return true
}

// selected reports whether a value is as a selector asks (section 15.2.5.16): largest is true of each, since all are equal.
func selected(sel mad.Selector, asked, value uint8) bool {
	switch sel {
	case mad.SelectGreater:
		return value > asked
	case mad.SelectLess:
		return value < asked
	case mad.SelectExactly:
		return value == asked
	}
	return true
}

// A choice is a component with a selector, as MTU, Rate and PacketLifeTime are. It counts where the mask has both.
type choice struct {
	selector, component mad.Mask
	sel                 mad.Selector
	asked, value        uint8
}

// chosen reports whether all choices of a request are met. One whose mask has the component but no selector is compared exactly.
func chosen(mask mad.Mask, choices ...choice) bool {
	for _, c := range choices {
		switch {
		case mask.Has(c.selector | c.component):
			if !selected(c.sel, c.asked, c.value) {
				return false
			}
		case mask.Has(c.component):
			if c.asked != c.value {
				return false
			}
		}
	}
	return true
}
