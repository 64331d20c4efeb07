package guard

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// late has nf_tables answer too late as many times.
func late(t *testing.T, times int) {
	was := tableTimes
	t.Cleanup(func() { tableTimes = was })
	tableTimes = append(make([]time.Duration, times), was[times:]...)
}

// A kernel that is busy answers late. What was asked is asked once more then, and what was
// carried out meanwhile is taken for done.
func TestLateAnswersOfTablesAreWaitedFor(t *testing.T) {
	late(t, 1)
	inFreshNS(t, func() {
		g := Spec{Remote: netip.MustParseAddr("10.0.0.1"), Port: 7471}
		for range 2 {
			if err := Install(g); err != nil {
				t.Fatal(err)
			}
			if holes, err := Holes(g); err != nil || len(holes) != 0 {
				t.Errorf("%v, %v", holes, err)
			}
			if err := WriteBlocks("", nil, []BlockEntry{entryFor("10.0.0.2", transport.ProtoTCP, time.Hour, "")}); err != nil {
				t.Fatal(err)
			}
			if have, err := ReadBlocks(""); err != nil || len(have) != 1 {
				t.Errorf("%v, %v", have, err)
			}
			if faults, err := CheckBlocks(""); err != nil || len(faults) > 0 {
				t.Errorf("%v, %v", faults, err)
			}
		}
		if err := TakeDown(g); err != nil {
			t.Fatal(err)
		}
	})
}

// No answer at all is no reason to wait for ever, and the error says what did not answer.
func TestTablesThatDoNotAnswerAreSaidToBe(t *testing.T) {
	late(t, len(tableTimes))
	inFreshNS(t, func() {
		err := Install(Spec{Remote: netip.MustParseAddr("10.0.0.1"), Port: 7471})
		if err == nil || !strings.Contains(err.Error(), "nf_tables has not answered") {
			t.Errorf("%v", err)
		}
	})
}
