package attach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/transport"
)

// RestoreSaved brings back the disks that an earlier daemon has saved.
func (a *Attacher) RestoreSaved(list []Saved) {
	a.saving.Lock() // until all are there
	defer a.saving.Unlock()
	for _, s := range list {
		a.suspended[s.Disk] = suspended{Saved: s} // unlocked: nobody else is there yet
	}
	a.Resume()
	a.dropClients()
}

// Suspend ends disks until Resume: their peer has other endpoints, or their ULP is replaced. It
// does not wait, and until then they are saved with the others.
func (a *Attacher) Suspend(list ...*Attachment) {
	a.mu.Lock()
	for _, at := range list {
		if a.disks[at.Key] == at {
			a.suspended[at.Key] = suspended{Saved: at.saved(), before: at}
		}
	}
	a.mu.Unlock()
	a.endInBackground(list...)
}

// Resume brings back what was suspended, but for disks of a ULP that is disabled.
func (a *Attacher) Resume() {
	a.mu.Lock()
	waiting := slices.SortedFunc(maps.Values(a.suspended), func(x, y suspended) int { return x.compare(y.Disk) })
	a.mu.Unlock()
	for _, w := range waiting {
		if w.moving || a.restore(w.Saved, w.before) {
			continue
		}
		a.mu.Lock()
		delete(a.suspended, w.Disk)
		a.mu.Unlock()
	}
}

// restore brings a remembered disk up in the background, however long it takes. One
// whose peer is not there, or is another one by now, stays down, and says so; so does one
// that is more than its ULP may have.
// before, if any, is the attachment of it that has to end first. It reports whether the
// disk has to wait for another time.
func (a *Attacher) restore(s Saved, before *Attachment) (waits bool) {
	c := a.cfg.Users.Hold(s.ULP)
	if c == nil {
		if u, ok := a.cfg.Config().ULP(s.ULP); ok && u.Disabled != nil {
			return true
		}
		a.logOf(s.Disk).Warn("a remembered disk is forgotten: its ULP is not configured any more")
		return false
	}
	identity, problem := a.peerProblem(s)
	ctx, cancel := context.WithCancel(a.cfg.Context)
	release := func() {
		cancel()
		c.Requests.Done()
	}
	at, created, err := a.findOrAdd(ctx, local.Caller{Consumer: c, UID: s.UID, Privileged: s.ULP == "" || c.Declared().Privileged}, s.Disk, frontEnd{s.Device, s.VhostUser}, place{s.Partition, s.Label}, identity, cancel, &suspended{Saved: s, before: before})
	if err != nil || !created {
		release()
		if err != nil {
			a.logOf(s.Disk).Error("cannot bring a remembered disk up", "error", err)
		}
		return a.cfg.Context.Err() != nil // then it is for the next start
	}
	if problem == nil {
		problem = at.orphanReason()
	}
	if problem != nil {
		release()
		at.noteProblem(problem, true)
		at.log.Warn("a remembered disk stays down", "error", problem)
		return false
	}
	a.cfg.Run(func(context.Context) {
		defer release()
		if before != nil {
			<-before.ended
		}
		defer at.releaseDevice()
		for pause := restoreMin; ; pause = min(2*pause, restoreMax) {
			a.holdDevice(at)
			actx, acancel := context.WithTimeout(ctx, restoreTime)
			err := a.bringUp(actx, at)
			acancel()
			if err == nil || ctx.Err() != nil {
				return
			}
			at.noteProblem(a.restoreError(at.Key, err), false)
			at.log.Warn("a remembered disk does not come up yet", "error", err, "next_try_in", pause)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
	return false
}

// peerProblem says why a remembered disk's peer is not there, nil if it is, and which one it is
// remembered from.
func (a *Attacher) peerProblem(s Saved) (transport.Identity, *api.Error) {
	p, err := a.cfg.Peer(s.Peer)
	switch {
	case err != nil:
		return s.Identity, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("%s stays down: peer %s is not configured any more", s.Disk, s.Peer),
			Fix: fmt.Sprintf("`ironwarp detach %s` forgets the disk; it comes back by itself when the same peer is declared again", s.Disk)}
	case s.Identity != "" && s.Identity != p.Identity():
		return s.Identity, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s stays down: it was attached from the peer with the identity %s, and %s is %s now", s.Disk, s.Identity, s.Peer, p.Identity()),
			Fix: fmt.Sprintf("if it is the same disk, `ironwarp attach %s` attaches it from there; `ironwarp detach %s` forgets it", s.Disk, s.Disk)}
	}
	return p.Identity(), nil
}

// RestoreOrphans looks at the disks that wait for their ULP, or stay down, after a change of the
// configuration.
func (a *Attacher) RestoreOrphans() {
	for _, at := range a.List((*Attachment).isOrphan) {
		if _, problem := a.peerProblem(at.saved()); problem != nil {
			at.noteProblem(problem, true)
		} else {
			a.Suspend(at)
		}
	}
	a.Resume()
}

// AwaitDevices waits a while for the block devices of restored disks: those that are not there by then
// come later.
func (a *Attacher) AwaitDevices(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deviceTime)
	defer cancel()
	defer context.AfterFunc(a.cfg.Context, cancel)()
	for _, at := range a.List(func(at *Attachment) bool { return at.device != "" && !at.isOrphan() }) {
		select {
		case <-at.ready:
		case <-at.gone:
		case <-ctx.Done():
			at.log.Warn("the daemon begins without a block device, whose disk is not there yet", "device", at.device)
		}
	}
}

// AwaitEnded waits until disks have ended that were dropped or suspended.
func AwaitEnded(list []*Attachment) {
	for _, at := range list {
		<-at.ended
	}
}

func (at *Attachment) isOrphan() bool { return at.orphanReason() != nil }

// orphanReason says why an attachment stays down, nil if it does not.
func (at *Attachment) orphanReason() *api.Error {
	at.mu.Lock()
	defer at.mu.Unlock()
	if !at.orphan {
		return nil
	}
	return at.problem
}
