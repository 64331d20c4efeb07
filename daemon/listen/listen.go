// Package listen has the places where this host awaits its peers, as the configuration and the
// addresses that peers come to want them.
package listen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/verbs"
)

// place is where peers are awaited, and with what.
type place struct {
	kind transport.Kind
	addr netip.AddrPort // of TCP or SCTP
	udp  uint16         // of SCTP in UDP
	more string         // further addresses of the kernel's SCTP, with spaces between
}

func (at place) String() string {
	switch {
	case at.kind == transport.SCTPUDP:
		return fmt.Sprintf("%s (%s, UDP port %d)", at.addr, at.kind, at.udp)
	case at.more != "":
		return fmt.Sprintf("%s (%s, and at %s)", at.addr, at.kind, at.more)
	case at.kind != transport.TCP:
		return fmt.Sprintf("%s (%s)", at.addr, at.kind)
	}
	return at.addr.String()
}

// listener awaits peers at one place.
type listener struct {
	at      place
	ln      *verbs.Listener // nil while it cannot listen
	problem *api.Error
}

// Awaited is a peer, and the address of this host that it comes to, if that is known.
type Awaited struct {
	Peer  config.Peer
	Local netip.Addr
}

// Config says what listeners need of the rest of the host.
type Config struct {
	Log *slog.Logger
	// Kernel fails where the kernel has no SCTP. To ask may load its module.
	Kernel func() error
	// Open begins to listen, and Accept takes what comes until the listener is closed.
	Open   func(ctx context.Context, at netip.AddrPort, t *transport.Config) (*verbs.Listener, error)
	Accept func(*verbs.Listener)
}

// Listeners are those of a host. What changes them, CloseBut, Listen and Close, is for one
// goroutine at a time.
type Listeners struct {
	cfg Config
	log *slog.Logger

	mu  sync.Mutex // guards the fields below it, and ln and problem of each listener
	all map[place]*listener
}

// New returns no listeners.
func New(cfg Config) *Listeners {
	return &Listeners{cfg: cfg, log: cfg.Log, all: map[place]*listener{}}
}

// wantedPlaces are the places that peers reach this host at.
func (l *Listeners) wantedPlaces(cfg *config.Config, peers []Awaited) map[place]bool {
	// To ask may load the module, so it is only done for who wants to know.
	auto := slices.ContainsFunc(peers, func(p Awaited) bool { return p.Peer.Transport == config.TransportAuto })
	noKernel := auto && l.cfg.Kernel() != nil
	w := map[place]bool{}
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
				w[placeOf(cfg, k, p.Local)] = true
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
				w[placeOf(cfg, k, a)] = true
			case !a.IsUnspecified(): // an association would have all addresses of the host
				sctp = append(sctp, []netip.Addr{a})
			}
		}
	}
	for _, addrs := range joinOverlapping(sctp) {
		at := placeOf(cfg, transport.SCTP, addrs[0])
		for _, a := range addrs[1:] {
			at.more = strings.TrimPrefix(at.more+" "+a.String(), " ")
		}
		w[at] = true
	}
	return w
}

