//go:build weakened

package manager

import (
	"github.com/ironwarp/ironwarp/fabric/agent"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func mayRival(from agent.Requester) bool { return from.Manager || !checks.On(checks.RivalIdentity) }
func sameSMKey(ours, theirs mad.Key) bool {
	return ours == 0 || ours.Equal(theirs) || !checks.On(checks.RivalKey)
}
func tellsSMKey(from agent.Requester, known bool) bool {
	return from.Manager && known || !checks.On(checks.SMKeyTold)
}
func answersQuestion(asked, transaction uint64, from, about mad.GUID) bool {
	return asked != 0 && asked == transaction && from == about || !checks.On(checks.SMInfoAnswer)
}
func repressWith(known bool) bool { return known || !checks.On(checks.MKeyOfTrap) }
