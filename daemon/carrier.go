package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	// trialTime bounds the question over a carrier that auto is about to take: a
	// firewall that swallows packets must not hold up the next best. Kernel ESP takes
	// up to 7 s for its first SA.
	trialTime = 15 * time.Second
	// kernelLookEvery is how often it is looked whether the kernel has SCTP, which
	// may load a module.
	kernelLookEvery = 30 * time.Second
)

// carriers are all that there are. TCP comes last, since who is asked over it has it.
var carriers = [...]transport.Kind{transport.SCTP, transport.SCTPUDP, transport.TCP}

// kernelSCTP remembers whether the kernel has SCTP.
type kernelSCTP struct {
	ask func() error

	mu   sync.Mutex
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

// carrier is what the streams that this host opens to a peer are carried by.
type carrier struct {
	mu        sync.Mutex
	configs   map[transport.Kind]*transport.Config // streams with the same one share an association
	picked    transport.Kind
	why       string // "" before the first pick
	tried     map[transport.Kind]failure
	wanting   map[transport.Kind]failure // those that nothing is said against, but that cannot be taken yet
	lacking   []transport.Kind           // of tried and wanting, at the last pick
	asking    bool                       // for them, in the background
	rates     map[transport.Kind]measured
	fallbacks uint64
	reached   map[netip.Addr]*reached // by the peer's addresses
}

func newCarrier() *carrier {
	return &carrier{configs: map[transport.Kind]*transport.Config{}, tried: map[transport.Kind]failure{}, wanting: map[transport.Kind]failure{}, rates: map[transport.Kind]measured{}, reached: map[netip.Addr]*reached{}}
}

// transportTo is the transport of streams to a peer over one carrier.
func (d *Daemon) transportTo(p *peer, k transport.Kind) (*transport.Config, error) {
	protector, local, problem := p.state()
	if protector == nil {
		if problem != nil {
			return nil, problem
		}
		return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s is not set up yet", p.cfg.Name), Fix: "try again in a moment"}
	}
	p.carrier.mu.Lock()
	defer p.carrier.mu.Unlock()
	c := p.carrier.configs[k]
	if c != nil && c.Protector == protector && c.Local == local {
		return c, nil
	}
	c = &transport.Config{Protector: protector, Kind: k, Local: local, OnPath: d.onPath}
	switch k {
	case transport.SCTPUDP:
		c.UDPPort = p.cfg.UDPPort
	case transport.SCTP:
		for _, q := range p.cfg.Paths {
			c.MoreLocal, c.MoreRemote = append(c.MoreLocal, q.LocalAddress), append(c.MoreRemote, q.Address)
		}
	}
	p.carrier.configs[k] = c
	return c, nil
}

// choose is the transport of the next streams to a peer, and who wants to know how
// they fared.
func (d *Daemon) choose(ctx context.Context, by *consumer, p *peer) (*transport.Config, func(error), error) {
	k := p.cfg.Transport.Kinds()[0]
	if p.cfg.Transport == config.TransportAuto {
		var err error
		if k, err = d.pick(ctx, by, p); err != nil {
			return nil, nil, err
		}
	}
	c, err := d.transportTo(p, k)
	return c, func(err error) {
		if ctx.Err() == nil {
			d.tried(p, k, err)
		}
	}, err
}

// pick finds the fastest carrier that both hosts have: the peer is asked over TCP
// which it has, and then over each of them; those that work are measured.
func (d *Daemon) pick(ctx context.Context, by *consumer, p *peer) (transport.Kind, error) {
	theirs, err := d.hello(ctx, by, p, transport.TCP)
	if err != nil && !errors.Is(err, probe.ErrNoHello) {
		return 0, err
	}
	var work, lacking []transport.Kind
	var without []string
	for _, k := range carriers {
		reason, passes := "", true
		switch failed := p.carrier.failed(k); {
		case k == transport.TCP:
		case err != nil:
			reason = p.cfg.Name + "'s ironwarp is an older one that does not say whether it has it"
			passes = false
		case k == transport.SCTP && d.kernel.available() != nil:
			reason, passes = "this host's kernel has none", false
		case !theirs.Has(k):
			reason = p.cfg.Name + " has none for this host"
		case failed.fresh():
			reason = "it failed: " + failed.err
		default:
			tctx, cancel := context.WithTimeout(ctx, d.opt.trial)
			_, terr := d.hello(tctx, by, p, k)
			cancel()
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			if terr != nil {
				d.tried(p, k, terr)
				reason = "it failed: " + oneLine(terr)
			}
		}
		if reason != "" {
			if passes {
				lacking = append(lacking, k)
			}
			without = append(without, fmt.Sprintf("no %s: %s", k, reason))
			continue
		}
		work = append(work, k)
	}
	k, why := transport.TCP, "the only one that both hosts have"
	if len(work) > 1 {
		var unmeasured []transport.Kind
		if k, why, unmeasured, err = d.fastest(ctx, by, p, work); err != nil {
			return 0, err
		}
		lacking = append(lacking, unmeasured...)
	}
	p.carrier.lack(lacking, d.opt.avoid)
	why = strings.Join(append([]string{why}, without...), "; ")
	if p.carrier.pick(k, why) {
		d.log.Info("transport is picked", "peer", p.cfg.Name, "transport", k.String(), "why", why)
	}
	return k, nil
}

// hello asks a peer over one carrier which carriers it has.
func (d *Daemon) hello(ctx context.Context, by *consumer, p *peer, k transport.Kind) (probe.Transports, error) {
	c, err := d.transportTo(p, k)
	if err != nil {
		return 0, err
	}
	return probe.Hello(ctx, d.probeFor(by), verbs.DialConfig{Remote: p.cfg.AddrPort(), Transport: c, Setup: setupOf(p.cfg)})
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// inUse is the carrier that was picked last, if it is among those that work, else
// TCP.
func (c *carrier) inUse(work []transport.Kind) transport.Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != "" && slices.Contains(work, c.picked) {
		return c.picked
	}
	return transport.TCP
}

// pick notes what was picked, and reports whether that is news.
func (c *carrier) pick(k transport.Kind, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.why == "" || c.picked != k
	c.picked, c.why = k, why
	return news
}

// kindFor is the carrier that a request asks for, or what the peer's streams have.
func (d *Daemon) kindFor(ctx context.Context, by *consumer, p *peer, asked string) (*transport.Config, func(error), error) {
	if asked == "" {
		return d.choose(ctx, by, p)
	}
	k, err := transport.ParseKind(asked)
	if err == nil && p.cfg.Transport.Has(k) {
		c, err := d.transportTo(p, k)
		return c, func(error) {}, err
	}
	var have []string
	for _, k := range p.cfg.Transport.Kinds() {
		have = append(have, k.String())
	}
	return nil, nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no transport %q for its streams; it has: %s", p.cfg.Name, asked, strings.Join(have, ", ")),
		Fix: "only what transport: in the peer's file names is guarded; transport: auto has them all"}
}

