package target

import (
	"slices"

	"github.com/ironwarp/ironwarp/iscsi"
)

// logout is a Logout that waits for the end of what it ends.
type logout struct {
	c       *conn
	itt     uint32
	session bool
	cid     uint16
	awaited bool // the connection's goroutine waits for it, and ends the connection
	settled bool
}

// logoutLocked ends the session, this connection or another (RFC 7143 section 11.14). What it has at the
// medium has ended before the answer. The connection's own goroutine waits for that, any other does not.
// The caller holds receiving.
func (c *conn) logoutLocked(h *iscsi.BHS, own bool) error {
	q, err := iscsi.ParseLogout(h)
	if err != nil {
		return err
	}
	x := c.x
	if c.refuses(h) {
		return nil
	}
	x.mu.Lock()
	i := slices.IndexFunc(x.conns, func(o *conn) bool { return o.cid == q.CID })
	l := &logout{c: c, itt: q.ITT, session: q.Reason == iscsi.CloseSession, cid: q.CID, awaited: own}
	switch {
	case q.Reason == iscsi.RemoveForRecovery:
		l.answerLocked(iscsi.LogoutNotSupported)
		x.mu.Unlock()
		return nil
	case l.session:
		x.terminateLocked(c)
		x.ending = true
	case i < 0:
		l.answerLocked(iscsi.LogoutNoCID)
		x.mu.Unlock()
		return nil
	case !l.own():
		x.conns[i].why = iscsi.ErrLogout
		x.conns[i].terminateLocked()
	}
	c.leaving = c.leaving || l.own()
	x.logouts = append(x.logouts, l)
	x.mu.Unlock()
	if l.own() {
		x.endTasks(c)
	}
	x.receiving.Unlock()
	x.mu.Lock()
	x.settleLocked()
	for own && l.own() && !l.settled && !c.cut {
		x.change.Wait()
	}
	x.mu.Unlock()
	x.receiving.Lock()
	if own && l.own() {
		return iscsi.ErrLogout
	}
	return nil
}

// own reports whether the connection of the Logout ends, too.
func (l *logout) own() bool { return l.session || l.cid == l.c.cid }

func (l *logout) answerLocked(response uint8) {
	l.c.answerLocked(nil, true, func(b *iscsi.BHS, n iscsi.Numbers) {
		r := iscsi.LogoutReply{Response: response, ITT: l.itt, Numbers: n}
		r.Put(b)
	})
}

// settleLocked answers the Logouts of which all has ended.
func (x *session) settleLocked() {
	x.logouts = slices.DeleteFunc(x.logouts, func(l *logout) bool {
		switch {
		case !l.c.up:
			return true
		case l.session && len(x.conns) > 1, l.own() && l.c.active > 0,
			!l.own() && slices.ContainsFunc(x.conns, func(o *conn) bool { return o.cid == l.cid }):
			return false
		}
		l.answerLocked(iscsi.LogoutClosed)
		l.settled = true
		x.change.Broadcast()
		if l.own() && !l.awaited {
			l.c.why = iscsi.ErrLogout
			l.c.terminateLocked()
		}
		return true
	})
}
