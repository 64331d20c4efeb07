package daemon

import (
	"context"
	"fmt"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
)

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
