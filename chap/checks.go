//go:build !weakened

package chap

import "crypto/subtle"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// Reflection: nobody has the target compute what it is itself asked for (RFC 1994 section 7, RFC 7143
// section 9.2.1: "Responders MUST check").
func isReflected(theirs, ours []byte) bool { return subtle.ConstantTimeCompare(theirs, ours) == 1 }
