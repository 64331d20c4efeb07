package listen

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Offered is what hosts come to at portals: an iSCSI target, or an NVM subsystem.
type Offered struct {
	Port       uint16
	Addresses  []netip.Addr // none: those that its peers come to
	Undeclared bool         // hosts that are no peers may come, too
	Partition  string
	Allows     func(config.Peer) bool
}

// At reports whether a portal is one of it.
func (o *Offered) At(p Place) bool {
	return p.Addr.Port() == o.Port && p.Partition == o.Partition && (len(o.Addresses) == 0 || p.Addr.Addr().IsUnspecified() || slices.Contains(o.Addresses, p.Addr.Addr()))
}

// TakesAt reports whether a connection to an address of this host has come to one of its portals.
func (o *Offered) TakesAt(a netip.AddrPort) bool {
	return a.Port() == o.Port && (len(o.Addresses) == 0 || slices.Contains(o.Addresses, a.Addr()))
}

// PortalsConfig is what portals need from the rest of the host.
type PortalsConfig struct {
	Log  *slog.Logger
	Whom string // they are for, such as "initiators"
	What string // they lead to, such as "target"
	// Listen listens for connections.
	Listen func(ctx context.Context, at netip.AddrPort, cfg verbs.ListenConfig) (*verbs.Listener, error)
	// Protector is that of connections with an address, at a portal. It fails for whoever may not come; anyone says that hosts
	// which are no peers may.
	Protector func(a netip.Addr, anyone bool) (transport.Protector, error)
	// PeerOf is the peer that is authenticated as somebody and has an address.
	PeerOf func(id transport.Identity, a netip.Addr) (config.Peer, bool)
	// Stays fails for streams of hosts that are no peers any more, and of blocked ones, see verbs.ListenConfig.
	Stays func(transport.Flow, transport.Identity) error
	// Came is called with the peer of each connection, and Refused for connections that are refused.
	Came    func(peer string)
	Refused func(transport.Flow, error)
	// Label is the security label of a portal; nil: the default one.
	Label func(Place) string
	// Streaming: connections begin in streaming mode.
	Streaming bool
	// Serve serves what comes to a portal until that is closed, or ctx ends.
	Serve func(ctx context.Context, l *Portal)
}

// Portals are the places where hosts come to what is offered. What changes them, CloseBut, Listen and Close, is for one goroutine at a time.
type Portals struct {
	cfg    PortalsConfig
	set    *Set[*verbs.Listener]
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below it
	anyone []Offered  // to which hosts that are no peers may come
}

// NewPortals returns no portals.
func NewPortals(cfg PortalsConfig) *Portals {
	p := &Portals{cfg: cfg}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.set = NewSet(SetConfig[*verbs.Listener]{
		Open:         p.open,
		For:          " for " + cfg.Whom,
		OtherPort:    "give the " + cfg.What + " another port",
		OtherAddress: "correct the addresses of the " + cfg.What + ", or local_address of the peer",
	})
	return p
}

func (p *Portals) open(ctx context.Context, at Place) (*verbs.Listener, error) {
	cfg := verbs.ListenConfig{
		Transport: &transport.Config{
			Protector: transport.PerPeer(func(a netip.Addr) (transport.Protector, error) {
				return p.cfg.Protector(a, p.servesAnyone(at))
			}),
			OnRefused: p.cfg.Refused,
		},
		Streaming: p.cfg.Streaming, OnFailed: p.cfg.Refused, Partition: at.Partition,
		Stays: func(f transport.Flow, id transport.Identity) error {
			if _, known := p.cfg.PeerOf(id, f.Remote.Addr()); !known && p.servesAnyone(at) {
				return nil
			}
			return p.cfg.Stays(f, id)
		},
	}
	if p.cfg.Label != nil {
		cfg.Label = func() string { return p.cfg.Label(at) }
	}
	return p.cfg.Listen(ctx, at.Addr, cfg)
}

