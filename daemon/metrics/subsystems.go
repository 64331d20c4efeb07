package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// subsystemSet are the metrics of NVM subsystems. Hosts and their controllers are counted: their names are others' choice, and are no labels.
type subsystemSet struct {
	ready, controllers, connects, nsReady, ops, bytes, errors, latency *prometheus.Desc
}

func newSubsystemSet() subsystemSet {
	return subsystemSet{
		ready:       desc("subsystem_ready", "1 if hosts can connect to the NVM subsystem and all its namespaces are there.", "subsystem"),
		controllers: desc("subsystem_controllers", "Controllers of hosts in the subsystem.", "subsystem"),
		connects:    desc("subsystem_connects_total", "Connects of hosts to the subsystem.", "subsystem", "result"),
		nsReady:     desc("namespace_ready", "1 if the namespace's storage is open.", "subsystem", "nsid"),
		ops:         desc("namespace_operations_total", "Reads and writes of the namespace that had no error.", "subsystem", "nsid", "direction"),
		bytes:       desc("namespace_bytes_total", "Bytes that they moved.", "subsystem", "nsid", "direction"),
		errors:      desc("namespace_errors_total", "Commands of the namespace at which the storage failed.", "subsystem", "nsid"),
		latency:     desc("namespace_latency_seconds", "What the namespace's commands took that had no error, from their beginning at the storage to their answers.", "subsystem", "nsid", "operation"),
	}
}

func collectSubsystems(st api.Status, gauge, counter emitter, histograms histogramEmitter) {
	set := newSubsystemSet()
	for _, s := range st.NVMe {
		gauge(set.ready, boolValue(s.State == api.TargetReady), s.Name)
		gauge(set.controllers, float64(s.Controllers), s.Name)
		counter(set.connects, float64(s.Connects), s.Name, "ok")
		counter(set.connects, float64(s.Refused), s.Name, "refused")
		for _, u := range s.Units {
			n := strconv.Itoa(int(u.NSID))
			gauge(set.nsReady, boolValue(u.State == api.TargetReady), s.Name, n)
			counter(set.ops, float64(u.IO.Reads), s.Name, n, "read")
			counter(set.ops, float64(u.IO.Writes), s.Name, n, "write")
			counter(set.bytes, float64(u.IO.ReadBytes), s.Name, n, "read")
			counter(set.bytes, float64(u.IO.WriteBytes), s.Name, n, "write")
			counter(set.errors, float64(u.IO.Errors), s.Name, n)
			histograms(set.latency, u.Latency, s.Name, n)
		}
	}
}
