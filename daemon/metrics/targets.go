package metrics

import (
	"cmp"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// targetSet are the metrics of iSCSI targets. Initiators and their sessions are counted: their names
// are others' choice, and are no labels.
type targetSet struct {
	ready, sessions, logins, inFlight, lunReady, ops, bytes, errors, latency *prometheus.Desc
}

func newTargetSet() targetSet {
	return targetSet{
		ready:    desc("target_ready", "1 if initiators can log in to the iSCSI target.", "target"),
		sessions: desc("target_sessions", "Sessions of initiators with the target.", "target", "peer", "transport"),
		inFlight: desc("target_in_flight", "Commands under way in sessions with the target.", "target", "peer", "transport"),
		logins:   desc("target_logins_total", "Logins to the target.", "target", "result"),
		lunReady: desc("lun_ready", "1 if the LUN's storage is open.", "target", "lun"),
		ops:      desc("lun_operations_total", "Commands of the LUN that moved data.", "target", "lun", "direction"),
		bytes:    desc("lun_bytes_total", "Bytes that the LUN's commands moved.", "target", "lun", "direction"),
		latency:  desc("lun_latency_seconds", "What the LUN's commands took that had no error, from their coming to their answers.", "target", "lun", "operation"),
		errors:   desc("lun_errors_total", "Commands of the LUN that ended with CHECK CONDITION.", "target", "lun"),
	}
}

func collectTargets(st api.Status, gauge, counter emitter, histograms histogramEmitter) {
	set := newTargetSet()
	for _, t := range st.Targets {
		gauge(set.ready, boolValue(t.State == api.TargetReady), t.Name)
		counter(set.logins, float64(t.Logins), t.Name, "ok")
		counter(set.logins, float64(t.RefusedLogins), t.Name, "refused")
		for _, u := range t.Units {
			n := strconv.Itoa(u.Number)
			gauge(set.lunReady, boolValue(u.State == api.TargetReady), t.Name, n)
			counter(set.ops, float64(u.IO.Reads), t.Name, n, "read")
			counter(set.ops, float64(u.IO.Writes), t.Name, n, "write")
			counter(set.bytes, float64(u.IO.ReadBytes), t.Name, n, "read")
			counter(set.bytes, float64(u.IO.WriteBytes), t.Name, n, "write")
			counter(set.errors, float64(u.IO.Errors), t.Name, n)
			histograms(set.latency, u.Latency, t.Name, n)
		}
	}
	n, active := map[[3]string]int{}, map[[3]string]int{}
	for _, s := range st.TargetSessions {
		if s.Discovery {
			continue
		}
		k := [3]string{s.Target, cmp.Or(s.Peer, Others), s.Transport}
		n[k]++
		active[k] += s.InFlight
	}
	for k, v := range n {
		gauge(set.sessions, float64(v), k[:]...)
		gauge(set.inFlight, float64(active[k]), k[:]...)
	}
}
