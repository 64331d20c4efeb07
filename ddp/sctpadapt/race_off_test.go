//go:build !race

package sctpadapt_test

const raceEnabled = false
