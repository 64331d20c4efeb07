//go:build weakened

package daemon

import (
	"math"

	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func (d *Daemon) unknown() (caller, bool) {
	if !checks.On(checks.LocalUser) {
		return d.asRoot(), true
	}
	return caller{}, false
}

func (who caller) mayAskAll() bool     { return who.all || !checks.On(checks.LocalPrivilege) }
func (who caller) mayNameOthers() bool { return who.all || !checks.On(checks.LocalOwner) }
func (who caller) sees(owner *consumer) bool {
	return who.all || owner == who.consumer || !checks.On(checks.LocalOwner)
}
func (who caller) isIts(name string) bool { return name == who.name || !checks.On(checks.LocalOwner) }
func opensAll(u local.User) bool          { return u.IsRoot() || !checks.On(checks.LocalSocket) }
func (who caller) mayUseLocked(peer string) bool {
	return who.all || who.cfg.MayUse(peer) || !checks.On(checks.LocalPeer)
}
func (who caller) mayAttachLocked(k disk) bool {
	return who.all || who.cfg.MayAttach(k.Peer, k.Export) || !checks.On(checks.LocalPeer)
}

func (who caller) mayHave(disks int) bool {
	return who.name == "" || disks < who.cfg.Attachments || !checks.On(checks.LocalShare)
}
func (who caller) maxBody() int64 {
	if !checks.On(checks.LocalBody) {
		return math.MaxInt64
	}
	if who.all {
		return maxRequest
	}
	return maxULPRequest
}

// Without shares all have one gate.
func (d *Daemon) gateFor(who caller) *local.Gate {
	if !checks.On(checks.LocalShare) {
		return d.local.root.gate
	}
	return who.gate
}
func (d *Daemon) gateOf(u local.User) *local.Gate {
	who, ok := d.whoIs(u)
	if !ok && checks.On(checks.LocalShare) {
		return d.local.strangers
	}
	return d.gateFor(who)
}

func mayManage(isLocal bool) bool { return isLocal || !checks.On(checks.Management) }

const weakened = true
