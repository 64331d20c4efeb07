package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/metrics"
	"github.com/ironwarp/ironwarp/daemon/repeats"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Events beside the RNIC's own.
const eventBlocked = "blocked"

// eventCounts counts events by kind and configured peer.
type eventCounts struct {
	mu sync.Mutex // guards the fields below it
	n  map[eventKey]uint64
}

type eventKey struct{ kind, peer string }

func (c *eventCounts) count(kind, peer string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[eventKey]uint64{}
	}
	c.n[eventKey{kind, peer}] += n
}

func (c *eventCounts) list() []api.EventCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []api.EventCount{}
	for k, n := range c.n {
		out = append(out, api.EventCount{Kind: k.kind, Peer: k.peer, Count: n})
	}
	slices.SortFunc(out, func(a, b api.EventCount) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// forget forgets a peer.
func (c *eventCounts) forget(peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.n, func(k eventKey, _ uint64) bool { return k.peer == peer })
}

// watchEvents logs and counts what the RNIC reports. The RNIC's queue is bounded,
// so nothing waits for the log.
func (d *Daemon) watchEvents(ctx context.Context) {
	for {
		ev, err := d.dev.Event(ctx)
		if err != nil {
			return
		}
		d.events.count(ev.Kind.String(), d.CountedAs(ev.Peer), uint64(ev.Count))
		level := slog.LevelWarn
		switch ev.Kind {
		case verbs.EventStreamUp, verbs.EventStreamDown:
			level = slog.LevelInfo
		}
		attrs := []any{"stream", streamID(ev.QP), "peer", d.peers.name(ev.Peer), "flow", ev.Flow.String()}
		if ev.Count > 1 {
			attrs = append(attrs, repeats.Attr, ev.Count)
		}
		if ev.Err != nil {
			attrs = append(attrs, "error", ev.Err)
		}
		d.log.Log(ctx, level, ev.Kind.String(), attrs...)
	}
}

// CountedAs is the name of a configured peer; metrics.Others where none has the identity.
func (d *Daemon) CountedAs(id transport.Identity) string {
	if p := d.peers.known(id); p != nil {
		return p.cfg.Name
	}
	return metrics.Others
}
