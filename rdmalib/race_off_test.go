//go:build !race

package rdmalib

const raceEnabled = false
