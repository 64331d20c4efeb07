package doctor

import (
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// fabric reports what is wrong with this host's part in a fabric. Nothing of it stops what is up: the directory tells, and never decides.
func (x *examination) fabric() {
	if x.run == nil || x.run.Fabric == nil {
		return
	}
	s := x.run.Fabric
	f := Finding{What: "fabric", Level: OK, Found: "the directory of " + s.Master + " answers"}
	if s.Master == "" {
		f.Level, f.Found = Warn, "no manager that can be reached is the master: disks are attached by PEER/EXPORT alone"
		f.Do = []string{"ironwarp fabric managers"}
	}
	for _, m := range s.Managers {
		if m.Problem != nil {
			f.fault(Warn, fmt.Sprintf("manager %s cannot be reached: %s", m.Identity, strings.ReplaceAll(m.Problem.Message, "\n", "; ")), lines(m.Problem.Fix)...)
		}
	}
	if p := s.Problem; p != nil {
		f.fault(Fail, strings.ReplaceAll(p.Message, "\n", "; "), lines(p.Fix)...)
	}
	x.addFinding(f)
	x.fabricAgent(s)
}

// fabricAgent reports what managers may do to this host, and have done.
func (x *examination) fabricAgent(s *api.FabricStatus) {
	if !s.Agent {
		return
	}
	f := Finding{What: "fabric agent", Level: OK, Found: "managers may drain this host, change its keys and restrict its partitions"}
	if s.Drained {
		f.fault(Warn, "a manager has drained this host: it takes no new streams", "on the master of the fabric, `ironwarp fabric drain --off` and this host's name there end that")
	}
	if !s.MKey {
		f.fault(Warn, "it has no m_key: who is a manager by identity alone may do that", "name an m_key in fabric.conf, the same on all hosts with an agent; docs/fabric.md says how to make one")
	}
	x.addFinding(f)
}
