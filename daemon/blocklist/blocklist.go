// Package blocklist keeps peers out for a while: those that create streams without end (RFC 5042
// section 6.4.1), and those that somebody names.
package blocklist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// refusing is the peers whose streams this daemon refuses by itself, since nothing
// in the kernel can recognise them by: those without ESP, and all where the kernel has no
// nf_tables. Unlike the kernel's own these blocks end with the daemon.
type refusing struct {
	mu    sync.Mutex // guards the fields below it
	peers map[string]api.Block
}

// blocked returns an error for a peer that is blocked as of now, and counts it.
func (r *refusing) blocked(peer string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.peers[peer]
	if !ok {
		return nil
	}
	if !time.Now().Before(b.Until) {
		delete(r.peers, peer)
		return nil
	}
	b.Packets++
	r.peers[peer] = b
	return fmt.Errorf("%w: peer %s: %w until %s: %s", transport.ErrNotProtected, peer, ipsec.ErrBlocked, b.Until.Format(time.TimeOnly), b.Why)
}

func (r *refusing) add(b api.Block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.peers == nil {
		r.peers = map[string]api.Block{}
	}
	r.peers[b.Peer] = b
}

// remove removes a peer's block, and reports whether there was one.
func (r *refusing) remove(peer string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.peers[peer]
	delete(r.peers, peer)
	return ok && time.Now().Before(b.Until)
}

func (r *refusing) list() []api.Block {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.peers, func(_ string, b api.Block) bool { return !now.Before(b.Until) })
	return slices.Collect(maps.Values(r.peers))
}

// Peer is a peer of the configuration.
type Peer struct {
	Name     string
	Identity transport.Identity
	Address  netip.Addr
	Paths    []string // by which the kernel knows it
	IPsec    bool     // the kernel knows it
}

// Kernel blocks peers by their paths; *ipsec.Manager does.
type Kernel interface {
	Block(ctx context.Context, path string, span time.Duration, why string) error
	Unblock(ctx context.Context, path string) error
	Blocks() []guard.Block
}

// Config is what blocks need from the rest of the host.
type Config struct {
	Log    *slog.Logger
	Policy config.Block
	Kernel func() Kernel // nil as long as no peer needs it
	Peers  func() []Peer
	// Begun is called when a peer is blocked, and ends its streams.
	Begun func(p Peer, why error)
}

// List is the peers that are kept out, and the streams that others have created lately.
type List struct {
	cfg      Config
	intake   *intake
	refusing refusing
}

// New returns a List whose only blocks are the kernel's. Watch enforces its policy.
func New(cfg Config) *List { return &List{cfg: cfg, intake: newIntake(cfg.Policy)} }

// SetPolicy changes which peers are blocked automatically; every peer begins anew.
func (l *List) SetPolicy(p config.Block) { l.intake.setPolicy(p) }

// Created counts a stream, or an attempt at one, that failed with err. It does not block.
func (l *List) Created(peer string, err error) { l.intake.countStream(peer, err) }

// Blocked fails with ipsec.ErrBlocked for a peer whose streams this daemon refuses as of
// now, and counts that.
func (l *List) Blocked(peer string) error { return l.refusing.blocked(peer) }

// Forget forgets a peer that is not configured any more.
func (l *List) Forget(peer string) {
	l.intake.forgetPeer(peer)
	l.refusing.remove(peer)
}

// All describes the peers that are kept out.
func (l *List) All() []api.Block {
	out := append([]api.Block{}, l.refusing.list()...)
	if k := l.cfg.Kernel(); k != nil {
		names := map[string]string{} // by path
		for _, p := range l.cfg.Peers() {
			for _, n := range p.Paths {
				names[n] = p.Name
			}
		}
		for _, b := range k.Blocks() {
			out = append(out, api.Block{
				Peer: cmp.Or(names[b.Peer], b.Peer), Address: b.Addr.String(), By: api.BlockedByKernel, Since: b.Since, Until: b.Until, Why: b.Why, Packets: b.Packets,
			})
		}
	}
	slices.SortFunc(out, func(a, b api.Block) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Address, b.Address))
	})
	return out
}

