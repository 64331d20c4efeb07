//go:build !weakened

package checks

// Weakened reports whether checks can be switched off.
const Weakened = false

// On reports whether c is made.
func On(Check) bool { return true }
