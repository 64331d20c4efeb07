package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/blocklist"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// peer is a configured peer and what has been set up for it.
type peer struct {
	cfg      config.Peer
	identity transport.Identity // whom its streams must be authenticated as
	carrier  *carrier.Choice

	// ends ends with the peer's ends: when it is removed, or another declaration has
	// others. Declarations of the same ends share it.
	ends context.Context
	cut  context.CancelFunc

	mu        sync.Mutex          // guards the fields below it
	protector transport.Protector // nil until the peer was set up once
	keys      credentials         // what the IKE daemon was given
	newKeys   time.Time           // when they last replaced others
	local     netip.Addr
	problem   *api.Error // why the last attempt to set it up failed

	toldNarrow atomic.Bool // tellNarrow has
}

func newPeer(c config.Peer) *peer {
	p := &peer{cfg: c, local: c.LocalAddress, carrier: carrier.NewChoice()}
	p.ends, p.cut = context.WithCancel(context.Background())
	switch c.Protection {
	case config.ProtectIPsec:
		p.identity = transport.Identity(c.Identity())
	default:
		// No IKE identity can look like this: it has neither colon and name.
		p.identity = transport.Identity(string(c.Protection) + ":" + c.Address.String())
	}
	return p
}

// isReady reports whether the peer is set up as it is declared.
func (p *peer) isReady() bool {
	protector, _, problem := p.state()
	return protector != nil && problem == nil
}

// hasItsAddress reports whether this host still has the address that it meets the
// peer at.
func (p *peer) hasItsAddress() bool {
	a := p.localAddr()
	return !a.IsValid() || listen.IsHere(a)
}

// hasNewKeys reports whether the files of the secret or the certificates hold
// others than the IKE daemon was given, or none that can be used.
func (p *peer) hasNewKeys() bool {
	if p.cfg.Protection != config.ProtectIPsec {
		return false
	}
	k, err := loadCredentials(p.cfg)
	p.mu.Lock()
	defer p.mu.Unlock()
	return err != nil || !k.equal(&p.keys)
}

// follow makes p the successor of a declaration of the same ends: what was set up
// stays.
func (p *peer) follow(old *peer) {
	old.mu.Lock()
	defer old.mu.Unlock()
	p.protector, p.local, p.keys, p.newKeys, p.carrier = old.protector, old.local, old.keys, old.newKeys, old.carrier
	p.ends, p.cut = old.ends, old.cut
}

// Declared is what the configuration says of the peer.
func (p *peer) Declared() config.Peer { return p.cfg }

// Identity is whom its streams must be authenticated as.
func (p *peer) Identity() transport.Identity { return p.identity }

// Ends ends with the peer's ends.
func (p *peer) Ends() context.Context { return p.ends }

// Carrier is what its streams are carried by.
func (p *peer) Carrier() *carrier.Choice { return p.carrier }

// EachCarrier makes an attempt, and another while it is the carrier that fails. It fails as
// the last one does.
func (p *peer) EachCarrier(ctx context.Context, attempt func() error) error {
	return p.carrier.Each(ctx, attempt)
}

// Problem is why the peer could not be set up, nil if it could.
func (p *peer) Problem() *api.Error {
	_, _, problem := p.state()
	return problem
}

// Protected is what protects its streams, and the address of this host that they come from.
// It fails with an *api.Error while the peer is not set up.
func (p *peer) Protected() (transport.Protector, netip.Addr, error) {
	protector, local, problem := p.state()
	switch {
	case protector != nil:
		return protector, local, nil
	case problem != nil:
		return nil, local, problem
	}
	return nil, local, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s is not set up yet", p.cfg.Name), Fix: "try again in a moment"}
}

// localAddr is the address of this host that reaches the peer, as far as it is
// known.
func (p *peer) localAddr() netip.Addr {
	_, local, _ := p.state()
	return local
}

func (p *peer) state() (transport.Protector, netip.Addr, *api.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.protector, p.local, p.problem
}

