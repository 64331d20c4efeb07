package doctor

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func TestPoolsThatAreFullOrCannotBeUsedAreFound(t *testing.T) {
	for _, tc := range []struct {
		pools []api.Pool
		level string
		words string
	}{
		{nil, "", ""},
		{[]api.Pool{{Name: "a"}}, OK, "1 pool"},
		{[]api.Pool{{Name: "a"}, {Name: "b", Alarm: 90}}, Warn, "pool b is more than 90 % full"},
		{[]api.Pool{{Name: "a", Problem: &api.Error{Message: "it is not mounted", Fix: "mount it"}}, {Name: "b", Alarm: 80}}, Fail, "it is not mounted; pool b"},
	} {
		x := &examination{run: &api.Status{Pools: tc.pools}}
		x.pools()
		if tc.level == "" && len(x.out) == 0 {
			continue
		}
		if len(x.out) != 1 || x.out[0].Level != tc.level || !strings.Contains(x.out[0].Found, tc.words) {
			t.Errorf("%+v: %+v", tc.pools, x.out)
		}
	}
	x := &examination{run: &api.Status{Pools: []api.Pool{{Volumes: 1000}}}}
	if n := x.volumeDescriptors(); n < 5000 {
		t.Errorf("1,000 volumes need %d descriptors", n)
	}
}
