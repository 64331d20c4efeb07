package rtrs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// PathConfig is a path to the server.
type PathConfig struct {
	Name      string // for people, unique in the session; "" stands for the remote address
	Remote    netip.AddrPort
	Transport *transport.Config
	// Choose, if not nil, returns the Transport each time before the path is brought up,
	// and tried, which is called with the result.
	Choose func(ctx context.Context) (t *transport.Config, tried func(error), err error)
}

// ClientConfig describes a session with a server.
type ClientConfig struct {
	ULP *verbs.ULP
	// Trust is how much the session's connections, and the server, are trusted, at
	// most as much as the ULP permits. The zero value, NS-NT, trusts nobody.
	Trust verbs.TrustModel
	Name  string // the session's name, at most 254 bytes, unique among this host's sessions at the server

	// Paths lead to the same server, at most MaxPaths. All that are up carry I/O, as
	// Policy has it. More are added, and removed, by Client.AddPath and Path.Remove.
	Paths  []PathConfig
	Policy Policy

	Conns      int         // connections of each path; 0 means DefaultConns
	QueueDepth int         // most I/Os in flight; 0 means DefaultQueueDepth; the server may allow fewer
	Setup      verbs.Setup // start-up of each connection
	// Partition is that of all connections, "": none; Label is their security label, "": the ULP's.
	Partition, Label string
	Heartbeat        HeartbeatConfig
	NoPath           NoPath
	// ReconnectAttempts is how many attempts to bring a path up may fail in a row, once the
	// session is open, before it is given up; 0: any number.
	ReconnectAttempts int

	// OnConnect is called when a path has come up to a server that knows nothing of the
	// session, or has forgotten it, before waiting I/O is resent: reopen with
	// Client.Control what was open. An error makes the client give up the path. ctx ends
	// when the path is lost.
	OnConnect func(ctx context.Context, cl *Client) error
	// OnResend is called for each I/O before it is resent to such a server, where nothing
	// of it is executing any more, or sent after Share.Resume. It may change the permit's
	// Header, and look at InDoubt. A result other than 0 ends the I/O.
	OnResend func(p *Permit) syscall.Errno
	// KindOf names the kind of an I/O for PathInfo.Replays; nil: its direction's name. There
	// are few kinds.
	KindOf func(p *Permit) string
	// OnNoPath is called when I/O has begun to fail, see NoPath. It must not block.
	OnNoPath func()

	Logger *slog.Logger

	version       Protocol      // of another release, in tests; 0: Version
	challengeWait time.Duration // in tests; 0: challengeWait
}

// State is the state of a client.
//
//	Connecting ──▶ Connected ◀──▶ Reconnecting ──Close──▶ Closed
type State uint8

// The states of a client.
const (
	Connecting State = iota
	Connected
	Reconnecting
	Closed
)

