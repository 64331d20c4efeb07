package ipsec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// Manager keeps the guard and the SAs of its peers, and is the
// transport.Protector of flows to them. Its methods may be called from several
// goroutines.
type Manager struct {
	cfg    Config
	board  board
	lists  flights[[]charon.SA]
	slots  chan struct{} // attempts under way in charon
	ctx    context.Context
	cancel context.CancelFunc

	now func() time.Time // the clock of lanes
	// The kernel's side of the guard; tests without privileges have another one.
	install   func(netns string, specs []guard.Spec) ([]guard.Result, error)
	uninstall func(guard.Spec) error
	empty     func(guard.Spec) error // ends the sockets of its link
	probe     func(guard.Spec) error // the self-test
	route     func(g guard.Spec, local netip.Addr, up bool) error
	confirm   func(g guard.Spec, sa *charon.SA, c *charon.Child) error // that a listed child is in place
	// childStates lists what charons have left in the kernel.
	childStates func(netns string, links []guard.ChildLink) ([][]guard.State, error)
	// That of the blocks.
	listBlocks  func(netns string) ([]guard.BlockEntry, error)
	setBlocks   func(netns string, gone []guard.LinkKey, add []guard.BlockEntry) error
	checkBlocks func(netns string) (faults []string, err error)

	lines       lifeLog
	comparisons flights[struct{}] // comparisons of all SAs with the peers' links
	losses      flights[struct{}] // comparisons of what charon has with what it was given
	relook      backoff           // of the next such comparison; its flight serialises

	// Lock order: Manager.editing, Manager.guarding, Manager.blocking, peer.applying, peer, Manager.
	editing  sync.Mutex // serialises AddPeer, RemovePeer and the loading of peers
	guarding sync.Mutex // serialises changes of the kernel's policies
	blocking sync.Mutex // serialises changes of the kernel's blocks

	blocksRead    bool          // those of an earlier life are known; guarded by Manager.blocking
	blocksUnknown bool          // the kernel did not list them; guarded by Manager.blocking
	reblocked     chan struct{} // one slot: there is a new block

	sessionWait time.Duration
	reasonWait  time.Duration
	admitWait   time.Duration

	tried    chan struct{} // closed when the first attempt to reach charon has ended
	firstTry func()        // closes it

	mu             sync.Mutex // guards the fields below it
	wg             sync.WaitGroup
	closed         bool
	running        bool
	peers          map[string]*peer
	byAddr         map[netip.Addr][]*peer // the same; its slices are never changed
	session        *ike.Session
	trying         bool          // to reach charon
	sessionChanged chan struct{} // closed and replaced when it changes, or an attempt has ended
	status         ike.Status
	refused        uint64 // flows of no peer
	blocks         map[string]blocked
}

var _ transport.Protector = (*Manager)(nil)

// New makes a Manager. Nothing is started or contacted: Run does that. It fails where
// cfg is impossible.
func New(cfg Config) (*Manager, error) {
	m := &Manager{
		cfg:            cfg.withDefaults(),
		slots:          make(chan struct{}, maxInitiates),
		peers:          map[string]*peer{},
		byAddr:         map[netip.Addr][]*peer{},
		sessionChanged: make(chan struct{}),
		tried:          make(chan struct{}),
		blocks:         map[string]blocked{},
		reblocked:      make(chan struct{}, 1),
		sessionWait:    sessionWait,
		reasonWait:     reasonWait,
		admitWait:      lanestate.AdmitWait,
		now:            time.Now,
		install:        guard.Reconcile,
		uninstall:      guard.TakeDown,
		empty:          guard.EndSockets,
		probe:          guard.Probe,
		route:          guard.Route,
		childStates:    guard.ChildStates,
		confirm: func(g guard.Spec, sa *charon.SA, c *charon.Child) error {
			return guard.Confirm(g, guard.ChildSA{Name: c.Name, Local: sa.LocalHost, Remote: sa.RemoteHost, SPIIn: c.SPIIn, SPIOut: c.SPIOut})
		},

		listBlocks:  guard.ReadBlocks,
		setBlocks:   guard.WriteBlocks,
		checkBlocks: guard.CheckBlocks,
	}
	if m.cfg.DataPlane > esp.Userland {
		return nil, fmt.Errorf("ipsec: unknown data plane %d", m.cfg.DataPlane)
	}
	m.status = ike.Status{Socket: m.cfg.Socket, DataPlane: m.cfg.DataPlane, Since: time.Now()}
	m.relook = backoff{min: reloadSettle, max: ike.SignPoll}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.lists = flights[[]charon.SA]{call: m.readAll, work: m.goWork}
	m.comparisons = flights[struct{}]{call: m.readAndCompare, work: m.goWork, ctx: m.ctx, pace: rate.NewPacer(paceEvery, paceBurst)}
	m.losses = flights[struct{}]{call: m.reloadLost, work: m.goWork, ctx: m.ctx, pace: rate.NewPacer(paceEvery, paceBurst)}
	m.firstTry = sync.OnceFunc(func() { close(m.tried) })
	return m, nil
}

