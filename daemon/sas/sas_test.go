package sas

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
)

func TestOrdersGoToTheConnectionOfTheirChild(t *testing.T) {
	c := config.Peer{Name: "beta", Multihoming: []config.Addresses{{}}, Paths: []config.Path{{Name: "lan"}, {Name: "lan-b"}}}
	for child, want := range map[string]string{"": "[beta beta.path2 beta.lan beta.lan-b]", "beta-out-sctp": "[beta]", "beta.path2-in-sctp": "[beta.path2]", "nonsense": "[beta]",
		"beta.lan-out": "[beta.lan]", "beta.lan-b-out": "[beta.lan-b]"} {
		if got := fmt.Sprint(connectionsOf(c, child)); got != want {
			t.Errorf("child %q is looked for in %s, want %s", child, got, want)
		}
	}
}
