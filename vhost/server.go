package vhost

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/accept"
)

// Config configures a Server.
type Config struct {
	// Device is the disk.
	Device block.Device
	// Serial is what guests see as its serial number, of which the first 20 bytes count.
	Serial string
	// Attachment is what a front end's log of requests under way is for, if it is not zero:
	// one with the log of another is refused, since what it was not answered there would be
	// carried out here.
	Attachment block.ID
	// Logger gets connects, disconnects and refusals; nil: none.
	Logger *slog.Logger
	// DrainTimeout is how long requests under way may take when Serve's context ends; then
	// their front end is cut off (2 s).
	DrainTimeout time.Duration
}

// Server offers a disk to one front end at a time.
type Server struct {
	cfg   Config
	log   *slog.Logger
	size  atomic.Uint64 // bytes
	stats counters

	faultBudget faultBudget // of the memory of front ends

	mu      sync.Mutex // guards the fields below it
	current *frontend
}

type counters struct {
	ops                     [block.NumOps]atomic.Uint64
	readBytes, writtenBytes atomic.Uint64
	errors                  atomic.Uint64
}

// Stats are a server's figures.
type Stats struct {
	Connected             bool   // a front end is connected
	Reads, Writes         uint64 // requests that succeeded
	ReadBytes, WriteBytes uint64 // theirs
	Errors                uint64 // requests that failed
}

var (
	errStopped = errors.New("vhost: the server is closing")
	errBusy    = errors.New("vhost: another front end is connected")
)

// NewServer returns a server of one disk.
func NewServer(cfg Config) *Server {
	if cfg.DrainTimeout <= 0 {
		cfg.DrainTimeout = 2 * time.Second // a systemd stop stays prompt
	}
	s := &Server{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))}
	s.size.Store(cfg.Device.Geometry().Size)
	return s
}

// Stats returns the figures since NewServer.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{Connected: s.currentFrontend() != nil, Reads: c.ops[block.OpRead].Load(), Writes: c.ops[block.OpWrite].Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writtenBytes.Load(), Errors: c.errors.Load()}
}

// count counts a request that has ended.
func (s *Server) count(q *request) {
	switch {
	case q.errno.Load() != 0:
		s.stats.errors.Add(1)
		return
	case q.op.HasData() && q.data == nil: // it asked for the serial number
		return
	case q.op == block.OpRead:
		s.stats.readBytes.Add(uint64(q.n))
	case q.op == block.OpWrite:
		s.stats.writtenBytes.Add(uint64(q.n))
	}
	s.stats.ops[q.op].Add(1)
}

// resize tells the front end, and those to come, that the disk has size bytes. It never shrinks.
func (s *Server) resize(size uint64) {
	for was := s.size.Load(); !s.size.CompareAndSwap(was, max(was, size)); was = s.size.Load() {
	}
	if f := s.currentFrontend(); f != nil {
		f.sendConfigChange()
	}
}

func (s *Server) currentFrontend() *frontend {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

func (s *Server) setCurrent(f *frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = f
}

// Serve serves front ends that connect to ln, a listener of Unix sockets, one after the
// other, until ctx ends or ln fails, and closes ln. While one is connected, others are hung
// up on. One that connects after another has hung up is served when the requests of that
// have ended, so that none of them comes after what the new one asks for; only one waits so.
// When ctx ends, requests under way get DrainTimeout; what is at the device then is over when
// the device completes it. The error is nil when ctx ended.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if d, ok := s.cfg.Device.(block.Resizer); ok {
		defer d.OnResize(s.resize)()
		s.resize(d.Geometry().Size) // it may have grown before
	}
	next := make(chan socket, 1) // the front end that is served next
	defer func() {
		select {
		case nc := <-next:
			nc.Close()
		default:
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for {
			select {
			case nc := <-next:
				s.serve(ctx, nc)
				nc.Close()
			case <-ctx.Done():
				return
			}
		}
	})
	return accept.Loop(ctx, ln, "vhost", s.log, func(nc net.Conn) {
		c, ok := nc.(socket)
		if f := s.currentFrontend(); !ok || f != nil && !hasHungUp(f.nc) || !makeRoom(next) {
			s.log.Warn("vhost: a front end is refused", "error", errBusy)
			nc.Close()
			return
		}
		next <- c
	})
}

// makeRoom drops the front end that waits if it has hung up. It reports false if it has not.
func makeRoom(next chan socket) bool {
	select {
	case nc := <-next:
		if !hasHungUp(nc) {
			next <- nc
			return false
		}
		nc.Close()
	default:
	}
	return true
}

// serve serves one front end to its end.
func (s *Server) serve(ctx context.Context, nc socket) {
	f := newFrontend(context.WithoutCancel(ctx), s, nc)
	s.setCurrent(f)
	s.log.Debug("vhost: a front end is connected")
	err := f.run(ctx)
	// What has not ended waits for the device, or for this server's end.
	f.tearDown(ctx)
	s.setCurrent(nil)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, errStopped):
		s.log.Debug("vhost: the front end is gone")
	default:
		s.log.Warn("vhost: the front end has been ended", "error", err)
	}
}
