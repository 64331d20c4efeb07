//go:build !weakened

package repeats

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R30, RFC 5042 section 2.2.7: what a peer does without end takes few lines of a log.
func isWorthALine(before, after uint64) bool { return passesMark(before, after) }
