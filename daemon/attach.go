package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	defaultAttachTime = 45 * time.Second
	maxAttachTime     = 10 * time.Minute
	// restoreTime bounds one attempt to bring a remembered disk up.
	restoreTime = time.Minute
	// restoreMin and restoreMax are the pauses between attempts.
	restoreMin = 500 * time.Millisecond
	restoreMax = 10 * time.Second
	// progressEvery is how often a waiting user hears why.
	progressEvery = 500 * time.Millisecond
)

// attach brings a peer's export up as an NBD socket and remembers it. A disk
// that the caller has attached already is returned as it is.
func (d *Daemon) attach(ctx context.Context, who caller, req api.AttachRequest, emit func(api.Event)) (api.Attachment, error) {
	limit, err := seconds(req.TimeoutSeconds, defaultAttachTime, maxAttachTime)
	if err != nil {
		return api.Attachment{}, err
	}
	if err := config.CheckExportName(req.Export); err != nil {
		return api.Attachment{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export name %q %s", req.Export, err)}
	}
	if err := d.mayUse(who, req.Peer); err != nil {
		return api.Attachment{}, err
	}
	p, err := d.findPeer(req.Peer)
	if err != nil {
		return api.Attachment{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	emit(api.Event{Progress: fmt.Sprintf("connecting to %s at %s", p.cfg.Name, p.cfg.AddrPort())})
	at, created, err := d.claim(ctx, who, disk{who.name, req.Peer, req.Export}, p.identity, cancel)
	if err != nil {
		return api.Attachment{}, err
	}
	done := make(chan struct{})
	defer close(done)
	go d.narrate(p, who, emit, done)
	if !created {
		err = d.await(ctx, at)
	} else if err = d.bring(ctx, at); err == nil {
		err = d.remember()
	}
	if err != nil {
		if created {
			d.undo(at)
			d.rememberOrLog() // it was written down before it was used, or meanwhile, with others
		}
		return api.Attachment{}, d.attachError(p, who, at.key, err, limit)
	}
	return at.describe(), nil
}

// narrate tells a waiting user what the peer's state is, whenever it changes.
func (d *Daemon) narrate(p *peer, who caller, emit func(api.Event), done chan struct{}) {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	last := ""
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		text := fmt.Sprintf("peer %s is %s", p.cfg.Name, api.PeerUp)
		if v := d.describePeer(p, streamCount{}); v.Problem != nil {
			text = discreet(who, p.cfg.Name, v.Problem).Message
		} else if v.State != api.PeerUp {
			text = "waiting for an SA with " + p.cfg.Name
		}
		if text != last {
			last = text
			emit(api.Event{Progress: text})
		}
	}
}

// claim enters an attachment, or finds the one that is there.
func (d *Daemon) claim(ctx context.Context, who caller, k disk, identity transport.Identity, cancel context.CancelFunc) (at *attachment, created bool, err error) {
	socket := d.socketOf(k) // asks for the configuration itself
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, &api.Error{Code: api.CodeUnavailable, Message: "the daemon is ending"}
	}
	if err := mayAttach(who, k); err != nil {
		return nil, false, err
	}
	if ctx.Err() != nil {
		return nil, false, errChanged(who)
	}
	if at := d.disks[k]; at != nil && !at.isOrphan() {
		return at, false, nil
	}
	n := 0
	orphan := d.disks[k]
	for _, other := range d.disks {
		if other == orphan {
			continue // its place is taken
		}
		if other.owner == who.consumer {
			n++
		}
	}
	if who.name != "" && n >= who.cfg.Attachments && checks.On(checks.LocalShare) {
		return nil, false, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot attach %s: ULP %s has %d disks attached, and may have no more", k, who.name, n),
			Fix: "detach one, or ask root to raise attachments: in the ULP's limits"}
	}
	at = &attachment{key: k, owner: who.consumer, uid: who.uid, identity: identity, log: d.logOf(k), socket: socket, cancel: cancel, since: time.Now(), replaces: orphan, ready: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{})}
	d.disks[k] = at
	return at, true, nil
}

