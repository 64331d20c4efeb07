package attack

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Attackers under many names hold all streams that there are and do no work, or hardly
// any. A newcomer with work to do gets in once they have been idle for as long as the
// policy allows, and streams that work stay (R20, RFC 5042 section 6.4.2).
func TestIdleStreamsThatFillTheTable(t *testing.T) {
	const streams, after = 40, time.Minute
	// hoard keeps them alive with beat, four times within the policy's time.
	hoard := func(beat func(f *stream)) func(v *target) bool {
		return func(v *target) (succeeded bool) {
			synctest.Test(v.T, func(t *testing.T) {
				cfg := verbs.Config{Limits: verbs.Limits{Streams: streams}, Idle: verbs.IdlePolicy{After: after}}
				v := newTargetAs(t, cfg, verbs.SLT)
				busy := v.stream(v.pd, "alice")
				mr := v.region(v.pd, 16<<10, verbs.LocalWrite|verbs.RemoteWrite)
				var hostile []*stream
				for {
					f, err := v.tryStream(v.pd, v.cq, transport.Identity(fmt.Sprintf("mallory %d", len(hostile))))
					if err != nil {
						break
					}
					hostile = append(hostile, f)
				}
				if len(hostile) < streams/2 { // the rest is kept for other ULPs
					t.Fatalf("the attackers have %d streams of %d", len(hostile), streams)
				}
				newcomer, err := v.tryStream(v.pd, v.cq, "bob")
				var full *verbs.QuotaError
				if !errors.As(err, &full) {
					t.Fatalf("control: a newcomer gets %v while the table is full", err)
				}
				for range 20 {
					<-time.After(after / 4)
					busy.write(mr.STag(), 0, make([]byte, 16<<10))
					for _, f := range hostile {
						beat(f)
					}
					synctest.Wait()
					if newcomer, err = v.tryStream(v.pd, v.cq, "bob"); err == nil {
						break
					}
				}
				if err == nil && !newcomer.settled() {
					t.Error("the newcomer's stream does not go on")
				}
				if !busy.settled() {
					t.Errorf("the stream that works was ended: %v", busy.qp.Err())
				}
				gone := 0
				for _, f := range hostile {
					if errors.Is(f.qp.Err(), verbs.ErrReaped) {
						gone++
					}
				}
				if err == nil && gone == 0 {
					t.Error("no stream was ended for its idleness")
				}
				succeeded = err != nil
			})
			return succeeded
		}
	}
	run(t,
		attack{"silent", checks.Reaping, hoard(func(*stream) {})},
		attack{"Writes of nothing", checks.Reaping, hoard(func(f *stream) { f.write(0, 0, nil) })},
		attack{"Reads of nothing", checks.Reaping, hoard(func(f *stream) { f.read(0, 0, 0) })},
	)
}
