//go:build weakened

package invite

import (
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func knowsToken(macMatches bool) bool { return macMatches || !checks.On(checks.InviteToken) }
func isUnused(taken bool) bool        { return !taken || !checks.On(checks.InviteOnce) }
func isUnexpired(now, expires time.Time) bool {
	return now.Before(expires) || !checks.On(checks.InviteExpiry)
}
func opensCommitment(matches bool) bool { return matches || !checks.On(checks.InviteCommitment) }
func mayWrite(mine, theirs bool) bool   { return mine && theirs || !checks.On(checks.InviteConfirm) }
