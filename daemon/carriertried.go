package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	// avoidMin is how long transport: auto passes over a carrier that has failed, and
	// waits before it asks again for one that the peer does not have yet or that could
	// not be measured, doubling to avoidFor: most reasons pass, as does a peer's reload.
	avoidMin = time.Second
	avoidFor = 5 * time.Minute
)

// failure is an attempt with a carrier that came to nothing.
type failure struct {
	at    time.Time
	pause time.Duration // before the next
	err   string
}

func (f failure) fresh() bool { return !f.at.IsZero() && time.Since(f.at) < f.pause }

// again is the failure that follows f, the first one if f was long ago.
func (f failure) again(first time.Duration, err string) failure {
	next := failure{time.Now(), first, err}
	if !f.at.IsZero() && time.Since(f.at) < f.pause+avoidFor {
		next.pause = min(2*f.pause, avoidFor)
	}
	return next
}

func (c *carrier) failed(k transport.Kind) failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tried[k]
}

// tried notes how an attempt with a carrier went. What the peer refused in words
// is not the carrier's fault, nor is the quota of who tried: a local user must not
// decide what others' streams are carried by.
func (d *Daemon) tried(p *peer, k transport.Kind, err error) {
	var refused *rtrs.RefusedError
	var rejected *verbs.RejectedError
	var quota *verbs.QuotaError
	if errors.As(err, &quota) {
		return
	}
	if p.cfg.Transport != config.TransportAuto || k == transport.TCP || errors.As(err, &refused) || errors.As(err, &rejected) || errors.Is(err, context.Canceled) {
		return
	}
	c := p.carrier
	c.mu.Lock()
	var f failure
	if err == nil {
		delete(c.tried, k)
	} else {
		f = c.tried[k].again(d.opt.avoid, oneLine(err))
		c.tried[k] = f
		delete(c.wanting, k)
		delete(c.rates, k)
		c.fallbacks++
	}
	c.mu.Unlock()
	if err != nil {
		log := d.log.Warn
		if f.pause > d.opt.avoid {
			log = d.log.Info // the first time it was a warning
		}
		log("a transport does not work; the next best is taken", "peer", p.cfg.Name, "transport", k.String(), "error", err, "again_in", f.pause)
	}
}

// eachCarrier makes an attempt that chooses a carrier, and another one while it is
// auto's choice that fails, so that the next best has its turn.
func (p *peer) eachCarrier(ctx context.Context, attempt func() error) (err error) {
	for range carriers {
		before := p.carrier.failures()
		if err = attempt(); err == nil || ctx.Err() != nil || p.carrier.failures() == before {
			break
		}
	}
	return err
}

// failures is how many attempts have failed by their carrier.
func (c *carrier) failures() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fallbacks
}
