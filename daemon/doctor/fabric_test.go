package doctor

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// What is wrong with a host's part in a fabric is found, with what to do, and what is right is no warning.
func TestFabricIsExamined(t *testing.T) {
	master := api.FabricManager{Identity: "alpha.example", Peer: "alpha", State: api.FabricMaster}
	lost := api.FabricManager{Identity: "gamma.example", Peer: "gamma", State: api.FabricUnreachable, Problem: &api.Error{Message: "cannot reach peer gamma\nno answer", Fix: "is the daemon running there?"}}
	for _, c := range []struct {
		name, what, level, found string
		status                   api.FabricStatus
	}{
		{"all is well", "fabric", OK, "the directory of alpha.example answers", api.FabricStatus{Master: "alpha.example", Managers: []api.FabricManager{master}}},
		{"a manager is away", "fabric", Warn, "manager gamma.example cannot be reached: cannot reach peer gamma; no answer", api.FabricStatus{Master: "alpha.example", Managers: []api.FabricManager{master, lost}}},
		{"no master", "fabric", Warn, "no manager that can be reached is the master", api.FabricStatus{Managers: []api.FabricManager{lost}}},
		{"settings with faults", "fabric", Fail, "fabric.conf:2: unknown option", api.FabricStatus{Master: "alpha.example", Problem: &api.Error{Message: "fabric.conf:2: unknown option", Fix: "correct the file"}}},
		{"an agent with a key", "fabric agent", OK, "managers may drain", api.FabricStatus{Master: "alpha.example", Agent: true, MKey: true}},
		{"an agent without a key", "fabric agent", Warn, "it has no m_key", api.FabricStatus{Master: "alpha.example", Agent: true}},
		{"a drained host", "fabric agent", Warn, "a manager has drained this host", api.FabricStatus{Master: "alpha.example", Agent: true, MKey: true, Drained: true}},
		{"no agent", "fabric agent", "", "", api.FabricStatus{Master: "alpha.example"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &examination{run: &api.Status{Fabric: &c.status}}
			x.fabric()
			var got Finding
			for _, f := range x.out {
				if f.What == c.what {
					got = f
				}
			}
			if got.Level != c.level || !strings.Contains(got.Found, c.found) {
				t.Errorf("%+v, want %s: %q", got, c.level, c.found)
			}
			if (got.Level == Warn || got.Level == Fail) && len(got.Do) == 0 {
				t.Error("nothing says what to do")
			}
		})
	}
	x := &examination{run: &api.Status{}}
	if x.fabric(); len(x.out) != 0 {
		t.Errorf("a host without a fabric: %+v", x.out)
	}
}
