//go:build weakened

package daemon

import (
	"math"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func mayAskAll(who local.Caller) bool     { return who.Privileged || !checks.On(checks.LocalPrivilege) }
func mayNameOthers(who local.Caller) bool { return who.Privileged || !checks.On(checks.LocalOwner) }
func owns(who local.Caller, name string) bool {
	return name == who.Name || !checks.On(checks.LocalOwner)
}

func maxBody(who local.Caller) int64 {
	if !checks.On(checks.LocalBody) {
		return math.MaxInt64
	}
	if who.Privileged {
		return maxRequest
	}
	return maxULPRequest
}

func mayCapture(u local.User) bool { return u.UID == 0 || !checks.On(checks.CaptureUser) }

func mayManagePool(p config.Pool, by config.Peer) bool {
	return p.Managed(by) || !checks.On(checks.PoolManager)
}

func mayManage(isLocal bool) bool { return isLocal || !checks.On(checks.Management) }

const weakened = true