// Run talks to charon until ctx ends or Close is called: it connects, loads the
// peers, follows events, and brings lost SAs back. It returns nil after Close
// or ctx's end, and at once with an error if it runs already. A charon that is
// not there is no error; it is tried again.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	if m.running {
		m.mu.Unlock()
		return errors.New("ipsec: Run is called twice")
	}
	m.running = true
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()

	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { m.watchGuard(ctx) })
	watch.Go(func() { m.watchBlocks(ctx) })

	wait := backoff{min: reconnectMin, max: reconnectMax}
	for ctx.Err() == nil {
		err := m.attach(ctx, wait.reset)
		if ctx.Err() != nil {
			break
		}
		m.noteDaemon(err)
		m.firstTry()
		sleep(ctx, wait.next())
	}
	m.mu.Lock()
	m.running = false
	m.triedLocked()
	m.mu.Unlock()
	return nil
}

// attach connects to charon and serves the link until it is down.
func (m *Manager) attach(ctx context.Context, up func()) error {
	m.mu.Lock()
	m.trying = true
	m.mu.Unlock()
	l, err := ike.Connect(ctx, m.cfg.Socket, m.cfg.DataPlane, m.cfg.CallTimeout)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, l.Close)()
	up()
	m.setSession(l)
	defer m.detach(l)
	m.note(Event{Kind: EventCharonUp, Detail: fmt.Sprintf("%s %s, %v", l.Status.Daemon, l.Status.Version, l.Status.DataPlane)})
	m.editing.Lock()
	peers := m.allPeers()
	// Those whose streams wait come first.
	slices.SortStableFunc(peers, func(a, b *peer) int { return b.flowCount() - a.flowCount() })
	peers = slices.DeleteFunc(peers, (*peer).isLoaded) // added since the link is up
	for p, err := range m.bringUpLocked(ctx, l, peers, nil) {
		if ctx.Err() == nil {
			m.cfg.Logger.Error("could not hand the peer to strongSwan", "peer", p.name, "err", err)
		}
	}
	m.editing.Unlock()
	m.compareAll()
	return l.Follow(ctx, m.viciEvent, func() error {
		m.flushLog()
		m.compareAll() // which refreshes peers whose SAs are not what is believed
		m.seekLosses()
		return l.Ping(ctx)
	})
}

// triedLocked notes that an attempt to reach charon is over.
func (m *Manager) triedLocked() {
	m.trying = false
	close(m.sessionChanged)
	m.sessionChanged = make(chan struct{})
}

func (m *Manager) setSession(l *ike.Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = l
	if l != nil {
		restarts := m.status.Restarts
		m.status = l.Status
		m.status.Restarts = restarts
	}
	m.triedLocked()
	m.firstTry()
}

// Tried is closed when the first attempt of Run to reach charon has ended: a peer that
// is added from then on is known to a charon that runs when AddPeer returns.
func (m *Manager) Tried() <-chan struct{} { return m.tried }

