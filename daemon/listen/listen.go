// Package listen keeps listeners open where the configuration and the addresses of this host's peers want
// them.
package listen

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Awaited is a peer, and the address of this host that it comes to, if that is known.
type Awaited struct {
	Peer  config.Peer
	Local netip.Addr
}

// Config is what listeners need from the rest of the host.
type Config struct {
	Log *slog.Logger
	// Kernel fails where the kernel has no SCTP. To ask may load its module.
	Kernel func() error
	// Open begins to listen, for streams of a partition or of none, and Accept takes what comes until the listener is
	// closed.
	Open   func(ctx context.Context, at netip.AddrPort, partition string, t *transport.Config) (*verbs.Listener, error)
	Accept func(*verbs.Listener)
}

// Listeners are those of a host for its peers. What changes them, CloseBut, Listen and Close, is for
// one goroutine at a time.
type Listeners struct {
	cfg Config
	log *slog.Logger
	set *Set[*verbs.Listener]
}

// New returns no listeners.
func New(cfg Config) *Listeners {
	return &Listeners{cfg: cfg, log: cfg.Log, set: NewSet(SetConfig[*verbs.Listener]{
		Open: func(ctx context.Context, at Place) (*verbs.Listener, error) {
			tc := &transport.Config{Kind: at.Kind, UDPPort: at.UDP}
			for _, a := range strings.Fields(at.More) {
				tc.MoreLocal = append(tc.MoreLocal, netip.MustParseAddr(a))
			}
			return cfg.Open(ctx, at.Addr, at.Partition, tc)
		},
		OtherPort:    "choose another listen port in the configuration of both hosts",
		OtherAddress: "set local_address of the peer to an address of this host",
	})}
}

// wantedPlaces are the places that peers reach this host at.
func (l *Listeners) wantedPlaces(cfg *config.Config, peers []Awaited) map[Place]bool {
	// Asking may load the module, so it is only done if a peer may use it.
	auto := slices.ContainsFunc(peers, func(p Awaited) bool { return p.Peer.Transport == config.TransportAuto })
	noKernel := auto && l.cfg.Kernel() != nil
	w := map[Place]bool{}
	addPlaces(w, cfg, peers, noKernel, Place{Addr: netip.AddrPortFrom(netip.Addr{}, cfg.ListenPort), UDP: cfg.ListenUDPPort})
	for _, q := range cfg.Partitions {
		var members []Awaited
		for _, p := range peers {
			if p.Peer.MayUsePartition(q.Name) {
				members = append(members, p)
			}
		}
		if len(members) > 0 {
			addPlaces(w, cfg, members, noKernel, Place{Addr: netip.AddrPortFrom(netip.Addr{}, q.Port), UDP: q.Port, Partition: q.Name})
		}
	}
	return w
}

// addPlaces adds the places at which peers reach this host at the ports of a place.
func addPlaces(w map[Place]bool, cfg *config.Config, peers []Awaited, noKernel bool, ports Place) {
	kinds := map[transport.Kind]bool{}
	var sctp [][]netip.Addr // addresses of one host each
	for _, p := range peers {
		for _, k := range p.Peer.Transport.Kinds() {
			if k == transport.SCTP && p.Peer.Transport == config.TransportAuto && noKernel {
				continue
			}
			kinds[k] = true
			switch {
			case !p.Local.IsValid():
			case k == transport.SCTP:
				addrs := []netip.Addr{p.Local}
				for _, q := range p.Peer.Multihoming {
					addrs = append(addrs, q.LocalAddress)
				}
				sctp = append(sctp, addrs)
			case len(cfg.ListenOn) == 0:
				w[ports.of(k, p.Local)] = true
			}
		}
	}
	if len(cfg.ListenOn) > 0 && len(peers) == 0 {
		kinds[transport.TCP] = true
	}
	for _, a := range cfg.ListenOn {
		for k := range kinds {
			switch {
			case k != transport.SCTP:
				w[ports.of(k, a)] = true
			case !a.IsUnspecified(): // an association would have all addresses of the host
				sctp = append(sctp, []netip.Addr{a})
			}
		}
	}
	for _, addrs := range joinOverlapping(sctp) {
		at := ports.of(transport.SCTP, addrs[0])
		for _, a := range addrs[1:] {
			at.More = strings.TrimPrefix(at.More+" "+a.String(), " ")
		}
		w[at] = true
	}
}

// of is a place with these ports, for a carrier at an address.
func (at Place) of(k transport.Kind, a netip.Addr) Place {
	at.Kind, at.Addr = k, netip.AddrPortFrom(a, at.Addr.Port())
	if k != transport.SCTPUDP {
		at.UDP = 0
	}
	return at
}

// joinOverlapping puts sets of addresses that share one together: a socket of the kernel's
// SCTP has several addresses, and an address of a port has one socket.
func joinOverlapping(sets [][]netip.Addr) [][]netip.Addr {
	var out [][]netip.Addr
	for _, s := range sets {
		union := slices.Clone(s)
		out = slices.DeleteFunc(out, func(o []netip.Addr) bool {
			if !slices.ContainsFunc(o, func(a netip.Addr) bool { return slices.Contains(union, a) }) {
				return false
			}
			union = append(union, o...)
			return true
		})
		slices.SortFunc(union, netip.Addr.Compare)
		out = append(out, slices.Compact(union))
	}
	return out
}

// CloseBut closes the listeners that a configuration and its peers do not want.
func (l *Listeners) CloseBut(cfg *config.Config, peers []Awaited) {
	l.closeBut(l.wantedPlaces(cfg, peers))
}

// Close closes all of them.
func (l *Listeners) Close() { l.closeBut(nil) }

func (l *Listeners) closeBut(want map[Place]bool) {
	for _, at := range l.set.CloseBut(want) {
		l.log.Debug("listener closed", "address", at)
	}
}

// Listen opens the listeners that are wanted and closes those that are not. What cannot be
// opened shows in States, and is tried again by the next call.
func (l *Listeners) Listen(ctx context.Context, cfg *config.Config, peers []Awaited) {
	want := l.wantedPlaces(cfg, peers)
	l.closeBut(want)
	l.checkAddresses()
	for at := range want {
		ln, problem := l.set.Open(ctx, at)
		switch {
		case problem != nil:
			l.log.Error("cannot listen", "address", at, "error", problem)
		case ln != nil:
			l.log.Info("listening", "address", at)
			l.cfg.Accept(ln)
		}
	}
}

// checkAddresses notes which listeners have an address that this host has lost. They stay: they
// listen again when it comes back.
func (l *Listeners) checkAddresses() {
	l.set.Each(func(at Place, up bool, problem **api.Error) {
		if !up || at.More != "" { // one of several addresses of SCTP is a path's matter
			return
		}
		here := IsHere(at.Addr.Addr())
		switch {
		case !here && *problem == nil:
			*problem = l.set.cfg.problemAt(at, syscall.EADDRNOTAVAIL)
			l.log.Error("nobody can reach this host where it listens", "address", at, "error", *problem)
		case here && *problem != nil:
			*problem = nil
			l.log.Info("listening again", "address", at)
		}
	})
}

// Kinds are the transports of a peer's on which this host listens now.
func (l *Listeners) Kinds(of config.Transport) (kinds []transport.Kind) {
	l.set.Each(func(at Place, up bool, _ **api.Error) {
		if up && at.Partition == "" && of.Has(at.Kind) {
			kinds = append(kinds, at.Kind)
		}
	})
	return kinds
}

// States describes the listeners, by address.
func (l *Listeners) States() []api.Listener { return l.set.States() }