// noteAnyone notes to what hosts that are no peers may come.
func (p *Portals) noteAnyone(all []Offered) {
	anyone := slices.DeleteFunc(slices.Clone(all), func(o Offered) bool { return !o.Undeclared })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.anyone = anyone
}

// servesAnyone reports whether a portal is for hosts that are no peers, too.
func (p *Portals) servesAnyone(at Place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.anyone, func(o Offered) bool { return o.At(at) })
}

// wanted are the places of portals. A socket at all addresses leaves no room for others with its port.
func wanted(all []Offered, peers []Awaited) map[Place]bool {
	w := map[Place]bool{}
	for _, o := range all {
		addresses := o.Addresses
		if len(addresses) == 0 && o.Undeclared {
			addresses = []netip.Addr{netip.IPv4Unspecified()}
		}
		want := func(a netip.Addr) {
			w[Place{Kind: transport.TCP, Addr: netip.AddrPortFrom(a, o.Port), Partition: o.Partition}] = true
		}
		for _, a := range addresses {
			want(a)
		}
		for _, p := range peers {
			if len(addresses) == 0 && p.Local.IsValid() && o.Allows(p.Peer) {
				want(p.Local)
			}
		}
	}
	for at := range w {
		all := at
		all.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Addr.Port())
		if !at.Addr.Addr().IsUnspecified() && w[all] {
			delete(w, at)
		}
	}
	return w
}

// CloseBut closes the portals that what is offered and its peers do not want. The connections that came there end.
func (p *Portals) CloseBut(all []Offered, peers []Awaited) {
	p.noteAnyone(all)
	p.closeBut(wanted(all, peers))
}

func (p *Portals) closeBut(want map[Place]bool) {
	for _, at := range p.set.CloseBut(want) {
		p.cfg.Log.Info("portal closed", "address", at)
	}
}

// Listen opens the portals that are wanted and closes those that are not. What cannot be opened is tried again by the next call.
func (p *Portals) Listen(ctx context.Context, all []Offered, peers []Awaited) {
	p.noteAnyone(all)
	want := wanted(all, peers)
	p.closeBut(want)
	for at := range want {
		if p.ctx.Err() != nil {
			return
		}
		ln, problem := p.set.Open(ctx, at)
		switch {
		case problem != nil:
			p.cfg.Log.Error("cannot listen for "+p.cfg.Whom, "address", at, "error", problem)
		case ln != nil:
			p.cfg.Log.Info("listening for "+p.cfg.Whom, "address", at)
			p.wg.Go(func() { p.cfg.Serve(p.ctx, &Portal{ln, p}) })
		}
	}
}

// Of are the portals of what is offered, for people, and what keeps one of them from serving.
func (p *Portals) Of(o *Offered) (portals []string, problem *api.Error) {
	p.set.Each(func(at Place, _ bool, why **api.Error) {
		if o.At(at) {
			portals = append(portals, at.String())
			if problem == nil {
				problem = *why
			}
		}
	})
	slices.Sort(portals)
	return portals, problem
}

// States describes the portals, by address.
func (p *Portals) States() []api.Listener { return p.set.States() }

// Close closes the portals and ends what came there. Wait waits for that, for a while.
func (p *Portals) Close() { p.cancel() }

// Wait waits for the end of all that came after Close, for most at the longest: that of one whose storage hangs does not come.
func (p *Portals) Wait(most time.Duration) {
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Portal is one of them, as servers take it.
type Portal struct {
	*verbs.Listener
	of *Portals
}

// Accept waits for the next connection. It fails as verbs.Listener.Accept does.
func (l *Portal) Accept(ctx context.Context) (*verbs.ConnRequest, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	if p, known := l.of.cfg.PeerOf(r.Peer(), r.Flow().Remote.Addr()); known {
		l.of.cfg.Came(p.Name)
	}
	return r, nil
}
