package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// setUpPeer puts a peer's protection in place: the guard first, then the IKE
// connection. What fails is the peer's problem and is tried again; what was in
// place before stays. changing is held.
func (d *Daemon) setUpPeer(ctx context.Context, p *peer) { d.setUpPeers(ctx, []*peer{p}) }

// setUpPeers is setUpPeer for several, for which the kernel is asked at once: it lists
// all that it has to whoever asks about one.
func (d *Daemon) setUpPeers(ctx context.Context, peers []*peer) {
	for i, r := range d.protect(ctx, peers) {
		d.setUp(peers[i], r.protector, r.err)
	}
}

// setUp notes what became of a peer's protection.
func (d *Daemon) setUp(p *peer, protector transport.Protector, err error) {
	p.mu.Lock()
	before := p.problem
	p.problem = nil
	if err == nil {
		p.protector = protector
	} else {
		p.problem = sas.Problem(p.cfg.Name, err)
		var e *api.Error
		if errors.As(err, &e) {
			p.problem = e
		}
	}
	after := p.problem
	p.mu.Unlock()
	switch {
	case after != nil && (before == nil || before.Message != after.Message):
		d.log.Warn("peer is not usable", "peer", p.cfg.Name, "error", after)
	case after == nil && p.cfg.Protection == config.ProtectIPsec:
		d.log.Info("peer is set up", "peer", p.cfg.Name, "address", p.cfg.Address, "protection", p.cfg.Protection,
			"profile", p.cfg.Resolved.Name, "mode", p.cfg.Resolved.Mode, "auth", p.cfg.Auth, "identity", p.cfg.Identity())
	case after == nil:
		d.log.Info("peer is set up", "peer", p.cfg.Name, "address", p.cfg.Address, "protection", p.cfg.Protection)
	}
	if after == nil {
		for _, why := range p.cfg.Insecure() {
			d.log.Warn("INSECURE: "+why, "peer", p.cfg.Name, "address", p.cfg.Address)
		}
	}
}

// protected is what became of protecting a peer.
type protected struct {
	protector transport.Protector
	err       error
}

func (d *Daemon) protect(ctx context.Context, peers []*peer) []protected {
	out := make([]protected, len(peers))
	var todo []int // those with IPsec
	for i, p := range peers {
		if out[i].err = d.meet(p); out[i].err != nil {
			continue
		}
		switch p.cfg.Protection {
		case config.ProtectLoopback:
			out[i].protector = p.named(transport.LoopbackOnly())
		case config.ProtectPlaintext:
			out[i].protector = p.named(transport.Plaintext(d.log, p.cfg.Addresses()...))
		default:
			if out[i].err = isAnotherHost(p.cfg); out[i].err != nil {
				continue
			}
			todo = append(todo, i)
		}
	}
	if len(todo) > 0 {
		d.protectByIPsec(ctx, peers, todo, out)
	}
	return out
}

// meet finds out by which address of this host a peer is met.
func (d *Daemon) meet(p *peer) error {
	local := p.cfg.LocalAddress
	if !local.IsValid() {
		var err error
		if local, err = listen.LocalAddr(p.cfg.Address); err != nil {
			return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot reach peer %s: %v", p.cfg.Name, err),
				Fix: "check `ip route get " + p.cfg.Address.String() + "`. The daemon keeps trying"}
		}
	}
	if !listen.IsHere(local) {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("no interface of this host has the address %s, at which it meets peer %s", local, p.cfg.Name),
			Fix: "see `ip address`; give it back to the host, or set local_address of the peer to another one. The daemon keeps looking"}
	}
	p.mu.Lock()
	moved := p.local.IsValid() && p.local != local
	before := p.local
	p.local = local
	p.mu.Unlock()
	if moved {
		d.log.Warn("this host has another address for the peer: streams end, and are made anew from there", "peer", p.cfg.Name, "was", before, "is", local)
	}
	return nil
}

