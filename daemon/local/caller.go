package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/verbs"
)

// Caller is the user of a consumer who makes a request.
type Caller struct {
	*Consumer
	UID        uint32
	Privileged bool   // may do everything
	Label      string // see User
	// Rights ends when the rights of the caller, or its account, have changed since the request.
	Rights context.Context
}

// RightsChanged reports whether the caller may have lost its rights meanwhile.
func (who Caller) RightsChanged() bool { return who.Rights != nil && who.Rights.Err() != nil }

// ErrRightsChanged is the error for a caller whose rights may have changed.
func (who Caller) ErrRightsChanged() *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the configuration of ULP %s has changed meanwhile", who.Name), Fix: "try again"}
}

// MayUse fails for a caller who may not know of a peer.
func (who Caller) MayUse(peer string) error {
	if who.mayUse(peer) {
		return nil
	}
	return who.forbidden(fmt.Sprintf("use peer %q", peer))
}

// MayAttach fails for a caller who may not attach a peer's export.
func (who Caller) MayAttach(peer, export string) error {
	if who.mayAttach(peer, export) {
		return nil
	}
	return who.forbidden("attach " + peer + "/" + export)
}

func (who Caller) forbidden(what string) error {
	return &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("ULP %s may not %s", who.Name, what),
		Fix: "`ironwarp ulp ls` shows what it may; root changes that with `ironwarp ulp set`"}
}

// Redact returns an error as the caller may see it: only root sees why a peer cannot be reached.
func (who Caller) Redact(peer string, e *api.Error) *api.Error {
	if who.Privileged {
		return e
	}
	return &api.Error{Code: e.Code, Message: fmt.Sprintf("peer %s is not reached now", peer), Fix: "root of this host sees why with `ironwarp status`"}
}

// QuotaProblem reports that a caller's quota, or the device, is exhausted; nil if err is about
// something else.
func (who Caller) QuotaProblem(err error) *api.Error {
	var q *verbs.QuotaError
	if who.Privileged || !errors.As(err, &q) {
		return nil
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the RNIC is short of %s", q.Resource), Fix: "try again later"}
	if q.Principal == "ULP "+who.Name {
		e.Message = fmt.Sprintf("ULP %s has %d of the %d %s that it may have, and would need %d more", who.Name, q.Used, q.Limit, q.Resource, q.Want)
		e.Fix = "detach what is not needed: `ironwarp ls` shows it"
	}
	return e
}
