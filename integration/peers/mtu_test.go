package peers

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/node"
)

// TestDiskIsReadOverAPathThatIsNarrowerThanItsEnds: the path drops what is longer
// than its MTU and tells nobody, from the beginning or from some time on.
func TestDiskIsReadOverAPathThatIsNarrowerThanItsEnds(t *testing.T) {
	for _, carrier := range []string{"tcp", "sctp-udp"} {
		for when, mtus := range map[string][]int{"from the beginning": {1300}, "later": {1500, 1300, 1100}} {
			t.Run(carrier+" "+when, func(t *testing.T) {
				s := newScene(t)
				if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", carrier); err != nil {
					t.Fatal(err)
				}
				for i, mtu := range mtus {
					if err := s.beta.Narrow(t.Context(), 0, mtu); err != nil {
						t.Fatal(err)
					}
					if i == 0 {
						s.attach()
					}
					list, err := s.alpha.Client().Attachments(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					s.readDisk(list[0].Socket)
				}
				const why = "the path has become narrower"
				if carrier == "sctp-udp" && len(mtus) > 1 && !strings.Contains(s.alpha.LogTail(1<<20), why) {
					t.Errorf("alpha's log does not say %q", why)
				}
			})
		}
	}
}
