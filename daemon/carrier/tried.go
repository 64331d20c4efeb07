package carrier

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

func (ch *Choice) failed(k transport.Kind) failure {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.tried[k]
}

// tried notes how an attempt with a carrier went. What the peer refused in words
// is not the carrier's fault, nor is the quota of who tried: a local user must not
// decide what others' streams are carried by.
func (c *Chooser) tried(p Peer, k transport.Kind, err error) {
	var refused *rtrs.RefusedError
	var rejected *verbs.RejectedError
	var quota *verbs.QuotaError
	if errors.As(err, &quota) {
		return
	}
	cfg := p.Declared()
	if cfg.Transport != config.TransportAuto || k == transport.TCP || errors.As(err, &refused) || errors.As(err, &rejected) || errors.Is(err, context.Canceled) {
		return
	}
	ch := p.Carrier()
	ch.mu.Lock()
	var f failure
	if err == nil {
		delete(ch.tried, k)
	} else {
		f = ch.tried[k].again(c.cfg.Avoid, oneLine(err))
		ch.tried[k] = f
		delete(ch.wanting, k)
		delete(ch.rates, k)
		ch.fallbacks++
	}
	ch.mu.Unlock()
	if err != nil {
		log := c.log.Warn
		if f.pause > c.cfg.Avoid {
			log = c.log.Info // the first time it was a warning
		}
		log("a transport does not work; the next best is taken", "peer", cfg.Name, "transport", k.String(), "error", err, "again_in", f.pause)
	}
}

// Each makes an attempt that chooses a carrier, and another one while it is auto's choice
// that fails, so that the next best has its turn. It fails as the last one does.
func (ch *Choice) Each(ctx context.Context, attempt func() error) (err error) {
	for range carriers {
		before := ch.failures()
		if err = attempt(); err == nil || ctx.Err() != nil || ch.failures() == before {
			break
		}
	}
	return err
}

// failures is how many attempts have failed by their carrier.
func (ch *Choice) failures() uint64 {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.fallbacks
}