// Block keeps a peer out for a while and ends its streams. It fails with an *api.Error for
// an impossible time or reason, and where the kernel does not take the block.
func (l *List) Block(ctx context.Context, p Peer, req api.BlockRequest) (api.Block, error) {
	span, err := api.Seconds(req.Seconds, l.intake.blockTime(), guard.MaxBlock)
	if err != nil || span < guard.MinBlock {
		return api.Block{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("cannot block peer %s for %g seconds", p.Name, req.Seconds),
			Fix: fmt.Sprintf("allowed: %s to %s", config.FormatDuration(guard.MinBlock), config.FormatDuration(guard.MaxBlock))}
	}
	if len(req.Why) > maxWhy {
		return api.Block{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the reason has %d bytes; %d are allowed", len(req.Why), maxWhy)}
	}
	return l.block(ctx, p, span, cmp.Or(req.Why, "by hand"))
}

// maxWhy is the length in bytes of a reason, which the kernel keeps with the block.
const maxWhy = 100

// block blocks a peer in the kernel, or else in this daemon.
func (l *List) block(ctx context.Context, p Peer, span time.Duration, why string) (api.Block, error) {
	now := time.Now()
	b := api.Block{Peer: p.Name, Address: p.Address.String(), By: api.BlockedByKernel, Since: now, Until: now.Add(span), Why: why}
	err := l.blockInKernel(ctx, p, span, why)
	if errors.Is(err, ipsec.ErrUnknownPeer) || errors.Is(err, guard.ErrNoBlock) {
		if errors.Is(err, guard.ErrNoBlock) {
			l.cfg.Log.Warn("the kernel cannot block a peer; the daemon refuses its streams", "peer", p.Name, "error", err)
		}
		b.By, err = api.BlockedByDaemon, nil
		l.refusing.add(b)
	}
	if err != nil {
		return api.Block{}, err
	}
	l.cfg.Log.Warn("peer is blocked", "peer", p.Name, "address", p.Address, "by", b.By, "until", b.Until.Format(time.RFC3339), "why", why,
		"advice", "`ironwarp block ls` lists blocks, `ironwarp block rm` ends one")
	l.cfg.Begun(p, fmt.Errorf("peer %s is blocked until %s: %s", p.Name, b.Until.Format(time.TimeOnly), why))
	return b, nil
}

// blockInKernel blocks all addresses of a peer. It fails with ipsec.ErrUnknownPeer for
// one that the kernel cannot recognise.
func (l *List) blockInKernel(ctx context.Context, p Peer, span time.Duration, why string) error {
	k := l.cfg.Kernel()
	if k == nil || !p.IPsec {
		return ipsec.ErrUnknownPeer
	}
	for _, path := range p.Paths {
		if err := k.Block(ctx, path, span, why); err != nil {
			return err
		}
	}
	return nil
}

// Unblock lets a peer in again. It fails with api.CodeNotFound for a peer that is not
// blocked, and where the kernel keeps the block.
func (l *List) Unblock(ctx context.Context, name string) error {
	paths := []string{name} // also of a peer that is not configured any more
	if p := l.find(name); p != nil {
		paths = p.Paths
	}
	ended := l.refusing.remove(name)
	if k := l.cfg.Kernel(); k != nil {
		for _, path := range paths {
			switch err := k.Unblock(ctx, path); {
			case err == nil:
				ended = true
			case !errors.Is(err, ipsec.ErrNotBlocked):
				return err
			}
		}
	}
	if !ended {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("peer %q is not blocked", name), Fix: "`ironwarp block ls` lists who is"}
	}
	l.intake.forgetPeer(name)
	l.cfg.Log.Info("peer is not blocked any more", "peer", name)
	return nil
}

// find is the peer of a name, nil if there is none.
func (l *List) find(name string) *Peer {
	all := l.cfg.Peers()
	if i := slices.IndexFunc(all, func(p Peer) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Watch blocks the peers that create too many streams, until ctx ends.
func (l *List) Watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-l.intake.excess:
			l.blockExcess(ctx, x)
			l.intake.forgetPeer(x.peer)
		}
	}
}

// blockExcess blocks a peer that has created too many streams. A block that it already has
// stays: somebody may have wanted it for longer.
func (l *List) blockExcess(ctx context.Context, x excess) {
	p := l.find(x.peer)
	if p == nil || slices.ContainsFunc(l.All(), func(b api.Block) bool { return b.Peer == x.peer }) {
		return
	}
	if _, err := l.block(ctx, *p, x.time, x.why); err != nil && ctx.Err() == nil {
		l.cfg.Log.Error("cannot block a peer that creates too many streams", "peer", x.peer, "error", err)
	}
}
