//go:build weakened

package checks

import "sync/atomic"

// Weakened tells that checks can be switched off.
const Weakened = true

var off atomic.Uint32

// On tells whether c is to be made.
func On(c Check) bool { return Check(off.Load()) != c }

// SwitchOff switches one check off, None to have all.
func SwitchOff(c Check) { off.Store(uint32(c)) }