// await waits for an attachment that somebody else brings up.
func (d *Daemon) await(ctx context.Context, at *attachment) error {
	select {
	case <-at.ready:
		return nil
	case <-at.gone:
		return errDetached(at.key)
	case <-ctx.Done():
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.problem != nil {
		return at.problem
	}
	return ctx.Err()
}

// bring opens the remote disk and serves it.
func (d *Daemon) bring(ctx context.Context, at *attachment) error {
	p, err := d.findPeer(at.key.Peer)
	if err != nil {
		return err
	}
	s, cl, err := d.joinSession(ctx, at.owner, p)
	if err != nil {
		return err
	}
	dk, err := cl.Open(ctx, at.key.Export, rnbd.OpenOptions{Claim: at.claimed(), Keep: func(c rnbd.Claim) error { return d.keepClaim(at, c) }})
	if err == nil {
		if err = d.serve(ctx, at, s, dk); err != nil {
			err = errors.Join(err, dk.Close())
		}
	}
	if err != nil {
		d.leaveSession(s)
	}
	return err
}

// serve offers an open disk on the attachment's socket.
func (d *Daemon) serve(ctx context.Context, at *attachment, s *session, dk *rnbd.Disk) error {
	ln, err := d.listenNBD(ctx, at)
	if err != nil {
		return err
	}
	srv := nbd.NewServer(at.nbdConfig())
	if err := srv.Export(at.key.Export, dk, "ironwarp "+at.key.String()); err != nil {
		return errors.Join(err, ln.Close())
	}
	sctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	if !at.up(s, dk, srv, stop, served) {
		stop()
		return errors.Join(errDetached(at.key), ln.Close())
	}
	go func() {
		defer close(served)
		if err := srv.Serve(sctx, ln); err != nil {
			at.log.Error("the NBD server has failed", "error", err)
			at.fail(&api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("the NBD socket of %s has failed: %v", at.key, err), Fix: "detach the disk and attach it again"})
		}
	}()
	close(at.ready)
	at.log.Info("disk is attached", "socket", at.socket, "bytes", dk.Geometry().Size)
	return nil
}

func errDetached(k disk) error {
	return &api.Error{Code: api.CodeNotFound, Message: k.String() + " has been detached meanwhile"}
}

func (d *Daemon) restoreError(k disk, err error) *api.Error {
	p, perr := d.findPeer(k.Peer)
	if perr != nil {
		return apiError(perr)
	}
	e := d.attachError(p, d.asRoot(), k, err, restoreTime)
	e.Fix += "\nThe daemon keeps trying; `ironwarp detach " + k.String() + "` ends that"
	return e
}

// attachError says why a disk cannot be attached.
func (d *Daemon) attachError(p *peer, who caller, k disk, err error, limit time.Duration) *api.Error {
	prefixed := func(e *api.Error) *api.Error {
		c := *e
		c.Message = fmt.Sprintf("cannot attach %s: %s", k, e.Message)
		return &c
	}
	if who.ended() {
		return prefixed(errChanged(who))
	}
	if e := short(who, err); e != nil {
		return prefixed(e)
	}
	var known *api.Error
	if errors.As(err, &known) {
		if known.Code == api.CodeUnavailable || known.Code == api.CodeInternal {
			known = discreet(who, p.cfg.Name, known)
		}
		return prefixed(known)
	}
	e := apiError(err)
	var refused *rtrs.RefusedError
	switch {
	case errors.Is(err, rnbd.ErrNotFound):
		e.Message = fmt.Sprintf("cannot attach %s: peer %s has no export of that name", k, k.Peer)
		e.Fix = fmt.Sprintf("`ironwarp ls %s` lists what it offers to this host", k.Peer)
	case errors.Is(err, rnbd.ErrForbidden):
		e.Message = fmt.Sprintf("cannot attach %s: peer %s does not allow it to this host", k, k.Peer)
		e.Fix = "its administrator has to name this host there: `ironwarp export set --allow THIS_HOST EXPORT`"
	case isRefusedDisk(err):
		return prefixed(refusedDisk(who, k, err))
	case errors.As(err, &refused):
		e.Code, e.Message = api.CodeUnavailable, fmt.Sprintf("cannot attach %s: %v", k, refused)
	case errors.Is(err, context.DeadlineExceeded):
		e.Message = fmt.Sprintf("cannot attach %s: peer %s at %s was not reached within %v", k, p.cfg.Name, p.cfg.AddrPort(), limit)
		e.Fix = "is the daemon running there, and does `ironwarp peer ls` there show this host?"
		if v := d.describePeer(p, streamCount{}); v.Problem != nil && who.all {
			e.Message += "\n" + v.Problem.Message
			e.Fix = cmp.Or(v.Problem.Fix, e.Fix)
		}
	default:
		return prefixed(discreet(who, p.cfg.Name, d.unreachable(p, err)))
	}
	return e
}

