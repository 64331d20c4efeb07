//go:build !weakened

package partition

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// P3: two hosts talk in a partition if both are members, and one at least a full one.
func mayTalk(own, theirs Membership) bool { return own.mayTalk(theirs) }
