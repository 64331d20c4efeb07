package sas

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
)

func TestOrdersGoToTheConnectionOfTheirChild(t *testing.T) {
	c := config.Peer{Name: "beta", Paths: []config.Path{{}}}
	for child, want := range map[string]string{"": "[beta beta.path2]", "beta-out-sctp": "[beta]", "beta.path2-in-sctp": "[beta.path2]", "nonsense": "[beta]"} {
		if got := fmt.Sprint(connectionsOf(c, child)); got != want {
			t.Errorf("child %q is looked for in %s, want %s", child, got, want)
		}
	}
}
