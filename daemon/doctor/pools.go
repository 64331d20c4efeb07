package doctor

import (
	"fmt"

	"github.com/ironwarp/ironwarp/block/backing"
)

// pools checks whether volumes can be made, and how full their pools are.
func (x *examination) pools() {
	if x.run == nil || len(x.run.Pools) == 0 {
		return
	}
	f := Finding{What: "pools", Level: OK}
	for _, p := range x.run.Pools {
		switch {
		case p.Problem != nil:
			f.fault(Fail, fmt.Sprintf("pool %s: %s", p.Name, p.Problem.Message), p.Problem.Fix)
		case p.Alarm > 0:
			f.fault(Warn, fmt.Sprintf("pool %s is more than %d %% full: when it has no room left, writes to its volumes fail", p.Name, p.Alarm), "Remove volumes and snapshots, or enlarge its storage; `ironwarp pool ls` shows how full it is.")
		}
	}
	if f.Level == OK {
		f.Found = "all of " + count(len(x.run.Pools), "pool") + " can be used, and have room"
	}
	x.addFinding(f)
}

// volumeDescriptors are the file descriptors of the volumes that there are.
func (x *examination) volumeDescriptors() (n uint64) {
	if x.run != nil {
		for _, p := range x.run.Pools {
			n += uint64(p.Volumes * backing.Descriptors)
		}
	}
	return n
}
