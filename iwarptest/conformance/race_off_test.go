//go:build !race

package conformance_test

// raceDetector tells that the race detector watches.
const raceDetector = false
