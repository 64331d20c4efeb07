package target

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
)

// controller is a host's controller in a subsystem.
//
//	made ──CC.EN──▶ ready ──CC.EN cleared──▶ made (its I/O queues end)
//	  └───────────────┴──the admin queue, the timer, the server──▶ ended ──all queues freed──▶ over
type controller struct {
	srv    *Server
	sub    *subsystem // nil: that of discovery
	id     uint16
	host   nvme.ConnectData
	origin Origin // of the admin queue
	since  time.Time
	over   chan struct{} // closed when nothing of it is under way

	last  atomic.Int64 // when a command came, in nanoseconds since since
	ready atomic.Bool
	io    counters

	mu       sync.Mutex // guards the fields below it; taken after Server.mu, before Namespace.mu
	queues   map[uint16]*conn
	live     int // of these, and of those that have left and still have something under way
	ended    bool
	timer    *time.Timer
	kato     time.Duration // 0: it may be silent
	asked    uint32        // the same in ms, as it was set
	cc, csts uint32
	events   events
	errors   []nvme.ErrorEntry
	faults   uint64 // of all times
}

// counters count I/O.
type counters struct{ reads, writes, readBytes, writeBytes, errors atomic.Uint64 }

func (c *counters) load() IO {
	return IO{c.reads.Load(), c.writes.Load(), c.readBytes.Load(), c.writeBytes.Load(), c.errors.Load()}
}

func (c *counters) count(op block.Op, n int) {
	switch op {
	case block.OpRead:
		c.reads.Add(1)
		c.readBytes.Add(uint64(n))
	case block.OpWrite:
		c.writes.Add(1)
		c.writeBytes.Add(uint64(n))
	}
}

func newController(s *Server, c *conn, d nvme.ConnectData) *controller {
	return &controller{srv: s, host: d, origin: c.origin, since: time.Now(), over: make(chan struct{}), queues: map[uint16]*conn{}}
}

// isReady reports whether the host has enabled the controller.
func (x *controller) isReady() bool { return x.ready.Load() }

// heard notes that a command has come, which restarts the keep alive timer (NVMe 7.12.2).
func (x *controller) heard() { x.last.Store(int64(time.Since(x.since))) }

// maxKeepAlive is what an hour is in the unit of the keep alive timeout.
const maxKeepAlive = 3600 * 1000

// setKeepAlive sets the timeout in milliseconds, rounded up to its granularity; 0: none, but for discovery, which has one. It returns
// false if it is too long.
func (x *controller) setKeepAlive(ms uint32) bool {
	if ms > maxKeepAlive {
		return false
	}
	if ms == 0 && x.sub == nil {
		ms = uint32(discoveryTime.Milliseconds())
	}
	x.heard()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked = ms
	x.kato = (time.Duration(ms)*time.Millisecond + keepAliveUnit - 1).Truncate(keepAliveUnit)
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	if x.kato > 0 && !x.ended {
		x.timer = time.AfterFunc(x.kato, x.checkKeepAlive)
	}
	return true
}

func (x *controller) keepAlive() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.kato
}

// checkKeepAlive ends the controller if no command has come for the timeout. Time without a security association does
// not count.
func (x *controller) checkKeepAlive() {
	x.mu.Lock()
	silent := time.Since(x.since) - time.Duration(x.last.Load())
	left := x.kato - silent
	admin := x.queues[0]
	switch {
	case x.ended || x.timer == nil || admin == nil:
		x.mu.Unlock()
		return
	case admin.paused():
		left = max(left, time.Second)
	}
	if left > 0 {
		x.timer.Reset(left)
		x.mu.Unlock()
		return
	}
	x.mu.Unlock()
	x.end(errKeepAlive)
}

// end ends the controller: its connections, and with them all that it has asked for.
func (x *controller) end(why error) {
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	x.ended = true
	x.ready.Store(false)
	if x.timer != nil {
		x.timer.Stop()
	}
	waiting := x.events.waiting
	x.events.waiting = nil
	conns := make([]*conn, 0, len(x.queues))
	for _, c := range x.queues {
		conns = append(conns, c)
	}
	none := x.live == 0
	x.mu.Unlock()
	for _, c := range conns {
		c.abort(why)
	}
	for _, k := range waiting {
		k.fail(nvme.AbortedByRequest)
	}
	x.srv.log.Info("nvme: controller ended", "controller", x.id, "address", x.origin.Remote, "peer", x.origin.Peer, "host", x.host.HostNQN, "subsystem", x.host.SubsystemNQN, "why", why)
	if none {
		x.finish()
	}
}

// left is called when a connection's stream has ended.
func (x *controller) left(c *conn) {
	x.mu.Lock()
	if qid := c.asked.QID; x.queues[qid] == c && qid != 0 {
		delete(x.queues, qid)
	}
	x.mu.Unlock()
	if c.asked.QID == 0 {
		x.end(errGone)
	}
}

