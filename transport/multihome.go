package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// kernelAssoc is an association of the kernel: *ksctp.Assoc. It reads nothing of the peer
// before Start.
type kernelAssoc interface {
	assoc.Association
	LocalAddrs() []netip.AddrPort
	PeerAddrs() []netip.AddrPort
	Start(r assoc.Receiver)
}

// flowsTo returns the flows of an association's paths: each address of the peer with the
// local address at the same index, or the one that routes to it. A local address without
// a counterpart is paired with the peer's first.
func (c *Config) flowsTo(f Flow, source func(netip.AddrPort) (netip.Addr, error)) ([]Flow, error) {
	local, remote := []netip.Addr{f.Local.Addr()}, []netip.Addr{f.Remote.Addr()}
	for _, a := range c.MoreLocal {
		local = append(local, a.Unmap())
	}
	for _, a := range c.MoreRemote {
		remote = append(remote, a.Unmap())
	}
	for i, a := range remote {
		if !a.IsValid() || a.IsUnspecified() || slices.Contains(remote[:i], a) {
			return nil, fmt.Errorf("Config.MoreRemote: %v is no further address of the peer", a)
		}
	}
	for i, a := range local {
		if i > 0 && (!a.IsValid() || slices.Contains(local[:i], a)) || a.IsValid() && a.IsUnspecified() {
			return nil, fmt.Errorf("Config.MoreLocal: %v is no further address of this host", a)
		}
	}
	flows := make([]Flow, max(len(local), len(remote)))
	for i := range flows {
		at := f
		if i < len(remote) {
			at.Remote = netip.AddrPortFrom(remote[i], f.Remote.Port())
		}
		from := netip.Addr{}
		if i < len(local) {
			from = local[i]
		}
		if !from.IsValid() {
			var err error
			if from, err = source(at.Remote); err != nil {
				return nil, err
			}
		}
		at.Local = netip.AddrPortFrom(from, f.Local.Port())
		flows[i] = at
	}
	return flows, nil
}

// prepareAll prepares all paths at once, and returns the peer's addresses, those of ready
// paths first. Once one path is ready, the others have only pathGrace left. Errors of a
// single path are dropped: Admit will report them again. ctx ends with the dialling.
func (c *Config) prepareAll(ctx context.Context, flows []Flow) ([]netip.AddrPort, error) {
	type outcome struct {
		i   int
		err error
	}
	patience, giveUp := context.WithCancel(ctx)
	defer giveUp()
	outcomes := make(chan outcome, len(flows))
	for i, f := range flows {
		go func() {
			pctx, cancel := context.WithCancel(ctx) // stays open after success, until ctx ends
			stop := context.AfterFunc(patience, cancel)
			err := c.Protector.Prepare(pctx, f)
			if err != nil {
				cancel()
			}
			stop()
			outcomes <- outcome{i, err}
		}()
	}
	ready := make([]bool, len(flows))
	var errs []error
	var grace *time.Timer
	for range flows {
		o := <-outcomes
		switch {
		case o.err == nil:
			ready[o.i] = true
			if grace == nil {
				grace = time.AfterFunc(pathGrace, giveUp)
				defer grace.Stop()
			}
		case len(flows) == 1:
			return nil, o.err
		default:
			errs = append(errs, fmt.Errorf("%v: %w", flows[o.i], o.err))
		}
	}
	if grace == nil {
		return nil, errors.Join(errs...)
	}
	var order []netip.AddrPort
	for _, now := range []bool{true, false} {
		for i, f := range flows {
			if ready[i] == now && !slices.Contains(order, f.Remote) {
				order = append(order, f.Remote)
			}
		}
	}
	return order, nil
}

// dialled gets an association admitted that this host has set up along flows.
func (c *Config) dialled(ctx context.Context, a kernelAssoc, flows []Flow, recv NewReceiver) (*Assoc, error) {
	local, peer := a.LocalAddrs(), a.PeerAddrs()
	used, err := agreed(flows, local, peer)
	if err != nil {
		a.Abort("an address of the association is not admitted")
		<-a.Done()
		return nil, flowError("admit", flows[0], err)
	}
	return admitKernel(ctx, a, used, true, c, recv, func() {})
}

