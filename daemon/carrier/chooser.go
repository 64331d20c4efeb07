// Package carrier decides what carries the streams to a peer: TCP, SCTP in UDP, or the
// kernel's SCTP. With transport: auto the peer is asked over TCP what else it has for this
// host; what works is measured, and the fastest is taken. What fails is passed over for a
// while, and asked for again while sessions are up.
package carrier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	// TrialTime bounds the question over a carrier that auto is about to take: a
	// firewall that swallows packets must not hold up the next best. Kernel ESP takes
	// up to 7 s for its first SA.
	TrialTime = 15 * time.Second
	// kernelLookEvery is how often it is looked whether the kernel has SCTP, which
	// may load a module.
	kernelLookEvery = 30 * time.Second
)

// carriers are all carriers. TCP comes last: the peer is asked over it, so it always works.
var carriers = [...]transport.Kind{transport.SCTP, transport.SCTPUDP, transport.TCP}

// kernelSCTP remembers whether the kernel has SCTP.
type kernelSCTP struct {
	ask func() error

	mu   sync.Mutex // guards the fields below it
	at   time.Time
	last error
}

func (k *kernelSCTP) available() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at.IsZero() || time.Since(k.at) >= kernelLookEvery {
		k.at, k.last = time.Now(), k.ask()
	}
	return k.last
}

// Config is what the choice needs from the rest of the host.
type Config struct {
	Log *slog.Logger
	// Run starts a goroutine that the host's end waits for.
	Run func(func(context.Context))
	// Root is the account that questions to peers are charged to while sessions are up.
	Root *local.Consumer
	// Peers are the peers of the configuration, and At is the one that has an address.
	Peers func() []Peer
	At    func(netip.Addr) (Peer, bool)
	// Streams are those of sessions with a peer, at its address, that are up.
	Streams func(Peer) []*verbs.QP
	// Refused reports whether streams to a peer wait for an SA that the peer refuses, having no
	// such link to this host. nil: none ever does.
	Refused func(Peer) bool

	Trial  time.Duration // 0: TrialTime
	Avoid  time.Duration // 0: avoidMin
	Kernel func() error  // whether the kernel has SCTP; nil: ksctp.Available
	// Hello asks a peer over one carrier which carriers it has, and Rate is what one
	// carries, in bytes a second; nil: by probes.
	Hello func(ctx context.Context, by *local.Consumer, p Peer, k transport.Kind) (probe.Transports, error)
	Rate  func(ctx context.Context, by *local.Consumer, p Peer, k transport.Kind) (float64, error)
}

// Peer is a peer as it is declared now.
type Peer interface {
	Declared() config.Peer
	Lifetime() context.Context // ends when the peer is removed, or declared with other endpoints
	// Protected is what protects streams to the peer, and the address that they come from. It
	// fails while the peer is not set up.
	Protected() (transport.Protector, netip.Addr, error)
	Carrier() *Choice
}

// Chooser chooses what carries the streams to all peers.
type Chooser struct {
	cfg    Config
	log    *slog.Logger
	kernel kernelSCTP
}

// New returns a Chooser.
func New(cfg Config) *Chooser {
	cfg.Trial, cfg.Avoid = cmp.Or(cfg.Trial, TrialTime), cmp.Or(cfg.Avoid, avoidMin)
	c := &Chooser{cfg: cfg, log: cfg.Log, kernel: kernelSCTP{ask: cfg.Kernel}}
	if c.kernel.ask == nil {
		c.kernel.ask = ksctp.Available
	}
	if c.cfg.Refused == nil {
		c.cfg.Refused = func(Peer) bool { return false }
	}
	if c.cfg.Hello == nil {
		c.cfg.Hello = c.askPeer
	}
	if c.cfg.Rate == nil {
		c.cfg.Rate = c.Measure
	}
	return c
}

// KernelSCTP fails where the kernel has no SCTP. To ask may load its module.
func (c *Chooser) KernelSCTP() error { return c.kernel.available() }

