package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// association is an SCTP association with the streams on it.
//
//	dialled:  dialling ──▶ in use ──last user leaves──▶ lingering ──sessions over──▶ shut down
//	                          ▲──────────new user───────────┘
//	accepted: in use ──no open stream for streamlessAssociation, or no session left behind a closed listener──▶ shut down
type association struct {
	dev *Device
	key assocKey // of a dialled one
	// listener is that of an accepted one.
	listener *Listener
	ready    chan struct{} // closed when dialled, or failed with err
	err      error

	assoc  *transport.Assoc
	mux    *sctpadapt.Mux
	strays *strays

	starting chan struct{} // one for each session of ours in start-up
	owed     atomic.Bool   // a stream was closed gracefully: what it sent must still arrive

	// Guarded by the associations' mutex.
	users     int // streams, including those in start-up; of an accepted one only those that are up
	lingering bool
	half      *hold // of an accepted one without streams
	over      bool
	ended     []transport.Identity // by EndAssociations, while it is dialled
}

// assocKey decides which streams share an association: those with the same identity
// before the Protector and the same destination, if their trust model permits it. The
// streams of an association share its receive window, its packets and its end.
type assocKey struct {
	ulp    *ULP
	pd     *PD // of streams that share nothing, else nil
	cfg    *transport.Config
	remote netip.AddrPort

	partition string
	label     string // of the queue pairs, "": the ULP's
}

// associations are those of a device.
type associations struct {
	idle atomic.Int64 // a time.Duration, see streamlessAssociation

	mu      sync.Mutex // guards the fields below it
	closed  bool
	dialled map[assocKey]*association // where new streams go
	all     map[*association]struct{}
}

func (as *associations) init() {
	as.dialled = make(map[assocKey]*association)
	as.all = make(map[*association]struct{})
	as.idle.Store(int64(streamlessAssociation))
}

// take returns a new user of the association for k, which it sets up if there is none.
func (as *associations) take(ctx context.Context, k assocKey) (*session, error) {
	for {
		as.mu.Lock()
		if as.closed {
			as.mu.Unlock()
			return nil, ErrClosed
		}
		a := as.dialled[k]
		mine := a == nil
		if mine {
			a = &association{dev: k.ulp.dev, key: k, strays: &strays{dev: k.ulp.dev}, ready: make(chan struct{}), starting: make(chan struct{}, maxInitiates)}
			as.dialled[k] = a
		}
		a.users++
		as.mu.Unlock()
		s := &session{a: a, fresh: mine}
		if mine {
			a.dial(ctx)
		} else {
			select {
			case <-a.ready:
			case <-ctx.Done():
				s.leave()
				return nil, ctx.Err()
			}
		}
		if a.err == nil {
			return s, nil
		}
		s.leave()
		// Whoever waited for another caller that gave up tries again.
		if mine || !errors.Is(a.err, context.Canceled) && !errors.Is(a.err, context.DeadlineExceeded) || ctx.Err() != nil {
			return nil, a.err
		}
	}
}

// dial sets a up.
func (a *association) dial(ctx context.Context) {
	as := &a.dev.assocs
	a.assoc, a.err = a.dev.below.DialSCTP(ctx, a.key.remote, a.key.cfg, func(b assoc.Association) assoc.Receiver {
		return sctpadapt.New(b, sctpadapt.Config{MaxPending: -1, Stray: a.strays.take, Tap: &a.dev.tap}, true) // streams come to listeners only
	})
	if a.err == nil {
		a.mux = a.assoc.Receiver().(*sctpadapt.Mux)
		a.mux.SetLink(a.dev.linkOf(a.assoc))
	}
	as.mu.Lock()
	switch {
	case a.err != nil:
	case as.closed:
		a.err = ErrClosed
	case slices.Contains(a.ended, a.assoc.Protection().Peer()):
		a.err = fmt.Errorf("verbs: connect to %v: %w", a.key.remote, errPeerEnded)
	}
	if a.err == nil {
		as.all[a] = struct{}{}
	} else {
		as.retireLocked(a)
	}
	as.mu.Unlock()
	switch {
	case a.assoc == nil || a.err == nil:
	case errors.Is(a.err, errPeerEnded):
		a.assoc.Abort(errPeerEnded.Error())
		a.assoc.Close()
	default:
		a.shutdown()
	}
	close(a.ready)
}

// retire keeps new streams off the association.
func (as *associations) retire(a *association) {
	as.mu.Lock()
	as.retireLocked(a)
	as.mu.Unlock()
}

func (as *associations) retireLocked(a *association) {
	if as.dialled[a.key] == a {
		delete(as.dialled, a.key)
	}
}

// add enters an accepted association, unless the device is closed or the peer's resources
// are used up. It adds one goroutine to the device's.
func (as *associations) add(a *association) (err error) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.closed {
		return ErrClosed
	}
	if a.half, err = a.dev.halfOpen(a.assoc.Protection().Peer()); err != nil {
		return err
	}
	as.all[a] = struct{}{}
	a.dev.wg.Add(1)
	return nil
}

// streamUp records that a stream of an accepted association is up, which is charged for it
// from now on.
func (a *association) streamUp() {
	as := &a.dev.assocs
	as.mu.Lock()
	defer as.mu.Unlock()
	a.users++
	if a.half != nil {
		a.half.release()
		a.half = nil
	}
}

// streamDown records that one is over. Without streams the association is half-open
// again, and ends if its peer has too many half-open ones.
func (a *association) streamDown() {
	as := &a.dev.assocs
	as.mu.Lock()
	a.users--
	var err error
	if a.users == 0 && !a.over {
		a.half, err = a.dev.halfOpen(a.assoc.Protection().Peer())
	}
	as.mu.Unlock()
	if err != nil {
		a.assoc.Abort(err.Error())
	}
}

