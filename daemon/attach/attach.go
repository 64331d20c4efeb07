// Package attach has the disks of peers that the users of this host have attached. Each is served on
// an NBD socket or a vhost-user socket of its own, or as a block device, and the disks that one user
// has from one peer share a session. The list of attached disks is saved, and restored when the daemon
// starts.
package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/daemon/handover"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	defaultTime = 45 * time.Second
	// MaxTime bounds what a user may wait for, and for the turn of a dial.
	MaxTime = 10 * time.Minute
	// restoreTime bounds one attempt to bring a remembered disk up.
	restoreTime = time.Minute
	// restoreMin and restoreMax are the pauses between attempts.
	restoreMin = 500 * time.Millisecond
	restoreMax = 10 * time.Second
	// deviceTime bounds how long the daemon's start waits for block devices to come back,
	// before file systems on them are mounted: half of what systemd gives it.
	deviceTime = 45 * time.Second
	// offersTime bounds how long a peer may take to say whether it has a disk.
	offersTime = 15 * time.Second
	// servedTime bounds how long a disk waits for its server to end, which cuts clients off
	// after two seconds, but may be in a call from which the kernel does not return.
	servedTime = 5 * time.Second
	// progressEvery is how often a waiting user is told why it takes so long.
	progressEvery = 500 * time.Millisecond
)

// Config is what disks need from the rest of the host. The functions may be called at any
// time from New on.
type Config struct {
	Log   *slog.Logger
	Users *local.Consumers
	// Context ends when the host's end begins, and Run starts a goroutine that this waits for.
	Context context.Context
	Run     func(func(context.Context))
	Config  func() *config.Config // as it is now
	// Peer finds a peer by name. It fails with an *api.Error where there is none.
	Peer    func(name string) (Peer, error)
	Devices *device.Driver
	// Drain is how long NBD requests under way may take when their disk ends; 0: nbd's default.
	Drain time.Duration
	// Choose returns the transport of the next streams by a path to a peer, in a partition or none, and a function that is to be
	// called with the result of opening them. Health is the state of the peer that status shows.
	Choose func(ctx context.Context, by *local.Consumer, p Peer, path, partition string) (*transport.Config, func(error), error)
	// MayUse fails unless a security label may use a partition; "" is the default label.
	MayUse func(label, partition string) error
	Health func(Peer) (state string, problem *api.Error)
	// Clients has the NBD clients of the daemon before this one, and keeps those of this one for the next; nil: neither.
	Clients *handover.Store
}

// Peer is a peer as it is declared now.
type Peer interface {
	Declared() config.Peer
	Identity() transport.Identity
	// Lifetime ends when the peer is removed, or declared with other endpoints.
	Lifetime() context.Context
	// TryCarriers calls attempt, and again with the next carrier while it is the carrier that fails.
	TryCarriers(ctx context.Context, attempt func() error) error
	// Unreachable explains why it was not reached.
	Unreachable(err error) *api.Error
}

// Attacher has a host's attached disks. What changes many of them, from Drop to Close, is for
// one goroutine at a time.
type Attacher struct {
	cfg Config
	log *slog.Logger

	// Lock order: Attacher.saving, session.changing, Attacher, Attachment.
	closing atomic.Bool   // the daemon ends
	saving  sync.Mutex    // held while the state is written
	toSave  atomic.Uint64 // calls of save
	saved   uint64        // the last of these whose state has been written; guarded by saving
	unsaved atomic.Bool   // the state could not be written

	mu        sync.Mutex // guards the fields below it; taken before an attachment's and a consumer's
	disks     map[Disk]*Attachment
	suspended map[Disk]suspended // disks that wait for their peer, or their ULP
	sessions  map[sessionKey]*session
}

// New returns an Attacher without disks.
func New(cfg Config) *Attacher {
	return &Attacher{cfg: cfg, log: cfg.Log, disks: map[Disk]*Attachment{}, suspended: map[Disk]suspended{}, sessions: map[sessionKey]*session{}}
}

