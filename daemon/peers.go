package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/blocklist"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// peers are those of the configuration, found by what streams and SAs are known by.
type peers struct {
	mu          sync.Mutex // guards the fields below it
	names       map[string]*peer
	identities  map[transport.Identity]*peer
	addresses   map[netip.Addr]*peer
	connections map[string]*peer // of the IKE daemon
}

func newPeers() *peers {
	return &peers{names: map[string]*peer{}, identities: map[transport.Identity]*peer{}, addresses: map[netip.Addr]*peer{}, connections: map[string]*peer{}}
}

// find is the peer of a key, nil if there is none.
func find[K comparable](x *peers, in *map[K]*peer, k K) *peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return (*in)[k]
}

func (x *peers) byName(name string) *peer { return find(x, &x.names, name) }

// byAddress returns the peer that has an address.
func (x *peers) byAddress(a netip.Addr) *peer { return find(x, &x.addresses, a) }

// byIdentity returns the peer with an authenticated identity.
func (x *peers) byIdentity(id transport.Identity) *peer { return find(x, &x.identities, id) }

// ofStream finds the peer of a stream: both the authenticated identity and the address have to be
// its.
func (x *peers) ofStream(id transport.Identity, a netip.Addr) (*peer, bool) {
	p := x.byIdentity(id)
	return p, p != nil && p.cfg.HasAddress(a)
}

// nameOf is the name of the peer with an identity, "" if there is none.
func (x *peers) nameOf(id transport.Identity) string {
	if p := x.byIdentity(id); p != nil {
		return p.cfg.Name
	}
	return ""
}

// nameOrIdentity returns the peer's name, or its identity if it has none.
func (x *peers) nameOrIdentity(id transport.Identity) string {
	if name := x.nameOf(id); name != "" {
		return name
	}
	return string(id)
}

// ownerName returns the name of the peer that an IKE connection belongs to: the manager has one for each
// address of a peer.
func (x *peers) ownerName(connection string) string {
	if p := find(x, &x.connections, connection); p != nil {
		return p.cfg.Name
	}
	return connection
}

// list are all, by name.
func (x *peers) list() []*peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.SortedFunc(maps.Values(x.names), func(a, b *peer) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) })
}

// carrierPeers lists the peers and their further paths, for which carriers are chosen.
func (x *peers) carrierPeers() (list []carrier.Peer) {
	for _, p := range x.list() {
		list = append(list, p)
		for _, w := range p.paths {
			list = append(list, w)
		}
	}
	return list
}

// add adds a peer, in place of one of its name.
func (x *peers) add(p *peer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.names[p.cfg.Name]; old != nil {
		x.removeLocked(old)
	}
	x.names[p.cfg.Name] = p
	x.identities[p.identity] = p
	for _, q := range p.cfg.Pairs() {
		x.addresses[q.Address], x.connections[q.Connection] = p, p
	}
}

func (x *peers) remove(p *peer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(p)
}

// removeLocked removes p, but not a peer that has taken its place.
func (x *peers) removeLocked(p *peer) {
	deleteIfSame(x.names, p.cfg.Name, p)
	deleteIfSame(x.identities, p.identity, p)
	for _, q := range p.cfg.Pairs() {
		deleteIfSame(x.addresses, q.Address, p)
		deleteIfSame(x.connections, q.Connection, p)
	}
}

func deleteIfSame[K comparable](m map[K]*peer, k K, p *peer) {
	if m[k] == p {
		delete(m, k)
	}
}

// allowedIdentities are the authenticated identities of those whom an export allows, none if its label keeps it from its
// partition. An identity that is named itself counts only where IKE authenticates it.
func (d *Daemon) allowedIdentities(e config.Export) []transport.Identity {
	c := d.config()
	var ids []transport.Identity
	if d.deniesExport(c, e) {
		return nil
	}
	for _, a := range e.Allow {
		if id, ok := strings.CutPrefix(a, config.AllowIdentity); ok {
			if slices.ContainsFunc(c.Peers, func(p config.Peer) bool { return p.Protection == config.ProtectIPsec && p.Identity() == id }) {
				ids = append(ids, transport.Identity(id))
			}
		} else if p, ok := c.Peer(a); ok {
			ids = append(ids, newPeer(p).identity)
		}
	}
	return ids
}

// findPeer finds a peer by name, for a request.
func (d *Daemon) findPeer(name string) (*peer, error) {
	if p := d.peers.byName(name); p != nil {
		return p, nil
	}
	return nil, unknownPeer(d.config(), name)
}

