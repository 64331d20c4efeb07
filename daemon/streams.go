package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/metrics"
	"github.com/ironwarp/ironwarp/daemon/repeats"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// streams lists the RDMA streams by peer, the oldest first.
func (d *Daemon) streams() []api.Stream {
	now := time.Now()
	idle := map[uint64]time.Duration{}
	for _, s := range d.dev.Streams() {
		idle[s.ID] = s.Idle
	}
	out := []api.Stream{}
	for _, qp := range d.dev.QPs() {
		s := qp.Stats()
		out = append(out, api.Stream{
			ID: streamID(qp.ID()), Peer: d.peers.nameOrIdentity(qp.Peer()), Identity: string(qp.Peer()), Service: qp.PD().ULP().Name(),
			Transport: carrier.KindOf(qp.Flow()).String(), Flow: qp.Flow().String(), Protection: qp.Protection().Kind(), Paused: qp.Paused(), AgeSeconds: now.Sub(qp.Established()).Seconds(),
			BytesIn: s.RecvBytes, BytesOut: s.SendBytes, Trust: qp.PD().Trust().String(), Partition: qp.Partition(), Label: labelIn(qp.Partition(), qp.Label()), Idle: idle[qp.ID()].Seconds(), Slow: slowPaths(qp.SlowPath()),
		})
	}
	for _, s := range d.programs.Streams() {
		out = append(out, api.Stream{
			ID: streamID(s.ID), Peer: d.peers.nameOrIdentity(s.Peer), Identity: string(s.Peer), Service: cmp.Or(s.ULP, serviceOfRootsPrograms), Program: s.Program, PID: s.PID,
			Transport: carrier.KindOf(s.Flow).String(), Flow: s.Flow.String(), Protection: s.Protection, Paused: s.Paused, AgeSeconds: now.Sub(s.Since).Seconds(), BytesIn: s.BytesIn, BytesOut: s.BytesOut,
			Partition: s.Partition, Label: s.Label,
		})
	}
	slices.SortFunc(out, func(a, b api.Stream) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(b.AgeSeconds, a.AgeSeconds), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// labelIn is the label of a stream, if it is of a partition.
func labelIn(partition, label string) string {
	if partition == "" {
		return ""
	}
	return label
}

// slowPaths lists what is not 0.
func slowPaths(c verbs.SlowCounts) []api.SlowPath {
	var out []api.SlowPath
	for _, s := range []api.SlowPath{
		{Kind: "tiny_segments", Count: c.Tiny}, {Kind: "empty_writes", Count: c.Empty}, {Kind: "empty_reads", Count: c.EmptyReads},
		{Kind: "out_of_order", Count: c.OutOfOrder}, {Kind: "dribbled", Count: c.Dribbled}, {Kind: "stalls", Count: c.Stalls},
	} {
		if s.Count > 0 {
			out = append(out, s)
		}
	}
	return out
}

// killStream ends a stream by its ID and reports what it was (RFC 5042 section 6.4.4).
func (d *Daemon) killStream(id string) (api.Stream, error) {
	gone := &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no stream %q", id), Fix: "`ironwarp stream ls` lists them"}
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return api.Stream{}, gone
	}
	all := d.streams()
	i := slices.IndexFunc(all, func(s api.Stream) bool { return s.ID == streamID(n) })
	if i < 0 {
		return api.Stream{}, gone
	}
	if !d.programs.Kill(n, errors.New("it was ended by request")) {
		if err := d.dev.Kill(n, "by request"); errors.Is(err, verbs.ErrNoStream) {
			return api.Stream{}, gone
		} else if err != nil {
			return api.Stream{}, err
		}
	}
	d.log.Warn("stream was ended by request", "stream", all[i].ID, "peer", all[i].Peer, "service", all[i].Service)
	return all[i], nil
}

// sessionStreams are the streams of sessions with a peer, by the path that it is given as,
// that are up.
func (d *Daemon) sessionStreams(p carrier.Peer) (qps []*verbs.QP) {
	has, c := map[uint64]bool{}, p.Declared()
	c.Paths = nil
	for _, s := range d.disks.Sessions(func(_ *local.Consumer, to string) bool { return to == c.Name }) {
		for _, conn := range s.Conns {
			has[conn.ID] = s.State == rtrs.Connected && c.HasAddress(conn.Flow.Remote.Addr())
		}
	}
	for _, qp := range d.dev.QPs() {
		if has[qp.ID()] {
			qps = append(qps, qp)
		}
	}
	return qps
}

// refusesStreams reports whether streams to a peer wait for an SA that the peer refuses, having no such link.
func (d *Daemon) refusesStreams(p carrier.Peer) bool {
	m := d.sas.Current()
	if m == nil {
		return false
	}
	st, err := m.PeerStatus(p.Declared().Name)
	return err == nil && st.Paused > 0 && slices.ContainsFunc(st.Lanes, func(l ipsec.LaneStatus) bool {
		return l.Flows > 0 && l.State != ipsec.StateUp && errors.Is(l.Err, negotiation.ErrTrafficSelectors)
	})
}

// Events beside the RNIC's own.
const (
	eventBlocked    = "blocked"
	eventFabricDrop = "fabric request dropped"
)

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
		attrs := []any{"stream", streamID(ev.QP), "peer", d.peers.nameOrIdentity(ev.Peer), "flow", ev.Flow.String()}
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
	if p := d.peers.byIdentity(id); p != nil {
		return p.cfg.Name
	}
	return metrics.Others
}