// placeOf is a place by the configuration.
func placeOf(cfg *config.Config, k transport.Kind, a netip.Addr) place {
	at := place{kind: k, addr: netip.AddrPortFrom(a, cfg.ListenPort)}
	if k == transport.SCTPUDP {
		at.udp = cfg.ListenUDPPort
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

func (l *Listeners) closeBut(want map[place]bool) {
	l.mu.Lock()
	var stale []*listener
	for at, one := range l.all {
		if !want[at] {
			delete(l.all, at)
			stale = append(stale, one)
		}
	}
	l.mu.Unlock()
	for _, one := range stale {
		l.log.Debug("listener closed", "address", one.at)
		if one.ln != nil {
			one.ln.Close()
		}
	}
}

// Listen opens the listeners that are wanted and closes those that are not. What cannot be
// opened shows in States, and is tried again by the next call.
func (l *Listeners) Listen(ctx context.Context, cfg *config.Config, peers []Awaited) {
	want := l.wantedPlaces(cfg, peers)
	l.closeBut(want)
	l.checkAddresses()
	for at := range want {
		l.mu.Lock()
		one := l.all[at]
		if one == nil {
			one = &listener{at: at}
			l.all[at] = one
		}
		up := one.ln != nil
		l.mu.Unlock()
		if !up {
			l.open(ctx, one)
		}
	}
}

// checkAddresses says of listeners whether their address is there. They stay: they
// listen again when it comes back.
func (l *Listeners) checkAddresses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.all {
		if one.ln == nil || one.at.more != "" { // one of several addresses of SCTP is a path's matter
			continue
		}
		here := IsHere(one.at.addr.Addr())
		switch {
		case !here && one.problem == nil:
			one.problem = problemOf(one.at, syscall.EADDRNOTAVAIL)
			l.log.Error("nobody can reach this host where it listens", "address", one.at, "error", one.problem)
		case here && one.problem != nil:
			one.problem = nil
			l.log.Info("listening again", "address", one.at)
		}
	}
}

func (l *Listeners) open(ctx context.Context, one *listener) {
	tc := &transport.Config{Kind: one.at.kind, UDPPort: one.at.udp}
	for _, a := range strings.Fields(one.at.more) {
		tc.MoreLocal = append(tc.MoreLocal, netip.MustParseAddr(a))
	}
	ln, err := l.cfg.Open(ctx, one.at.addr, tc)
	problem := problemOf(one.at, err)
	l.mu.Lock()
	changed := problem != nil && (one.problem == nil || one.problem.Message != problem.Message)
	one.ln, one.problem = ln, problem
	l.mu.Unlock()
	switch {
	case changed:
		l.log.Error("cannot listen", "address", one.at, "error", problem)
	case problem == nil:
		l.log.Info("listening", "address", one.at)
		l.cfg.Accept(ln)
	}
}

// Kinds are the carriers of a peer's that it is awaited with now.
func (l *Listeners) Kinds(of config.Transport) (kinds []transport.Kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, one := range l.all {
		if one.ln != nil && of.Has(at.kind) {
			kinds = append(kinds, at.kind)
		}
	}
	return kinds
}

// States describes the listeners.
func (l *Listeners) States() []api.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []api.Listener{}
	for _, one := range l.all {
		v := api.Listener{Address: one.at.addr.String(), Transport: one.at.kind.String(), UDPPort: one.at.udp, More: strings.Fields(one.at.more), State: "listening", Problem: one.problem}
		if one.problem != nil || one.ln == nil {
			v.State = api.PeerProblem
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b api.Listener) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Transport, b.Transport))
	})
	return out
}

// What is said of a kernel without SCTP.
const (
	NoKernelSCTP  = "this host's kernel has no SCTP"
	GetKernelSCTP = "load it with `modprobe sctp`, or say transport: sctp-udp or auto for the peer on both hosts"
)

func problemOf(at place, err error) *api.Error {
	if err == nil {
		return nil
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("cannot listen at %s: %v", at, err)}
	what, port, find := "TCP port", at.addr.Port(), "-ltnp"
	switch at.kind {
	case transport.SCTP:
		what, find = "SCTP port", "-lSnp"
	case transport.SCTPUDP:
		what, port, find = "UDP port", at.udp, "-lunp"
	}
	switch {
	case errors.Is(err, ksctp.ErrUnavailable):
		e.Message = fmt.Sprintf("cannot listen at %s: %s", at, NoKernelSCTP)
		e.Fix = GetKernelSCTP + ". The daemon keeps trying"
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code = api.CodeInUse
		e.Message = fmt.Sprintf("cannot listen at %s: another program has %s %d", at, what, port)
		e.Fix = fmt.Sprintf("find it with `ss %s 'sport = :%d'` and stop it, or choose another listen port in the configuration of both hosts. The daemon keeps trying", find, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Message = fmt.Sprintf("cannot listen at %s: no interface of this host has that address", at)
		e.Fix = "see `ip address`; set local_address of the peer to an address of this host. The daemon keeps trying"
	}
	return e
}
