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
func (d *Daemon) setUpPeer(ctx context.Context, p *peer) { d.setUpPeers(ctx, []*peer{p}, false) }

// setUpPeers is setUpPeer for several, with one request to the kernel, which lists all that it
// has to whoever asks about one. mend leaves alone what works.
func (d *Daemon) setUpPeers(ctx context.Context, peers []*peer, mend bool) {
	for i, r := range d.protect(ctx, peers, mend) {
		d.noteProtection(peers[i], r)
	}
}

// noteProtection notes what became of a peer's protection.
func (d *Daemon) noteProtection(p *peer, r protected) {
	problemOf := func(err error) *api.Error {
		var e *api.Error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &e):
			return e
		}
		return sas.Problem(p.cfg.Name, err)
	}
	p.mu.Lock()
	before := p.problem
	p.problem = problemOf(r.err)
	p.isUp = p.isUp || r.err == nil
	if r.protector != nil {
		p.protector = r.protector
	}
	after := p.problem
	for i, w := range p.paths {
		was, is := w.problem, problemOf(r.paths[i])
		w.problem, w.isUp = is, w.isUp || is == nil
		if is != nil && (was == nil || was.Message != is.Message) {
			d.log.Warn("a path of a peer is not usable", "peer", p.cfg.Name, "path", w.path.Name, "error", is)
		} else if is == nil && was != nil {
			d.log.Info("a path of a peer is usable again", "peer", p.cfg.Name, "path", w.path.Name)
		}
	}
	p.mu.Unlock()
	switch {
	case after != nil && (before == nil || before.Message != after.Message):
		d.log.Warn("peer is not usable", "peer", p.cfg.Name, "error", after)
	case r.leave[0] && after == nil: // nothing was done about it
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
	protector transport.Protector // nil if it can be reached at no address
	leave     []bool              // by pair of addresses: it works, and is left alone
	err       error               // of its first addresses
	paths     []error             // of its further paths
}

// errOf is the error of one of the peer's pairs of addresses.
func (r *protected) errOf(p *peer, pair int) *error {
	if i := pair - 1 - len(p.cfg.Multihoming); i >= 0 {
		return &r.paths[i]
	}
	return &r.err
}

// failAll notes an error of all of its addresses.
func (r *protected) failAll(err error) {
	r.err = cmp.Or(r.err, err)
	for i := range r.paths {
		r.paths[i] = cmp.Or(r.paths[i], err)
	}
}

// allFailed reports whether all of its addresses have.
func (r *protected) allFailed() bool { return r.err != nil && !slices.Contains(r.paths, nil) }

func (d *Daemon) protect(ctx context.Context, peers []*peer, mend bool) []protected {
	out := make([]protected, len(peers))
	var byIPsec []int // those with IPsec
	for i, p := range peers {
		r := &out[i]
		r.paths = make([]error, len(p.paths))
		for j := range p.cfg.Pairs() {
			r.leave = append(r.leave, mend && p.pairWorks(j))
		}
		if p.cfg.Unresolved() {
			r.failAll(noAddressYet(p.cfg, d.names.Note(p.cfg.Host)))
			continue
		}
		r.err = d.findLocalAddr(p)
		for k, w := range p.paths {
			r.paths[k] = w.checkLocalAddr()
		}
		if r.allFailed() {
			continue
		}
		switch p.cfg.Protection {
		case config.ProtectLoopback:
			r.protector = p.withIdentity(transport.LoopbackOnly())
		case config.ProtectPlaintext:
			var addrs []netip.Addr
			for _, q := range p.cfg.Pairs() {
				addrs = append(addrs, q.Address)
			}
			r.protector = p.withIdentity(transport.Plaintext(d.log, addrs...))
		default:
			if err := isAnotherHost(p.cfg); err != nil {
				r.failAll(err)
				continue
			}
			byIPsec = append(byIPsec, i)
		}
	}
	if len(byIPsec) > 0 {
		d.protectByIPsec(ctx, peers, byIPsec, out)
	}
	return out
}

func noAddress(local netip.Addr, peer string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("no interface of this host has the address %s, at which it meets peer %s", local, peer),
		Fix: "see `ip address`; give it back to the host, or set local_address of the peer to another one. The daemon keeps looking"}
}

