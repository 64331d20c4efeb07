package driver

import "time"

const (
	// maxID is the specification's limit of names and ids, in bytes ("Size Limits").
	maxID = 128
	// maxNodeID is its limit of node ids, in bytes ("NodeGetInfo").
	maxNodeID = 256
	// maxPath bounds target and staging paths: PATH_MAX, in bytes.
	maxPath = 4096
	// maxHost and maxName are the longest names of a peer and of an export, in bytes; maxPool is what they leave in an id for that of a
	// pool, two slashes apart.
	maxHost = 32
	maxName = 48
	maxPool = maxID - 2 - maxHost - maxName // see maxHost
	// maxFlags and maxFlag bound the mount options of a request: mount(8) gets them in one argument of a page, at most.
	maxFlags, maxFlag = 64, 256
	// maxMessage bounds a gRPC request, in bytes. The specification's own limit of a map is 4 KiB, and a request has few.
	maxMessage = 256 << 10
	// maxEntries is how many volumes or snapshots one page of a list has, if the caller does not ask for fewer.
	maxEntries = 1000
	// maxRecord bounds what is read of a record, in bytes: one has maxTargets paths at most, and some names.
	maxRecord = 1 << 20
	// maxTargets is how many pods of one node may have a volume at once.
	maxTargets = 128

	// maxTopology is how many keys of topology a node or host may have: they are in one map, which the specification bounds to 4 KiB.
	maxTopology = 16
	// maxLabel is the longest label, and value of one, of Kubernetes, in bytes.
	maxLabel = 63

	// sizeUnit is what sizes of volumes are multiples of, in bytes: file systems and logical volumes want at least this.
	sizeUnit = 4096
	// defaultSize is that of a volume for which the orchestrator asks no size, in bytes.
	defaultSize = 1 << 30

	// fenceTime is how long a storage host waits for the I/O of a fenced node to end, in one call: the orchestrator repeats it.
	fenceTime = 10 * time.Second
	// growTime is how long a node waits until its disk has the new end, in one call.
	growTime = 20 * time.Second
	// growTick is how often it looks.
	growTick = 50 * time.Millisecond
	// probeTime is how long a plugin may take to say that it is live or ready: less than the kubelet waits for the program that asks.
	probeTime = 8 * time.Second
	// shutdownTime is how long calls may take to end when the plugin ends.
	shutdownTime = 10 * time.Second
)
