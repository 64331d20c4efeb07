package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd"
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
	limit, err := api.Seconds(req.TimeoutSeconds, defaultAttachTime, maxAttachTime)
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
	at, created, err := d.claim(ctx, who, disk{who.name, req.Peer, req.Export}, p.identity, cancel, false)
	if err != nil {
		return api.Attachment{}, err
	}
	done := make(chan struct{})
	defer close(done)
	go d.narrate(p, who, emit, done)
	if created {
		err = d.bringPatiently(ctx, at) // which has written it down
	} else {
		err = d.await(ctx, at)
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

// claim enters an attachment, or finds the one that is there. One that is remembered and
// more than its ULP may have is an orphan, others like that are refused.
func (d *Daemon) claim(ctx context.Context, who caller, k disk, identity transport.Identity, cancel context.CancelFunc, remembered bool) (at *attachment, created bool, err error) {
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
	full := d.fullLocked(who, k)
	if full != nil && !remembered {
		return nil, false, full
	}
	orphan := d.disks[k]
	at = &attachment{key: k, owner: who.consumer, uid: who.uid, identity: identity, log: d.logOf(k), socket: socket, cancel: cancel, since: time.Now(), replaces: orphan, ready: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{})}
	at.full, at.problem, at.orphan = full, full, full != nil
	d.disks[k] = at
	return at, true, nil
}

// fullLocked says that a ULP may attach no more disks, nil if it may.
func (d *Daemon) fullLocked(who caller, k disk) *api.Error {
	if who.mayHave(len(d.disks)) {
		return nil
	}
	n := 0
	for _, other := range d.disks {
		if other.owner == who.consumer && !other.isOrphan() {
			n++
		}
	}
	if who.mayHave(n) {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot attach %s: ULP %s has %d disks attached, and may have no more", k, who.name, n),
		Fix: fmt.Sprintf("detach another, or ask root to raise attachments: in the ULP's limits; then `ironwarp attach %s`", k)}
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

// bringPatiently is bring, again for as long as strongSwan cannot be reached: the daemon goes
// on trying that, so it may pass.
func (d *Daemon) bringPatiently(ctx context.Context, at *attachment) error {
	for {
		err := d.bring(ctx, at)
		if err == nil || !errors.Is(err, ipsec.ErrNotConnected) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(restoreMin):
		}
	}
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
