package carrier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// againTime bounds one decision of Reconsider's.
const againTime = time.Minute

// Reconsider picks anew, while sessions are up with transport: auto, once a carrier may
// work that was lacking when they were made: its trial fell into the peer's reload,
// say. Sessions go over to what is much faster than what they have. It ends with ctx.
func (c *Chooser) Reconsider(ctx context.Context) {
	t := time.NewTicker(c.cfg.Avoid)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, p := range c.cfg.Peers() {
			cfg, ch := p.Declared(), p.Carrier()
			// An SA that is to go while nothing is sent is not kept up for ever by questions.
			if cfg.Transport != config.TransportAuto || !ch.begin(cfg.IdleReap > 0) {
				continue
			}
			if len(c.cfg.Streams(cfg.Name)) == 0 { // this looks through all sessions
				ch.end()
				continue
			}
			c.cfg.Run(func(ctx context.Context) { c.pickAgain(ctx, p) })
		}
	}
}

// pickAgain is one decision of Reconsider's, on the host's own account. What fails is
// asked again.
func (c *Chooser) pickAgain(ctx context.Context, p Peer) {
	name, ch := p.Declared().Name, p.Carrier()
	defer ch.end()
	ctx, cancel := context.WithTimeout(ctx, againTime)
	defer cancel()
	defer context.AfterFunc(p.Ends(), cancel)()
	k, err := c.pick(ctx, c.cfg.Root, p)
	if err != nil {
		c.log.Debug("cannot ask again which transports a peer has", "peer", name, "error", err)
		return
	}
	for _, qp := range c.cfg.Streams(name) {
		if was := KindOf(qp.Flow()); ch.isMuchFaster(k, was) {
			qp.Abort(fmt.Errorf("its session goes over from %s to %s, which is faster", was, k))
		}
	}
}

// lack notes the carriers that a pick went without for reasons that may pass.
func (ch *Choice) lack(kinds []transport.Kind, first time.Duration) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.lacking = kinds
	for _, k := range carriers {
		switch w := ch.wanting[k]; {
		case !slices.Contains(kinds, k):
			delete(ch.wanting, k)
		case !ch.tried[k].fresh() && !w.fresh():
			ch.wanting[k] = w.again(first, "")
		}
	}
}

// begin reports whether it is time to ask again for what was lacking, which ends with
// end. Once the pauses are the longest this is left undone if idle.
func (ch *Choice) begin(idle bool) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	due := func(k transport.Kind) bool {
		f, w := ch.tried[k], ch.wanting[k]
		return !f.fresh() && !w.fresh() && !(idle && max(f.pause, w.pause) >= avoidFor)
	}
	if ch.asking || !slices.ContainsFunc(ch.lacking, due) {
		return false
	}
	ch.asking = true
	return true
}

func (ch *Choice) end() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.asking = false
}