// protectByIPsec protects the peers with these indexes.
func (d *Daemon) protectByIPsec(ctx context.Context, peers []*peer, todo []int, out []protected) {
	// The guards come first: whatever else is missing, nothing leaves in clear.
	var specs []guard.Spec
	var cfgs []config.Peer
	of := []int{} // whose spec it is
	for _, i := range todo {
		cfgs = append(cfgs, peers[i].cfg)
		for _, g := range guardsOf(peers[i].cfg) {
			specs, of = append(specs, g), append(of, i)
		}
	}
	d.guards.record(cfgs...)
	results, err := guard.Reconcile("", specs)
	for k, i := range of {
		if out[i].err == nil {
			out[i].err = cmp.Or(err, results[k].Err)
		}
	}
	d.probeMTU()
	keys := map[int]credentials{}
	for _, i := range todo {
		if out[i].err == nil {
			keys[i], out[i].err = loadCredentials(peers[i].cfg)
		}
	}
	todo = slices.DeleteFunc(slices.Clone(todo), func(i int) bool { return out[i].err != nil })
	if len(todo) == 0 {
		return
	}
	m, err := d.sas.Manager(ctx, d.config().IPsec)
	var links []pad.Peer
	of = of[:0]
	for _, i := range todo {
		if out[i] = (protected{m, err}); err != nil {
			continue
		}
		c, local := peers[i].cfg, peers[i].localAddr()
		for j, addr := range c.Addresses() {
			links, of = append(links, ipsecPeer(c, j, addr, local, keys[i])), append(of, i)
		}
	}
	if err != nil {
		return
	}
	for k, err := range m.AddPeers(ctx, links) {
		if i := of[k]; out[i].err == nil && err != nil {
			out[i] = protected{err: err}
		}
	}
	for _, i := range todo {
		if out[i].err == nil {
			peers[i].give(keys[i])
		}
	}
}

// give notes the keys that the IKE daemon was given.
func (p *peer) give(keys credentials) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.keys.empty() && !p.keys.equal(&keys) {
		p.newKeys = time.Now()
	}
	p.keys = keys
}

// ipsecPeer is what the IPsec manager has to know of one of the addresses of a
// peer. To it each is a peer of its own, with the identities of the first.
func ipsecPeer(c config.Peer, i int, remote, local netip.Addr, keys credentials) pad.Peer {
	q := pad.Peer{
		Name: c.PathName(i), Local: local, Remote: remote, LocalID: c.LocalID, RemoteID: c.RemoteID, Links: c.Links(),
		Profile: c.Resolved, PSK: keys.psk, Cert: keys.cert, CAs: keys.cas, Revocation: c.Revocation,
		Gateway: c.Gateway, Children: c.ChildSAs, IdleReap: c.IdleReap,
	}
	if i > 0 {
		q.Local, q.LocalID, q.RemoteID = c.Paths[i-1].LocalAddress, cmp.Or(c.LocalID, local.String()), c.Identity()
	}
	return q
}

// guardsOf are the guards of a peer: one for each carrier and address.
func guardsOf(p config.Peer) []guard.Spec {
	var specs []guard.Spec
	for _, a := range p.Addresses() {
		for _, k := range p.Links() {
			specs = append(specs, guard.Spec{Remote: a, Protocol: k.Protocol, Port: k.Port})
		}
	}
	return specs
}

// named gives what another Protector admits an identity of its own: one for each
// peer, where nothing authenticates them.
type named struct {
	transport.Protector
	identity transport.Identity
	carriers config.Transport
}

func (p *peer) named(by transport.Protector) named {
	return named{by, p.identity, p.cfg.Transport}
}

// Screen refuses flows over what the peer's declaration does not name, as the IPsec
// manager does of its own.
func (n named) Screen(f transport.Flow) error {
	if k := carrier.KindOf(f); !n.carriers.Has(k) {
		return fmt.Errorf("%w: %s is no transport of this peer", transport.ErrNotProtected, k)
	}
	if s, ok := n.Protector.(transport.Screener); ok {
		return s.Screen(f)
	}
	return nil
}

func (n named) Admit(ctx context.Context, f transport.Flow, outgoing bool, c transport.Monitored) (transport.Protection, error) {
	if err := n.Screen(f); err != nil {
		return nil, err
	}
	p, err := n.Protector.Admit(ctx, f, outgoing, c)
	if err != nil {
		return nil, err
	}
	return namedProtection{p, n.identity}, nil
}

type namedProtection struct {
	transport.Protection
	identity transport.Identity
}

func (n namedProtection) Peer() transport.Identity { return n.identity }

// protectorFor chooses the Protector of flows with an address.
func (d *Daemon) protectorFor(a netip.Addr) (transport.Protector, error) {
	p := d.peers.at(a)
	if p == nil {
		return nil, fmt.Errorf("%w: %s is not the address of a configured peer", transport.ErrNotProtected, a)
	}
	if err := d.blocks.Blocked(p.cfg.Name); err != nil {
		return nil, err
	}
	protector, _, err := p.Protected()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", transport.ErrNotProtected, apiError(err).Message)
	}
	return protector, nil
}