func (s State) String() string {
	return [...]string{"connecting", "connected", "reconnecting", "closed"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Client is a session with a server, over one or several paths. It brings up again each
// path that is lost, until Close. All methods are safe for concurrent use.
type Client struct {
	cfg     ClientConfig
	log     *slog.Logger
	session uuid

	// Set by the first connection and constant thereafter.
	depth   int // permits, without that of the controls
	maxIO   int
	permits []*Permit // the last one is the controls'
	pool    permitPool
	homes   *arena // memory of permits whose data is in no path's

	up        atomic.Pointer[[]*clientPath] // take I/O
	policy    atomic.Uint32
	heartbeat atomic.Pointer[HeartbeatConfig]
	turn      atomic.Uint32 // of the round-robin policy
	seq       atomic.Uint64 // of the last I/O
	greetings atomic.Uint64 // how often the session was introduced to a server
	counters  counters
	batch     batchHooks
	controls  *controls

	entering chan struct{} // capacity 1: full while a path comes up to the server

	mu        sync.Mutex // guards the fields below it; taken before the controls', after a connection's gate
	state     State
	since     time.Time
	paths     []*Path
	ctlPath   *clientPath   // takes control requests; set before it takes I/O
	ctlUp     chan struct{} // closed when ctlPath is set or the client closes
	epoch     uuid          // the server's for the session; zero: it has to be introduced
	parked    []*Permit     // in the order of posting
	suspended []*Permit     // by their shares, in the order of posting
	noPath    NoPath
	noPathSet chan struct{} // closed when noPath changes
	outage    *outage       // nil while a path can take I/O
	attempts  int           // ClientConfig.ReconnectAttempts
	failing   bool          // I/O fails, since the outage lasts too long
	failingCh chan struct{} // closed while failing
	closing   bool
	began     bool   // Connect has returned
	ids       uint64 // of incarnations

	ctx         context.Context // ends with the client
	cancel      context.CancelFunc
	news        chan struct{}  // capacity 1; for Connect: a path came up, or an attempt failed
	running     sync.WaitGroup // paths
	ended       chan struct{}  // closed by Close at its end
	releaseOnce sync.Once
}

// Connect opens a session. It tries all paths at once, until one is up or each has failed,
// and keeps trying until ctx ends while the server is still busy with the session's
// predecessor. After it has returned, the other paths come up by themselves. It fails with a
// *RefusedError if the server refuses, and with the errors of the paths.
func Connect(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cl := &Client{cfg: cfg, log: cfg.Logger, since: time.Now(), news: make(chan struct{}, 1), ctlUp: make(chan struct{}), ended: make(chan struct{}), entering: make(chan struct{}, 1),
		noPath: cfg.NoPath, attempts: cfg.ReconnectAttempts, noPathSet: make(chan struct{}), failingCh: make(chan struct{})}
	cl.up.Store(new([]*clientPath))
	cl.policy.Store(uint32(cfg.Policy))
	cl.heartbeat.Store(&cfg.Heartbeat)
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	rand.Read(cl.session[:])
	fail := func(err error) (*Client, error) {
		cl.cancel()
		cl.running.Wait()
		cl.releaseMemory()
		return nil, fmt.Errorf("rtrs: open session %q: %w", cfg.Name, err)
	}
	for _, pc := range cfg.Paths {
		t, err := newPath(cl, pc)
		if err != nil {
			return fail(err)
		}
		cl.paths = append(cl.paths, t)
	}
	cl.rankLocked()
	for _, t := range cl.Paths() {
		cl.running.Go(func() { t.run(ctx) })
	}
	if err := cl.waitForFirstPath(ctx); err != nil {
		return fail(err)
	}
	return cl, nil
}

func (cfg *ClientConfig) check() error {
	switch {
	case cfg.ULP == nil:
		return errors.New("rtrs: ClientConfig without a ULP")
	case len(cfg.Paths) == 0 || len(cfg.Paths) > MaxPaths:
		return fmt.Errorf("rtrs: ClientConfig with %d paths: 1 to %d are possible", len(cfg.Paths), MaxPaths)
	case cfg.Name == "" || len(cfg.Name) >= nameMax:
		return fmt.Errorf("rtrs: session name %q: 1 to %d bytes are possible", cfg.Name, nameMax-1)
	case cfg.Conns < 0 || cfg.Conns > MaxConns:
		return fmt.Errorf("rtrs: %d connections: 1 to %d are possible", cfg.Conns, MaxConns)
	case cfg.QueueDepth < 0 || cfg.QueueDepth > MaxQueueDepth:
		return fmt.Errorf("rtrs: queue depth %d: 1 to %d are possible", cfg.QueueDepth, MaxQueueDepth)
	}
	if err := printable.Check(cfg.Name); err != nil {
		return fmt.Errorf("rtrs: session name %q: %w", cfg.Name, err)
	}
	cfg.Conns, cfg.QueueDepth = cmp.Or(cfg.Conns, DefaultConns), cmp.Or(cfg.QueueDepth, DefaultQueueDepth)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Heartbeat, cfg.version, cfg.challengeWait = cfg.Heartbeat.withDefaults(), cmp.Or(cfg.version, Version), cmp.Or(cfg.challengeWait, challengeWait)
	return nil
}

// Close ends the session. I/O in flight or waiting completes with ESHUTDOWN. The permits'
// memory is freed when the last permit has been put back. Close is idempotent and waits
// for the client's goroutines, so it must not be called from a completion.
func (cl *Client) Close() error {
	cl.mu.Lock()
	first := !cl.closing
	if first {
		cl.closing = true
		if cl.ctlPath == nil {
			close(cl.ctlUp)
		}
	}
	cl.mu.Unlock()
	if !first {
		<-cl.ended
		return nil
	}
	cl.cancel()
	cl.running.Wait()
	cl.finishParked()
	cl.mu.Lock()
	cl.state, cl.since = Closed, time.Now()
	cl.mu.Unlock()
	close(cl.ended)
	if cl.pool.close() {
		cl.freeMemoryOnce()
	}
	return nil
}

// freeMemoryOnce frees the session's memory once all permits are in the pool.
func (cl *Client) freeMemoryOnce() { cl.releaseOnce.Do(cl.releaseMemory) }

func (cl *Client) releaseMemory() {
	for _, t := range cl.Paths() {
		t.dropUser()
	}
	cl.homes.free()
}

// QueueDepth returns how many I/Os the session can have in flight.
func (cl *Client) QueueDepth() int { return cl.depth }

// MaxIO returns the largest I/O in bytes.
func (cl *Client) MaxIO() int { return cl.maxIO }

// Flush sends what was submitted with Permit.SubmitMore.
func (cl *Client) Flush() {
	for _, t := range *cl.up.Load() {
		t.flush()
	}
}
