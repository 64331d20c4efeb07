//go:build !race

package ksctp_test

const raceEnabled = false