// freed is called when nothing of a connection is under way any more.
func (x *controller) freed(*conn) {
	x.mu.Lock()
	x.live--
	done := x.live == 0 && x.ended
	x.mu.Unlock()
	if done {
		x.finish()
	}
}

// finish is the very end.
func (x *controller) finish() {
	x.srv.mu.Lock()
	if x.srv.controllers[x.id] == x {
		delete(x.srv.controllers, x.id)
	}
	x.srv.mu.Unlock()
	close(x.over)
}

// add adds a queue. It fails if there is one of that number, if the controller or the connection is over, and while a queue
// from before a reset has something at the storage.
func (x *controller) add(c *conn, q nvme.ConnectCommand) nvme.Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.live > len(x.queues) {
		return nvme.ConnectBusy
	}
	if x.ended || x.queues[q.QID] != nil || !c.belong(x, q) {
		return nvme.SequenceError | nvme.DNR
	}
	x.queues[q.QID] = c
	x.live++
	return nvme.Success
}

// disable ends the I/O queues: a controller reset (NVMe 7.3.2).
func (x *controller) disable() {
	x.mu.Lock()
	x.ready.Store(false)
	x.csts = 0
	var conns []*conn
	for qid, c := range x.queues {
		if qid != 0 {
			conns = append(conns, c)
		}
	}
	waiting := x.events.waiting
	x.events = events{}
	x.mu.Unlock()
	for _, c := range conns {
		c.abort(errReset)
	}
	for _, k := range waiting {
		k.fail(nvme.AbortedByRequest)
	}
}

// capabilities is CAP: queues of ioDepth entries, contiguous, half a second to become ready, the NVM command set.
const capabilities = (ioDepth - 1) | 1<<16 | 1<<24 | 1<<37

func (k *command) propertyGet(x *controller) {
	p := k.cmd.Property()
	x.mu.Lock()
	cc, csts := x.cc, x.csts
	x.mu.Unlock()
	switch {
	case p.Offset == nvme.PropCAP && p.Wide:
		k.result = capabilities
	case p.Offset == nvme.PropVS && !p.Wide:
		k.result = nvme.Version
	case p.Offset == nvme.PropCC && !p.Wide:
		k.result = uint64(cc)
	case p.Offset == nvme.PropCSTS && !p.Wide:
		k.result = uint64(csts)
	default:
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	k.end(nvme.Success)
}

func (k *command) propertySet(x *controller) {
	p := k.cmd.Property()
	if p.Offset != nvme.PropCC || p.Wide {
		k.fail(nvme.InvalidField | nvme.DNR)
		return
	}
	v := uint32(p.Value)
	x.mu.Lock()
	was := x.cc
	x.cc = v
	enables, disables := v&^was&nvme.CCEnable != 0, was&^v&nvme.CCEnable != 0
	if enables {
		x.csts = nvme.CSTSReady
		if v&(0xf<<16|0xf<<20) != nvme.CCIOSQES|nvme.CCIOCQES && x.sub != nil || v&(7<<4|0xf<<7) != 0 {
			x.csts = nvme.CSTSFatal // entries, a command set or pages of another kind
		}
		x.ready.Store(x.csts == nvme.CSTSReady)
	}
	if v&nvme.CCShutdown != 0 {
		x.csts = x.csts&^nvme.CSTSShutdown | nvme.CSTSShutdownDone
	}
	x.mu.Unlock()
	if disables {
		x.disable()
	}
	k.end(nvme.Success)
}

// info describes the controller.
func (x *controller) info() ControllerInfo {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := ControllerInfo{ID: x.id, Subsystem: x.host.SubsystemNQN, HostNQN: x.host.HostNQN, HostID: x.host.HostID, Origin: x.origin, Since: x.since, KeepAlive: x.kato,
		IO: x.io.load()}
	if x.sub == nil {
		i.Subsystem = ""
	}
	for qid, c := range x.queues {
		if qid != 0 {
			i.Queues++
		}
		c.mu.Lock()
		i.Active += c.active
		c.mu.Unlock()
	}
	i.Active -= len(x.events.waiting)
	return i
}

// note enters a command that fails in the log of errors.
func (k *command) note(st nvme.Status) {
	x, qid := k.ctrl, k.c.asked.QID
	if x == nil || st.Code() == nvme.AbortedByRequest {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.faults++
	e := nvme.ErrorEntry{Count: x.faults, QID: qid, ID: k.cmd.ID(), Status: st, NSID: k.cmd.NSID(), Transfer: 1}
	if qid != 0 {
		e.LBA = k.cmd.SLBA()
	}
	if len(x.errors) == maxErrors {
		x.errors = x.errors[:maxErrors-1]
	}
	x.errors = append([]nvme.ErrorEntry{e}, x.errors...)
}
