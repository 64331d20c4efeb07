package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/verbs"
)

// Config configures a Server. Zero values mean the defaults.
type Config struct {
	// Logger gets controllers that come and go, and refusals; nil: none.
	Logger *slog.Logger
	// MaxControllers is how many controllers there may be (256), and MaxOfPeer those of one peer, or of one host that
	// is no peer (half). For discovery there may be a quarter as many besides.
	MaxControllers, MaxOfPeer int
	// Memory is how many bytes the data of commands take in all queues together (512 MiB). Beyond it each queue goes on
	// with a little.
	Memory int64
	// ReadAge is how long a host may take to answer an RDMA Read (a minute). After that its connection ends.
	ReadAge time.Duration
	// ConnectTime is how long a connection may have no controller (15 s). After that it ends.
	ConnectTime time.Duration
	// Firmware is what hosts see as the revision of the firmware, up to 8 characters.
	Firmware string
}

// Subsystem is an NVM subsystem.
type Subsystem struct {
	NQN string
	// Model is what people see, and Serial what tells subsystems apart.
	Model, Serial string
	// Admits reports whether a host, by the name that it gives, may see the subsystem and connect; nil: all may. It
	// does not block.
	Admits func(o Origin, host string) bool
}

// Errors of Set and Attach.
var (
	ErrName   = errors.New("nvme: this is no name of a subsystem")
	ErrNSID   = errors.New("nvme: this is no number of a namespace, or it is taken")
	ErrTooFew = errors.New("nvme: there are as many subsystems as there may be")
	ErrNone   = errors.New("nvme: there is no such subsystem")
)

// subsystem is one that is offered.
type subsystem struct {
	cfg    atomic.Pointer[Subsystem]
	spaces atomic.Pointer[map[uint32]*Namespace] // replaced with Server.mu held
	logins atomic.Uint64
	denied atomic.Uint64
}

// Server serves subsystems. Lock order: Server.mu, controller.mu, Namespace.mu, conn.mu.
type Server struct {
	cfg    Config
	log    *slog.Logger
	begun  time.Time
	memory atomic.Int64 // bytes of all connections

	mu          sync.Mutex // guards the fields below it; taken before controller.mu
	subsystems  map[string]*subsystem
	controllers map[uint16]*controller
	last        uint16         // the number that was given last
	pending     map[string]int // connections that have no controller, by principal
	generation  uint64         // of the discovery log
}

// NewServer returns a server without subsystems.
func NewServer(cfg Config) *Server {
	if cfg.MaxControllers <= 0 {
		cfg.MaxControllers = defaultControllers
	}
	if cfg.MaxOfPeer <= 0 {
		cfg.MaxOfPeer = max(1, cfg.MaxControllers/2)
	}
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory
	}
	cfg.ReadAge, cfg.ConnectTime = cmp.Or(cfg.ReadAge, defaultReadAge), cmp.Or(cfg.ConnectTime, defaultConnectTime)
	cfg.Firmware = cmp.Or(cfg.Firmware, "1")
	return &Server{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), begun: time.Now(),
		subsystems: map[string]*subsystem{}, controllers: map[uint16]*controller{}, pending: map[string]int{}, generation: 1}
}

// Set offers a subsystem, or changes whom it admits. Controllers that it has stay. It fails with ErrName, and with
// ErrTooFew if there is no room for another.
func (s *Server) Set(x Subsystem) error {
	if err := nvme.CheckNQN(x.NQN); err != nil || x.NQN == nvme.DiscoveryNQN {
		return fmt.Errorf("%q: %w", x.NQN, ErrName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subsystems[x.NQN]
	if sub == nil {
		if len(s.subsystems) == maxSubsystems {
			return ErrTooFew
		}
		sub = &subsystem{}
		sub.spaces.Store(&map[uint32]*Namespace{})
		s.subsystems[x.NQN] = sub
	}
	sub.cfg.Store(&x)
	s.discoveryChangedLocked()
	return nil
}

// Remove ends a subsystem and its controllers. The channel is closed when nothing of these is under way.
func (s *Server) Remove(nqn string) (over <-chan struct{}) {
	s.mu.Lock()
	sub := s.subsystems[nqn]
	delete(s.subsystems, nqn)
	s.discoveryChangedLocked()
	s.mu.Unlock()
	return s.end(func(c *controller) bool { return sub != nil && c.sub == sub }, errEnded)
}

// Drop ends controllers. The channel is closed when nothing of these is under way.
func (s *Server) Drop(which func(ControllerInfo) bool) (ended []ControllerInfo, over <-chan struct{}) {
	over = s.end(func(c *controller) bool {
		i := c.info()
		hit := which(i)
		if hit {
			ended = append(ended, i)
		}
		return hit
	}, errEnded)
	return ended, over
}

// end ends controllers.
func (s *Server) end(which func(*controller) bool, why error) <-chan struct{} {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.controllers))
	s.mu.Unlock()
	all = slices.DeleteFunc(all, func(c *controller) bool { return !which(c) })
	for _, c := range all {
		c.end(why)
	}
	over := make(chan struct{})
	go func() {
		for _, c := range all {
			<-c.over
		}
		close(over)
	}()
	return over
}

