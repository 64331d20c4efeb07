package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// peer is a configured peer and what has been set up for it.
type peer struct {
	cfg      config.Peer
	identity transport.Identity // whom its streams must be authenticated as
	carrier  *carrier.Choice
	paths    []*peerPath // its further paths, as cfg.Paths has them

	// lifetime ends when the peer is removed, or declared with other endpoints. Declarations with the
	// same endpoints share it.
	lifetime context.Context
	cancel   context.CancelFunc

	mu        sync.Mutex          // guards the fields below it
	protector transport.Protector // nil until the peer was set up once, by whatever path
	isUp      bool                // it was set up once by its first addresses
	keys      credentials         // what the IKE daemon was given
	newKeys   time.Time           // when they last replaced others
	local     netip.Addr
	problem   *api.Error // why the last attempt to set it up failed

	warnedNarrow atomic.Bool // warnNarrowPaths has
}

func newPeer(c config.Peer) *peer {
	p := &peer{cfg: c, local: c.LocalAddress, carrier: carrier.NewChoice()}
	p.lifetime, p.cancel = context.WithCancel(context.Background())
	p.paths = newPeerPaths(p, nil)
	switch c.Protection {
	case config.ProtectIPsec:
		p.identity = transport.Identity(c.Identity())
	default:
		// No IKE identity can look like this: it has neither colon and name.
		p.identity = transport.Identity(string(c.Protection) + ":" + c.Address.String())
	}
	return p
}

// isReady reports whether the peer is set up as it is declared, by its first addresses.
func (p *peer) isReady() bool {
	protector, _, problem := p.state()
	return protector != nil && problem == nil
}

// needsSetUp reports whether the peer, or one of its paths, is not set up, or this host has lost
// the address that it meets it at.
func (p *peer) needsSetUp() bool {
	return !p.pairWorks(0) || slices.ContainsFunc(p.paths, (*peerPath).needsSetUp)
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

// takeOver makes p the successor of a declaration with the same endpoints: what was set up stays.
func (p *peer) takeOver(old *peer) {
	old.mu.Lock()
	defer old.mu.Unlock()
	p.protector, p.isUp, p.local, p.keys, p.newKeys, p.carrier = old.protector, old.isUp, old.local, old.keys, old.newKeys, old.carrier
	p.lifetime, p.cancel = old.lifetime, old.cancel
	p.paths = newPeerPaths(p, old)
}

// Declared is what the configuration says of the peer.
func (p *peer) Declared() config.Peer { return p.cfg }

// Identity is whom its streams must be authenticated as.
func (p *peer) Identity() transport.Identity { return p.identity }

// Lifetime ends when the peer is removed, or declared with other endpoints.
func (p *peer) Lifetime() context.Context { return p.lifetime }

// Carrier is what its streams are carried by.
func (p *peer) Carrier() *carrier.Choice { return p.carrier }

// TryCarriers calls attempt, and again as long as it fails because of the carrier of one of the peer's
// paths. It fails as the last attempt does.
func (p *peer) TryCarriers(ctx context.Context, attempt func() error) error {
	all := []*carrier.Choice{p.carrier}
	for _, w := range p.paths {
		all = append(all, w.carrier)
	}
	return carrier.TryEach(ctx, attempt, all...)
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
	return nil, local, notYet(p.cfg.Name)
}

func notYet(peer string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s is not set up yet", peer), Fix: "try again in a moment"}
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

// Unreachable says why a peer was not reached.
func (p *peer) Unreachable(err error) *api.Error {
	cause := *apiError(err)
	var flow *transport.FlowError
	if errors.As(err, &flow) {
		cause.Message, cause.Fix = plain(flow.Err), flow.Hint
	}
	if errors.Is(err, ksctp.ErrUnavailable) {
		cause.Message, cause.Fix = listen.NoKernelSCTP, listen.GetKernelSCTP
	}
	var neg *negotiation.Error
	var de *charon.Error
	var admit *ipsec.AdmitError
	switch {
	case errors.As(err, &neg), errors.As(err, &de), errors.As(err, &admit), errors.Is(err, ipsec.ErrNotConnected):
		cause = *p.ikeProblem(err)
	}
	e := &api.Error{Code: cause.Code, Message: fmt.Sprintf("cannot reach peer %s at %s: %s", p.cfg.Name, p.cfg.AddrPort(), cause.Message), Fix: cause.Fix, Reason: cause.Reason}
	if e.Code == api.CodeInternal {
		e.Code = api.CodeUnavailable
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		e.Fix += "; if it does, both hosts need the same transport for each other, or auto on both: see `ironwarp peer show`"
	}
	e.Fix = cmp.Or(e.Fix, "is the daemon running there, and does `ironwarp peer ls` there show this host?")
	return e
}

// plain is a system call's error without the layers around it, which repeat
// addresses that the reader has seen.
func plain(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
