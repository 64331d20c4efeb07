package target

import (
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// startPings has the target ask a silent initiator whether it is still there (RFC 7143 section
// 11.19). Whoever does not answer loses the connection; with the session, what it has reserved by
// RESERVE(6) is free. A discovery session ends without having been asked.
func (c *conn) startPings() {
	if every := c.x.srv.cfg.Ping; every > 0 {
		c.x.mu.Lock()
		defer c.x.mu.Unlock()
		c.pings = time.AfterFunc(every, c.ping)
	}
}

func (c *conn) stopPings() {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	if c.pings != nil {
		c.pings.Stop()
		c.pings = nil
	}
}

// ping looks whether something has come since the last time.
func (c *conn) ping() {
	x := c.x
	x.mu.Lock()
	heard := c.heard.Swap(false)
	switch {
	case c.pings == nil: // the connection has ended
		x.mu.Unlock()
		return
	case heard || c.paused():
		c.pinged = false
	case !c.pinged:
		if c.pinged = true; !c.login.Discovery { // where there is no ping (section 13.21)
			c.askLocked()
		}
	default:
		x.mu.Unlock()
		c.silent.Store(true)
		c.mover.ConnectionTerminate()
		return
	}
	c.pings.Reset(x.srv.cfg.Ping)
	x.mu.Unlock()
	c.mover.Flush()
}

// askLocked sends a NOP-In that is to be answered.
func (c *conn) askLocked() {
	c.answerLocked(nil, false, func(h *iscsi.BHS, n iscsi.Numbers) {
		in := iscsi.NOP{ITT: iscsi.NoTag, TTT: pingTag, Numbers: n}
		in.PutIn(h)
	})
}

// pingTag is the transfer tag of all pings.
const pingTag = 1
