package metrics

import "github.com/ironwarp/ironwarp/daemon/api"

// collectPools emits how full pools are.
func collectPools(pools []api.Pool, gauge emitter) {
	size := desc("pool_size_bytes", "Room of the pool.", "pool")
	used := desc("pool_used_bytes", "Room that is used, by volumes and all else that is there.", "pool")
	volumes := desc("pool_volumes", "Volumes and snapshots of the pool.", "pool")
	alarm := desc("pool_alarm_percent", "The highest threshold of usage that is crossed; 0: none.", "pool")
	usable := desc("pool_usable", "1 if volumes can be made there.", "pool")
	for _, p := range pools {
		gauge(usable, boolValue(p.Problem == nil), p.Name)
		gauge(volumes, float64(p.Volumes), p.Name)
		gauge(alarm, float64(p.Alarm), p.Name)
		if p.Size > 0 {
			gauge(size, float64(p.Size), p.Name)
			gauge(used, float64(p.Used), p.Name)
		}
	}
}
