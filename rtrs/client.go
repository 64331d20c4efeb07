package rtrs

import (
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

	// Paths lead to the same server. One is in use at a time; when it is lost
	// the next is tried.
	Paths []PathConfig

	Conns      int         // connections of the path; 0 means DefaultConns
	QueueDepth int         // most I/Os in flight; 0 means DefaultQueueDepth; the server may allow fewer
	Setup      verbs.Setup // start-up of each connection
	Heartbeat  HeartbeatConfig

	// OnConnect is called each time a path has come up, before waiting I/O is resent:
	// reopen with Client.Control what the server may have forgotten. An error makes the
	// client give up the path. ctx ends when the path is lost.
	OnConnect func(ctx context.Context, cl *Client) error
	// OnResend is called for each I/O before it is resent on a new path, or sent after
	// Share.Resume. It may change the permit's Header. A result other than 0 ends the
	// I/O.
	OnResend func(p *Permit) syscall.Errno

	Logger *slog.Logger
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

// Client is a session with a server. It reconnects whenever its path is lost, until
// Close. All methods are safe for concurrent use.
type Client struct {
	cfg     ClientConfig
	log     *slog.Logger
	session [16]byte
	pathID  [16]byte
	domains domains

	// Set by the first connection and constant thereafter.
	depth   int // permits, without that of the controls
	maxIO   int
	permits []*Permit // the last one is the controls'
	pool    permitPool
	bufs    *arena
	hdrs    *arena      // user headers and messages, INFO_REQ and INFO_RSP
	hdrMRs  []*verbs.MR // for each protection domain, nil if it has no part
	infoOff uint32      // offset of INFO_REQ in the first

	path     atomic.Pointer[clientPath] // takes I/O
	seq      atomic.Uint64              // of the last I/O
	counters counters
	batch    batchHooks
	controls *controls

	mu         sync.Mutex // guards the fields below it; taken before the controls', after a connection's gate
	state      State
	since      time.Time
	lastErr    error
	ctlPath    *clientPath   // takes control requests; set before path
	ctlUp      chan struct{} // closed when ctlPath is set or the client closes
	current    *clientPath   // for Info
	remote     netip.AddrPort
	reconnects uint64
	wasUp      bool
	inc        uint64
	parked     []*Permit // in the order of posting
	suspended  []*Permit // by their shares, in the order of posting
	closing    bool

	cancel      context.CancelFunc
	done        chan struct{} // closed when run has ended
	releaseOnce sync.Once
}

// Connect opens a session. It tries each path once, and keeps trying until ctx ends while
// the server is still busy with the session's predecessor. After it has returned, the
// session reconnects by itself. It fails with a *RefusedError if the server refuses, and
// with the errors of the paths.
func Connect(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	pds, err := newDomains(cfg.ULP, cfg.Trust, cfg.Conns)
	for cid := 1; err == nil && cid < cfg.Conns; cid++ {
		err = pds.open(cfg.ULP, cfg.Trust, cid)
	}
	if err != nil {
		pds.free()
		return nil, fmt.Errorf("rtrs: open session %q: %w", cfg.Name, err)
	}
	cl := &Client{cfg: cfg, log: cfg.Logger, domains: pds, since: time.Now(), ctlUp: make(chan struct{}), done: make(chan struct{})}
	rand.Read(cl.session[:])
	rand.Read(cl.pathID[:])
	path, err := cl.first(ctx)
	if err != nil {
		cl.releaseMemory()
		return nil, fmt.Errorf("rtrs: open session %q: %w", cfg.Name, err)
	}
	runCtx, cancel := context.WithCancel(context.Background())
	cl.cancel = cancel
	go cl.run(runCtx, path)
	return cl, nil
}

func (cfg *ClientConfig) check() error {
	switch {
	case cfg.ULP == nil:
		return errors.New("rtrs: ClientConfig without a ULP")
	case len(cfg.Paths) == 0:
		return errors.New("rtrs: ClientConfig without a path")
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
	if cfg.Conns == 0 {
		cfg.Conns = DefaultConns
	}
	if cfg.QueueDepth == 0 {
		cfg.QueueDepth = DefaultQueueDepth
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Heartbeat = cfg.Heartbeat.withDefaults()
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
	if first {
		cl.cancel()
	}
	<-cl.done
	if !first {
		return nil
	}
	cl.mu.Lock()
	cl.state, cl.since = Closed, time.Now()
	cl.mu.Unlock()
	if cl.pool.close() {
		cl.release()
	}
	return nil
}

// release frees the session's memory once all permits are in the pool.
func (cl *Client) release() { cl.releaseOnce.Do(cl.releaseMemory) }

func (cl *Client) releaseMemory() {
	for _, p := range cl.permits {
		if p.mr != nil {
			p.mr.Deregister()
		}
	}
	for _, mr := range cl.hdrMRs {
		if mr != nil {
			mr.Deregister()
		}
	}
	cl.domains.free()
	cl.bufs.free()
	cl.hdrs.free()
}

// QueueDepth returns how many I/Os the session can have in flight.
func (cl *Client) QueueDepth() int { return cl.depth }

// MaxIO returns the largest I/O in bytes.
func (cl *Client) MaxIO() int { return cl.maxIO }

// Name returns the session's name.
func (cl *Client) Name() string { return cl.cfg.Name }

// Flush sends what was submitted with Permit.SubmitMore.
func (cl *Client) Flush() {
	if path := cl.path.Load(); path != nil {
		path.flush()
	}
}
