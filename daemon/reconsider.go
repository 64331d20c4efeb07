package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// againTime bounds one decision of reconsider's.
const againTime = time.Minute

// reconsider picks anew, while sessions are up with transport: auto, once a carrier may
// work that was lacking when they were made: its trial fell into the peer's reload,
// say. Sessions go over to what is much faster than what they have.
func (d *Daemon) reconsider(ctx context.Context) {
	t := time.NewTicker(d.opt.avoid)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, p := range d.peerList() {
			// An SA that is to go while nothing is sent is not kept up for ever by questions.
			if p.cfg.Transport != config.TransportAuto || !p.carrier.begin(p.cfg.IdleReap > 0) {
				continue
			}
			if len(d.carriersOf(p)) == 0 { // this looks through all sessions
				p.carrier.end()
				continue
			}
			d.run(func(ctx context.Context) { d.pickAgain(ctx, p) })
		}
	}
}

// pickAgain is one decision of reconsider's, on the daemon's own account. What fails is
// asked again.
func (d *Daemon) pickAgain(ctx context.Context, p *peer) {
	defer p.carrier.end()
	ctx, cancel := context.WithTimeout(ctx, againTime)
	defer cancel()
	defer context.AfterFunc(p.ends, cancel)()
	k, err := d.pick(ctx, d.local.root, p)
	if err != nil {
		d.log.Debug("cannot ask again which transports a peer has", "peer", p.cfg.Name, "error", err)
		return
	}
	has := d.carriersOf(p)
	for _, qp := range d.dev.QPs() {
		if was, ok := has[qp.ID()]; ok && p.carrier.isMuchFaster(k, was) {
			qp.Abort(fmt.Errorf("its session goes over from %s to %s, which is faster", was, k))
		}
	}
}

// carriersOf are the carriers of the streams of sessions with a peer that are up.
func (d *Daemon) carriersOf(p *peer) map[uint64]transport.Kind {
	has := map[uint64]transport.Kind{}
	for _, c := range append(d.consumerList(), d.local.root) {
		cl := d.openSessions(c)[p.cfg.Name]
		if cl == nil {
			continue
		}
		if i := cl.Info(); i.State == rtrs.Connected {
			for _, conn := range i.Conns {
				has[conn.ID] = kindOf(conn.Flow)
			}
		}
	}
	return has
}

// lack notes the carriers that a pick went without for reasons that may pass.
func (c *carrier) lack(kinds []transport.Kind, first time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lacking = kinds
	for _, k := range carriers {
		switch w := c.wanting[k]; {
		case !slices.Contains(kinds, k):
			delete(c.wanting, k)
		case !c.tried[k].fresh() && !w.fresh():
			c.wanting[k] = w.again(first, "")
		}
	}
}

// begin reports whether it is time to ask again for what was lacking, which ends with
// end. Once the pauses are the longest this is left undone if idle.
func (c *carrier) begin(idle bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := func(k transport.Kind) bool {
		f, w := c.tried[k], c.wanting[k]
		return !f.fresh() && !w.fresh() && !(idle && max(f.pause, w.pause) >= avoidFor)
	}
	if c.asking || !slices.ContainsFunc(c.lacking, due) {
		return false
	}
	c.asking = true
	return true
}

func (c *carrier) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = false
}
