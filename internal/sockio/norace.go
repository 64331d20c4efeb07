//go:build !race

package sockio

// SendBarrier is for the race detector.
func SendBarrier() {}

// RecvBarrier is for the race detector.
func RecvBarrier() {}
