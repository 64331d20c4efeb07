package lanestate

import "time"

// backoff doubles from a least to a most, and takes up to a half off, so that two hosts do
// not go on colliding. It is a count and no more: the limits are the caller's.
type backoff int

// next returns the pause; draw, below 1, is the share of the half that comes off.
func (b *backoff) next(least, most time.Duration, draw float64) time.Duration {
	d := min(least<<min(*b, 20), most)
	*b++
	return d - time.Duration(draw*float64(d/2))
}
