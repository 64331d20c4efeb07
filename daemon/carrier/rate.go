package carrier

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/transport"
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
func (c *Chooser) fastest(ctx context.Context, by *local.Consumer, p Peer, work []transport.Kind) (best transport.Kind, why string, unmeasured []transport.Kind, err error) {
	var words []string
	ch := p.Carrier()
	for _, k := range work {
		r, fresh := ch.rate(k)
		if !fresh {
			mctx, cancel := context.WithTimeout(ctx, c.cfg.Trial)
			r, err = c.cfg.Rate(mctx, by, p, k)
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
			ch.rated(k, r)
		}
		words = append(words, fmt.Sprintf("%s %.0f MB/s", k, r/1e6))
	}
	best = ch.inUse(work)
	for _, k := range work {
		if ch.isMuchFaster(k, best) {
			best = k
		}
	}
	return best, "the fastest that both hosts have, as measured: " + strings.Join(words, ", "), unmeasured, nil
}

// Measure reads from a peer for a moment, and returns what the carrier carries, in bytes a
// second. It fails where the peer is not reached over it.
func (c *Chooser) Measure(ctx context.Context, by *local.Consumer, p Peer, k transport.Kind) (float64, error) {
	dc, err := c.dial(p, k)
	if err != nil {
		return 0, err
	}
	cl, err := probe.Dial(ctx, by.Pings, dc)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	row := probe.Row{Op: "read", Size: 64 << 10, Depth: 16}
	if err := cl.Bench(ctx, &row, rateTime, c.cfg.Trial); err != nil {
		return 0, err
	}
	return float64(row.Operations) * float64(row.Size) / row.Elapsed.Seconds(), nil
}

// rate is what a carrier was measured to carry lately.
func (ch *Choice) rate(k transport.Kind) (bytes float64, fresh bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r := ch.rates[k]
	return r.bytes, r.fresh()
}

func (r measured) fresh() bool { return time.Since(r.at) < rateFor }

// isMuchFaster reports whether both were measured lately, and one is much faster than
// the other.
func (ch *Choice) isMuchFaster(one, other transport.Kind) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r, o := ch.rates[one], ch.rates[other]
	return r.fresh() && o.fresh() && r.bytes > o.bytes*muchFaster
}

func (ch *Choice) rated(k transport.Kind, bytes float64) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.rates[k] = measured{time.Now(), bytes}
}
