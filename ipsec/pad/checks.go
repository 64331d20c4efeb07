//go:build !weakened

package pad

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// P4: the streams of a partition are carried by SAs that were negotiated with its label, and no others are.
func otherLabel(want, have string) bool { return want != have }
