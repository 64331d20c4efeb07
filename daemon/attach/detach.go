package attach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
)

// Detach ends an attachment and forgets it. While NBD clients are connected that needs force. It fails
// with an *api.Error, also where the disk is detached and that could not be saved.
func (a *Attacher) Detach(k Disk, force bool) error {
	a.mu.Lock()
	at := a.disks[k]
	a.mu.Unlock()
	if at == nil {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("%s is not attached", k), Fix: "`ironwarp ls` lists what is"}
	}
	if at.device != "" && !force {
		use, err := a.cfg.Devices.Claim(a.cfg.Context, at.device)
		if err != nil {
			return err
		}
		defer use.Close() // when the device has ended: nobody mounts it meanwhile
	} else if st, _ := at.stats(); st.Clients > 0 && !force {
		if at.vhost != "" {
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is in use: a virtual machine is connected to %s", k, at.socket),
				Fix: "shut it down first, or use --force: its I/O fails or hangs then"}
		}
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s is in use: %d NBD clients are connected to %s", k, st.Clients, at.socket),
			Fix: "unmount it and end them first (nbd-client -d /dev/nbdX), or use --force: their I/O fails then"}
	}
	a.detach(at)
	if err := a.save(); err != nil {
		err.Message = fmt.Sprintf("%s is detached, but would come back with the next start of the daemon: %s", k, err.Message)
		err.Fix += "; the daemon keeps trying"
		return err
	}
	return nil
}

// detach ends an attachment: NBD clients, the disk, the session if it was the
// last one.
func (a *Attacher) detach(at *Attachment) {
	at.isDetached.Store(true)
	a.forget(at)
	a.end(at)
}

func (a *Attacher) forget(list ...*Attachment) {
	defer a.dropClients()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range list {
		if a.disks[at.Key] == at {
			delete(a.disks, at.Key)
		}
	}
}

// dropClients disconnects the clients of the daemon before this one whose disk is not attached any more.
func (a *Attacher) dropClients() {
	a.cfg.Clients.DropIf(func(disk string) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		has := func(k Disk) bool { return clientsOf(k) == disk }
		return !slices.ContainsFunc(slices.Collect(maps.Keys(a.disks)), has) && !slices.ContainsFunc(slices.Collect(maps.Keys(a.suspended)), has)
	})
}

// rollBack ends an attachment that has not come up. An orphan that was in its place is there
// again, and its block device, which is not the attachment's, stays.
func (a *Attacher) rollBack(at *Attachment) {
	a.mu.Lock()
	if a.disks[at.Key] == at && at.replaces != nil {
		a.disks[at.Key] = at.replaces
	}
	a.mu.Unlock()
	a.forget(at)
	a.end(at)
}

// DetachInBackground detaches disks without waiting: their NBD clients get no more answers at once, and
// the rest is done in the background; see AwaitEnded.
func (a *Attacher) DetachInBackground(list ...*Attachment) {
	for _, at := range list {
		at.isDetached.Store(true)
	}
	a.endInBackground(list...)
}

// endInBackground is DetachInBackground for disks that come back: the I/O of block devices waits until
// then.
func (a *Attacher) endInBackground(list ...*Attachment) {
	a.forget(list...)
	for _, at := range list {
		at.stopServing()
	}
	for _, at := range list {
		a.cfg.Run(func(context.Context) { a.end(at) })
	}
}

// ApplyULP applies a different declaration of a ULP: disks that it may not attach any more are
// detached, and of others the NBD clients of users who are not of it any more end.
func (a *Attacher) ApplyULP(c *local.Consumer) {
	u := c.Declared()
	for _, at := range a.List(Of(c)) {
		if u.MayAttach(at.Key.Peer, at.Key.Export) {
			at.closeForbiddenClients()
			continue
		}
		a.log.Info("a disk that its ULP may not attach any more is detached", "ulp", c.Name, "disk", at.Key.String())
		a.DetachInBackground(at)
	}
}

// end ends an attachment once, and waits for that. It does not forget it.
func (a *Attacher) end(at *Attachment) {
	at.endOnce.Do(func() {
		defer close(at.ended)
		at.cancel()
		close(at.gone)
		at.mu.Lock()
		dk, s, stop, served, before := at.disk, at.session, at.stop, at.served, at.predecessor
		at.mu.Unlock()
		if before != nil {
			<-before.ended
		}
		if at.device != "" && at.isDetached.Load() {
			a.removeDevice(at)
		}
		if dk == nil {
			return
		}
		stop()
		select {
		case <-served:
		case <-time.After(servedTime):
			at.log.Error("a client of the disk holds up its server, by a descriptor that it passed and that is not closed: the disk is closed without it")
		}
		at.continueFrom(dk.Claim(), nil)
		if err := dk.Close(); err != nil {
			at.log.Warn("closing a remote disk", "error", err)
		}
		a.leaveSession(s)
		if at.device != "" {
			at.log.Info("a block device is not served any more")
		} else {
			at.log.Info("the NBD socket of a disk is closed")
		}
	})
}

// Close ends all disks when the daemon ends; the next start restores them. Only a daemon that was up
// knows which disks are attached, and saves them.
func (a *Attacher) Close(up bool) {
	a.closing.Store(true)
	var wg sync.WaitGroup
	for _, at := range a.List(nil) {
		wg.Go(func() { a.end(at) })
	}
	wg.Wait()
	a.cfg.Clients.Close()
	if !up {
		return
	}
	// What has nothing to flush may go on with whatever life its disk has then.
	if err := a.save(); err != nil {
		a.log.Warn("which disks have nothing to flush was not written down", "error", err)
	}
}
