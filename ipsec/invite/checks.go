//go:build !weakened

package invite

import "time"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// Who does not know the token's key gets no further than a Hello, and changes no message.
func knowsToken(macMatches bool) bool { return macMatches }

// An invitation serves one joiner, until it expires.
func isUnused(taken bool) bool                { return !taken }
func isUnexpired(now, expires time.Time) bool { return now.Before(expires) }

// Nobody chooses his key by the code that it makes.
func opensCommitment(matches bool) bool { return matches }

// A peer is written when both people have found the codes equal.
func mayWrite(mine, theirs bool) bool { return mine && theirs }
