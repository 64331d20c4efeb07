package nbd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/accept"
)

// Config configures a Server. Zero values mean the defaults.
type Config struct {
	// Logger gets connects, disconnects and refusals; nil: none.
	Logger *slog.Logger
	// HandshakeTimeout is how long a client may negotiate (30 s).
	HandshakeTimeout time.Duration
	// DrainTimeout is how long requests under way may take when Serve's context
	// ends; then their clients are cut off (2 s).
	DrainTimeout time.Duration
	// MaxClients is how many connections there may be at once (128); one more is
	// closed at once.
	MaxClients int
	// MaxInFlight bounds a client's requests under way (256). Further ones wait
	// in the socket.
	MaxInFlight int
	// LargeReads bounds the memory of reads larger than the device's maximum, over
	// all servers that have the same one; nil: 4 of this server.
	LargeReads *LargeReads
	// HandOver is called when Serve's context ends, with each client whose requests have all been answered, before its
	// connection is closed: a copy of its descriptor may be served by another server (Resume). Received is only valid
	// until it returns. nil: clients are disconnected.
	HandOver func(nc net.Conn, state Handed)
	// MaxKept bounds the bytes of replies that are kept in memory for clients which
	// don't read them (64 MiB). Beyond it such a client is cut off.
	MaxKept int64
}

// LargeReads are slots for reads assembled in memory, of up to 32 MiB each.
type LargeReads struct{ places chan struct{} }

// NewLargeReads returns n slots; 0 or less means one.
func NewLargeReads(n int) *LargeReads { return &LargeReads{make(chan struct{}, max(n, 1))} }

// Errors of Export.
var (
	ErrExportExists = errors.New("nbd: there is an export of that name")
	ErrExportName   = errors.New("nbd: an export's name is valid UTF-8 of at most 4096 bytes without NUL")
)

// Server offers exports to clients.
type Server struct {
	cfg   Config
	log   *slog.Logger
	large chan struct{} // one slot for each large read being assembled
	kept  atomic.Int64  // bytes of replies that clients don't read

	clients accept.Slots

	mu      sync.Mutex // guards the fields below it
	exports map[string]*export
}

type export struct {
	name, description string
	device            block.Device
	stats             counters
	succession
}

type counters struct {
	clients                 atomic.Int64
	ops                     [block.NumOps]atomic.Uint64
	readBytes, writtenBytes atomic.Uint64
	errors                  atomic.Uint64
}

// Stats are an export's figures since it was added.
type Stats struct {
	Clients                                  int    // connected now
	Waiting                                  int    // of these, those that wait for the I/O of a vanished client to end
	Reads, Writes, Flushes, Trims, ZeroRange uint64 // requests that succeeded
	ReadBytes, WrittenBytes                  uint64 // theirs
	Errors                                   uint64 // requests that failed
	// Oldest is how long the oldest request has been waiting for the device.
	Oldest time.Duration
}

// NewServer returns a server without exports.
func NewServer(cfg Config) *Server {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.HandshakeTimeout, defaultHandshakeTimeout)
	def(&cfg.DrainTimeout, defaultDrainTimeout)
	if cfg.MaxClients <= 0 {
		cfg.MaxClients = defaultMaxClients
	}
	if cfg.MaxInFlight <= 0 {
		cfg.MaxInFlight = defaultMaxInFlight
	}
	if cfg.LargeReads == nil {
		cfg.LargeReads = NewLargeReads(maxLargeReads)
	}
	if cfg.MaxKept <= 0 {
		cfg.MaxKept = maxKept
	}
	s := &Server{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), exports: make(map[string]*export), large: cfg.LargeReads.places, clients: make(accept.Slots, cfg.MaxClients)}
	return s
}

// Export offers b under name. A client that names none gets the export named "", or the
// only one there is. description, for people, may be empty. It fails with
// ErrExportName and ErrExportExists.
func (s *Server) Export(name string, b block.Device, description string) error {
	if len(name) > maxName || len(description) > maxName || strings.ToValidUTF8(name, "") != name || strings.ContainsRune(name, 0) {
		return fmt.Errorf("export %.80q: %w", name, ErrExportName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.exports[name]; ok {
		return fmt.Errorf("export %q: %w", name, ErrExportExists)
	}
	e := &export{name: name, description: description, device: b}
	e.change.L = &e.mu
	s.exports[name] = e
	return nil
}

// Stats returns the figures of an export, ok false if there is none.
func (s *Server) Stats(name string) (st Stats, ok bool) {
	s.mu.Lock()
	e, ok := s.exports[name]
	s.mu.Unlock()
	if !ok {
		return Stats{}, false
	}
	c := &e.stats
	e.mu.Lock()
	waiting := e.waiting
	e.mu.Unlock()
	return Stats{
		Clients: int(c.clients.Load()), Waiting: waiting,
		Reads: c.ops[block.OpRead].Load(), Writes: c.ops[block.OpWrite].Load(), Flushes: c.ops[block.OpFlush].Load(),
		Trims: c.ops[block.OpTrim].Load(), ZeroRange: c.ops[block.OpWriteZeroes].Load(),
		ReadBytes: c.readBytes.Load(), WrittenBytes: c.writtenBytes.Load(), Errors: c.errors.Load(), Oldest: e.oldest(),
	}, true
}

// lookup finds the export that a client names.
func (s *Server) lookup(name string) *export {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.exports[name]; e != nil || name != "" || len(s.exports) != 1 {
		return e
	}
	for _, e := range s.exports {
		return e
	}
	return nil
}

// list returns the exports by name.
func (s *Server) list() []*export {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.exports), func(a, b *export) int { return strings.Compare(a.name, b.name) })
}

// Serve accepts clients from ln until ctx ends or ln fails, and closes ln. Their
// connections are sockets, or have HangUp.
// When it returns no client is connected and no goroutine of it is left. When
// ctx ends, requests in progress get DrainTimeout to complete and be answered; I/Os
// still at the device then are released when it completes them.
// The error is nil when ctx ended.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return accept.Serve(ctx, ln, "nbd", s.log, s.admit, s.serve)
}

// admit takes a place for a client, and reports whether there was one.
func (s *Server) admit() bool {
	ok := s.clients.TryTake()
	if !ok {
		s.log.Warn("nbd: client refused: too many are connected", "clients", s.cfg.MaxClients)
	}
	return ok
}

// serve serves one client to its end.
func (s *Server) serve(ctx context.Context, nc net.Conn) {
	defer s.clients.Give()
	resumed, _ := nc.(*Resumed)
	if resumed != nil {
		nc = resumed.Conn
	}
	c := newConn(s, nc)
	c.done = ctx.Done()
	defer nc.Close()
	defer c.stopDrainTimer()
	defer context.AfterFunc(ctx, c.beginDrain)()
	if resumed != nil {
		if err := c.resume(&resumed.Handed); err != nil {
			s.log.Warn("nbd: a client of the server before this one cannot go on", "error", err)
			return
		}
	} else if err := c.negotiate(ctx); err != nil {
		if !errors.Is(err, errAborted) && ctx.Err() == nil {
			s.log.Info("nbd: handshake failed", "client", nc.RemoteAddr().String(), "error", err)
		}
		return
	}
	log := s.log.With("export", c.exp.name)
	log.Debug("nbd: client connected", "structured", c.structured)
	err := c.transmit(ctx)
	log.Debug("nbd: client gone", "error", err)
}
