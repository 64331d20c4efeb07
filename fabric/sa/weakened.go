//go:build weakened

package sa

import (
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func isForged(key, ours mad.Key) bool  { return wrongKey(key, ours) && checks.On(checks.SAKey) }
func isTrusted(key, ours mad.Key) bool { return rightKey(key, ours) || !checks.On(checks.SATrust) }

func isSpoofed(o Options, own, router bool) bool {
	return spoofs(o, own, router) && checks.On(checks.SGIDSpoofing)
}

func mayAsk(r *request) bool { return inSet(r) || !checks.On(checks.SARequestSet) }

func mayChangeGUIDs(o Options, trusted bool) bool {
	return guidInfoOfUntrusted(o, trusted) || !checks.On(checks.SAGUIDInfo)
}
func vportMayChangeGUIDs(o Options, vport bool) bool {
	return guidInfoOfVPort(o, vport) || !checks.On(checks.SAGUIDInfoVPort)
}

func mayBeProxy(o Options, trusted bool) bool {
	return proxyOfUntrusted(o, trusted) || !checks.On(checks.SAProxy)
}

func withinLimit(has, limit int) bool { return below(has, limit) || !checks.On(checks.SALimit) }

func keepsCount() bool { return checks.On(checks.SAReconnect) }

func isOver(left time.Duration) bool { return left <= 0 && checks.On(checks.SALease) }

func mayChangeService(owner, key bool) bool {
	return owner || key || !checks.On(checks.SAServiceOwner)
}
func mayChangeMember(owner bool) bool { return owner || !checks.On(checks.SAMemberOwner) }
func mayChangeAlias(owner bool) bool  { return owner || !checks.On(checks.SAAliasOwner) }

func showsServiceKey(trusted bool) bool { return trusted || !checks.On(checks.SAServiceKey) }

func maySeeSecurity(trusted bool) bool { return trusted || !checks.On(checks.SASecurityTraps) }

func isFreeGUID(taken bool) bool { return !taken || !checks.On(checks.SAForeignGUID) }

func isName(err error) bool { return err == nil || !checks.On(checks.SAName) }

func isOwnLID(lid, own mad.LID) bool { return lid == own || !checks.On(checks.SARequester) }

func isLogged(number uint64) bool { return onMark(number) || !checks.On(checks.SADropLog) }
