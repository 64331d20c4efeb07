//go:build !weakened

package ddp

// The check that integration/simulation shows to be needed. weakened.go has it with a switch.

// RFC 5041 section 5.3: a segment is delivered when those before it have been. ahead is how
// many of them have not.
func isDue(ahead int) bool { return ahead == 0 }
