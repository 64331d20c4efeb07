package carrier

import (
	"context"
	"fmt"
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
	within    map[string]*transport.Config         // those of partitions, by name
	picked    transport.Kind
	why       string // "" before the first pick
	tried     map[transport.Kind]failure
	deferred  map[transport.Kind]failure // carriers that have not failed, but cannot be used yet
	missing   []transport.Kind           // of tried and deferred: what the last pick went without
	refused   failure                    // the last question why the peer refuses an SA
	retrying  bool                       // pickAgain or leaveRefused is under way
	rates     map[transport.Kind]measured
	fallbacks uint64
	reached   map[netip.Addr]*pathReach // by the peer's addresses
}

// NewChoice returns a Choice without any results.
func NewChoice() *Choice {
	return &Choice{within: map[string]*transport.Config{}, configs: map[transport.Kind]*transport.Config{}, tried: map[transport.Kind]failure{}, deferred: map[transport.Kind]failure{}, rates: map[transport.Kind]measured{}, reached: map[netip.Addr]*pathReach{}}
}

// InPartition returns the transport of streams to a peer in one of its partitions, where t is that of those that are in none.
// It fails where the two hosts have no link of it.
func (ch *Choice) InPartition(t *transport.Config, p config.Peer, name string) (*transport.Config, error) {
	q, ok := p.InPartition(name)
	if !ok {
		return nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("this host and peer %s have no link of partition %s", p.Name, name),
			Fix: "`ironwarp partition show " + name + "` shows its members: both hosts have to be, and one of them a full one"}
	}
	c := *t
	if c.Kind == transport.SCTPUDP {
		c.UDPPort = q.UDPPort
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if old := ch.within[name]; old != nil && old.Kind == c.Kind && old.Protector == c.Protector && old.Local == c.Local && old.UDPPort == c.UDPPort &&
		slices.Equal(old.MoreLocal, c.MoreLocal) && slices.Equal(old.MoreRemote, c.MoreRemote) {
		return old, nil
	}
	ch.within[name] = &c
	return &c, nil
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

// notePick records what was picked, and reports whether it is another carrier than before.
func (ch *Choice) notePick(k transport.Kind, why string) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	news := ch.why == "" || ch.picked != k
	ch.picked, ch.why = k, why
	return news
}

// Describe describes what carries the streams of a peer with that transport.
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
		if f := ch.tried[k]; f.isCurrent() {
			v.Tried = append(v.Tried, api.Tried{Transport: k.String(), Error: f.err, AgainSeconds: (f.pause - time.Since(f.at)).Seconds()})
		}
	}
	return v
}

const (
	// rateTime is how long each carrier that auto may take is measured, and rateValid how long the result
	// is used.
	rateTime  = 100 * time.Millisecond
	rateValid = time.Hour
	// muchFaster is how many times as fast as the one in use, or as TCP, another carrier has to be, so
	// that chance does not decide.
	muchFaster = 1.2
)

// measured is the measured throughput of a carrier, in bytes a second.
type measured struct {
	at    time.Time
	bytes float64
}

// rate returns the throughput of a carrier, and whether that was measured lately.
func (ch *Choice) rate(k transport.Kind) (bytes float64, fresh bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r := ch.rates[k]
	return r.bytes, r.isCurrent()
}

func (r measured) isCurrent() bool { return time.Since(r.at) < rateValid }

// isMuchFaster reports whether both were measured lately, and one is much faster than
// the other.
func (ch *Choice) isMuchFaster(one, other transport.Kind) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	r, o := ch.rates[one], ch.rates[other]
	return r.isCurrent() && o.isCurrent() && r.bytes > o.bytes*muchFaster
}

func (ch *Choice) noteRate(k transport.Kind, bytes float64) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.rates[k] = measured{time.Now(), bytes}
}

const (
	// avoidMin is how long transport: auto avoids a carrier that has failed, and how long it waits
	// before it asks again for one that the peer does not have yet, or that could not be measured. It
	// doubles up to avoidMax: most reasons pass, such as a peer's reload.
	avoidMin = time.Second
	avoidMax = 5 * time.Minute
)

// failure is a failed attempt with a carrier.
type failure struct {
	at    time.Time
	pause time.Duration // before the next
	err   string
}

func (f failure) isCurrent() bool { return !f.at.IsZero() && time.Since(f.at) < f.pause }

// next is the failure that follows f, the first one if f was long ago.
func (f failure) next(first time.Duration, err string) failure {
	next := failure{time.Now(), first, err}
	if !f.at.IsZero() && time.Since(f.at) < f.pause+avoidMax {
		next.pause = min(2*f.pause, avoidMax)
	}
	return next
}

func (ch *Choice) lastFailure(k transport.Kind) failure {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.tried[k]
}

// TryEach calls attempt, which uses one or several choices of carriers, and again as long as it fails
// because of a carrier that auto chose, so that the next best is tried. It fails as the last attempt does.
func TryEach(ctx context.Context, attempt func() error, choices ...*Choice) (err error) {
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

// setMissing records the carriers that a pick went without for reasons that may pass.
func (ch *Choice) setMissing(kinds []transport.Kind, first time.Duration) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.missing = kinds
	for _, k := range carriers {
		switch w := ch.deferred[k]; {
		case !slices.Contains(kinds, k):
			delete(ch.deferred, k)
		case !ch.tried[k].isCurrent() && !w.isCurrent():
			ch.deferred[k] = w.next(first, "")
		}
	}
}

// startRetry begins another attempt for what was missing, if it is time for one, and reports whether it
// is. endRetry ends it. Once the pauses have reached avoidMax there is none if idle.
func (ch *Choice) startRetry(idle bool) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	due := func(k transport.Kind) bool {
		f, w := ch.tried[k], ch.deferred[k]
		return !f.isCurrent() && !w.isCurrent() && !(idle && max(f.pause, w.pause) >= avoidMax)
	}
	if ch.retrying || !slices.ContainsFunc(ch.missing, due) {
		return false
	}
	ch.retrying = true
	return true
}

// startQuestion begins a question why the peer refuses an SA, if it does and if it is time for one, and reports
// whether it is. endRetry ends it.
func (ch *Choice) startQuestion(refuses bool, first time.Duration) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !refuses {
		ch.refused = failure{}
		return false
	}
	if ch.retrying || ch.refused.isCurrent() {
		return false
	}
	ch.refused, ch.retrying = ch.refused.next(first, ""), true
	return true
}

func (ch *Choice) endRetry() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.retrying = false
}

// pathReach is what is known of one path of SCTP to a peer. Guarded by
// Choice.mu.
type pathReach struct {
	up       bool
	since    time.Time
	failures uint64
}

// notePath records whether a path answers, and reports whether that has changed.
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
