package subsystems

import (
	"context"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
)

func (s *Subsystems) newPortals() *listen.Portals {
	c := s.cfg.Portals
	c.Whom, c.What = "NVMe hosts", "subsystem"
	c.Serve = func(ctx context.Context, l *listen.Portal) { _ = s.server.Serve(ctx, l, s.cfg.ULP) } // it ends when the portal is closed
	return listen.NewPortals(c)
}

// offered is a subsystem as portals have to know it.
func offered(c *config.Subsystem) listen.Offered {
	return listen.Offered{Port: c.Port, Addresses: c.Addresses, Undeclared: c.Undeclared, Allows: c.Allows}
}

// CloseBut closes the portals that a configuration and its peers do not want. The connections that came there end.
func (s *Subsystems) CloseBut(cfg *config.Config, peers []listen.Awaited) {
	s.Portals.CloseBut(offeredIn(cfg), peers)
}

// Listen opens the portals that are wanted and closes those that are not, see listen.Portals.
func (s *Subsystems) Listen(ctx context.Context, cfg *config.Config, peers []listen.Awaited) {
	s.Portals.Listen(ctx, offeredIn(cfg), peers)
}

func offeredIn(cfg *config.Config) (all []listen.Offered) {
	for _, c := range cfg.Subsystems {
		all = append(all, offered(&c))
	}
	return all
}
