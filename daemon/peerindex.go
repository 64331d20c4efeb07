package daemon

import (
	"net/netip"

	"github.com/ironwarp/ironwarp/transport"
)

// peerIndex finds peers by what streams and SAs are known by. Daemon.mu guards it.
type peerIndex struct {
	identities  map[transport.Identity]*peer
	addresses   map[netip.Addr]*peer
	connections map[string]*peer // of the IKE daemon
}

func newPeerIndex() peerIndex {
	return peerIndex{map[transport.Identity]*peer{}, map[netip.Addr]*peer{}, map[string]*peer{}}
}

func (x *peerIndex) add(p *peer) {
	x.identities[p.identity] = p
	for _, a := range p.cfg.Addresses() {
		x.addresses[a] = p
	}
	for _, c := range p.cfg.PathNames() {
		x.connections[c] = p
	}
}

// remove takes p out, but not who has meanwhile come in its place.
func (x *peerIndex) remove(p *peer) {
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

// enter adds a peer, in place of one of its name.
func (d *Daemon) enter(p *peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.peers[p.cfg.Name]; old != nil {
		d.index.remove(old)
	}
	d.peers[p.cfg.Name] = p
	d.index.add(p)
}
