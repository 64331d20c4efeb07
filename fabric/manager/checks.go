//go:build !weakened

package manager

import (
	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// A rival is who is a manager by IKE's identity; others are ignored before a key is looked at.
func mayRival(from agent.Requester) bool { return from.Manager }

// A manager with another sm_key is ignored.
func sameSMKey(ours, theirs mad.Key) bool { return ours == 0 || ours.Equal(theirs) }

// The sm_key is told to managers whose M_Key matches.
func tellsSMKey(from agent.Requester, known bool) bool { return from.Manager && known }

// What an answer is to: the last question to that manager, and about itself.
func answersQuestion(asked, transaction uint64, from, about mad.GUID) bool {
	return asked != 0 && asked == transaction && from == about
}

// TrapRepress shows an M_Key, so it goes to who has that.
func repressWith(known bool) bool { return known }
