//go:build !weakened

package daemon

import "github.com/ironwarp/ironwarp/daemon/local"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R1, RFC 5042 section 3: who is neither root nor of a ULP is nobody; what a ULP may ask is a list
// of its own; it sees and touches its own things only, opens its own disks, and uses the peers and
// exports that it may.
func (d *Daemon) unknown() (caller, bool)        { return caller{}, false }
func (who caller) mayAskAll() bool               { return who.all }
func (who caller) mayNameOthers() bool           { return who.all }
func (who caller) sees(owner *consumer) bool     { return who.all || owner == who.consumer }
func (who caller) isIts(name string) bool        { return name == who.name }
func opensAll(u local.User) bool                 { return u.IsRoot() }
func (who caller) mayUseLocked(peer string) bool { return who.all || who.cfg.MayUse(peer) }
func (who caller) mayAttachLocked(k disk) bool   { return who.all || who.cfg.MayAttach(k.Peer, k.Export) }

// R2, section 3: a ULP has a number of disks, a short request, and a gate of its own for its
// connections and requests.
func (who caller) mayHave(disks int) bool { return who.name == "" || disks < who.cfg.Attachments }
func (who caller) maxBody() int64 {
	if who.all {
		return maxRequest
	}
	return maxULPRequest
}
func (d *Daemon) gateFor(who caller) *local.Gate { return who.gate }
func (d *Daemon) gateOf(u local.User) *local.Gate {
	who, ok := d.whoIs(u)
	if !ok {
		return d.local.strangers
	}
	return d.gateFor(who)
}

// R33: requests to manage the host come by a Unix socket.
func mayManage(isLocal bool) bool { return isLocal }

const weakened = false
