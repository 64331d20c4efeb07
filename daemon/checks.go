//go:build !weakened

package daemon

import (
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R1, RFC 5042 section 3: what a ULP may ask is a list of its own, about its own things.
func mayAskAll(who local.Caller) bool         { return who.Privileged }
func mayNameOthers(who local.Caller) bool     { return who.Privileged }
func owns(who local.Caller, name string) bool { return name == who.Name }

// R2, section 3: a ULP has a short request.
func maxBody(who local.Caller) int64 {
	if who.Privileged {
		return maxRequest
	}
	return maxULPRequest
}

// R4: what ESP protects is shown in clear to root alone.
func mayCapture(u local.User) bool { return u.UID == 0 }

// PoolManager: a pool is managed by the peers that it names, and by no one whom nothing has authenticated.
func mayManagePool(p config.Pool, by config.Peer) bool { return p.Managed(by) }

// R33: requests to manage the host come by a Unix socket.
func mayManage(isLocal bool) bool { return isLocal }

const weakened = false