// Attach gives a subsystem a namespace. It fails with ErrNone and ErrNSID.
func (s *Server) Attach(nqn string, nsid uint32, ns *Namespace) error {
	return s.change(nqn, nsid, func(all map[uint32]*Namespace) error {
		if nsid == 0 || nsid == nvme.AllNamespaces || all[nsid] != nil || len(all) == maxNamespaces {
			return fmt.Errorf("%d: %w", nsid, ErrNSID)
		}
		all[nsid] = ns
		return nil
	})
}

// Detach takes a namespace away: commands that come for it from now on fail. The channel is closed when nothing of
// those before is under way at its storage.
func (s *Server) Detach(nqn string, nsid uint32) (over <-chan struct{}) {
	var ns *Namespace
	_ = s.change(nqn, nsid, func(all map[uint32]*Namespace) error {
		ns = all[nsid]
		delete(all, nsid)
		return nil
	}) // what is not there needs not be taken away
	if ns == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return ns.close()
}

// Resized tells the hosts of a namespace that it has another size.
func (s *Server) Resized(nqn string, nsid uint32) {
	_ = s.change(nqn, nsid, func(map[uint32]*Namespace) error { return nil }) // of what is not there nobody is told
}

// change changes the namespaces of a subsystem, and tells its hosts of one.
func (s *Server) change(nqn string, nsid uint32, f func(map[uint32]*Namespace) error) error {
	s.mu.Lock()
	sub := s.subsystems[nqn]
	if sub == nil {
		s.mu.Unlock()
		return ErrNone
	}
	spaces := maps.Clone(*sub.spaces.Load())
	if err := f(spaces); err != nil {
		s.mu.Unlock()
		return err
	}
	sub.spaces.Store(&spaces)
	all := s.ofLocked(sub)
	s.mu.Unlock()
	for _, c := range all {
		c.namespaceChanged(nsid)
	}
	return nil
}

// ofLocked are the controllers of a subsystem; nil is that of discovery.
func (s *Server) ofLocked(sub *subsystem) (all []*controller) {
	for _, c := range s.controllers {
		if c.sub == sub {
			all = append(all, c)
		}
	}
	return all
}

// discoveryChangedLocked notes that the discovery log has changed.
func (s *Server) discoveryChangedLocked() {
	s.generation++
	for _, c := range s.ofLocked(nil) {
		go c.discoveryChanged()
	}
}

// IO counts what was read and written.
type IO struct{ Reads, Writes, ReadBytes, WriteBytes, Errors uint64 }

// ControllerInfo describes a controller.
type ControllerInfo struct {
	ID        uint16
	Subsystem string // "": that of discovery
	HostNQN   string
	HostID    block.ID
	Origin    Origin
	Since     time.Time
	KeepAlive time.Duration
	Queues    int // for I/O
	Active    int // commands
	IO        IO
}

// Controllers describes the controllers, by their numbers.
func (s *Server) Controllers() []ControllerInfo {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.controllers))
	s.mu.Unlock()
	out := make([]ControllerInfo, 0, len(all))
	for _, c := range all {
		out = append(out, c.info())
	}
	slices.SortFunc(out, func(a, b ControllerInfo) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Connects are how many hosts have connected to a subsystem, and how many were refused.
func (s *Server) Connects(nqn string) (let, refused uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.subsystems[nqn]; sub != nil {
		return sub.logins.Load(), sub.denied.Load()
	}
	return 0, 0
}

// Listener is where Serve accepts connections: a *verbs.Listener, or what has one.
type Listener interface {
	Accept(ctx context.Context) (*verbs.ConnRequest, error)
	Addr() netip.AddrPort
	Close() error
}

// Serve accepts hosts from ln until ctx ends, and closes ln. All that they need is charged to ulp. When it returns, none
// of the connections that came there is left, and nothing that they have asked for is under way. It fails if ln is closed
// before ctx ends.
func (s *Server) Serve(ctx context.Context, ln Listener, ulp *verbs.ULP) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer ln.Close()
	for {
		r, err := ln.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				r.Reject(ctx, nil)
			}
			return nil
		case err != nil:
			return fmt.Errorf("nvme: accept on %v: %w", ln.Addr(), err)
		}
		o := Origin{Peer: string(r.Protection().Peer()), Remote: r.Flow().Remote}
		if !s.addPending(o) {
			r.Reject(ctx, nvme.AppendConnectReject(nil, nvme.RejectResources))
			continue
		}
		wg.Go(func() {
			c, err := s.accept(ctx, r, ulp)
			if err != nil {
				s.pendingEnded(o)
				s.log.Info("nvme: connection failed", "address", o.Remote, "peer", o.Peer, "error", err)
				return
			}
			c.run(ctx)
		})
	}
}

// principal is whom a connection is counted against.
func (o Origin) principal() string {
	return cmp.Or(o.Peer, o.Remote.Addr().Unmap().String())
}

// addPending counts a connection that has no controller yet, if there is room for it.
func (s *Server) addPending(o Origin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := 0
	for _, n := range s.pending {
		all += n
	}
	if s.noPending(all, s.pending[o.principal()]) {
		return false
	}
	s.pending[o.principal()]++
	return true
}

// pendingEnded is the reverse.
func (s *Server) pendingEnded(o Origin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := o.principal(); s.pending[p] > 1 {
		s.pending[p]--
	} else {
		delete(s.pending, p)
	}
}