// answerHello tells a peer which carriers this host awaits it with.
func (d *Daemon) answerHello(cr *verbs.ConnRequest, p *peer) {
	var have probe.Transports
	d.mu.Lock()
	for at, l := range d.listeners {
		if l.ln != nil && p.cfg.Transport.Has(at.kind) {
			have = have.With(at.kind)
		}
	}
	d.mu.Unlock()
	d.turnAway(cr, probe.AppendHello(nil, have))
}

// describeCarrier fills in what carries a peer's streams.
func (p *peer) describeCarrier() api.Carrier {
	if p.cfg.Transport != config.TransportAuto {
		return api.Carrier{Transport: string(p.cfg.Transport), Why: "configured"}
	}
	c := p.carrier
	c.mu.Lock()
	defer c.mu.Unlock()
	v := api.Carrier{Why: "nothing is picked before the first stream", Fallbacks: c.fallbacks}
	if c.why != "" {
		v.Transport, v.Why = c.picked.String(), c.why
	}
	for _, k := range carriers {
		if f := c.tried[k]; f.fresh() {
			v.Tried = append(v.Tried, api.Tried{Transport: k.String(), Error: f.err, AgainSeconds: (f.pause - time.Since(f.at)).Seconds()})
		}
	}
	return v
}

// kindOf is the carrier of a flow.
func kindOf(f transport.Flow) transport.Kind {
	switch f.Protocol {
	case transport.ProtoSCTP:
		return transport.SCTP
	case transport.ProtoUDP:
		return transport.SCTPUDP
	}
	return transport.TCP
}
