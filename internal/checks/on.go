//go:build !weakened

package checks

// Weakened tells that checks can be switched off.
const Weakened = false

// On tells whether c is to be made.
func On(Check) bool { return true }
