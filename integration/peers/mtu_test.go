package peers

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestDiskIsReadOverAPathThatIsNarrowerThanItsEnds: the path drops packets longer than
// its MTU without an ICMP error, from the beginning or from some time on.
func TestDiskIsReadOverAPathThatIsNarrowerThanItsEnds(t *testing.T) {
	for _, carrier := range []string{"tcp", "sctp-udp", "sctp"} {
		for _, mtus := range [][]int{{1300}, {1500, 1300, 1100}} {
			when := "from the beginning"
			if len(mtus) > 1 {
				when = "later"
			}
			t.Run(carrier+" "+when, func(t *testing.T) {
				if carrier == "sctp" {
					lab.RequireKernelSCTP(t)
					t.Attr("row", "the kernel's SCTP over a path that drops long packets "+when+": a disk is read, and the daemon says that the path is narrow")
				}
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
					if n := s.peer(s.beta, "alpha").NarrowPath; n != nil && mtu == 1500 {
						t.Errorf("nothing is narrow: %+v", n)
					}
				}
				s.until("beta sees that the path is narrow", func() bool { return s.peer(s.beta, "alpha").NarrowPath != nil })
				n := s.peer(s.beta, "alpha").NarrowPath
				if n.Transport != carrier || n.CarriesBytes >= mtus[len(mtus)-1] || n.LostBytes <= n.CarriesBytes || n.LostBytes > 1500 {
					t.Errorf("a path of %v bytes: %+v", mtus, n)
				}
				for _, args := range [][]string{{"status"}, {"peer", "show", "alpha"}} {
					if out := s.must(s.beta, args...); !strings.Contains(out, "drops packets of") || !strings.Contains(out, "set the MTU") {
						t.Errorf("%v does not say that the path is narrow:\n%s", args, out)
					}
				}
				s.until("beta's log says it", func() bool { return strings.Contains(s.beta.LogTail(1<<20), "drops packets of") })
				const why = "the path has become narrower"
				says := func(n *node.Node) bool { return strings.Contains(n.LogTail(1<<20), why) }
				switch {
				case carrier == "sctp": // the kernel's ABORT gives alpha no reason
					s.until("beta's log says: "+why, func() bool { return says(s.beta) })
				case carrier == "sctp-udp" && len(mtus) > 1:
					s.until("alpha's log says: "+why, func() bool { return says(s.alpha) })
				}
			})
		}
	}
}
