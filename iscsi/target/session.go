package target

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// session is a session with its connections. The receiving goroutine of each calls conn.ControlNotify
// and what it leads to; commands end on any goroutine.
//
// A task circulates:
//
//	free --> data are received --> at the unit --> its answer is sent --> free
//	              |    ^
//	 no memory:   v    |
//	            starved
type session struct {
	srv    *Server
	target *Target
	login  *iscsi.Login // that of the first connection
	origin Origin       // of the first connection
	since  time.Time
	pool   *pool
	port   *lu.Port // nil in a discovery session
	tsih   uint16
	id     uint64        // no other session has, or had, the same
	over   chan struct{} // closed at its end
	movers atomic.Pointer[[]iscsi.Datamover]
	fed    atomic.Bool // memory has come back, for which tasks wait
	stir   atomic.Bool // a fence had something sent by other connections than that which goes idle

	counted counters
	luns    map[uint16]*lunCounters // of the target; with receiving
	level   uint32                  // ErrorRecoveryLevel
	retain  time.Duration           // how long the commands of a connection that has failed wait for another

	// receiving is held by whoever receives for the session: a connection's goroutine in its
	// iscsi.Upper, except while it reads data or waits. Lock order: session.receiving, Server, session.
	receiving sync.Mutex
	starving  []*task    // need memory, in their order; with receiving
	early     []*request // wait for their turn; with receiving
	earlyData int        // bytes of them; with receiving

	mu       sync.Mutex // guards the fields below it; taken before the mover's and the pool's
	change   sync.Cond  // a task or an answer was given back, or a connection has ended
	conns    []*conn
	failed   []*conn // have ended, and their commands wait for another connection; the oldest first
	ending   bool    // all its connections are to end
	ended    bool
	quitting *time.Timer // it is to log out
	joining  int         // connections that take the place of another that has not ended
	window   *iscsi.Window
	fence    iscsi.Fence
	held     []response // wait for the fence
	logouts  []*logout  // not answered yet
	managing int        // task management functions that are not answered yet
	free     *task
	tasks    []*task // all of them
	active   int     // between their command and the handing over of their answer
	unacked  int     // answered, and kept until the answer is acknowledged
	memory   int     // bytes of buffers
	hungry   bool    // starving is not empty: memory that comes back is to be announced
}

func newSession(p *portal, l *iscsi.Login) (*session, error) {
	x := &session{srv: p.Server, target: p.target, login: l, origin: p.origin, since: time.Now(), pool: &p.pool, id: p.sessionIDs.Add(1), over: make(chan struct{})}
	x.change.L = &x.mu
	x.level = l.Values[iscsi.KeyErrorRecoveryLevel]
	x.retain = retention(&l.Values)
	x.window = iscsi.NewWindow(l.CmdSN, window)
	x.movers.Store(new([]iscsi.Datamover))
	c, err := x.connect(p, l)
	if err != nil {
		return nil, err
	}
	if r, ok := c.mover.(iscsi.Registrar); ok {
		x.pool = &pool{registrar: r, most: sessionPool}
	}
	x.conns = append(x.conns, c) // unlocked: nobody else knows the session
	p.made = c
	return x, nil
}

// replacedBy reports whether a new session is in the place of this one (RFC 7143 sections 6.3.5 and
// 7.4.2).
func (x *session) replacedBy(o *session) bool {
	a, b := x.login, o.login
	return a.InitiatorName == b.InitiatorName && a.ISID == b.ISID && a.TargetName == b.TargetName && (a.TargetName != "" || x.origin.Local == o.origin.Local)
}

// attach gives a session that is no discovery session its nexuses.
func (x *session) attach() {
	if !x.login.Discovery {
		x.target.tally.logins.Add(1)
		x.luns = map[uint16]*lunCounters{}
		x.port = x.target.Device.Attach(lu.Initiator{Name: x.login.InitiatorName, ISID: x.login.ISID}, x.flush)
	}
}

// flush starts what was queued for any connection.
func (x *session) flush() {
	for _, m := range *x.movers.Load() {
		m.Flush()
	}
}