// Attach brings a peer's export up on an NBD or vhost-user socket or as a block device, and remembers it. A disk
// that the caller has attached already in the same way is returned as it is. It fails with an *api.Error.
func (a *Attacher) Attach(ctx context.Context, who local.Caller, req api.AttachRequest, emit func(api.Event)) (api.Attachment, error) {
	limit, err := api.Seconds(req.TimeoutSeconds, defaultTime, MaxTime)
	if err != nil {
		return api.Attachment{}, err
	}
	if err := config.CheckExportName(req.Export); err != nil {
		return api.Attachment{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export name %q %s", req.Export, err)}
	}
	p, err := a.peer(who, req.Peer)
	if err != nil {
		return api.Attachment{}, err
	}
	k := Disk{who.Name, req.Peer, req.Export}
	w, err := a.frontEndOf(k, req)
	if err != nil {
		return api.Attachment{}, err
	}
	in, err := a.placeOf(who, p, req.Partition)
	if err != nil {
		return api.Attachment{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(a.cfg.Context, cancel)()
	emit(api.Event{Progress: fmt.Sprintf("connecting to %s at %s", req.Peer, p.Declared().AddrPort())})
	at, created, err := a.findOrAdd(ctx, who, k, w, in, p.Identity(), cancel, nil)
	if err != nil {
		return api.Attachment{}, err
	}
	if created {
		at.setService(req.Service)
	}
	go a.reportProgress(ctx, p, who, emit)
	if !created {
		err = at.await(ctx)
	} else if err = a.removeStale(at); err == nil {
		at.migration = req.Migration
		err = a.bringUpRetrying(ctx, at) // which has saved it
	}
	if err != nil {
		if created {
			a.rollBack(at)
			a.SaveOrLog() // it had been saved before it was used, or meanwhile, with others
		}
		return api.Attachment{}, a.failure(p, who, at.Key, err, limit)
	}
	return at.describe(), nil
}

// peer finds a peer for a request.
func (a *Attacher) peer(who local.Caller, name string) (Peer, error) {
	if err := who.MayUse(name); err != nil {
		return nil, err
	}
	return a.cfg.Peer(name)
}

// reportProgress reports the peer's state to a waiting user, whenever it changes.
func (a *Attacher) reportProgress(ctx context.Context, p Peer, who local.Caller, emit func(api.Event)) {
	last, name := "", p.Declared().Name
	for range rate.Ticks(ctx, progressEvery) {
		text := fmt.Sprintf("peer %s is %s", name, api.PeerUp)
		if state, problem := a.cfg.Health(p); problem != nil {
			text = who.Redact(name, problem).Message
		} else if state != api.PeerUp {
			text = "waiting for an SA with " + name
		}
		if text != last {
			last = text
			emit(api.Event{Progress: text})
		}
	}
}

// findOrAdd adds an attachment, with what is remembered of it if it is remembered, or finds the one
// that is there. One that is remembered and more than its ULP may have is an orphan, others like that
// are refused.
func (a *Attacher) findOrAdd(ctx context.Context, who local.Caller, k Disk, w frontEnd, in place, identity transport.Identity, cancel context.CancelFunc, remembered *suspended) (at *Attachment, created bool, err error) {
	socket := cmp.Or(w.vhost, a.socketOf(k))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cfg.Context.Err() != nil {
		return nil, false, &api.Error{Code: api.CodeUnavailable, Message: "the daemon is ending"}
	}
	if err := who.MayAttach(k.Peer, k.Export); err != nil {
		return nil, false, err
	}
	if ctx.Err() != nil || who.RightsChanged() {
		return nil, false, who.ErrRightsChanged()
	}
	before := a.disks[k]
	if before != nil && (!before.isOrphan() || before.frontEnd != w) {
		return before, false, cmp.Or(before.checkFrontEnd(w), before.checkPlace(in))
	}
	if err := a.isFreeLocked(k, w.device, socket, remembered != nil); err != nil {
		return nil, false, err
	}
	full := a.fullLocked(who, k)
	if full != nil && remembered == nil {
		return nil, false, full
	}
	at = &Attachment{Key: k, owner: who.Consumer, uid: who.UID, identity: identity, log: a.logOf(k), socket: socket, frontEnd: w, place: in, cancel: cancel, since: time.Now(), replaces: before, ready: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{})}
	at.full, at.problem, at.orphan = full, full, full != nil
	if remembered != nil { // before anybody saves it
		at.service, at.claim, at.predecessor = remembered.Service, remembered.Claim, remembered.before
	}
	a.disks[k] = at
	return at, true, nil
}

// fullLocked returns the error for a ULP that may attach no more disks, nil if it may.
func (a *Attacher) fullLocked(who local.Caller, k Disk) *api.Error {
	if who.MayHave(len(a.disks)) {
		return nil
	}
	n := 0
	for _, other := range a.disks {
		if other.owner == who.Consumer && !other.isOrphan() {
			n++
		}
	}
	if who.MayHave(n) {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot attach %s: ULP %s has %d disks attached, and may have no more", k, who.Name, n),
		Fix: fmt.Sprintf("detach another, or ask root to raise attachments: in the ULP's limits; then `ironwarp attach %s`", k)}
}

// bringUpRetrying is bringUp, repeated while strongSwan cannot be reached: the daemon keeps
// trying that, so it may pass.
func (a *Attacher) bringUpRetrying(ctx context.Context, at *Attachment) error {
	var lost error
	for {
		err := a.bringUp(ctx, at)
		switch {
		case errors.Is(err, ipsec.ErrNotConnected):
			lost = err
		case err != nil && lost != nil && ctx.Err() != nil:
			return lost // ctx has ended in the middle of an attempt
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(restoreMin):
		}
	}
}

// bringUp opens the remote disk and serves it.
func (a *Attacher) bringUp(ctx context.Context, at *Attachment) error {
	p, err := a.cfg.Peer(at.Key.Peer)
	if err != nil {
		return err
	}
	if p.Identity() != at.identity { // which would be saved as that from which it comes
		return ErrPeerChanged(at.Key.Peer)
	}
	s, cl, err := a.joinSession(ctx, at.owner, p, at.place)
	if err != nil {
		return err
	}
	dk, err := cl.Open(ctx, at.Key.Export, rnbd.OpenOptions{Migration: at.migration, Claim: at.currentClaim(), Keep: func(c rnbd.Claim) error { return a.saveClaim(at, c) }})
	if err == nil {
		if err = a.serve(ctx, at, s, dk); err != nil {
			err = errors.Join(err, dk.Close())
		}
	}
	if err != nil {
		a.leaveSession(s)
	}
	return err
}

// serve offers an open disk on the attachment's socket, or as its block device.
func (a *Attacher) serve(ctx context.Context, at *Attachment, s *session, dk *rnbd.Disk) error {
	if at.vhost != "" {
		return a.serveVhost(ctx, at, s, dk)
	}
	srv := nbd.NewServer(a.nbdConfig(at))
	if err := srv.Export(at.Key.Export, dk, "ironwarp "+at.Key.String()); err != nil {
		return err
	}
	if at.device != "" {
		return a.serveDevice(at, s, dk, srv)
	}
	ln, err := a.listen(ctx, at)
	if err != nil {
		return err
	}
	return a.serveSocket(at, s, dk, srv, nbd.Resume(ln, a.clientsBefore(at, ln)), srv.Serve, "NBD", "socket")
}

// serveSocket serves an open disk on the attachment's socket, as what in messages, and as key in
// the log. srv is nil if that is no NBD server.
func (a *Attacher) serveSocket(at *Attachment, s *session, dk *rnbd.Disk, srv *nbd.Server, ln net.Listener, serve func(context.Context, net.Listener) error, what, key string) error {
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	if !at.noteUp(s, dk, srv, stop, served) {
		stop()
		return errors.Join(errDetached(at.Key), ln.Close())
	}
	go func() {
		defer close(served)
		if err := serve(ctx, ln); err != nil {
			at.log.Error("the "+what+" server has failed", "error", err)
			at.noteProblem(&api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("the %s socket of %s has failed: %v", what, at.Key, err), Fix: "detach the disk and attach it again"}, false)
		}
	}()
	close(at.ready)
	at.log.Info("disk is attached", key, at.socket, "bytes", dk.Geometry().Size)
	return nil
}