// detach notes that charon is gone: every child with it.
func (m *Manager) detach(l *ike.Session) {
	m.setSession(nil)
	m.mu.Lock()
	m.status.Connected, m.status.Since = false, time.Now()
	m.status.Restarts++
	m.mu.Unlock()
	for _, p := range m.allPeers() {
		p.mu.Lock()
		p.loaded, p.ofOthers = false, nil
		p.mu.Unlock()
		p.allDown(ReasonCharon)
		p.applying.Lock()
		p.takeListLocked(nil, 0, true)
		p.applying.Unlock()
	}
}

func (m *Manager) noteDaemon(err error) {
	m.mu.Lock()
	was := m.status.LastError
	m.status.LastError = err.Error()
	m.triedLocked()
	m.mu.Unlock()
	if was != err.Error() {
		m.note(Event{Kind: EventCharonDown, Detail: "no connection to strongSwan, trying again: " + err.Error()})
	}
}

// bringUpLocked hands peers to charon: their guards, but those of guarded, which are in
// place, their keys and connections, what they have of SAs. It returns what has kept
// some from that.
func (m *Manager) bringUpLocked(ctx context.Context, l *ike.Session, peers []*peer, guarded map[*peer]bool) map[*peer]error {
	failed := m.ensureGuards(slices.DeleteFunc(slices.Clone(peers), func(p *peer) bool { return guarded[p] })...)
	m.noteOrphans(ctx, peers)
	for _, p := range peers {
		cfg := p.config()
		err := failed[p]
		if err == nil {
			err = l.Load(ctx, &cfg)
		}
		if err != nil {
			p.mu.Lock()
			p.failedLocked(err)
			p.mu.Unlock()
			failed[p] = err
			continue
		}
		if err := p.refresh(ctx); err != nil {
			failed[p] = err
			continue
		}
		p.mu.Lock()
		p.loaded = true
		p.lastErr = ""
		for _, ln := range p.lanes {
			stays := cfg.Stands(ln.Link)
			first := ln.Role == pad.Dialler && ln.Link == p.links[0]
			if stays || (first || ln.isEarly()) && !cfg.OnDemand {
				p.happenLocked(ln, lanestate.Greet{Stays: stays})
			}
		}
		p.mu.Unlock()
		p.poke()
	}
	return failed
}

// Close ends Run and every waiting call. Guards, connections and SAs stay as
// they are, so that streams of a restarted process find them. It is idempotent.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	m.board.close()
	return nil
}

// goWork runs f on a goroutine that Close waits for; false after Close.
func (m *Manager) goWork(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Go(f)
	return true
}

func (m *Manager) currentSession() *ike.Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.session
}

// awaitSession returns the session, waiting a little for charon to come back, and for the
// end of an attempt to reach it: a busy host's takes its time.
func (m *Manager) awaitSession(ctx context.Context) (*ike.Session, error) {
	timer := time.NewTimer(m.sessionWait)
	defer timer.Stop()
	for over := false; ; {
		m.mu.Lock()
		l, changed, running, trying := m.session, m.sessionChanged, m.running, m.trying
		m.mu.Unlock()
		switch {
		case l != nil:
			return l, nil
		case over && !running:
			return nil, ErrNotSupervised
		case over && !trying:
			return nil, m.notConnected()
		}
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-m.ctx.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, m.notConnected()
		}
	}
}

func (m *Manager) notConnected() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.status.LastError == "" {
		return ErrNotConnected
	}
	return fmt.Errorf("%w: %s", ErrNotConnected, m.status.LastError)
}

func (m *Manager) acquire(ctx context.Context) bool {
	select {
	case m.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *Manager) release() { <-m.slots }

func (m *Manager) allPeers() []*peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.peers), func(a, b *peer) int { return cmp.Compare(a.name, b.name) })
}

func (m *Manager) peer(name string) (*peer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[name]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownPeer, name)
}
