package metrics

import "github.com/ironwarp/ironwarp/daemon/api"

// collectFabric describes this host's part in a fabric, and the directory if it keeps one. Labels are identities of the
// configuration: hosts and services are counted, as their names are others' choice.
func collectFabric(s *api.FabricStatus, gauge, counter emitter) {
	if s == nil {
		return
	}
	reachable := desc("fabric_manager_reachable", "1 if there is a stream with the manager of the fabric.", "manager")
	for _, m := range s.Managers {
		gauge(reachable, boolValue(m.Problem == nil && m.State != api.FabricUnknown), m.Identity)
	}
	gauge(desc("fabric_master_known", "1 if a manager that can be reached is the master."), boolValue(s.Master != ""))
	gauge(desc("fabric_drained", "1 if a manager has this host take no new streams."), boolValue(s.Drained))
	gauge(desc("fabric_settings_applied", "1 if the fabric's settings are those of the files, 0 if these have faults."), boolValue(s.Problem == nil))
	if t := s.Totals; t != nil {
		master := false
		for _, m := range s.Managers {
			master = master || m.Peer == "" && m.State == api.FabricMaster
		}
		gauge(desc("fabric_master", "1 if this manager is the master."), boolValue(master))
		gauge(desc("fabric_hosts", "Hosts that have a stream with this manager, itself included."), float64(t.Hosts))
		gauge(desc("fabric_services", "Services in this manager's directory."), float64(t.Services))
		counter(desc("fabric_requests_dropped_total", "Requests that this manager's directory has dropped in silence."), float64(t.Dropped))
	}
}