// findLocalAddr finds the address of this host that reaches a peer.
func (d *Daemon) findLocalAddr(p *peer) error {
	local := p.cfg.LocalAddress
	if !local.IsValid() {
		var err error
		if local, err = listen.LocalAddr(p.cfg.Address); err != nil {
			return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot reach peer %s: %v", p.cfg.Name, err),
				Fix: "check `ip route get " + p.cfg.Address.String() + "`. The daemon keeps trying"}
		}
	}
	if !listen.IsHere(local) {
		return noAddress(local, p.cfg.Name)
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
func (d *Daemon) protectByIPsec(ctx context.Context, peers []*peer, byIPsec []int, out []protected) {
	// The guards come first: whatever else is missing, nothing leaves in clear.
	type which struct{ peer, pair int }
	var specs []guard.Spec
	var cfgs []config.Peer
	var of []which // whose spec it is
	for _, i := range byIPsec {
		cfgs = append(cfgs, peers[i].cfg)
		for j, pair := range peers[i].cfg.Pairs() {
			for _, g := range guardsAt(pair) {
				specs, of = append(specs, g), append(of, which{i, j})
			}
		}
	}
	d.guards.record(cfgs...)
	results, err := guard.Reconcile("", specs)
	for k, w := range of {
		to := out[w.peer].errOf(peers[w.peer], w.pair)
		*to = cmp.Or(*to, err, results[k].Err)
	}
	d.enableMTUProbing()
	keys := map[int]credentials{}
	for _, i := range byIPsec {
		if !out[i].allFailed() {
			if keys[i], err = loadCredentials(peers[i].cfg); err != nil {
				out[i].failAll(err)
			}
		}
	}
	byIPsec = slices.DeleteFunc(slices.Clone(byIPsec), func(i int) bool { return out[i].allFailed() })
	if len(byIPsec) == 0 {
		return
	}
	m, err := d.sas.Manager(ctx, d.config().IPsec)
	var links []pad.Peer
	of = of[:0]
	for _, i := range byIPsec {
		if err != nil {
			out[i].failAll(err)
			continue
		}
		p := peers[i]
		for j, pair := range p.cfg.Pairs() {
			if *out[i].errOf(p, j) == nil && !out[i].leave[j] {
				links, of = append(links, ipsecPeer(p.cfg, pair, p.localAddr(), keys[i])), append(of, which{i, j})
			}
		}
	}
	if err != nil {
		return
	}
	for k, err := range m.AddPeers(ctx, links) {
		to := out[of[k].peer].errOf(peers[of[k].peer], of[k].pair)
		*to = cmp.Or(*to, err)
	}
	for _, i := range byIPsec {
		if !out[i].allFailed() {
			out[i].protector = m
			peers[i].noteKeys(keys[i])
		}
	}
}

// pairWorks reports whether one of the peer's pairs of addresses was set up without a problem, and
// is there still.
func (p *peer) pairWorks(pair int) bool {
	if i := pair - 1 - len(p.cfg.Multihoming); i >= 0 {
		return !p.paths[i].needsSetUp()
	}
	a := p.localAddr()
	return p.isReady() && (!a.IsValid() || listen.IsHere(a))
}

// noteKeys notes the keys that the IKE daemon was given.
func (p *peer) noteKeys(keys credentials) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.keys.empty() && !p.keys.equal(&keys) {
		p.newKeys = time.Now()
	}
	p.keys = keys
}

// ipsecPeer is what the IPsec manager has to know of one of the pairs of addresses of a
// peer, which this host meets first at an address. To it each is a peer of its own, with the
// identities of the first.
func ipsecPeer(c config.Peer, pair config.Pair, local netip.Addr, keys credentials) pad.Peer {
	q := pad.Peer{
		Name: pair.Connection, Local: local, Remote: pair.Address, LocalID: c.LocalID, RemoteID: c.RemoteID, Links: pair.Links, Standing: pair.ISCSIPort, Blocks: pair.Blocks(),
		Profile: c.Resolved, PSK: keys.psk, Cert: keys.cert, CAs: keys.cas, Revocation: c.Revocation,
		Gateway: c.Gateway, Children: c.ChildSAs, IdleReap: c.IdleReap,
	}
	if c.Host != "" { // whose address may change
		q.RemoteID = c.Identity()
	}
	if pair.Connection != c.Name {
		q.Local, q.LocalID, q.RemoteID = pair.LocalAddress, cmp.Or(c.LocalID, local.String()), c.Identity()
	}
	return q
}

// guardsOf are the guards of a peer: one for each carrier and address.
func guardsOf(p config.Peer) (specs []guard.Spec) {
	for _, pair := range p.Pairs() {
		specs = append(specs, guardsAt(pair)...)
	}
	return specs
}

func guardsAt(pair config.Pair) (specs []guard.Spec) {
	for _, k := range pair.AllLinks() {
		specs = append(specs, guard.Spec{Remote: pair.Address, Protocol: k.Protocol, Port: k.Port, Size: k.Size})
	}
	return specs
}

// namedProtector gives the flows that another Protector admits an identity of their own: one for
// each peer, where nothing authenticates them.
type namedProtector struct {
	transport.Protector
	identity transport.Identity
	peer     *config.Peer
}

func (p *peer) withIdentity(by transport.Protector) namedProtector {
	return namedProtector{by, p.identity, &p.cfg}
}

// Screen refuses flows that the peer's declaration does not name, as the IPsec manager does
// of its own.
func (n namedProtector) Screen(f transport.Flow) error { return n.screen(f, false) }

func (n namedProtector) screen(f transport.Flow, outgoing bool) error {
	at := f.Local.Port()
	if outgoing {
		at = f.Remote.Port()
	}
	ofProgram := slices.ContainsFunc(n.peer.Programs, func(b config.PortBlock) bool { return b.Carries(f.Protocol, at) })
	if k := carrier.KindOf(f); !ofProgram && !transportAt(*n.peer, f.Remote.Addr()).Has(k) {
		return fmt.Errorf("%w: %s is no transport of this peer", transport.ErrNotProtected, k)
	}
	for _, q := range n.peer.Paths {
		if a := f.Local.Addr(); q.Address == f.Remote.Addr() && a.IsValid() && !a.IsUnspecified() && a != q.LocalAddress {
			return fmt.Errorf("%w: the path of this peer from %s is to %s, not to %s", transport.ErrNotProtected, q.Address, q.LocalAddress, a)
		}
	}
	if s, ok := n.Protector.(transport.Screener); ok {
		return s.Screen(f)
	}
	return nil
}

func (n namedProtector) Admit(ctx context.Context, f transport.Flow, outgoing bool, c transport.Monitored) (transport.Protection, error) {
	if err := n.screen(f, outgoing); err != nil {
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
	p := d.peers.byAddress(a)
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