// ikeProblem is sas.Problem for what a peer's SAs failed with. Where this host has
// just got another secret or certificate, that is probably why.
func (p *peer) ikeProblem(err error) *api.Error {
	e := sas.Problem(p.cfg.Name, err)
	p.mu.Lock()
	since := p.newKeys
	p.mu.Unlock()
	if e.Reason != api.ReasonAuthFailed || since.IsZero() {
		return e
	}
	if p.cfg.Auth == config.AuthPSK {
		e.Fix = fmt.Sprintf("this host has had another secret since %s, and %s seems not to have it yet: bring %s there and run `ironwarp peer rotate-secret --psk-file FILE` with it. If it has: %s",
			since.Format("15:04:05"), p.cfg.Name, p.cfg.PSKFile, e.Fix)
	}
	return e
}

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

// identities are those that IKE, or what stands in for it, has to have told of
// whoever an export allows. An identity that is named itself counts only where
// IKE is what tells.
func (d *Daemon) identities(allow []string) []transport.Identity {
	c := d.config()
	var ids []transport.Identity
	for _, a := range allow {
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
	if p := d.peers.named(name); p != nil {
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

// guarded lists the peers with a guard in the kernel.
func (d *Daemon) guarded() []string {
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
	d.cutOff(p, fmt.Errorf("peer %s was removed from the configuration", p.cfg.Name))
	d.dropPaths(ctx, p)
}

// dropPaths ends the SAs of a peer's addresses, and the guards, but those of links that
// the configuration has, by whatever peer's name. It is the next one already.
func (d *Daemon) dropPaths(ctx context.Context, p *peer) {
	if p.cfg.Protection != config.ProtectIPsec {
		return
	}
	c := d.config()
	var errs []error
	for i, a := range p.cfg.Addresses() {
		err := ipsec.ErrUnknownPeer // it never came further than the guard, which letGo takes down
		if m := d.sas.Current(); m != nil {
			err = m.RemovePeer(ctx, p.cfg.PathName(i), c.Guarded(a)...)
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

// cutOff ends a peer's sessions and streams, and what carries these. It waits for
// nobody: what is left of its disks is tidied up by whoever drops them.
func (d *Daemon) cutOff(p *peer, why error) {
	p.cut()
	d.disks.EndSessions(func(_ *local.Consumer, ends context.Context) bool { return ends == p.ends })
	d.endStreams(p.identity, why)
}

// blocker blocks peers in the kernel, nil as long as no peer needs IPsec.
func (d *Daemon) blocker() blocklist.Kernel {
	if m := d.sas.Current(); m != nil {
		return m
	}
	return nil
}

func (d *Daemon) blockable() (all []blocklist.Peer) {
	for _, p := range d.peers.list() {
		all = append(all, p.blockable())
	}
	return all
}

func (p *peer) blockable() blocklist.Peer {
	return blocklist.Peer{Name: p.cfg.Name, Identity: p.identity, Address: p.cfg.Address, Paths: p.cfg.PathNames(), IPsec: p.cfg.Protection == config.ProtectIPsec}
}

// block blocks a peer by request.
func (d *Daemon) block(ctx context.Context, req api.BlockRequest) (api.Block, error) {
	p, err := d.findPeer(req.Peer)
	if err != nil {
		return api.Block{}, err
	}
	return d.blocks.Block(ctx, p.blockable(), req)
}

// keptOut ends the streams of a peer that is blocked.
func (d *Daemon) keptOut(p blocklist.Peer, why error) {
	d.events.count(eventBlocked, p.Name, 1)
	d.endStreams(p.Identity, why)
}

// endStreams ends the streams of a peer, and what carries them.
func (d *Daemon) endStreams(id transport.Identity, why error) {
	d.abortStreams(id, why)
	d.dev.EndAssociations(id, why.Error())
}

// abortStreams ends the streams of a peer, and the sessions in which it has exports open.
func (d *Daemon) abortStreams(id transport.Identity, why error) {
	d.sessions.EndSessions(id, why)
	for _, qp := range d.dev.QPs() {
		if qp.Peer() == id {
			qp.Abort(why)
		}
	}
}
