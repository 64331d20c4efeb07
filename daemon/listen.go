package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/verbs"
)

// listenAt is where peers are awaited, and with what.
type listenAt struct {
	kind transport.Kind
	addr netip.AddrPort // of TCP or SCTP
	udp  uint16         // of SCTP in UDP
	more string         // further addresses of the kernel's SCTP, with spaces between
}

func (at listenAt) String() string {
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
	at      listenAt
	ln      *verbs.Listener // nil while it cannot listen
	problem *api.Error
}

// awaited is a peer, and the address of this host that it comes to, if that is known.
type awaited struct {
	cfg   config.Peer
	local netip.Addr
}

// awaits are the peers that there are.
func (d *Daemon) awaits() (all []awaited) {
	for _, p := range d.peerList() {
		all = append(all, awaited{p.cfg, p.localAddr()})
	}
	return all
}

// willAwait are those of another configuration, which is about to be applied.
func (d *Daemon) willAwait(next *config.Config) (all []awaited) {
	for _, c := range next.Peers {
		local := c.LocalAddress
		if p, err := d.findPeer(c.Name); err == nil && c.SameEnds(p.cfg) {
			local = p.localAddr()
		}
		if !local.IsValid() {
			local, _ = localAddr(c.Address) // without a route nobody comes
		}
		all = append(all, awaited{c, local})
	}
	return all
}

// wanted are the places that peers reach this host at.
func (d *Daemon) wanted(peers []awaited) map[listenAt]bool {
	// To ask may load the module, so it is only done for who wants to know.
	auto := slices.ContainsFunc(peers, func(p awaited) bool { return p.cfg.Transport == config.TransportAuto })
	noKernel := auto && d.carriers.KernelHas() != nil
	d.mu.Lock()
	defer d.mu.Unlock()
	w := map[listenAt]bool{}
	kinds := map[transport.Kind]bool{}
	var sctp [][]netip.Addr // addresses of one host each
	for _, p := range peers {
		local := p.local
		for _, k := range p.cfg.Transport.Kinds() {
			if k == transport.SCTP && p.cfg.Transport == config.TransportAuto && noKernel {
				continue
			}
			kinds[k] = true
			switch {
			case !local.IsValid():
			case k == transport.SCTP:
				addrs := []netip.Addr{local}
				for _, q := range p.cfg.Paths {
					addrs = append(addrs, q.LocalAddress)
				}
				sctp = append(sctp, addrs)
			case len(d.cfg.ListenOn) == 0:
				w[d.placeOf(k, local)] = true
			}
		}
	}
	if len(d.cfg.ListenOn) > 0 && len(peers) == 0 {
		kinds[transport.TCP] = true
	}
	for _, a := range d.cfg.ListenOn {
		for k := range kinds {
			switch {
			case k != transport.SCTP:
				w[d.placeOf(k, a)] = true
			case !a.IsUnspecified(): // an association would have all addresses of the host
				sctp = append(sctp, []netip.Addr{a})
			}
		}
	}
	for _, addrs := range joined(sctp) {
		at := d.placeOf(transport.SCTP, addrs[0])
		for _, a := range addrs[1:] {
			at.more = strings.TrimPrefix(at.more+" "+a.String(), " ")
		}
		w[at] = true
	}
	return w
}

// placeOf is a place by the configuration, which d.mu guards.
func (d *Daemon) placeOf(k transport.Kind, a netip.Addr) listenAt {
	at := listenAt{kind: k, addr: netip.AddrPortFrom(a, d.cfg.ListenPort)}
	if k == transport.SCTPUDP {
		at.udp = d.cfg.ListenUDPPort
	}
	return at
}

// joined puts sets of addresses that share one together: a socket of the kernel's
// SCTP has several addresses, and an address of a port has one socket.
func joined(sets [][]netip.Addr) [][]netip.Addr {
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

// closeListenersBut closes listeners that are not wanted. changing is held.
func (d *Daemon) closeListenersBut(want map[listenAt]bool) {
	d.mu.Lock()
	var stale []*listener
	for at, l := range d.listeners {
		if !want[at] {
			delete(d.listeners, at)
			stale = append(stale, l)
		}
	}
	d.mu.Unlock()
	for _, l := range stale {
		d.log.Debug("listener closed", "address", l.at)
		if l.ln != nil {
			l.ln.Close()
		}
	}
}

// listen opens the listeners that are wanted and closes those that are not.
// changing is held.
func (d *Daemon) listen(ctx context.Context) {
	want := d.wanted(d.awaits())
	d.closeListenersBut(want)
	d.lookAtAddresses()
	for at := range want {
		d.mu.Lock()
		l := d.listeners[at]
		if l == nil {
			l = &listener{at: at}
			d.listeners[at] = l
		}
		up := l.ln != nil
		d.mu.Unlock()
		if !up {
			d.openListener(ctx, l)
		}
	}
}

// lookAtAddresses says of listeners whether their address is there. They stay: they
// listen again when it comes back.
func (d *Daemon) lookAtAddresses() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.listeners {
		if l.ln == nil || l.at.more != "" { // one of several addresses of SCTP is a path's matter
			continue
		}
		here := isHere(l.at.addr.Addr())
		switch {
		case !here && l.problem == nil:
			l.problem = listenProblem(l.at, syscall.EADDRNOTAVAIL)
			d.log.Error("nobody can reach this host where it listens", "address", l.at, "error", l.problem)
		case here && l.problem != nil:
			l.problem = nil
			d.log.Info("listening again", "address", l.at)
		}
	}
}

func (d *Daemon) openListener(ctx context.Context, l *listener) {
	tc := &transport.Config{Protector: transport.PerPeer(d.protectorFor), Kind: l.at.kind, UDPPort: l.at.udp, OnRefused: d.turnedAway, OnPath: d.carriers.OnPath}
	for _, a := range strings.Fields(l.at.more) {
		tc.MoreLocal = append(tc.MoreLocal, netip.MustParseAddr(a))
	}
	ln, err := d.dev.Listen(ctx, l.at.addr, verbs.ListenConfig{Transport: tc, PeerSetup: d.listenSetup, OnFailed: d.turnedAway})
	problem := listenProblem(l.at, err)
	d.mu.Lock()
	changed := problem != nil && (l.problem == nil || l.problem.Message != problem.Message)
	l.ln, l.problem = ln, problem
	d.mu.Unlock()
	switch {
	case changed:
		d.log.Error("cannot listen", "address", l.at, "error", problem)
	case problem == nil:
		d.log.Info("listening", "address", l.at)
		d.run(func(ctx context.Context) { d.accept(ctx, ln) })
	}
}

// What is said of a kernel without SCTP.
const (
	noKernelSCTP  = "this host's kernel has no SCTP"
	getKernelSCTP = "load it with `modprobe sctp`, or say transport: sctp-udp or auto for the peer on both hosts"
)

func listenProblem(at listenAt, err error) *api.Error {
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
		e.Message = fmt.Sprintf("cannot listen at %s: %s", at, noKernelSCTP)
		e.Fix = getKernelSCTP + ". The daemon keeps trying"
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

// localAddr is the address of this host that reaches the peer, as far as it is
// known.
func (p *peer) localAddr() netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.local
}

func (d *Daemon) closeListeners() {
	d.mu.Lock()
	ls := d.listeners
	d.listeners = map[listenAt]*listener{}
	d.mu.Unlock()
	for _, l := range ls {
		if l.ln != nil {
			l.ln.Close()
		}
	}
}
