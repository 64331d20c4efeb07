package listen

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestAddressesThatShareASocketOfTheKernelsSCTP(t *testing.T) {
	set := func(s string) (out []netip.Addr) {
		for _, a := range strings.Fields(s) {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for _, tc := range []struct {
		sets []string
		want string
	}{
		{nil, "[]"},
		{[]string{"10.0.0.1"}, "[[10.0.0.1]]"},
		{[]string{"10.0.0.1", "10.0.0.1", "10.0.0.2"}, "[[10.0.0.1] [10.0.0.2]]"},
		{[]string{"10.0.0.2 10.0.0.1", "10.0.0.3", "10.0.0.3 10.0.0.2"}, "[[10.0.0.1 10.0.0.2 10.0.0.3]]"},
		{[]string{"10.0.0.1", "10.0.0.2", "10.0.0.2 10.0.0.1"}, "[[10.0.0.1 10.0.0.2]]"},
	} {
		var sets [][]netip.Addr
		for _, s := range tc.sets {
			sets = append(sets, set(s))
		}
		if got := fmt.Sprint(joinOverlapping(sets)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.sets, got, tc.want)
		}
	}
}