// transportTo returns the transport of streams to a peer over one carrier.
func (c *Chooser) transportTo(p Peer, k transport.Kind) (*transport.Config, error) {
	protector, local, err := p.Protected()
	if err != nil {
		return nil, err
	}
	ch := p.Carrier()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	t := ch.configs[k]
	if t != nil && t.Protector == protector && t.Local == local {
		return t, nil
	}
	t = &transport.Config{Protector: protector, Kind: k, Local: local, OnPath: c.OnPath}
	switch cfg := p.Declared(); k {
	case transport.SCTPUDP:
		t.UDPPort = cfg.UDPPort
	case transport.SCTP:
		for _, q := range cfg.Multihoming {
			t.MoreLocal, t.MoreRemote = append(t.MoreLocal, q.LocalAddress), append(t.MoreRemote, q.Address)
		}
	}
	ch.configs[k] = t
	return t, nil
}

// dialConfig is how streams to a peer are made over one carrier.
func (c *Chooser) dialConfig(p Peer, k transport.Kind) (verbs.DialConfig, error) {
	t, err := c.transportTo(p, k)
	cfg := p.Declared()
	return verbs.DialConfig{Remote: cfg.AddrPort(), Transport: t, Setup: cfg.Setup()}, err
}

// Choose returns the transport of the next streams to a peer, and a function that is to be called with the
// result of opening them. It fails where the peer is not set up, or is not reached.
func (c *Chooser) Choose(ctx context.Context, by *local.Consumer, p Peer) (*transport.Config, func(error), error) {
	how := p.Declared().Transport
	k := how.Kinds()[0]
	if how == config.TransportAuto {
		var err error
		if k, err = c.pick(ctx, by, p); err != nil {
			return nil, nil, err
		}
	}
	t, err := c.transportTo(p, k)
	return t, func(err error) {
		if ctx.Err() == nil {
			c.noteAttempt(p, k, err)
		}
	}, err
}

// pick finds the fastest carrier that both hosts have: the peer is asked over TCP
// which it has, and then over each of them; those that work are measured.
func (c *Chooser) pick(ctx context.Context, by *local.Consumer, p Peer) (transport.Kind, error) {
	name, ch := p.Declared().Name, p.Carrier()
	theirs, err := c.cfg.Hello(ctx, by, p, transport.TCP)
	if err != nil && !errors.Is(err, probe.ErrNoHello) {
		return 0, err
	}
	var work, missing []transport.Kind
	var without []string
	for _, k := range carriers {
		reason, passes := "", true
		switch failed := ch.lastFailure(k); {
		case k == transport.TCP:
		case err != nil:
			reason = name + "'s ironwarp is an older one that does not say whether it has it"
			passes = false
		case k == transport.SCTP && c.kernel.available() != nil:
			reason, passes = "this host's kernel has none", false
		case !theirs.Has(k):
			reason = name + " has none for this host"
		case failed.isCurrent():
			reason = "it failed: " + failed.err
		default:
			tctx, cancel := context.WithTimeout(ctx, c.cfg.Trial)
			_, terr := c.cfg.Hello(tctx, by, p, k)
			cancel()
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			if terr != nil {
				c.noteAttempt(p, k, terr)
				reason = "it failed: " + oneLine(terr)
			}
		}
		if reason != "" {
			if passes {
				missing = append(missing, k)
			}
			without = append(without, fmt.Sprintf("no %s: %s", k, reason))
			continue
		}
		work = append(work, k)
	}
	k, why := transport.TCP, "the only one that both hosts have"
	if len(work) > 1 {
		var unmeasured []transport.Kind
		if k, why, unmeasured, err = c.fastest(ctx, by, p, work); err != nil {
			return 0, err
		}
		missing = append(missing, unmeasured...)
	}
	ch.setMissing(missing, c.cfg.Avoid)
	why = strings.Join(append([]string{why}, without...), "; ")
	if ch.notePick(k, why) {
		c.log.Info("transport is picked", "peer", name, "transport", k.String(), "why", why)
	}
	return k, nil
}

func (c *Chooser) askPeer(ctx context.Context, by *local.Consumer, p Peer, k transport.Kind) (probe.Transports, error) {
	dc, err := c.dialConfig(p, k)
	if err != nil {
		return 0, err
	}
	return probe.Hello(ctx, by.Pings, dc)
}

