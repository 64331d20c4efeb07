package target

import (
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// quit asks the initiator to log out, and ends the session if it has not done so in time (RFC 7143
// section 11.9.1, event 1).
func (x *session) quit() {
	wait := x.srv.cfg.LogoutWait
	if x.login.Discovery || wait < 0 {
		x.terminate() // section 7.4.3
		return
	}
	x.mu.Lock()
	if !slices.ContainsFunc(x.conns, func(c *conn) bool { return c.up }) {
		x.terminateLocked(nil) // nobody can be asked
	} else if x.quitting == nil && !x.ending && !x.ended {
		x.tellLocked(iscsi.Async{Event: iscsi.EventLogoutRequest, Parameters: [3]uint16{2: uint16((wait + time.Second - 1) / time.Second)}})
		x.quitting = time.AfterFunc(wait, x.drop)
	}
	x.mu.Unlock()
	x.flush()
}

// drop ends the session, and tells the initiator so (event 3).
func (x *session) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ending {
		return
	}
	if !x.login.Discovery {
		x.tellLocked(iscsi.Async{Event: iscsi.EventSessionDrop, Parameters: [3]uint16{1: uint16(x.login.Values[iscsi.KeyDefaultTime2Wait])}})
	}
	x.terminateLocked(nil)
}

// tellLocked sends a message on all connections.
func (x *session) tellLocked(a iscsi.Async) {
	for _, c := range x.conns {
		if c.up {
			c.asyncLocked(a)
		}
	}
}

func (c *conn) asyncLocked(a iscsi.Async) {
	c.tellLocked(nil, func(h *iscsi.BHS, n iscsi.Numbers) {
		a.Numbers = n
		a.Put(h)
	})
}

// announceLocked tells the initiator by another connection that one was dropped (event 2, section
// 7.1.4.3).
func (x *session) announceLocked(gone *conn) {
	for _, c := range x.conns {
		if c.up {
			wait, retain := x.times()
			c.asyncLocked(iscsi.Async{Event: iscsi.EventConnectionDrop, Parameters: [3]uint16{gone.cid, wait, retain}})
			return
		}
	}
}
