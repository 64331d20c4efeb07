package targets

import (
	"context"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
)

// newPortals returns no portals. Those in RDMA mode and such as begin in streaming mode are the same.
func (t *Targets) newPortals() *listen.Portals {
	c := t.cfg.Portals
	c.Whom, c.What, c.Streaming, c.Label = "initiators", "target", true, t.labelAt
	c.Serve = func(ctx context.Context, l *listen.Portal) { _ = t.server.ServeRDMA(ctx, l, t.cfg.ULP) } // it ends when the portal is closed
	return listen.NewPortals(c)
}

// offered is a target as portals have to know it.
func offered(c *config.Target) listen.Offered {
	return listen.Offered{Port: c.Port, Addresses: c.Addresses, Undeclared: c.Undeclared, Partition: c.Partition, Allows: c.Allows}
}

// labelAt is the security label of a portal: of the targets there the one that may use the partition least easily decides, since
// all are reached by it; they have the same one as a rule.
func (t *Targets) labelAt(at listen.Place) (label string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		if s.cfg.Partition == at.Partition && s.cfg.Port == at.Addr.Port() {
			if label = t.cfg.Label(s.cfg); t.cfg.Denies(s.cfg) {
				return label
			}
		}
	}
	return label
}

// CloseBut closes the portals that a configuration and its peers do not want. The sessions that came there end.
func (t *Targets) CloseBut(cfg *config.Config, peers []listen.Awaited) {
	t.Portals.CloseBut(t.offeredIn(cfg), peers)
}

// Listen opens the portals that are wanted and closes those that are not, see listen.Portals.
func (t *Targets) Listen(ctx context.Context, cfg *config.Config, peers []listen.Awaited) {
	t.Portals.Listen(ctx, t.offeredIn(cfg), peers)
}

// offeredIn are the targets of a configuration that their partitions' policy lets be there.
func (t *Targets) offeredIn(cfg *config.Config) (all []listen.Offered) {
	for _, c := range cfg.Targets {
		if !t.cfg.Denies(c) {
			all = append(all, offered(&c))
		}
	}
	return all
}