// agreed returns the flows whose addresses an association has, with their local port. It
// fails if the association has other addresses.
func agreed(flows []Flow, local, peer []netip.AddrPort) ([]Flow, error) {
	var used []Flow
	for _, f := range flows {
		i := slices.IndexFunc(local, func(a netip.AddrPort) bool { return a.Addr().Unmap() == f.Local.Addr() })
		if i >= 0 && slices.ContainsFunc(peer, func(a netip.AddrPort) bool { return unmap(a) == f.Remote }) {
			f.Local = unmap(local[i])
			used = append(used, f)
		}
	}
	for _, a := range peer {
		if !slices.ContainsFunc(used, func(f Flow) bool { return f.Remote == unmap(a) }) {
			return nil, fmt.Errorf("%w: the peer also has the address %v, which is on none of the configured paths", ErrNotProtected, a)
		}
	}
	// A local address without a counterpart at the peer is idle.
	for _, a := range local {
		if !slices.ContainsFunc(flows, func(f Flow) bool { return f.Local.Addr() == a.Addr().Unmap() }) {
			return nil, fmt.Errorf("%w: the association also has the address %v of this host, which is on none of the configured paths", ErrNotProtected, a)
		}
	}
	if len(used) == 0 {
		return nil, fmt.Errorf("%w: the association has no addresses any more", ErrNotProtected)
	}
	return used, nil
}

// admitKernel gets an association of the kernel admitted and starts it.
func admitKernel(ctx context.Context, a kernelAssoc, flows []Flow, outgoing bool, cfg *Config, recv NewReceiver, closeCarrier func()) (*Assoc, error) {
	g := newGate(a, flows, cfg)
	g.start = func() { a.Start(g) }
	// Before Start only Done reports its end.
	started := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-a.Done():
			g.cancel()
		case <-started:
		}
	}()
	defer func() { close(started); <-watched }()
	return g.admitted(ctx, outgoing, recv, closeCarrier)
}

// accepted takes an association that a peer has set up.
func (l *SCTPListener) accepted(a kernelAssoc) {
	flows, err := l.flowsFrom(a.LocalAddrs(), a.PeerAddrs(), sockio.Source)
	f := l.flow
	if len(flows) > 0 {
		f = flows[0]
	}
	if err != nil {
		l.cfg.refused(f, flowError("admit", f, err))
	} else {
		err = l.begin(f)
	}
	if err != nil {
		a.Abort("not admitted")
		return
	}
	closeCarrier := func() {} // the kernel's association has its own socket
	go l.offer(f, closeCarrier, func(ctx context.Context) (*Assoc, error) {
		return admitKernel(ctx, a, flows, false, l.cfg, l.newRecv, closeCarrier)
	})
}

// flowsFrom returns the flows of the paths of an association that a peer has set up: each
// of its addresses with the local one that the Protector accepts. With an error it
// returns the flow that the error is about.
func (l *SCTPListener) flowsFrom(local, peer []netip.AddrPort, source func(netip.AddrPort) (netip.Addr, error)) ([]Flow, error) {
	if len(local) == 0 || len(peer) == 0 {
		return nil, errors.New("the association has no addresses any more")
	}
	var flows []Flow
	for _, r := range peer {
		f := Flow{Protocol: ProtoSCTP, Remote: unmap(r)}
		from, _ := source(f.Remote)
		candidates := slices.Clone(local)
		slices.SortStableFunc(candidates, func(a, b netip.AddrPort) int {
			return rank(a.Addr().Unmap(), from) - rank(b.Addr().Unmap(), from)
		})
		var refusal error
		ok := false
		for _, c := range candidates {
			f.Local = unmap(c)
			err := screen(l.cfg.Protector, f)
			if ok = err == nil; ok {
				break
			}
			if refusal == nil {
				refusal = err
			}
		}
		if !ok {
			return []Flow{f}, refusal
		}
		flows = append(flows, f)
	}
	return flows, nil
}

// rank sorts the wanted address first.
func rank(a, wanted netip.Addr) int {
	if a == wanted {
		return 0
	}
	return 1
}
