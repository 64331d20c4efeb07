package attack

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// TestAttacksThroughESP has the core of the attacks come from another host, through
// its SA: that a peer was authenticated makes it no friend (RFC 5042 sections 2.1
// and 5.4).
func TestAttacksThroughESP(t *testing.T) {
	e := newESP(t, "victim", "mallory")
	lay := e.ways(t, "mallory", "victim")
	wire := must(e.hosts["victim"].Capture(t.Context(), lab.CaptureOptions{}))(t)
	through := func(t *testing.T) *victim {
		v := newVictim(t)
		v.lay = lay
		return v
	}
	for _, core := range []struct {
		name    string
		attacks []attack
	}{
		{"an STag of another protection domain", tries(checks.PDOfSTag, anothersDomain)},
		{"an STag of another stream", tries(checks.StreamOfSTag, anothersStream)},
		{"an answer to another STag", readAnswers()},
		{"an STag that has gone", deadSTags()},
		{"an access outside of the window", aroundTheWindow()},
		{"a fault and its Terminate", slices.DeleteFunc(probes(), func(a attack) bool {
			return a.name == "untagged: more Reads than agreed" // which takes a foe that is deaf below TCP
		})},
	} {
		t.Run(core.name, func(t *testing.T) { runOn(t, through, core.attacks...) })
	}
	c, err := wire.Stop()
	if err != nil || c.Clear(espPort) > 0 || c.ESP == 0 {
		t.Errorf("on the wire: %v, %v", c, err)
	}
}
