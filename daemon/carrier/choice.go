package carrier

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// Choice is what the streams that this host opens to a peer are carried by.
type Choice struct {
	mu        sync.Mutex                           // guards the fields below it
	configs   map[transport.Kind]*transport.Config // streams with the same one share an association
	picked    transport.Kind
	why       string // "" before the first pick
	tried     map[transport.Kind]failure
	wanting   map[transport.Kind]failure // those that nothing is said against, but that cannot be taken yet
	lacking   []transport.Kind           // of tried and wanting, at the last pick
	asking    bool                       // for them, in the background
	rates     map[transport.Kind]measured
	fallbacks uint64
	reached   map[netip.Addr]*pathReach // by the peer's addresses
}

// NewChoice returns one of which nothing is known.
func NewChoice() *Choice {
	return &Choice{configs: map[transport.Kind]*transport.Config{}, tried: map[transport.Kind]failure{}, wanting: map[transport.Kind]failure{}, rates: map[transport.Kind]measured{}, reached: map[netip.Addr]*pathReach{}}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// inUse is the carrier that was picked last, if it is among those that work, else
// TCP.
func (ch *Choice) inUse(work []transport.Kind) transport.Kind {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.why != "" && slices.Contains(work, ch.picked) {
		return ch.picked
	}
	return transport.TCP
}

// notePick notes what was picked, and reports whether that is news.
func (ch *Choice) notePick(k transport.Kind, why string) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	news := ch.why == "" || ch.picked != k
	ch.picked, ch.why = k, why
	return news
}

// Describe says what carries the streams of a peer that is declared so.
func (ch *Choice) Describe(how config.Transport) api.Carrier {
	if how != config.TransportAuto {
		return api.Carrier{Transport: string(how), Why: "configured"}
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	v := api.Carrier{Why: "nothing is picked before the first stream", Fallbacks: ch.fallbacks}
	if ch.why != "" {
		v.Transport, v.Why = ch.picked.String(), ch.why
	}
	for _, k := range carriers {
		if f := ch.tried[k]; f.fresh() {
			v.Tried = append(v.Tried, api.Tried{Transport: k.String(), Error: f.err, AgainSeconds: (f.pause - time.Since(f.at)).Seconds()})
		}
	}
	return v
}

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

func (ch *Choice) noteRate(k transport.Kind, bytes float64) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.rates[k] = measured{time.Now(), bytes}
}

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

// next is the failure that follows f, the first one if f was long ago.
func (f failure) next(first time.Duration, err string) failure {
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

// Each makes an attempt that makes one or several choices of carriers, and another one while
// it is auto's choice that fails, so that the next best has its turn. It fails as the last
// one does.
func Each(ctx context.Context, attempt func() error, choices ...*Choice) (err error) {
	failures := func() (n uint64) {
		for _, ch := range choices {
			n += ch.failures()
		}
		return n
	}
	for range carriers {
		before := failures()
		if err = attempt(); err == nil || ctx.Err() != nil || failures() == before {
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

// noteLacking notes the carriers that a pick went without for reasons that may pass.
func (ch *Choice) noteLacking(kinds []transport.Kind, first time.Duration) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.lacking = kinds
	for _, k := range carriers {
		switch w := ch.wanting[k]; {
		case !slices.Contains(kinds, k):
			delete(ch.wanting, k)
		case !ch.tried[k].fresh() && !w.fresh():
			ch.wanting[k] = w.next(first, "")
		}
	}
}

// beginAsking reports whether it is time to ask again for what was lacking, which ends with
// end. Once the pauses are the longest this is left undone if idle.
func (ch *Choice) beginAsking(idle bool) bool {
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

func (ch *Choice) endAsking() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.asking = false
}

// pathReach is what is known of one path of SCTP to a peer. Guarded by
// Choice.mu.
type pathReach struct {
	up       bool
	since    time.Time
	failures uint64
}

// notePath notes what is known of a path, and reports whether it is news.
func (ch *Choice) notePath(a netip.Addr, up bool) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r := ch.reached[a]
	if r != nil && r.up == up {
		return false
	}
	if r == nil {
		r = &pathReach{}
		ch.reached[a] = r
	}
	r.up, r.since = up, time.Now()
	if !up {
		r.failures++
	}
	return true
}

// DescribePath fills in what is known of a path; inUse: the peer has streams over SCTP.
func (ch *Choice) DescribePath(v *api.PathState, a netip.Addr, inUse bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r := ch.reached[a]
	if r == nil {
		return
	}
	v.Failures = r.failures
	switch {
	case !inUse:
		return
	case r.up:
		v.Reachable = api.PathReachable
	default:
		v.Reachable = api.PathUnreachable
	}
	v.SinceSeconds = time.Since(r.since).Seconds()
}
