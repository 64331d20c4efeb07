package target

import (
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
)

// startPings has the target ask a silent initiator whether it is still there (RFC 7143 section
// 11.19). Whoever does not answer loses the session, and what it has reserved by RESERVE(6) is free.
func (x *session) startPings() {
	if every := x.srv.cfg.Ping; every > 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.pings = time.AfterFunc(every, x.ping)
	}
}

func (x *session) stopPings() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pings != nil {
		x.pings.Stop()
		x.pings = nil
	}
}

// ping looks whether something has come since the last time.
func (x *session) ping() {
	x.mu.Lock()
	heard := x.heard.Swap(false)
	switch {
	case x.pings == nil: // the session has ended
		x.mu.Unlock()
		return
	case heard || x.paused():
		x.pinged = false
	case !x.pinged:
		x.pinged = true
		x.answerLocked(nil, false, func(h *iscsi.BHS, n iscsi.Numbers) {
			in := iscsi.NOP{ITT: iscsi.NoTag, TTT: pingTag, Numbers: n}
			in.PutIn(h)
		})
	default:
		x.mu.Unlock()
		x.silent.Store(true)
		x.mover.ConnectionTerminate()
		return
	}
	x.pings.Reset(x.srv.cfg.Ping)
	x.mu.Unlock()
	x.mover.Flush()
}

// pingTag is the transfer tag of pings: there is one at a time.
const pingTag = 1
