package rtrs

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// PathState is the state of one of a client's paths.
//
//	Connecting ──▶ Connected ◀──▶ Reconnecting ──ReconnectAttempts──▶ GivenUp ──Reconnect──▶ Connecting
//	                    └──Disconnect──▶ Disconnected ──Reconnect──▶ Connecting
type PathState uint8

// The states of a path.
const (
	PathConnecting PathState = iota
	PathConnected
	PathReconnecting
	PathDisconnected // until Path.Reconnect
	PathGivenUp      // as many attempts have failed as there may be; until Path.Reconnect
)

func (s PathState) String() string {
	return [...]string{"connecting", "connected", "reconnecting", "disconnected", "given-up"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s PathState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Path is one of a client's paths to its server. Its methods are safe for concurrent use.
type Path struct {
	cl      *Client
	cfg     PathConfig
	id      uuid
	domains domains

	// Set by the first connection and constant thereafter.
	chunks  []pathChunk // by permit
	bufs    *arena      // of their data
	hdrs    *arena      // user headers and messages, INFO_REQ and INFO_RSP
	hdrMRs  []*verbs.MR // for each protection domain, nil if it has no part
	infoOff uint32      // offset of INFO_REQ in the first

	users    atomic.Int32 // permits whose data is in this path's memory, and one for the client; 0: it is gone
	rank     atomic.Int32 // among the client's, for the policy
	flying   atomic.Int32 // requests that were not answered
	latency  atomic.Int64 // nanoseconds that a request takes, a moving average
	moved    atomic.Uint64
	replays  tally
	counters counters

	ctx    context.Context // ends with the path
	cancel context.CancelFunc
	poke   chan struct{} // capacity 1, see wake
	done   chan struct{} // closed when run has ended; nil before it began

	state      PathState   // guarded by Client.mu
	since      time.Time   // guarded by Client.mu
	lastErr    error       // guarded by Client.mu
	current    *clientPath // for Info; guarded by Client.mu
	inc        uint64      // guarded by Client.mu
	reconnects uint64      // guarded by Client.mu
	failures   uint64      // attempts that came to nothing; guarded by Client.mu
	wasUp      bool        // guarded by Client.mu
	off        bool        // disconnected by Disconnect; guarded by Client.mu
	again      bool        // an attempt is wanted at once; guarded by Client.mu
	tries      int         // attempts that failed in a row, once the session was open; guarded by Client.mu
}

// pathChunk is what a path has for a permit's request: memory here, and a chunk of the
// server's.
type pathChunk struct {
	busy   atomic.Bool // the server has it, and the memory here is not to change
	stag   uint32      // of the server's chunk
	buf    []byte      // MaxIO bytes
	mr     *verbs.MR   // has buf
	dir    Dir
	n      uint32    // bytes that the server may write to buf
	posted int64     // when, in nanoseconds
	hdr    []byte    // the user header and the message behind it
	hdrMR  *verbs.MR // has hdr
	hdrOff uint32    // offset of hdr in hdrMR
	sgl    [2]verbs.SGE
}

func newPath(cl *Client, cfg PathConfig) (*Path, error) {
	if cfg.Name == "" {
		cfg.Name = cfg.Remote.String()
	}
	pds, err := newDomains(cl.cfg.ULP, cl.cfg.Trust, cl.cfg.Conns)
	for cid := 1; err == nil && cid < cl.cfg.Conns; cid++ {
		err = pds.open(cl.cfg.ULP, cl.cfg.Trust, cid)
	}
	if err != nil {
		pds.free()
		return nil, err
	}
	t := &Path{cl: cl, cfg: cfg, domains: pds, poke: make(chan struct{}, 1), done: make(chan struct{}), since: time.Now()}
	t.users.Store(1)
	t.ctx, t.cancel = context.WithCancel(cl.ctx)
	rand.Read(t.id[:])
	return t, nil
}

// addUser keeps the path's memory until dropUser. It returns false if it is gone: who chose
// the path may have done so just before it was removed.
func (t *Path) addUser() bool {
	for {
		n := t.users.Load()
		if n == 0 {
			return false
		}
		if t.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// dropUser is called when one who uses the path's memory needs it no more. The last one
// frees it.
func (t *Path) dropUser() {
	if t.users.Add(-1) != 0 {
		return
	}
	t.cancel()
	t.freeMemory()
	t.domains.free()
}

// freeMemory undoes allocate. The chunks stay: who has just chosen the path looks at them.
func (t *Path) freeMemory() {
	for i := range t.chunks {
		if mr := t.chunks[i].mr; mr != nil {
			mr.Deregister()
		}
	}
	for _, mr := range t.hdrMRs {
		if mr != nil {
			mr.Deregister()
		}
	}
	t.bufs.free()
	t.hdrs.free()
}

// Name returns the path's name.
func (t *Path) Name() string { return t.cfg.Name }

// allocate reserves and registers the path's memory. The server can reach none of it
// until a read is in flight.
//
// unlocked: nobody else uses the path yet.
func (t *Path) allocate() (err error) {
	slots, size := len(t.cl.permits), t.cl.maxIO
	defer func() {
		if err != nil {
			t.freeMemory()
			t.chunks, t.hdrMRs = nil, nil
		}
	}()
	if t.bufs, err = newArena(slots, size); err != nil {
		return err
	}
	if err = t.allocateHeaders(slots); err != nil {
		return err
	}
	t.chunks = make([]pathChunk, slots)
	n := len(t.domains)
	for i := range t.chunks {
		c := &t.chunks[i]
		c.hdrMR, c.hdrOff = t.hdrMRs[i%n], uint32(i/n*hdrSlot)
		c.hdr = c.hdrMR.Bytes()[c.hdrOff:][:hdrSlot:hdrSlot]
		c.buf = t.bufs.slot(i, size)
		if c.mr, err = t.domains.of(i).RegisterMR(c.buf, verbs.LocalWrite); err == nil {
			err = c.mr.Invalidate()
		}
		if err != nil {
			return fmt.Errorf("rtrs: register %d buffers of %d bytes: %w", slots, size, err)
		}
	}
	return nil
}

// allocateHeaders reserves and registers the memory for headers: a part for each
// protection domain. That of connection 0 also holds INFO_REQ and INFO_RSP.
func (t *Path) allocateHeaders(slots int) error {
	const info = infoReqLen + infoHdrLen + (MaxQueueDepth+controlChunks)*sgDescLen
	var err error
	if t.hdrs, err = newArena(1, slots*hdrSlot+info); err != nil {
		return err
	}
	rest := t.hdrs.mem
	t.hdrMRs = make([]*verbs.MR, len(t.domains))
	for g := range t.hdrMRs {
		n := (slots - g + len(t.domains) - 1) / len(t.domains) * hdrSlot
		if g == 0 {
			t.infoOff = uint32(n)
			n += info
		}
		if n <= 0 {
			break // more connections than permits
		}
		if t.hdrMRs[g], err = t.domains.of(g).RegisterMR(rest[:n:n], verbs.LocalWrite); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// infoBuf returns the buffer for INFO_RSP.
func (t *Path) infoBuf() []byte { return t.hdrMRs[0].Bytes()[t.infoOff+infoReqLen:] }

// AddPath adds a path to the session, which comes up by itself. It fails with ErrClosed,
// where the name is taken or there are MaxPaths, and with the errors of verbs.ULP.AllocPD.
func (cl *Client) AddPath(cfg PathConfig) (*Path, error) {
	t, err := newPath(cl, cfg)
	if err != nil {
		return nil, fmt.Errorf("rtrs: add a path to session %q: %w", cl.cfg.Name, err)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	switch {
	case cl.closing:
		err = ErrClosed
	case len(cl.paths) >= MaxPaths:
		err = fmt.Errorf("rtrs: session %q has %d paths, the limit", cl.cfg.Name, len(cl.paths))
	case slices.ContainsFunc(cl.paths, func(o *Path) bool { return o.cfg.Name == t.cfg.Name }):
		err = fmt.Errorf("rtrs: session %q has a path %q already", cl.cfg.Name, t.cfg.Name)
	}
	if err != nil {
		t.dropUser()
		return nil, err
	}
	cl.paths = append(cl.paths, t)
	cl.rankLocked()
	cl.running.Go(func() { t.run(cl.ctx) })
	return t, nil
}

// Paths returns the session's paths.
func (cl *Client) Paths() []*Path {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return slices.Clone(cl.paths)
}

// Remove takes the path out of the session. Its I/O goes on by another path, or waits for
// one. It is idempotent and waits until nothing of the path is left.
func (t *Path) Remove() {
	cl := t.cl
	cl.mu.Lock()
	i := slices.Index(cl.paths, t)
	if i >= 0 {
		cl.paths = slices.Delete(cl.paths, i, i+1)
		cl.rankLocked()
	}
	cl.mu.Unlock()
	t.cancel()
	<-t.done
	if i >= 0 {
		t.dropUser()
	}
}

// Disconnect takes the path down until Reconnect. Its I/O goes on by another path, or
// waits for one. When it returns no more I/O goes by the path.
func (t *Path) Disconnect() { t.setOff(true) }

// Reconnect brings the path up again after Disconnect, or when it has been given up, or at
// once if it waits for the next attempt.
func (t *Path) Reconnect() { t.setOff(false) }

func (t *Path) setOff(off bool) {
	t.cl.mu.Lock()
	t.off, t.again = off, !off
	up := t.current
	if t.state != PathConnected {
		up = nil
	}
	t.cl.mu.Unlock()
	if off && up != nil {
		up.fail(ErrClosed)
	}
	t.wake()
}

// wake has the path look at what is wanted.
func (t *Path) wake() {
	select {
	case t.poke <- struct{}{}:
	default:
	}
}

func (t *Path) isOff() bool {
	t.cl.mu.Lock()
	defer t.cl.mu.Unlock()
	return t.off
}

// PathInfo is a path's state for people.
type PathInfo struct {
	Name        string
	State       PathState
	Since       time.Time // in this state
	LastError   error     // why the path was lost or cannot be established; nil while connected
	Remote      netip.AddrPort
	Avoided     bool     // its security association is away, and I/O goes by others
	Version     Protocol // agreed on with the server; 0 while there is no connection
	Incarnation uint64   // attempts to connect the path
	Reconnects  uint64   // successful ones after the first
	Failures    uint64   // attempts that failed
	Tries       int      // of them, since the path was up last, or Reconnect
	InFlight    int      // requests that were not answered
	Moved       uint64   // requests that went on by another path
	// Replays are the requests that went by this path after they had been sent before, by
	// another or by this one, by their kinds.
	Replays map[string]uint64
	Latency time.Duration // a moving average of what a request takes; of some of them, while there is one path only
	Conns   []ConnInfo
	Stats   Stats
}

func (t *Path) infoLocked() PathInfo {
	i := PathInfo{Name: t.cfg.Name, State: t.state, Since: t.since, LastError: t.lastErr, Remote: t.cfg.Remote, Incarnation: t.inc,
		Reconnects: t.reconnects, Failures: t.failures, Tries: t.tries, InFlight: int(t.flying.Load()), Moved: t.moved.Load(), Replays: t.replays.snapshot(), Latency: time.Duration(t.latency.Load()), Stats: t.counters.snapshot()}
	if t.current != nil {
		i.Avoided, i.Version = t.current.avoided.Load(), t.current.version
		for _, c := range t.current.conns {
			i.Conns = append(i.Conns, connInfo(c.qp))
		}
	}
	return i
}

// freeChunks frees the chunks of an incarnation of which nothing is left.
func (t *Path) freeChunks() {
	for i := range t.chunks {
		t.freeChunk(&t.chunks[i])
	}
}

// freeChunk takes a chunk back, and closes the window of its request.
func (t *Path) freeChunk(c *pathChunk) (err error) {
	if !c.busy.Load() {
		return nil
	}
	if c.dir == Read && c.n > 0 {
		err = closeWindow(c.mr)
	}
	t.flying.Add(-1)
	c.busy.Store(false)
	return err
}

// noteLatency takes the time of a request into the average.
func (t *Path) noteLatency(d int64) {
	old := t.latency.Load()
	if old == 0 {
		t.latency.Store(d)
		return
	}
	t.latency.Store(old + (d-old)/8) // concurrent ones may lose a sample
}
