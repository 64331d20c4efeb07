package doctor

import (
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// partitions examines who may not use the partition that it is of, and links that the two hosts do not agree on.
func (x *examination) partitions(st *api.Status) {
	if st.Permissive != "" {
		x.addFinding(Finding{What: "labels", Level: Warn, Found: st.Permissive + ": what the policy of partitions denies is logged, and let pass",
			Do: []string{"When the log has no denial any more that should not be one, make SELinux enforcing: setenforce 1."}})
	}
	for _, p := range st.Partitions {
		f := Finding{What: "partition " + p.Name, Level: OK, Found: fmt.Sprintf("pkey %s, port %d, %d members, %d streams", p.PKey, p.Port, len(p.Members), p.Streams)}
		if p.Policy != "" {
			f.Found += "; decided by " + p.Policy
		}
		for _, u := range p.Users {
			if u.Denied != "" && !u.Permitted {
				f.Level = Fail
				f.Found += fmt.Sprintf("; %s %s: %s", u.Kind, u.Name, u.Denied)
				f.Do = []string{"Allow it in the policy, or give it another label, then: ironwarp reload."}
			}
		}
		x.addFinding(f)
	}
	for _, p := range st.Peers {
		for _, q := range p.Partitions {
			if q.Problem != nil {
				level := Fail
				if q.State == api.PartitionApart {
					level = Note
				}
				x.addFinding(Finding{What: fmt.Sprintf("partition %s with %s", q.Name, p.Name), Level: level, Found: q.Problem.Message, Do: lines(q.Problem.Fix)})
			}
		}
	}
}
