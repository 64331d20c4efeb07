package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
)

func errDetached(k Disk) error {
	return &api.Error{Code: api.CodeNotFound, Message: k.String() + " has been detached meanwhile"}
}

// ErrPeerChanged is the error for those who wait for a peer that has been declared with other endpoints
// meanwhile.
func ErrPeerChanged(peer string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s has changed meanwhile", peer), Fix: "try again"}
}

// codeOf returns the code for an error that is no *api.Error.
func codeOf(err error) string {
	switch {
	case errors.Is(err, rnbd.ErrNotFound):
		return api.CodeNotFound
	case errors.Is(err, rnbd.ErrForbidden):
		return api.CodeForbidden
	case errors.Is(err, context.DeadlineExceeded):
		return api.CodeTimeout
	}
	return api.CodeInternal
}

// restoreError is failure for a disk that nobody waits for.
func (a *Attacher) restoreError(k Disk, err error) *api.Error {
	p, perr := a.cfg.Peer(k.Peer)
	if perr != nil {
		var e *api.Error
		errors.As(perr, &e)
		return e
	}
	e := a.failure(p, a.cfg.Users.AsRoot(), k, err, restoreTime)
	e.Fix += "\nThe daemon keeps trying; `ironwarp detach " + k.String() + "` ends that"
	return e
}

// failure explains why a disk cannot be attached.
func (a *Attacher) failure(p Peer, who local.Caller, k Disk, err error, limit time.Duration) *api.Error {
	prefixed := func(e *api.Error) *api.Error {
		c := *e
		c.Message = fmt.Sprintf("cannot attach %s: %s", k, e.Message)
		return &c
	}
	if who.RightsChanged() {
		return prefixed(who.ErrRightsChanged())
	}
	if e := who.QuotaProblem(err); e != nil {
		return prefixed(e)
	}
	var known *api.Error
	if errors.As(err, &known) {
		if known.Code == api.CodeUnavailable || known.Code == api.CodeInternal {
			known = who.Redact(k.Peer, known)
		}
		return prefixed(known)
	}
	e := &api.Error{Code: codeOf(err)}
	var refused *rtrs.RefusedError
	switch {
	case errors.Is(err, rnbd.ErrNotFound):
		e.Message = fmt.Sprintf("cannot attach %s: peer %s has no export of that name", k, k.Peer)
		e.Fix = fmt.Sprintf("`ironwarp ls %s` lists what it offers to this host", k.Peer)
	case errors.Is(err, rnbd.ErrForbidden):
		e.Message = fmt.Sprintf("cannot attach %s: peer %s does not allow it to this host", k, k.Peer)
		e.Fix = "its administrator has to name this host there: `ironwarp export set --allow THIS_HOST EXPORT`"
	case refusedDisk(who, k, err) != nil:
		return prefixed(refusedDisk(who, k, err))
	case errors.As(err, &refused):
		e.Code, e.Message = api.CodeUnavailable, fmt.Sprintf("cannot attach %s: %v", k, refused)
	case errors.Is(err, context.DeadlineExceeded):
		e.Message = fmt.Sprintf("cannot attach %s: peer %s at %s was not reached within %v", k, k.Peer, p.Declared().AddrPort(), limit)
		e.Fix = "is the daemon running there, and does `ironwarp peer ls` there show this host?"
		if _, problem := a.cfg.Health(p); problem != nil && who.Privileged {
			e.Message += "\n" + problem.Message
			e.Fix = cmp.Or(problem.Fix, e.Fix)
		}
	default:
		return prefixed(who.Redact(k.Peer, p.Unreachable(err)))
	}
	return e
}

// refusedDisks are the reasons for which a peer that is reached, and offers an export to
// this host, does not let it be opened, with what to do.
var refusedDisks = []struct {
	err  error
	code string
	fix  string // of the disk's name
}{
	{rnbd.ErrNotReady, api.CodeUnavailable, "see to the export there; %s is opened as soon as it is ready"},
	{rnbd.ErrInUse, api.CodeInUse, "detach it where it is attached, or have it exported with --writers shared if all writers know of each other, as those of a cluster's file system do; with --writers migration and `ironwarp attach --migration` a virtual machine moves"},
	{rnbd.ErrOtherDisk, api.CodeInvalid, "if it is meant: `ironwarp detach --force %[1]s`, then `ironwarp attach %[1]s`"},
	{rnbd.ErrDamaged, api.CodeUnavailable, "its administrator sees why with `ironwarp status` there"},
	{rnbd.ErrPreempted, api.CodeInUse, "unmount what is on it, `ironwarp detach --force %[1]s`, `ironwarp attach %[1]s`, and check the file system before it is mounted"},
	{rnbd.ErrFenced, api.CodeForbidden, "unmount what is on it, `ironwarp detach --force %[1]s`; if this host may write to it again, `ironwarp attach %[1]s`, and check the file system before it is mounted"},
	{rnbd.ErrWritesLost, api.CodeUnavailable, "unmount what is on it, `ironwarp detach --force %[1]s`, `ironwarp attach %[1]s`, and check the file system before it is mounted"},
}

// refusedDisk explains why a disk is not opened; nil for another error. Only root learns who else has
// it.
func refusedDisk(who local.Caller, k Disk, err error) *api.Error {
	for _, r := range refusedDisks {
		if !errors.Is(err, r.err) {
			continue
		}
		e := &api.Error{Code: r.code, Message: err.Error(), Fix: r.fix}
		var o *rnbd.OpenError
		if !who.Privileged && errors.As(err, &o) {
			e.Message = (&rnbd.OpenError{Export: o.Export, Detail: "not told", Err: o.Err}).Error()
		}
		if r.err != rnbd.ErrInUse && r.err != rnbd.ErrDamaged {
			e.Fix = fmt.Sprintf(r.fix, k)
		}
		return e
	}
	return nil
}
