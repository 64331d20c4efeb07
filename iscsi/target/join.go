package target

import (
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// belongs reports whether a login names the initiator port and the target of this session.
func (x *session) belongs(l *iscsi.Login) bool {
	o := x.login
	return o.InitiatorName == l.InitiatorName && o.ISID == l.ISID && o.TargetName == l.TargetName && o.Discovery == l.Discovery
}

// join adds the connection to the session, in the place of that of the same CID if there is one (RFC
// 7143 section 6.3.4).
func (p *portal) join(l *iscsi.Login) iscsi.LoginStatus {
	x := p.joins
	switch {
	case !x.isOf(l, p.origin):
		return iscsi.LoginForbidden
	case x.target != p.target:
		return iscsi.LoginUnavailable // it was changed since the session began
	case x.pool != &p.pool:
		return iscsi.LoginCannotInclude // its memory is registered with its first connection
	}
	x.mu.Lock()
	x.joining++
	st := iscsi.LoginOK
	for st == iscsi.LoginOK && p.made == nil {
		i := slices.IndexFunc(x.conns, func(c *conn) bool { return c.cid == l.CID })
		switch {
		case x.ended || x.ending:
			st = iscsi.LoginNoSession
		case i >= 0:
			old := x.conns[i]
			old.why, old.recovery = iscsi.ErrLogout, true
			old.terminateLocked()
			st = x.awaitEndLocked(old)
		case len(x.conns) >= int(x.login.Values[iscsi.KeyMaxConnections]):
			// Of one that has logged out the initiator may know of the end before it is over here.
			if i := slices.IndexFunc(x.conns, func(c *conn) bool { return c.cut || c.leaving }); i >= 0 {
				st = x.awaitEndLocked(x.conns[i])
			} else {
				st = iscsi.LoginTooMany
			}
		default:
			c, err := x.connect(p, l)
			if err != nil {
				st = iscsi.LoginNoResources
				break
			}
			x.conns = append(x.conns, c)
			p.made = c
			x.supersedeLocked(c.cid)
		}
	}
	x.joining--
	x.mu.Unlock()
	x.endIfEmpty()
	return st
}

// awaitEndLocked waits for the end of a connection, without the lock.
func (x *session) awaitEndLocked(c *conn) iscsi.LoginStatus {
	x.mu.Unlock()
	defer x.mu.Lock()
	select {
	case <-c.over:
		return iscsi.LoginOK
	case <-time.After(loginTime):
		return iscsi.LoginNoResources // what it has at its storage hangs
	}
}

// commandNumbers returns ExpCmdSN and MaxCmdSN.
func (x *session) commandNumbers() (exp, last uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.numbersLocked()
	return n.ExpCmdSN, n.MaxCmdSN
}