func unknownPeer(cfg *config.Config, name string) *api.Error {
	e := &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown peer %q", name), Fix: "no peer is configured: add it with `ironwarp peer add`"}
	if names := cfg.PeerNames(); len(names) > 0 {
		e.Fix = "configured peers: " + strings.Join(names, ", ") + "; add others with `ironwarp peer add`"
	}
	return e
}

// guardedPeers lists the peers with a guard in the kernel.
func (d *Daemon) guardedPeers() []string {
	var names []string
	for _, p := range d.peers.list() {
		if p.cfg.Protection == config.ProtectIPsec && p.isReady() {
			names = append(names, p.cfg.Name)
		}
	}
	return names
}

// dropPeer ends everything of a peer that is no longer configured: its streams, its
// SAs and at last its guard. changing is held.
func (d *Daemon) dropPeer(ctx context.Context, p *peer) {
	d.cutOffPeer(p, fmt.Errorf("peer %s was removed from the configuration", p.cfg.Name))
	d.dropPairs(ctx, p, p.cfg.Pairs())
}

// dropPairs ends the SAs of pairs of a peer's addresses, and their guards, but for links that
// the new configuration has, by whatever peer's name.
func (d *Daemon) dropPairs(ctx context.Context, p *peer, pairs []config.Pair) {
	if p.cfg.Protection != config.ProtectIPsec {
		return
	}
	c := d.config()
	var errs []error
	for _, q := range pairs {
		err := ipsec.ErrUnknownPeer // it never came further than the guard, which removeUnneeded takes down
		if m := d.sas.Current(); m != nil {
			err = m.RemovePeer(ctx, q.Connection, c.GuardedLinks(q.Address)...)
		}
		var held *guard.HeldError
		if !errors.Is(err, ipsec.ErrUnknownPeer) && !errors.As(err, &held) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		d.log.Error("cannot take down the protection of a removed peer; its guard may still be in the kernel: see `ironwarp doctor`", "peer", p.cfg.Name, "error", err)
	}
}

// cutOffPeer ends a peer's sessions and streams, and what carries these. It waits for
// nobody: what is left of its disks is tidied up by whoever drops them.
func (d *Daemon) cutOffPeer(p *peer, why error) {
	p.cancel()
	d.disks.EndSessions(func(_ *local.Consumer, peer context.Context) bool { return peer == p.lifetime })
	d.endStreams(p.identity, why)
}

// kernelBlocker blocks peers in the kernel, nil as long as no peer needs IPsec.
func (d *Daemon) kernelBlocker() blocklist.Kernel {
	if m := d.sas.Current(); m != nil {
		return m
	}
	return nil
}

func (d *Daemon) blocklistPeers() (all []blocklist.Peer) {
	for _, p := range d.peers.list() {
		all = append(all, p.blocklistPeer())
	}
	return all
}

func (p *peer) blocklistPeer() blocklist.Peer {
	return blocklist.Peer{Name: p.cfg.Name, Identity: p.identity, Address: p.cfg.Address, Paths: p.cfg.IKEConnections(), IPsec: p.cfg.Protection == config.ProtectIPsec}
}

// blockPeer blocks a peer by request.
func (d *Daemon) blockPeer(ctx context.Context, req api.BlockRequest) (api.Block, error) {
	p, err := d.findPeer(req.Peer)
	if err != nil {
		return api.Block{}, err
	}
	return d.blocks.Block(ctx, p.blocklistPeer(), req)
}

// onBlocked ends the streams of a peer that is blocked.
func (d *Daemon) onBlocked(p blocklist.Peer, why error) {
	d.events.count(eventBlocked, p.Name, 1)
	d.endStreams(p.Identity, why)
}

// endStreams ends the streams of a peer, and what carries them.
func (d *Daemon) endStreams(id transport.Identity, why error) {
	d.targets.EndPeer(id)
	d.subsystems.EndPeer(id)
	d.abortStreams(id, why)
	d.dev.EndAssociations(id, why.Error())
}

// abortStreams ends the streams of a peer, and the sessions in which it has exports open.
func (d *Daemon) abortStreams(id transport.Identity, why error) {
	d.sessions.EndSessions(id, why)
	d.abortStreamsAt(id, nil, why)
}

// abortStreamsAt ends the streams of a peer with one of some addresses; nil: with any.
func (d *Daemon) abortStreamsAt(id transport.Identity, at []netip.Addr, why error) {
	for _, qp := range d.dev.QPs() {
		if qp.Peer() == id && (at == nil || slices.Contains(at, qp.Flow().Remote.Addr())) {
			qp.Abort(why)
		}
	}
	d.programs.EndPeer(id, at, why)
}
