package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/verbs"
)

// consumer is on whose account a request is served and a disk attached: root, or a
// ULP that the configuration names (RFC 5042 section 2.1.3). What one has, another
// that is not privileged neither sees nor touches.
type consumer struct {
	name  string // "": root
	gate  *local.Gate
	rdma  *verbs.ULP      // of root: nil, the services' are taken
	large *nbd.LargeReads // of its disks

	requests sync.WaitGroup // and what else needs rdma
	closing  sync.WaitGroup // sessions that were cut off

	// Guarded by Daemon.mu.
	cfg      config.ULP
	sessions map[string]*session // by peer

	// current ends when what the ULP may, or who it is, has changed.
	current context.Context
	change  context.CancelFunc
}

// locals are all local consumers.
type locals struct {
	root      *consumer
	strangers *local.Gate
	pings     local.Turns

	ulps map[string]*consumer // guarded by Daemon.mu
}

func newLocals() locals {
	root := &consumer{gate: local.RootGate(), sessions: map[string]*session{}}
	return locals{root: root, strangers: local.StrangersGate(), ulps: map[string]*consumer{}}
}

// caller is the user of a consumer who makes a request.
type caller struct {
	*consumer
	uid uint32
	all bool // may do everything
	// made ends when what the caller may, or who it is, has changed since the request.
	made context.Context
}

// ended reports whether the caller may have lost its rights meanwhile.
func (w caller) ended() bool { return w.made != nil && w.made.Err() != nil }

func errChanged(who caller) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the configuration of ULP %s has changed meanwhile", who.name), Fix: "try again"}
}

type callerKey struct{}

// callerOf is who makes a request.
func callerOf(ctx context.Context) caller { return ctx.Value(callerKey{}).(caller) }

// asRoot is the caller that the daemon itself is.
func (d *Daemon) asRoot() caller { return caller{consumer: d.local.root, all: true} }

// whoIs finds on whose account a user's requests are served; false: nobody's.
func (d *Daemon) whoIs(u local.User) (caller, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.identify(u)
}

// admit is whoIs for a request, which ends with who.requests.Done.
func (d *Daemon) admit(u local.User) (who caller, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if who, ok = d.identify(u); ok {
		who.requests.Add(1)
	}
	return who, ok
}

// hold keeps a consumer from being closed until requests.Done, for work that is no
// request. It is nil if there is none of that name.
func (d *Daemon) hold(name string) *consumer {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.local.root
	if name != "" {
		c = d.local.ulps[name]
	}
	if c != nil {
		c.requests.Add(1)
	}
	return c
}

// identify is whoIs with d.mu held.
func (d *Daemon) identify(u local.User) (caller, bool) {
	if u.IsRoot() {
		return d.asRoot(), true
	}
	if cfg, ok := d.cfg.ULPOf(u.UID, u.GIDs); ok {
		// It may be on its way out or in.
		c := d.local.ulps[cfg.Name]
		if c == nil {
			return caller{}, false
		}
		return caller{c, u.UID, cfg.Privileged, c.current}, true
	}
	return d.unknown()
}

// rdmaFor is the RNIC's consumer that a caller's disks are charged to, and probeFor
// that of its pings.
func (d *Daemon) rdmaFor(c *consumer) *verbs.ULP { return cmp.Or(c.rdma, d.ulps.client) }

func (d *Daemon) probeFor(c *consumer) *verbs.ULP { return cmp.Or(c.rdma, d.ulps.probe) }

// mayUse says no to a caller who may not know of a peer.
func (d *Daemon) mayUse(who caller, peer string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if who.mayUseLocked(peer) {
		return nil
	}
	return &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("ULP %s may not use peer %q", who.name, peer),
		Fix: "`ironwarp ulp ls` shows what it may; root changes that under ulps: in the daemon's configuration"}
}

// mayAttach says no to a caller who may not attach a disk. d.mu is held.
func mayAttach(who caller, k disk) error {
	if who.mayAttachLocked(k) {
		return nil
	}
	return &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("ULP %s may not attach %s", who.name, k),
		Fix: "`ironwarp ulp ls` shows what it may; root changes that under ulps: in the daemon's configuration"}
}

// isPrivileged reports whether a ULP may do all that root may.
func (d *Daemon) isPrivileged(c *consumer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.cfg.Privileged
}

// trustFor is the trust model of a consumer's sessions.
func (d *Daemon) trustFor(c *consumer) verbs.TrustModel {
	if c.rdma != nil {
		return c.rdma.Trust()
	}
	return d.config().ServiceTrust(config.ServiceAttachments).Model()
}

// discreet is what a caller is told of an error: why a peer can't be reached is the
// host's affair.
func discreet(who caller, peer string, e *api.Error) *api.Error {
	if who.all {
		return e
	}
	return &api.Error{Code: e.Code, Message: fmt.Sprintf("peer %s is not reached now", peer), Fix: "root of this host sees why with `ironwarp status`"}
}

// short says that a caller's quota, or the device, is exhausted; nil if err is of
// something else.
func short(who caller, err error) *api.Error {
	var q *verbs.QuotaError
	if who.all || !errors.As(err, &q) {
		return nil
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the RNIC is short of %s", q.Resource), Fix: "try again later"}
	if q.Principal == "ULP "+who.name {
		e.Message = fmt.Sprintf("ULP %s has %d of the %d %s that it may have, and would need %d more", who.name, q.Used, q.Limit, q.Resource, q.Want)
		e.Fix = "detach what is not needed: `ironwarp ls` shows it"
	}
	return e
}