// ChooseNamed is Choose for a request that may name a carrier. It fails as that does, and for a
// carrier that the peer has not.
func (c *Chooser) ChooseNamed(ctx context.Context, by *local.Consumer, p Peer, asked string) (*transport.Config, func(error), error) {
	if asked == "" {
		return c.Choose(ctx, by, p)
	}
	cfg := p.Declared()
	k, err := transport.ParseKind(asked)
	if err == nil && cfg.Transport.Has(k) {
		t, err := c.transportTo(p, k)
		return t, func(error) {}, err
	}
	var have []string
	for _, k := range cfg.Transport.Kinds() {
		have = append(have, k.String())
	}
	return nil, nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no transport %q for its streams; it has: %s", cfg.Name, asked, strings.Join(have, ", ")),
		Fix: "only what transport: in the peer's file names is guarded; transport: auto has them all"}
}

// KindOf is the carrier of a flow.
func KindOf(f transport.Flow) transport.Kind {
	switch f.Protocol {
	case transport.ProtoSCTP:
		return transport.SCTP
	case transport.ProtoUDP:
		return transport.SCTPUDP
	}
	return transport.TCP
}

// fastest measures carriers, the last of which is TCP. One that could not be measured is not switched to,
// and not switched away from.
func (c *Chooser) fastest(ctx context.Context, by *local.Consumer, p Peer, work []transport.Kind) (best transport.Kind, why string, unmeasured []transport.Kind, err error) {
	var words []string
	ch := p.Carrier()
	for _, k := range work {
		r, fresh := ch.rate(k)
		if !fresh {
			mctx, cancel := context.WithTimeout(ctx, c.cfg.Trial)
			r, err = c.cfg.Rate(mctx, by, p, k)
			cancel()
			switch {
			case ctx.Err() != nil:
				return 0, "", nil, ctx.Err()
			case err != nil:
				// It is not the carrier that has failed: the peer may be short of something.
				words = append(words, fmt.Sprintf("%s: not measured, %s", k, oneLine(err)))
				unmeasured = append(unmeasured, k)
				continue
			}
			ch.noteRate(k, r)
		}
		words = append(words, fmt.Sprintf("%s %.0f MB/s", k, r/1e6))
	}
	best = ch.inUse(work)
	for _, k := range work {
		if ch.isMuchFaster(k, best) {
			best = k
		}
	}
	return best, "the fastest that both hosts have, as measured: " + strings.Join(words, ", "), unmeasured, nil
}

// Measure reads from a peer for a moment, and returns what the carrier carries, in bytes a
// second. It fails where the peer is not reached over it.
func (c *Chooser) Measure(ctx context.Context, by *local.Consumer, p Peer, k transport.Kind) (float64, error) {
	dc, err := c.dialConfig(p, k)
	if err != nil {
		return 0, err
	}
	cl, err := probe.Dial(ctx, by.Pings, dc)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	row := probe.Row{Op: "read", Size: 64 << 10, Depth: 16}
	if err := cl.Bench(ctx, &row, rateTime, c.cfg.Trial); err != nil {
		return 0, err
	}
	return float64(row.Operations) * float64(row.Size) / row.Elapsed.Seconds(), nil
}

// noteAttempt records the result of an attempt with a carrier. A refusal by the peer is not the carrier's
// fault, nor is the quota of whoever tried: a local user must not decide what carries others' streams.
func (c *Chooser) noteAttempt(p Peer, k transport.Kind, err error) {
	var refused *rtrs.RefusedError
	var rejected *verbs.RejectedError
	var quota *verbs.QuotaError
	if errors.As(err, &quota) {
		return
	}
	cfg := p.Declared()
	if cfg.Transport != config.TransportAuto || k == transport.TCP || errors.As(err, &refused) || errors.As(err, &rejected) || errors.Is(err, context.Canceled) {
		return
	}
	ch := p.Carrier()
	ch.mu.Lock()
	var f failure
	if err == nil {
		delete(ch.tried, k)
	} else {
		f = ch.tried[k].next(c.cfg.Avoid, oneLine(err))
		ch.tried[k] = f
		delete(ch.deferred, k)
		delete(ch.rates, k)
		ch.fallbacks++
	}
	ch.mu.Unlock()
	if err != nil {
		log := c.log.Warn
		if f.pause > c.cfg.Avoid {
			log = c.log.Info // the first time it was a warning
		}
		log("a transport does not work; the next best is taken", "peer", cfg.Name, "transport", k.String(), "error", err, "again_in", f.pause)
	}
}

