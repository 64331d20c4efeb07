package peers

import (
	"testing"

	"github.com/ironwarp/ironwarp/integration/node"
)

// TestDiskIsReadOverAPathThatIsNarrowerThanItsEnds: the path drops what is longer
// than its MTU and tells nobody, from some time on.
func TestDiskIsReadOverAPathThatIsNarrowerThanItsEnds(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	for _, mtu := range []int{1500, 1300, 1100} {
		if err := s.beta.Narrow(t.Context(), 0, mtu); err != nil {
			t.Fatal(err)
		}
		list, err := s.alpha.Client().Attachments(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.readDisk(list[0].Socket)
	}
}
