package daemon

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/carrier"
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

func (x *peers) named(name string) *peer { return find(x, &x.names, name) }

// at is the peer that has an address.
func (x *peers) at(a netip.Addr) *peer { return find(x, &x.addresses, a) }

// known is the peer that is authenticated as somebody.
func (x *peers) known(id transport.Identity) *peer { return find(x, &x.identities, id) }

// of finds the peer of a stream: both the authenticated identity and the address have to be
// its.
func (x *peers) of(id transport.Identity, a netip.Addr) (*peer, bool) {
	p := x.known(id)
	return p, p != nil && p.cfg.HasAddress(a)
}

// name is the peer's name, or its identity if it has none.
func (x *peers) name(id transport.Identity) string {
	if p := x.known(id); p != nil {
		return p.cfg.Name
	}
	return string(id)
}

// owner is the peer that an IKE connection is of: the manager has one for each
// address of a peer.
func (x *peers) owner(connection string) string {
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

// ofCarriers is list for those who choose what carries streams.
func (x *peers) ofCarriers() (list []carrier.Peer) {
	for _, p := range x.list() {
		list = append(list, p)
	}
	return list
}

// enter adds a peer, in place of one of its name.
func (x *peers) enter(p *peer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.names[p.cfg.Name]; old != nil {
		x.removeLocked(old)
	}
	x.names[p.cfg.Name] = p
	x.identities[p.identity] = p
	for _, a := range p.cfg.Addresses() {
		x.addresses[a] = p
	}
	for _, c := range p.cfg.PathNames() {
		x.connections[c] = p
	}
}

func (x *peers) remove(p *peer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(p)
}

// removeLocked takes p out, but not who has meanwhile come in its place.
func (x *peers) removeLocked(p *peer) {
	drop(x.names, p.cfg.Name, p)
	drop(x.identities, p.identity, p)
	for _, a := range p.cfg.Addresses() {
		drop(x.addresses, a, p)
	}
	for _, c := range p.cfg.PathNames() {
		drop(x.connections, c, p)
	}
}

func drop[K comparable](m map[K]*peer, k K, p *peer) {
	if m[k] == p {
		delete(m, k)
	}
}
