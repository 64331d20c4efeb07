package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/transport"
)

// peerPath is a further path of the sessions with a peer: the peer at another pair of addresses.
type peerPath struct {
	of      *peer
	path    config.Path
	carrier *carrier.Choice

	// lifetime ends when the path is removed, or declared with other addresses.
	lifetime context.Context
	cancel   context.CancelFunc

	isUp    bool       // it was set up once; guarded by peer.mu
	problem *api.Error // why the last attempt to set it up failed; guarded by peer.mu
}

// Declared is the peer as the path reaches it.
func (w *peerPath) Declared() config.Peer { return w.of.cfg.ViaPath(w.path) }

// Lifetime ends with the path.
func (w *peerPath) Lifetime() context.Context { return w.lifetime }

// Carrier is what its streams are carried by.
func (w *peerPath) Carrier() *carrier.Choice { return w.carrier }

// Protected is what protects its streams, and the address of this host that they come from.
// It fails with an *api.Error while the path is not set up.
func (w *peerPath) Protected() (transport.Protector, netip.Addr, error) {
	w.of.mu.Lock()
	protector, up, problem := w.of.protector, w.isUp, w.problem
	w.of.mu.Unlock()
	switch {
	case protector != nil && up:
		return protector, w.path.LocalAddress, nil
	case problem != nil:
		return nil, w.path.LocalAddress, problem
	}
	return nil, w.path.LocalAddress, notYet(w.of.cfg.Name)
}

// checkLocalAddr fails if this host does not have the path's address.
func (w *peerPath) checkLocalAddr() error {
	if listen.IsHere(w.path.LocalAddress) {
		return nil
	}
	return noAddress(w.path.LocalAddress, w.of.cfg.Name)
}

// Problem is why the path could not be set up, nil if it could.
func (w *peerPath) Problem() *api.Error {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	return w.problem
}

// isReady reports whether the path is set up.
func (w *peerPath) isReady() bool {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	return w.isUp && w.problem == nil
}

// needsSetUp reports whether the path is not set up, or this host has lost its address.
func (w *peerPath) needsSetUp() bool { return !w.isReady() || w.checkLocalAddr() != nil }

// newPeerPaths makes a peer's further paths. Those that an earlier declaration of it, if there is
// one, has too go on.
//
// unlocked: nobody else has the peer yet, and who calls has the lock of the earlier one.
func newPeerPaths(p, old *peer) (ways []*peerPath) {
	for _, q := range p.cfg.Paths {
		w := &peerPath{of: p, path: q}
		if o := old.findPath(q.Name); o != nil && o.path == q {
			w.carrier, w.lifetime, w.cancel, w.isUp, w.problem = o.carrier, o.lifetime, o.cancel, o.isUp, o.problem
		} else {
			w.carrier = carrier.NewChoice()
			w.lifetime, w.cancel = context.WithCancel(p.lifetime)
		}
		ways = append(ways, w)
	}
	return ways
}

// findPath returns the further path of a name, nil if there is none.
func (p *peer) findPath(name string) *peerPath {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.paths, func(w *peerPath) bool { return w.path.Name == name })
	if i < 0 {
		return nil
	}
	return p.paths[i]
}

// carrierPeer is what carries the streams of a path. It fails where there is none of that name.
func (p *peer) carrierPeer(path string) (carrier.Peer, error) {
	if w := p.findPath(path); w != nil {
		return w, nil
	}
	if path == p.cfg.Address.String() {
		return p, nil
	}
	return nil, unknownPath(p.cfg, path)
}

func unknownPath(c config.Peer, path string) *api.Error {
	e := &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("peer %s has no path %q", c.Name, path), Fix: "its paths:"}
	for _, q := range c.AllPaths() {
		e.Fix += " " + q.Name
	}
	return e
}

// transportAt is what may carry streams with one of the peer's addresses.
func transportAt(c config.Peer, a netip.Addr) config.Transport {
	for _, q := range c.Paths {
		if q.Address == a {
			return q.Transport
		}
	}
	return c.Transport
}

// dropPaths ends the paths that the next declaration of a peer, with the same endpoints, does not
// have: first in the sessions, then their streams, SAs and guards. changing is held.
func (d *Daemon) dropPaths(ctx context.Context, p, next *peer) {
	var gone []config.Pair
	for i, w := range p.paths {
		if n := next.findPath(w.path.Name); n == nil || n.path != w.path {
			w.cancel()
			gone = append(gone, p.cfg.Pairs()[1+len(p.cfg.Multihoming)+i])
		}
	}
	if len(gone) == 0 {
		return
	}
	d.disks.Follow(p.cfg.Name)
	var at []netip.Addr
	for _, q := range gone {
		at = append(at, q.Address)
	}
	why := fmt.Errorf("a path of peer %s has changed, or is removed from the configuration", p.cfg.Name)
	d.abortStreamsAt(p.identity, at, why)
	d.dev.EndAssociations(p.identity, why.Error(), at...)
	d.dropPairs(ctx, p, gone)
}
