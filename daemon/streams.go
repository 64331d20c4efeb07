package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/rtrs"
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
			ID: streamID(qp.ID()), Peer: d.peers.name(qp.Peer()), Identity: string(qp.Peer()), Service: qp.PD().ULP().Name(),
			Transport: carrier.KindOf(qp.Flow()).String(), Flow: qp.Flow().String(), Protection: qp.Protection().Kind(), Paused: qp.Paused(), AgeSeconds: now.Sub(qp.Established()).Seconds(),
			BytesIn: s.RecvBytes, BytesOut: s.SendBytes, Trust: qp.PD().Trust().String(), Idle: idle[qp.ID()].Seconds(), Slow: slowPaths(qp.SlowPath()),
		})
	}
	slices.SortFunc(out, func(a, b api.Stream) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(b.AgeSeconds, a.AgeSeconds), cmp.Compare(a.ID, b.ID))
	})
	return out
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
	if err := d.dev.Kill(n, "by request"); errors.Is(err, verbs.ErrNoStream) {
		return api.Stream{}, gone
	} else if err != nil {
		return api.Stream{}, err
	}
	d.log.Warn("stream was ended by request", "stream", all[i].ID, "peer", all[i].Peer, "service", all[i].Service)
	return all[i], nil
}

// sessionStreams are the streams of sessions with a peer that are up.
func (d *Daemon) sessionStreams(peer string) (qps []*verbs.QP) {
	has := map[uint64]bool{}
	for _, s := range d.disks.Sessions(func(_ *local.Consumer, to string) bool { return to == peer }) {
		for _, conn := range s.Conns {
			has[conn.ID] = s.State == rtrs.Connected
		}
	}
	for _, qp := range d.dev.QPs() {
		if has[qp.ID()] {
			qps = append(qps, qp)
		}
	}
	return qps
}
