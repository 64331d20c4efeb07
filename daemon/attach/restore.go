package attach

import (
	"context"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/transport"
)

// Begin brings back what was written down.
func (a *Attacher) Begin(list []Saved) {
	a.saving.Lock() // until all are there
	defer a.saving.Unlock()
	for _, s := range list {
		a.restore(s, nil)
	}
}

// Suspend ends the disks that a condition names, until Resume: their peer has other ends, or
// their ULP is replaced. It does not wait.
func (a *Attacher) Suspend(which func(*Attachment) bool) []*Attachment {
	list := a.List(which)
	a.Drop(list...)
	return list
}

// Resume brings suspended disks back.
func (a *Attacher) Resume(list []*Attachment) {
	for _, at := range list {
		a.restore(at.saved(), at)
	}
}

// Await waits until disks have ended that were dropped or suspended.
func Await(list []*Attachment) {
	for _, at := range list {
		<-at.ended
	}
}

// restore brings a remembered disk up in the background, however long it takes. One
// whose peer is not there, or is another one by now, stays down, and says so; so does one
// that is more than its ULP may have.
// before, if any, is the attachment of it that has to end first.
func (a *Attacher) restore(s Saved, before *Attachment) {
	c := a.cfg.Users.Hold(s.ULP)
	if c == nil {
		if u, ok := a.cfg.Config().ULP(s.ULP); ok && u.Disabled != nil {
			a.mu.Lock()
			a.aside = append(a.aside, aside{s, before})
			a.mu.Unlock()
			return
		}
		a.logOf(s.Disk).Warn("a remembered disk is forgotten: its ULP is not configured any more")
		return
	}
	identity, problem := a.missing(s)
	ctx, cancel := context.WithCancel(a.cfg.Context)
	release := func() {
		cancel()
		c.Requests.Done()
	}
	at, created, err := a.claim(ctx, local.Caller{Consumer: c, UID: s.UID, All: s.ULP == "" || c.Declared().Privileged}, s.Disk, identity, cancel, true)
	if err != nil || !created {
		release()
		if err != nil {
			a.logOf(s.Disk).Error("cannot bring a remembered disk up", "error", err)
		}
		return
	}
	at.follow(s.Claim, before)
	if problem == nil {
		problem = at.whyOrphan()
	}
	if problem != nil {
		release()
		at.stay(problem, true)
		at.log.Warn("a remembered disk stays down", "error", problem)
		return
	}
	a.cfg.Run(func(context.Context) {
		defer release()
		if before != nil {
			<-before.ended
		}
		for pause := restoreMin; ; pause = min(2*pause, restoreMax) {
			actx, acancel := context.WithTimeout(ctx, restoreTime)
			err := a.bring(actx, at)
			acancel()
			if err == nil || ctx.Err() != nil {
				return
			}
			at.stay(a.restoreError(at.Key, err), false)
			at.log.Warn("a remembered disk does not come up yet", "error", err, "next_try_in", pause)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
}

// missing says why a remembered disk's peer is not there, nil if it is, and which one it is
// remembered from.
func (a *Attacher) missing(s Saved) (transport.Identity, *api.Error) {
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

// Adopt looks at the disks that wait for their ULP, or stay down, after a change of the
// configuration.
func (a *Attacher) Adopt() {
	a.mu.Lock()
	waiting := a.aside
	a.aside = nil
	a.mu.Unlock()
	for _, w := range waiting {
		a.restore(w.Saved, w.before)
	}
	for _, at := range a.List((*Attachment).isOrphan) {
		if _, problem := a.missing(at.saved()); problem != nil {
			at.stay(problem, true)
			continue
		}
		a.Drop(at)
		a.restore(at.saved(), at)
	}
}

func (at *Attachment) isOrphan() bool { return at.whyOrphan() != nil }

// whyOrphan says why an attachment stays down, nil if it does not.
func (at *Attachment) whyOrphan() *api.Error {
	at.mu.Lock()
	defer at.mu.Unlock()
	if !at.orphan {
		return nil
	}
	return at.problem
}
