//go:build weakened

package checks

import "sync/atomic"

// Weakened reports whether checks can be switched off.
const Weakened = true

var off atomic.Uint32

// On reports whether c is made.
func On(c Check) bool { return Check(off.Load()) != c }

// SwitchOff switches one check off, and all others on; None switches all on.
func SwitchOff(c Check) { off.Store(uint32(c)) }
