package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
// in the kernel can tell them by: those without ESP, and all where the kernel has no
// nf_tables. Unlike the kernel's own these blocks end with the daemon.
type refusing struct {
	mu    sync.Mutex
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

func (r *refusing) put(b api.Block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.peers == nil {
		r.peers = map[string]api.Block{}
	}
	r.peers[b.Peer] = b
}

// end reports whether there was one.
func (r *refusing) end(peer string) bool {
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

// Blocks lists the peers that are kept out.
func (d *Daemon) Blocks() []api.Block {
	out := append([]api.Block{}, d.refusing.list()...)
	if m := d.ike.current(); m != nil {
		names := d.pathNames()
		for _, b := range m.Blocks() {
			out = append(out, api.Block{
				Peer: cmp.Or(names[b.Peer], b.Peer), Address: addrText(b.Addr), By: api.BlockedByKernel, Since: b.Since, Until: b.Until, Why: b.Why, Packets: b.Packets,
			})
		}
	}
	slices.SortFunc(out, func(a, b api.Block) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Address, b.Address))
	})
	return out
}

// pathNames are the peers by the names that the IPsec manager knows them by.
func (d *Daemon) pathNames() map[string]string {
	names := map[string]string{}
	for _, p := range d.peerList() {
		for _, n := range p.cfg.PathNames() {
			names[n] = p.cfg.Name
		}
	}
	return names
}

// Block keeps a peer out for a while and ends its streams. It fails for an unknown peer
// and an impossible time, and where the kernel does not take the block.
func (d *Daemon) Block(ctx context.Context, req api.BlockRequest) (api.Block, error) {
	p, err := d.findPeer(req.Peer)
	if err != nil {
		return api.Block{}, err
	}
	span, err := seconds(req.Seconds, d.intake.blockTime(), guard.MaxBlock)
	if err != nil || span < guard.MinBlock {
		return api.Block{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("cannot block peer %s for %g seconds", p.cfg.Name, req.Seconds),
			Fix: fmt.Sprintf("allowed: %s to %s", config.FormatDuration(guard.MinBlock), config.FormatDuration(guard.MaxBlock))}
	}
	if len(req.Why) > maxWhy {
		return api.Block{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the reason has %d bytes; %d are allowed", len(req.Why), maxWhy)}
	}
	return d.block(ctx, p, span, cmp.Or(req.Why, "by hand"))
}

// maxWhy is the length in bytes of a reason, which the kernel keeps with the block.
const maxWhy = 100

// block blocks a peer in the kernel, or else in this daemon.
func (d *Daemon) block(ctx context.Context, p *peer, span time.Duration, why string) (api.Block, error) {
	now := time.Now()
	b := api.Block{Peer: p.cfg.Name, Address: addrText(p.cfg.Address), By: api.BlockedByKernel, Since: now, Until: now.Add(span), Why: why}
	err := d.blockInKernel(ctx, p, span, why)
	if errors.Is(err, ipsec.ErrUnknownPeer) || errors.Is(err, guard.ErrNoBlock) {
		if errors.Is(err, guard.ErrNoBlock) {
			d.log.Warn("the kernel cannot block a peer; the daemon refuses its streams", "peer", p.cfg.Name, "error", err)
		}
		b.By, err = api.BlockedByDaemon, nil
		d.refusing.put(b)
	}
	if err != nil {
		return api.Block{}, err
	}
	d.events.count(eventBlocked, p.cfg.Name, 1)
	d.log.Warn("peer is blocked", "peer", p.cfg.Name, "address", p.cfg.Address, "by", b.By, "until", b.Until.Format(time.RFC3339), "why", why,
		"advice", "`ironwarp block ls` lists blocks, `ironwarp block rm` ends one")
	ended := fmt.Errorf("peer %s is blocked until %s: %s", p.cfg.Name, b.Until.Format(time.TimeOnly), why)
	d.abortStreams(p.identity, ended)
	d.dev.EndAssociations(p.identity, ended.Error())
	return b, nil
}

// blockInKernel blocks all addresses of a peer. It is ipsec.ErrUnknownPeer for one
// that the IPsec manager does not have.
func (d *Daemon) blockInKernel(ctx context.Context, p *peer, span time.Duration, why string) error {
	m := d.ike.current()
	if m == nil || p.cfg.Protection != config.ProtectIPsec {
		return ipsec.ErrUnknownPeer
	}
	for _, name := range p.cfg.PathNames() {
		if err := m.Block(ctx, name, span, why); err != nil {
			return err
		}
	}
	return nil
}

// Unblock lets a peer in again. It fails with api.CodeNotFound for a peer that is not
// blocked, and where the kernel keeps the block.
func (d *Daemon) Unblock(ctx context.Context, name string) error {
	names := []string{name} // also of a peer that is not configured any more
	if p, err := d.findPeer(name); err == nil {
		names = p.cfg.PathNames()
	}
	ended := d.refusing.end(name)
	if m := d.ike.current(); m != nil {
		for _, n := range names {
			switch err := m.Unblock(ctx, n); {
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
	d.intake.forget(name)
	d.log.Info("peer is not blocked any more", "peer", name)
	return nil
}

// watchIntake blocks the peers that create too many streams.
func (d *Daemon) watchIntake(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-d.intake.excess:
			d.blockFor(ctx, x)
			d.intake.forget(x.peer)
		}
	}
}

// blockFor blocks a peer that has created too many streams. A block that it has stays
// as it is: somebody may have wanted it for longer.
func (d *Daemon) blockFor(ctx context.Context, x excess) {
	p, err := d.findPeer(x.peer)
	if err != nil || slices.ContainsFunc(d.Blocks(), func(b api.Block) bool { return b.Peer == x.peer }) {
		return
	}
	if _, err := d.block(ctx, p, x.time, x.why); err != nil && ctx.Err() == nil {
		d.log.Error("cannot block a peer that creates too many streams", "peer", x.peer, "error", err)
	}
}
