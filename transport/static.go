package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
)

// LoopbackOnly returns a Protector that admits flows within this host (127.0.0.0/8 and
// ::1) and nothing else. Their peer's identity is "loopback".
func LoopbackOnly() Protector { return loopback{} }

type loopback struct{}

func (loopback) check(f Flow, complete bool) error {
	if !f.Remote.Addr().Unmap().IsLoopback() || complete && !f.Local.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("%w: only loopback addresses are allowed here", ErrNotProtected)
	}
	return nil
}

func (l loopback) Prepare(_ context.Context, f Flow) error { return l.check(f, f.Local.IsValid()) }

func (l loopback) Screen(f Flow) error { return l.check(f, true) }

func (l loopback) Admit(_ context.Context, f Flow, _ bool, _ Monitored) (Protection, error) {
	if err := l.check(f, true); err != nil {
		return nil, err
	}
	return fixed{peer: "loopback", kind: "loopback"}, nil
}

// Plaintext returns a Protector that lets flows with the allowed addresses travel in
// clear, unauthenticated. It is for labs, and logs a warning for each flow. The peer's
// identity is "plaintext:ADDRESS".
func Plaintext(log *slog.Logger, allowed ...netip.Addr) Protector {
	p := &plaintext{log: log, allowed: make([]netip.Addr, len(allowed))}
	if p.log == nil {
		p.log = slog.Default()
	}
	for i, a := range allowed {
		p.allowed[i] = a.Unmap()
	}
	return p
}

type plaintext struct {
	log     *slog.Logger
	allowed []netip.Addr
}

func (p *plaintext) Prepare(_ context.Context, f Flow) error { return p.Screen(f) }

func (p *plaintext) Screen(f Flow) error {
	if !slices.Contains(p.allowed, f.Remote.Addr().Unmap()) {
		return fmt.Errorf("%w: plaintext is not allowed with %s", ErrNotProtected, f.Remote.Addr())
	}
	return nil
}

func (p *plaintext) Admit(ctx context.Context, f Flow, outgoing bool, _ Monitored) (Protection, error) {
	if err := p.Prepare(ctx, f); err != nil {
		return nil, err
	}
	p.log.Warn("INSECURE: this stream travels in clear and its peer is not authenticated",
		"flow", f.String(), "outgoing", outgoing)
	return fixed{peer: Identity("plaintext:" + f.Remote.Addr().String()), kind: "plaintext"}, nil
}

// fixed is a protection that never changes.
type fixed struct {
	peer Identity
	kind string
}

func (f fixed) Peer() Identity { return f.peer }
func (f fixed) Paused() bool   { return false }
func (f fixed) Kind() string   { return f.kind }
func (f fixed) Release()       {}

// PerPeer returns a Protector that asks sel, by the peer's address, for the
// Protector of each flow. sel may be called from several goroutines and must not
// block.
func PerPeer(sel func(netip.Addr) (Protector, error)) Protector { return perPeer(sel) }

type perPeer func(netip.Addr) (Protector, error)

func (p perPeer) choose(f Flow) (Protector, error) {
	q, err := p(f.Remote.Addr().Unmap())
	if err == nil && q == nil {
		err = fmt.Errorf("%w: %s is not a configured peer", ErrNotProtected, f.Remote.Addr())
	}
	return q, err
}

func (p perPeer) Prepare(ctx context.Context, f Flow) error {
	q, err := p.choose(f)
	if err != nil {
		return err
	}
	return q.Prepare(ctx, f)
}

func (p perPeer) Screen(f Flow) error {
	q, err := p.choose(f)
	if err != nil {
		return err
	}
	return screen(q, f)
}

func (p perPeer) LocalPorts(ctx context.Context, f Flow) (lo, hi uint16, err error) {
	q, err := p.choose(f)
	if err != nil {
		return 0, 0, err
	}
	if c, ok := q.(PortChooser); ok {
		return c.LocalPorts(ctx, f)
	}
	return 0, 0, nil
}

func (p perPeer) Admit(ctx context.Context, f Flow, outgoing bool, c Monitored) (Protection, error) {
	q, err := p.choose(f)
	if err != nil {
		return nil, err
	}
	return q.Admit(ctx, f, outgoing, c)
}
