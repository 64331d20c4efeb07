//go:build !race

package conformance_test

// raceDetector reports whether the race detector is on.
const raceDetector = false
