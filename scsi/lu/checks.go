//go:build !weakened

package lu

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// CopyShare, R2: the copies of an initiator port are few over all units: they have memory that is not
// counted otherwise. mayCopy counts one more if it may be.
func (p *Port) mayCopy() bool {
	if p.copies.Add(1) <= maxPortCopies {
		return true
	}
	p.copies.Add(-1)
	return false
}