// begin is the begin of a connection's full feature phase.
func (x *session) begin(c *conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c.begun, c.up = true, true
	c.statSN = c.login.StatSN()
	c.acked = c.statSN
	x.moversLocked()
}

func (x *session) moversLocked() {
	all := make([]iscsi.Datamover, 0, len(x.conns))
	for _, c := range x.conns {
		if c.begun {
			all = append(all, c.mover)
		}
	}
	x.movers.Store(&all)
}

// terminate has all connections of the session end.
func (x *session) terminate() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.terminateLocked(nil)
}

func (x *session) terminateLocked(but *conn) {
	x.ending = x.ending || but == nil
	for _, c := range x.conns {
		if c != but {
			c.terminateLocked()
		}
	}
	for _, c := range x.failed {
		c.forgetSoonLocked()
	}
}

// terminateLocked has a connection end.
func (c *conn) terminateLocked() {
	c.cut = true
	c.x.change.Broadcast()
	c.mover.ConnectionTerminate()
}

// leave is the end of a connection: its tasks end with it (RFC 7143 section 7.6), or wait for another. After
// the last, the session has ended. why is what the mover said.
func (x *session) leave(c *conn, why error) error {
	x.receiving.Lock()
	x.mu.Lock()
	if c.why != nil {
		why = c.why
	}
	c.up, c.leaving = false, true
	if errors.Is(why, iscsi.ErrFormat) || x.level == 0 && errors.Is(why, iscsi.ErrDigest) {
		x.terminateLocked(nil) // RFC 7143 sections 7.7 and 7.8
	}
	waits := c.suspended || x.waitsLocked(c, why) // that it is suspended may have been said before
	c.suspended = waits
	x.mu.Unlock()
	x.forgetEarly(c)
	if waits {
		x.suspend(c)
	} else {
		x.endTasks(c)
	}
	x.receiving.Unlock()

	if waits {
		x.part(c, why)
		x.srv.log.Info("target: connection failed, its commands wait for another", "initiator", x.login.InitiatorName, "session", x.tsih, "connection", c.cid, "error", why)
		c.await()
		x.receiving.Lock()
		x.endTasks(c)
		x.receiving.Unlock()
		x.bury(c)
	} else {
		x.part(c, why)
	}
	x.endIfEmpty()
	switch {
	case errors.Is(why, iscsi.ErrLogout):
		return nil
	case c.silent.Load():
		return fmt.Errorf("%w: %w", errSilent, why)
	}
	return why
}

// part takes a connection from those of the session, once it has nothing under way.
func (x *session) part(c *conn, why error) {
	if c.begun { // unlocked: it has ended
		c.mover.Flush() // gives back what never was sent
	}
	x.mu.Lock()
	for !c.suspended && c.active > 0 || c.suspended && c.queued > 0 {
		x.change.Wait()
	}
	x.conns = slices.DeleteFunc(x.conns, func(o *conn) bool { return o == c })
	x.moversLocked()
	if c.suspended {
		x.addFailedLocked(c)
	} else {
		x.dropHeldLocked(c)
		c.forgetLocked()
	}
	x.fence.Lost(c.cid)
	x.respondNextLocked()
	if !x.ending && !errors.Is(why, iscsi.ErrLogout) {
		x.announceLocked(c)
	}
	x.settleLocked()
	x.mu.Unlock()

	x.receiving.Lock()
	x.feed()
	x.receiving.Unlock()
	x.flush()
	if c.begun { // unlocked: it has ended
		c.mover.Flush()
	}
	close(c.over)
}

// endIfEmpty ends the session if it has no connection any more.
func (x *session) endIfEmpty() {
	x.mu.Lock()
	if x.ended || len(x.conns) > 0 || len(x.failed) > 0 || x.joining > 0 {
		x.mu.Unlock()
		return
	}
	x.ended = true
	if x.quitting != nil {
		x.quitting.Stop()
	}
	x.mu.Unlock()
	if x.port != nil {
		x.port.Detach()
	}
	if x.pool != &x.srv.pool {
		x.mu.Lock()
		for slices.ContainsFunc(x.tasks, func(t *task) bool { return t.state != idle }) {
			x.change.Wait()
		}
		x.mu.Unlock()
		x.pool.drop()
	}
	x.srv.mu.Lock()
	delete(x.srv.sessions, x.tsih)
	x.srv.mu.Unlock()
	close(x.over)
}

