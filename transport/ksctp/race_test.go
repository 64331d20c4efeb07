//go:build race

package ksctp_test

const raceEnabled = true
