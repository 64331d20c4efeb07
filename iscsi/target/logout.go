package target

import (
	"slices"

	"github.com/ironwarp/ironwarp/iscsi"
)

// logout is a Logout that waits for the end of what it ends.
type logout struct {
	c        *conn
	itt      uint32
	session  bool
	recovery bool // what the connection has begun is to wait for another
	cid      uint16
	awaited  bool // the connection's goroutine waits for it, and ends the connection
	settled  bool
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
	gone := x.failedLocked(q.CID)
	l := &logout{c: c, itt: q.ITT, session: q.Reason == iscsi.CloseSession, recovery: q.Reason == iscsi.RemoveForRecovery && x.retain > 0, cid: q.CID, awaited: own}
	switch {
	case l.own():
	case i >= 0:
		x.conns[i].acknowledgeLocked(q.ExpStatSN)
	case gone != nil:
		gone.acknowledgeLocked(q.ExpStatSN)
	}
	switch {
	case q.Reason == iscsi.RemoveForRecovery && x.level < 2:
		l.answerLocked(iscsi.LogoutNotSupported)
		x.mu.Unlock()
		return nil
	case l.session:
		x.terminateLocked(c)
		x.ending = true
	case i < 0 && gone != nil && l.recovery:
		x.logOutLocked(gone)
		l.answerLocked(iscsi.LogoutClosed)
		x.mu.Unlock()
		return nil
	case i < 0 && gone != nil:
		gone.forgetSoonLocked()
	case i < 0:
		l.answerLocked(iscsi.LogoutNoCID)
		x.mu.Unlock()
		return nil
	case !l.own():
		x.conns[i].why, x.conns[i].recovery = iscsi.ErrLogout, l.recovery
		x.conns[i].terminateLocked()
	default:
		c.recovery = l.recovery
	}
	c.leaving = c.leaving || l.own()
	x.logouts = append(x.logouts, l)
	x.mu.Unlock()
	switch {
	case l.own() && l.recovery:
		x.suspend(c)
	case l.own():
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

// isOwnLogout reports whether a Logout ends this connection. Of another it acknowledges what that has answered
// (RFC 7143 section 11.14.4).
func (c *conn) isOwnLogout(h *iscsi.BHS) bool {
	q, err := iscsi.ParseLogout(h)
	return err == nil && (q.Reason == iscsi.CloseSession || q.CID == c.cid)
}

// own reports whether the connection of the Logout ends, too.
func (l *logout) own() bool { return l.session || l.cid == l.c.cid }

func (l *logout) answerLocked(response uint8) {
	l.c.answerLocked(nil, true, func(b *iscsi.BHS, n iscsi.Numbers) {
		r := iscsi.LogoutReply{Response: response, ITT: l.itt, Numbers: n}
		if x := l.c.x; x.level == 2 {
			r.Time2Wait, r.Time2Retain = x.times()
		}
		r.Put(b)
	})
}

// settleLocked answers the Logouts of which all has ended.
func (x *session) settleLocked() {
	x.logouts = slices.DeleteFunc(x.logouts, func(l *logout) bool {
		switch {
		case !l.c.up:
			return true
		case l.session && len(x.conns)+len(x.failed) > 1, l.own() && !l.recovery && l.c.active > 0,
			!l.own() && slices.ContainsFunc(x.conns, func(o *conn) bool { return o.cid == l.cid }),
			!l.own() && !l.recovery && x.failedLocked(l.cid) != nil:
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
