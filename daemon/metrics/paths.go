package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// pathSet are the metrics of the paths of sessions.
type pathSet struct {
	connected, inFlight, latency, reconnects, failures, failovers, replays, ops, bytes *prometheus.Desc
}

func newPathSet() pathSet {
	of := func(name, help string, more ...string) *prometheus.Desc {
		return desc("session_path_"+name, help, append([]string{"ulp", "peer", "path"}, more...)...)
	}
	return pathSet{
		connected:  of("connected", "1 if the path of the session takes I/O."),
		inFlight:   of("in_flight", "Requests by the path that were not answered."),
		latency:    of("latency_seconds", "What a request by the path takes, a moving average; 0 as long as none was measured."),
		reconnects: of("reconnects_total", "Times that the path was up again."),
		failures:   of("failed_connects_total", "Attempts to bring the path up that failed."),
		failovers:  of("failovers_total", "Requests that went on by another path."),
		replays:    of("replays_total", "Requests that were sent again by the path.", "kind"),
		ops:        of("operations_total", "Block I/O operations by the path.", "direction"),
		bytes:      of("bytes_total", "Bytes of block I/O by the path.", "direction"),
	}
}

func collectPaths(sessions []api.Session, gauge, counter emitter) {
	set := newPathSet()
	for _, s := range sessions {
		for _, p := range s.Paths {
			gauge(set.connected, boolValue(p.State == "connected"), s.ULP, s.Peer, p.Name)
			gauge(set.inFlight, float64(p.InFlight), s.ULP, s.Peer, p.Name)
			gauge(set.latency, p.LatencySeconds, s.ULP, s.Peer, p.Name)
			counter(set.reconnects, float64(p.Reconnects), s.ULP, s.Peer, p.Name)
			counter(set.failures, float64(p.Failures), s.ULP, s.Peer, p.Name)
			counter(set.failovers, float64(p.Failovers), s.ULP, s.Peer, p.Name)
			for op := range block.Op(block.NumOps) {
				counter(set.replays, float64(p.Replays[op.String()]), s.ULP, s.Peer, p.Name, op.String())
			}
			counter(set.ops, float64(p.Reads), s.ULP, s.Peer, p.Name, "read")
			counter(set.ops, float64(p.Writes), s.ULP, s.Peer, p.Name, "write")
			counter(set.bytes, float64(p.ReadBytes), s.ULP, s.Peer, p.Name, "read")
			counter(set.bytes, float64(p.WriteBytes), s.ULP, s.Peer, p.Name, "write")
		}
	}
}
