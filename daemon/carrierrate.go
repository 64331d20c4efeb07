package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	// rateTime is how long each carrier is measured that auto may take, and rateFor
	// how long that is believed.
	rateTime = 100 * time.Millisecond
	rateFor  = time.Hour
	// muchFaster is what another carrier has to be than TCP, or than the one in use,
	// so that chance decides nothing.
	muchFaster = 1.2
)

// measured is what a carrier was measured to carry, in bytes a second.
type measured struct {
	at    time.Time
	bytes float64
}

// fastest measures carriers, the last of which is TCP. One that could not be measured
// is neither taken for another nor left for one.
func (d *Daemon) fastest(ctx context.Context, by *consumer, p *peer, work []transport.Kind) (best transport.Kind, why string, unmeasured []transport.Kind, err error) {
	var words []string
	for _, k := range work {
		r, fresh := p.carrier.rate(k)
		if !fresh {
			mctx, cancel := context.WithTimeout(ctx, d.opt.trial)
			r, err = d.opt.rate(mctx, d, by, p, k)
			cancel()
			switch {
			case ctx.Err() != nil:
				return 0, "", nil, ctx.Err()
			case err != nil:
				// Nothing is said against the carrier: the peer may be short of something.
				words = append(words, fmt.Sprintf("%s: not measured, %s", k, oneLine(err)))
				unmeasured = append(unmeasured, k)
				continue
			}
			p.carrier.rated(k, r)
		}
		words = append(words, fmt.Sprintf("%s %.0f MB/s", k, r/1e6))
	}
	best = p.carrier.inUse(work)
	for _, k := range work {
		if p.carrier.isMuchFaster(k, best) {
			best = k
		}
	}
	return best, "the fastest that both hosts have, as measured: " + strings.Join(words, ", "), unmeasured, nil
}

// measureRate reads from a peer for a moment.
func measureRate(ctx context.Context, d *Daemon, by *consumer, p *peer, k transport.Kind) (float64, error) {
	tc, err := d.transportTo(p, k)
	if err != nil {
		return 0, err
	}
	c, err := probe.Dial(ctx, d.probeFor(by), verbs.DialConfig{Remote: p.cfg.AddrPort(), Transport: tc, Setup: setupOf(p.cfg)})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	row := probe.Row{Op: "read", Size: 64 << 10, Depth: 16}
	if err := c.Bench(ctx, &row, rateTime, d.opt.trial); err != nil {
		return 0, err
	}
	return float64(row.Operations) * float64(row.Size) / row.Elapsed.Seconds(), nil
}

// rate is what a carrier was measured to carry lately.
func (c *carrier) rate(k transport.Kind) (bytes float64, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.rates[k]
	return r.bytes, r.fresh()
}

func (r measured) fresh() bool { return time.Since(r.at) < rateFor }

// isMuchFaster reports whether both were measured lately, and one is much faster than
// the other.
func (c *carrier) isMuchFaster(one, other transport.Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, o := c.rates[one], c.rates[other]
	return r.fresh() && o.fresh() && r.bytes > o.bytes*muchFaster
}

func (c *carrier) rated(k transport.Kind, bytes float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rates[k] = measured{time.Now(), bytes}
}
