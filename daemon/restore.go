package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// restore brings a remembered disk up in the background, however long it takes. One
// whose peer is not there, or is another one by now, stays down, and says so; so does one
// that is more than its ULP may have.
// before, if any, is the attachment of it that has to end first.
func (d *Daemon) restore(s saved, before *attachment) {
	c := d.hold(s.ULP)
	if c == nil {
		if u, ok := d.config().ULP(s.ULP); ok && u.Disabled != nil {
			d.mu.Lock()
			d.aside = append(d.aside, aside{s, before})
			d.mu.Unlock()
			return
		}
		d.logOf(s.disk).Warn("a remembered disk is forgotten: its ULP is not configured any more")
		return
	}
	problem := d.missing(s)
	if s.Identity == "" && problem == nil {
		if p, err := d.findPeer(s.Peer); err == nil {
			s.Identity = p.identity
		}
	}
	ctx, cancel := context.WithCancel(d.ctx)
	at, created, err := d.claim(ctx, caller{consumer: c, uid: s.UID, all: s.ULP == "" || d.isPrivileged(c)}, s.disk, s.Identity, cancel, true)
	if err != nil || !created {
		cancel()
		c.requests.Done()
		if err != nil {
			d.logOf(s.disk).Error("cannot bring a remembered disk up", "error", err)
		}
		return
	}
	at.follow(s.Claim, before)
	if problem == nil {
		problem = at.whyOrphan()
	}
	if problem != nil {
		cancel()
		c.requests.Done()
		at.orphaned(problem)
		at.log.Warn("a remembered disk stays down", "error", problem)
		return
	}
	d.run(func(context.Context) {
		defer c.requests.Done()
		defer cancel()
		if before != nil {
			<-before.ended
		}
		for pause := restoreMin; ; pause = min(2*pause, restoreMax) {
			actx, acancel := context.WithTimeout(ctx, restoreTime)
			err := d.bring(actx, at)
			acancel()
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				return
			}
			at.fail(d.restoreError(at.key, err))
			at.log.Warn("a remembered disk does not come up yet", "error", err, "next_try_in", pause)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
}

// missing says why a remembered disk's peer is not there, nil if it is.
func (d *Daemon) missing(s saved) *api.Error {
	p, err := d.findPeer(s.Peer)
	switch {
	case err != nil:
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("%s stays down: peer %s is not configured any more", s.disk, s.Peer),
			Fix: fmt.Sprintf("`ironwarp detach %s` forgets the disk; it comes back by itself when the same peer is declared again", s.disk)}
	case s.Identity != "" && s.Identity != p.identity:
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s stays down: it was attached from the peer with the identity %s, and %s is %s now", s.disk, s.Identity, s.Peer, p.identity),
			Fix: fmt.Sprintf("if it is the same disk, `ironwarp attach %s` attaches it from there; `ironwarp detach %s` forgets it", s.disk, s.disk)}
	}
	return nil
}

// adopt looks at the disks that stay down, after a change of the configuration.
// changing is held.
func (d *Daemon) adopt() {
	for _, at := range d.attachmentList() {
		if !at.isOrphan() {
			continue
		}
		s := at.saved()
		if problem := d.missing(s); problem != nil {
			at.orphaned(problem)
			continue
		}
		d.dropLater(at)
		d.restore(s, at)
	}
}

func (at *attachment) isOrphan() bool { return at.whyOrphan() != nil }

// whyOrphan says why an attachment stays down, nil if it does not.
func (at *attachment) whyOrphan() *api.Error {
	at.mu.Lock()
	defer at.mu.Unlock()
	if !at.orphan {
		return nil
	}
	return at.problem
}

// orphaned notes that an attachment stays down, and why.
func (at *attachment) orphaned(why *api.Error) {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.orphan, at.problem = true, why
}