// detach ends an attachment and forgets it. While NBD clients are connected it
// takes force.
func (d *Daemon) detach(k disk, force bool) error {
	d.mu.Lock()
	at := d.disks[k]
	d.mu.Unlock()
	if at == nil {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("%s is not attached", k), Fix: "`ironwarp ls` lists what is"}
	}
	if n := at.clients(); n > 0 && !force {
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is in use: %d NBD clients are connected to %s", k, n, at.socket),
			Fix: "unmount it and end them first (nbd-client -d /dev/nbdX), or use --force: their I/O fails then"}
	}
	d.drop(at)
	if err := d.remember(); err != nil {
		e := *apiError(err)
		e.Message = fmt.Sprintf("%s is detached, but would come back with the next start of the daemon: %s", k, e.Message)
		e.Fix += "; the daemon keeps trying"
		return &e
	}
	return nil
}

// drop ends an attachment: NBD clients, the disk, the session if it was the
// last one.
func (d *Daemon) drop(at *attachment) {
	d.mu.Lock()
	if d.disks[at.key] == at {
		delete(d.disks, at.key)
	}
	d.mu.Unlock()
	d.end(at)
}

// undo is drop of an attachment that has not come up. An orphan that was in its place
// is there again.
func (d *Daemon) undo(at *attachment) {
	d.mu.Lock()
	if d.disks[at.key] == at && at.replaces != nil {
		d.disks[at.key] = at.replaces
	}
	d.mu.Unlock()
	d.drop(at)
}

// dropLater is drop that waits for nobody: NBD clients are told nothing more, and the
// rest is done in the background, until at.ended is closed.
func (d *Daemon) dropLater(list ...*attachment) {
	d.mu.Lock()
	for _, at := range list {
		if d.disks[at.key] == at {
			delete(d.disks, at.key)
		}
	}
	d.mu.Unlock()
	for _, at := range list {
		at.shut()
	}
	for _, at := range list {
		d.run(func(context.Context) { d.end(at) })
	}
}

// end is drop without forgetting.
func (d *Daemon) end(at *attachment) {
	at.dropping.Do(func() {
		defer close(at.ended)
		at.cancel()
		close(at.gone)
		at.mu.Lock()
		dk, stop, served, before := at.disk, at.stop, at.served, at.before
		at.mu.Unlock()
		if before != nil {
			<-before.ended
		}
		if dk == nil {
			return
		}
		stop()
		<-served
		at.setClaim(dk.Claim())
		if err := dk.Close(); err != nil {
			at.log.Warn("closing a remote disk", "error", err)
		}
		d.leaveSession(at.session)
		at.log.Info("the NBD socket of a disk is closed")
	})
}

// closeAttachments ends all at the daemon's end; they come back with the next
// start. What is attached is known once the daemon was up.
func (d *Daemon) closeAttachments(up bool) {
	var wg sync.WaitGroup
	for _, at := range d.attachmentList() {
		wg.Go(func() { d.end(at) })
	}
	wg.Wait()
	if !up {
		return
	}
	// What has nothing to flush may go on with whatever life its disk has then.
	if err := d.remember(); err != nil {
		d.log.Warn("which disks have nothing to flush was not written down", "error", err)
	}
}

// rememberOrLog is remember where nobody is to be told but the log.
func (d *Daemon) rememberOrLog() {
	if err := d.remember(); err != nil {
		d.log.Error("cannot write down which disks are attached; the daemon keeps trying", "error", err)
	}
}

// remember writes down what is attached. What cannot be written is tried again
// by supervise.
func (d *Daemon) remember() error {
	d.saving.Lock()
	defer d.saving.Unlock()
	var s state
	for _, at := range d.attachmentList() {
		s.Attachments = append(s.Attachments, at.saved())
	}
	d.mu.Lock()
	for _, a := range d.aside {
		s.Attachments = append(s.Attachments, a.now())
	}
	d.mu.Unlock()
	dir := d.config().StateDir
	err := s.save(dir)
	d.unsaved.Store(err != nil)
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot write down which disks are attached: %v", err),
			Fix: fmt.Sprintf("make room in %s, or repair what the error says", dir)}
	}
	return nil
}
