package verbs

import (
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// Streams of protection domains that share nothing have an SCTP association each;
// others of the ULP have one together (R3).
func TestAssociationsByTrustModel(t *testing.T) {
	const streams = 3
	for _, m := range TrustModels() {
		t.Run(m.String(), func(t *testing.T) {
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			a.tc = iwarptest.SCTPInUDP(t)
			b.tc = a.tc
			accepted := acceptAll(t, b, listen(t, b, ListenConfig{}))
			for range streams {
				var err error
				if a.pd, err = a.ulp.AllocPDAs(m); err != nil {
					t.Fatal(err)
				}
				if a.cfg.SendCQ, err = a.ulp.CreateCQ(256, nil); err != nil {
					t.Fatal(err)
				}
				a.cfg.RecvCQ = a.cfg.SendCQ
				if _, err := a.dial(sctpLocal); err != nil {
					t.Fatal(err)
				}
			}
			used := make(map[*association]int)
			for range streams {
				used[(<-accepted).link().(*session).a]++
			}
			want := 1
			if !m.Trust().ShareStreams {
				want = streams
			}
			if len(used) != want {
				t.Errorf("%d associations for %d streams, want %d", len(used), streams, want)
			}
		})
	}
}
