package carrier

import (
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// TestSessionsStayWithWhatIsNotMuchSlower: that something else was picked for others
// is no reason to make their paths anew.
func TestSessionsStayWithWhatIsNotMuchSlower(t *testing.T) {
	c := NewChoice()
	now := time.Now()
	for _, tc := range []struct {
		udp, tcp measured
		want     bool
	}{
		{measured{now, 130}, measured{now, 100}, true},
		{measured{now, 110}, measured{now, 100}, false},
		{measured{now, 130}, measured{}, false},
		{measured{}, measured{now, 100}, false},
		{measured{now, 130}, measured{now.Add(-rateValid), 100}, false},
	} {
		c.rates = map[transport.Kind]measured{transport.SCTPUDP: tc.udp, transport.TCP: tc.tcp}
		if got := c.isMuchFaster(transport.SCTPUDP, transport.TCP); got != tc.want {
			t.Errorf("%+v: much faster: %v", tc, got)
		}
	}
}

// TestPausesBetweenQuestionsDouble, up to the longest, and begin anew once what was
// missing has been there.
func TestPausesBetweenQuestionsDouble(t *testing.T) {
	c := NewChoice()
	udp := []transport.Kind{transport.SCTPUDP}
	var pauses []time.Duration
	for range 11 {
		c.setMissing(udp, time.Second)
		c.setMissing(udp, time.Second) // nothing new: others may ask meanwhile
		if c.startRetry(false) {
			t.Fatal("it is asked again at once")
		}
		w := c.deferred[transport.SCTPUDP]
		pauses = append(pauses, w.pause)
		w.at = w.at.Add(-w.pause)
		c.deferred[transport.SCTPUDP] = w
		if idle := c.startRetry(true); idle != (w.pause < avoidMax) {
			t.Errorf("after %v: asked for the sake of an idle link: %v", w.pause, idle)
		}
		c.endRetry()
		if !c.startRetry(false) || c.startRetry(false) {
			t.Fatalf("after %v: not asked, or twice at once", w.pause)
		}
		c.endRetry()
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	c.setMissing(nil, time.Second)
	if c.startRetry(false) {
		t.Error("nothing is missing, and it is asked")
	}
	c.setMissing(udp, time.Second)
	if got := c.deferred[transport.SCTPUDP].pause; got != time.Second {
		t.Errorf("the first pause of the next time is %v", got)
	}
}
