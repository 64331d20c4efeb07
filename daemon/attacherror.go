package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
)

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
