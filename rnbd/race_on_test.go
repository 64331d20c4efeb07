//go:build race

package rnbd

const raceEnabled = true
