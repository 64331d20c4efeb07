package ike

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func TestPlaneIsChosenByWhatCharonHasLoaded(t *testing.T) {
	for _, tc := range []struct {
		plugins    []string
		configured esp.Plane
		want       esp.Plane
		words      []string
	}{
		{[]string{esp.Plugin, "vici"}, esp.Auto, esp.Userland, []string{"has loaded its plugin kernel-libipsec"}},
		{[]string{"vici"}, esp.Auto, esp.Kernel, []string{"kernel"}},
		{[]string{esp.Plugin}, esp.Userland, esp.Userland, []string{"has loaded its plugin"}},
		{[]string{esp.Plugin}, esp.Kernel, esp.Kernel, []string{"the configuration says so", "would be userland ESP", "kernel-libipsec"}},
		{nil, esp.Userland, esp.Userland, []string{"the configuration says so", "would be kernel ESP"}},
	} {
		d := Status{Plugins: tc.plugins}
		d.choose(tc.configured)
		if d.DataPlane != tc.want {
			t.Errorf("%v, configured %v: %v, want %v", tc.plugins, tc.configured, d.DataPlane, tc.want)
		}
		for _, w := range tc.words {
			if !strings.Contains(d.Reason, w) {
				t.Errorf("%v, configured %v: the reason does not say %q: %s", tc.plugins, tc.configured, w, d.Reason)
			}
		}
	}
}