// endTasks ends the tasks of a connection. The caller holds receiving.
func (x *session) endTasks(c *conn) {
	x.mu.Lock()
	all := slices.Clone(x.tasks)
	x.mu.Unlock()
	for _, t := range all {
		if st := x.stateOf(t); t.c == c && (st == receiving || st == executing) {
			x.endTask(t, st)
		}
	}
}

// endTask ends a task that is receiving or executing. The caller holds receiving.
func (x *session) endTask(t *task, st state) {
	if !t.begun { // it may come again (RFC 7143 section 11.14)
		x.mu.Lock()
		x.window.Forget(t.cmdSN)
		x.mu.Unlock()
		x.endAborted(t)
		return
	}
	if t.nexus.Exists() {
		t.nexus.Lost()
	}
	t.nexus.Abort(func(o *lu.Task) bool { return o == &t.Task }, func() {})
	if st == receiving {
		x.endAborted(t)
	}
}

func (x *session) stateOf(t *task) state {
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.state
}

// endAborted ends a task that was aborted before its data or its turn had come. Data that are arriving
// in its buffer come to their end first. The caller holds receiving.
func (x *session) endAborted(t *task) {
	x.starving = slices.DeleteFunc(x.starving, func(o *task) bool { return o == t })
	if t.ending = t.c.mover.DeallocateTaskResources(t.itt) || t.reading; t.ending {
		return
	}
	t.busy = [maxR2T]bool{}
	if t.begun {
		x.execute(t)
		t.nexus.Execute(&t.Task)
		return
	}
	x.mu.Lock()
	x.active--
	t.c.active--
	x.inactiveLocked(t.c)
	x.mu.Unlock()
	t.sent()
}

// inactiveLocked tells those who wait for the tasks of a connection that there is one less.
func (x *session) inactiveLocked(c *conn) {
	if len(x.logouts) > 0 || !c.up {
		x.settleLocked()
		x.change.Broadcast()
	}
}

// numbersLocked returns the sequence numbers of commands. MaxCmdSN lets the initiator have as many
// commands as there is room for: fewer if it does not acknowledge the answers that it gets.
func (x *session) numbersLocked() (n iscsi.Numbers) {
	x.window.Open(min(window, 2*window-x.unacked) - x.active)
	n.ExpCmdSN, n.MaxCmdSN = x.window.Numbers()
	return n
}

// boundWait bounds the wait for data of aborted tasks of a unit, nil: of all units. RFC 7143 section
// 4.2.3.3 has a target wait for data that it has asked the initiator of the abort for; but Linux'
// initiator by default (FastAbort = Yes), and others, send none any more without saying so.
func (x *session) boundWait(n *lu.Nexus) {
	x.mu.Lock()
	defer x.mu.Unlock()
	wait := x.srv.cfg.DataWait
	waits := false
	for _, t := range x.tasks {
		if t.state == receiving && t.begun && (n == nil || t.nexus == n) {
			t.givenUp, waits = time.Now().Add(wait), true
		}
	}
	if !waits {
		return
	}
	time.AfterFunc(wait, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, c := range x.conns {
			if c.up {
				c.overdue.Store(true)
				c.mover.Wake()
			}
		}
	})
}

// stopWaiting ends the tasks whose data were waited for long enough. The caller holds receiving.
func (c *conn) stopWaiting() {
	x := c.x
	now := time.Now()
	var late []*task
	x.mu.Lock()
	for _, t := range x.tasks {
		if t.state == receiving && (t.c == c || t.c.suspended) && !t.givenUp.IsZero() && !now.Before(t.givenUp) {
			late = append(late, t)
		}
	}
	x.mu.Unlock()
	for _, t := range late {
		x.endAborted(t)
	}
}