// againTime bounds one decision of Reconsider's.
const againTime = time.Minute

// Reconsider picks again while sessions with transport: auto are up, once a carrier that was missing when
// they were made may work: the peer may have been reloading then, for one. Sessions move to a carrier
// that is much faster than theirs, and leave one that the peer has no more. It ends with ctx.
func (c *Chooser) Reconsider(ctx context.Context) {
	for range rate.Ticks(ctx, c.cfg.Avoid) {
		for _, p := range c.cfg.Peers() {
			cfg, ch := p.Declared(), p.Carrier()
			if cfg.Transport != config.TransportAuto {
				continue
			}
			attempt := c.leaveRefused
			if !ch.startQuestion(c.cfg.Refused(p), c.cfg.Avoid) {
				// An SA that is to go while nothing is sent is not kept up for ever by questions.
				if !ch.startRetry(cfg.IdleReap > 0) {
					continue
				}
				attempt = c.pickAgain
			}
			if len(c.cfg.Streams(p)) == 0 { // this looks through all sessions
				ch.endRetry()
				continue
			}
			c.cfg.Run(func(ctx context.Context) {
				defer ch.endRetry()
				ctx, cancel := context.WithTimeout(ctx, againTime)
				defer cancel()
				defer context.AfterFunc(p.Lifetime(), cancel)()
				attempt(ctx, p)
			})
		}
	}
}

// pickAgain is one decision of Reconsider's, on the host's own account. What fails is
// asked again.
func (c *Chooser) pickAgain(ctx context.Context, p Peer) {
	name, ch := p.Declared().Name, p.Carrier()
	k, err := c.pick(ctx, c.cfg.Root, p)
	if err != nil {
		c.log.Debug("cannot ask again which transports a peer has", "peer", name, "error", err)
		return
	}
	for _, qp := range c.cfg.Streams(p) {
		if was := KindOf(qp.Flow()); ch.isMuchFaster(k, was) {
			qp.Abort(fmt.Errorf("its session goes over from %s to %s, which is faster", was, k))
		}
	}
}

// leaveRefused ends the streams that wait for an SA over a carrier that the peer has no more, so that their
// sessions take another: the peer has ended them, and the SA went before the word of that came. The peer itself
// has to say so, over TCP.
func (c *Chooser) leaveRefused(ctx context.Context, p Peer) {
	name := p.Declared().Name
	theirs, err := c.cfg.Hello(ctx, c.cfg.Root, p, transport.TCP)
	if err != nil {
		c.log.Debug("cannot ask a peer that refuses an SA which transports it has", "peer", name, "error", err)
		return
	}
	for _, qp := range c.cfg.Streams(p) {
		if k := KindOf(qp.Flow()); qp.Paused() && !theirs.Has(k) {
			qp.Abort(fmt.Errorf("peer %s has no %s for this host any more", name, k))
		}
	}
}

// OnPath records that a path of SCTP does not answer any more, or that it answers again.
func (c *Chooser) OnPath(f transport.Flow, up bool) {
	p, ok := c.cfg.At(f.Remote.Addr())
	if !ok || !p.Carrier().notePath(f.Remote.Addr(), up) {
		return
	}
	attrs := []any{"peer", p.Declared().Name, "address", f.Remote.Addr(), "local_address", f.Local.Addr()}
	if up {
		c.log.Info("a path of SCTP answers", attrs...)
		return
	}
	c.log.Warn("a path of SCTP does not answer; streams go on by another one if there is one", attrs...)
}
