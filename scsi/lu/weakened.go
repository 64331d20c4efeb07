//go:build weakened

package lu

import "github.com/ironwarp/ironwarp/internal/checks"

func (p *Port) mayCopy() bool {
	if p.copies.Add(1) <= maxPortCopies || !checks.On(checks.CopyShare) {
		return true
	}
	p.copies.Add(-1)
	return false
}