// close shuts all associations down. It is called when no stream is left on them.
func (as *associations) close() {
	as.mu.Lock()
	as.closed = true
	var wg sync.WaitGroup
	for a := range as.all {
		wg.Go(a.shutdown)
	}
	as.mu.Unlock()
	wg.Wait()
}

// leave gives up one use of a.
func (a *association) leave() {
	as := &a.dev.assocs
	as.mu.Lock()
	defer as.mu.Unlock()
	if a.users--; a.users > 0 || a.lingering || as.closed || a.err != nil {
		return
	}
	a.lingering = true
	a.dev.wg.Go(a.linger)
}

// linger ends the association when its sessions are over, unless a new user comes.
func (a *association) linger() {
	ctx, cancel := context.WithTimeout(context.Background(), lingerTime)
	defer cancel()
	_ = a.mux.Quiet(ctx) // a peer that does not follow is cut off
	as := &a.dev.assocs
	as.mu.Lock()
	a.lingering = false
	used := a.users > 0
	if !used {
		as.retireLocked(a)
	}
	as.mu.Unlock()
	if !used {
		a.finish()
	}
}

// finish shuts the association down and removes it.
func (a *association) finish() {
	a.shutdown()
	as := &a.dev.assocs
	as.mu.Lock()
	defer as.mu.Unlock()
	delete(as.all, a)
	a.over = true
	if a.half != nil {
		a.half.release()
		a.half = nil
	}
}

// streamEnded records how a stream ended.
func (a *association) streamEnded(err error) {
	switch {
	case err == nil, errors.Is(err, rdmap.ErrPeerClosed):
		a.owed.Store(true)
	case errors.Is(err, rdmap.ErrCutOff): // it was waited for
		a.owed.Store(false)
	}
}

// shutdown ends the association gracefully: what gracefully closed streams had sent is
// delivered. A peer that takes none of it, or does not follow, is cut off.
func (a *association) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownMost)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = a.assoc.Shutdown(ctx) // it may be over already
	}()
	patience := lingerTime
	if a.owed.Load() {
		patience = shutdownTime
	}
	look := time.NewTicker(patience)
	defer look.Stop()
	for left, _ := a.assoc.Outq(); ; {
		select {
		case <-over:
			return
		case <-look.C:
		}
		n, err := a.assoc.Outq()
		if err != nil || n >= left {
			cancel()
		}
		left = n
	}
}

// runSCTP accepts associations.
func (l *Listener) runSCTP(ln *transport.SCTPListener) {
	for {
		assoc, err := ln.Accept(l.ctx)
		if err != nil {
			return
		}
		r := assoc.Receiver().(receiver)
		a := &association{dev: l.dev, listener: l, assoc: assoc, mux: r.Mux, strays: r.strays}
		a.mux.SetLink(l.dev.linkOf(assoc))
		if err := l.dev.assocs.add(a); err != nil {
			l.refuse(assoc, err)
			assoc.Close()
			continue
		}
		// Its peer's associations may have been ended, or the policy changed, before this was among them.
		if err := cmp.Or(assoc.Screen(), l.dev.deniesRequest(l.label(), l.cfg.Partition)); err != nil {
			l.refuse(assoc, err)
			assoc.Abort(err.Error())
		}
		go a.serve(l)
	}
}

// receiver receives on an association that a peer has set up.
type receiver struct {
	*sctpadapt.Mux
	strays *strays
}

func (l *Listener) receiver(a assoc.Association) assoc.Receiver {
	s := &strays{dev: l.dev}
	return receiver{sctpadapt.New(a, sctpadapt.Config{MaxPending: l.cfg.Backlog, Stray: s.take, Tap: &l.dev.tap}, false), s}
}

// serve takes the sessions that the peer wants to start. The association outlives
// the listener. It ends when it has had no open stream for a while: sessions that
// have not begun, and those that are over here but not ended by the peer, do not keep
// it (RFC 5042 section 6.4.1).
func (a *association) serve(l *Listener) {
	defer a.dev.wg.Done()
	defer a.finish()
	quiet := false
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.ctx, time.Duration(a.dev.assocs.idle.Load()/2))
		req, err := a.mux.Accept(ctx)
		cancel()
		switch {
		case err == nil:
			quiet = false
			s := &session{a: a, req: req}
			half, err := a.dev.halfOpen(s.Protection().Peer())
			if err != nil {
				l.refuse(s, err)
				s.drop()
				continue
			}
			s.rtr = l.setup(s).PeerToPeer
			l.offer(s, half)
		case errors.Is(err, sctpadapt.ErrMuxClosed):
			if a.strays.over.Load() {
				a.dev.events.emit(Event{Kind: EventSlowPath, Peer: a.assoc.Protection().Peer(), Flow: a.assoc.Flow(), Err: ErrSlowPath})
			}
			return
		case a.open():
			quiet = false
		case quiet:
			return
		default:
			quiet = l.ctx.Err() == nil
		}
	}
	a.mux.Refuse()
	for over := false; !over; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(a.dev.assocs.idle.Load()/2))
		over = a.mux.Quiet(ctx) == nil || quiet && !a.open()
		cancel()
		quiet = !a.open()
	}
}

// open reports whether a stream is up.
func (a *association) open() bool {
	as := &a.dev.assocs
	as.mu.Lock()
	defer as.mu.Unlock()
	return a.users > 0
}
