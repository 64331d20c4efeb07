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
		{measured{now, 130}, measured{now.Add(-rateFor), 100}, false},
	} {
		c.rates = map[transport.Kind]measured{transport.SCTPUDP: tc.udp, transport.TCP: tc.tcp}
		if got := c.isMuchFaster(transport.SCTPUDP, transport.TCP); got != tc.want {
			t.Errorf("%+v: much faster: %v", tc, got)
		}
	}
}

// TestPausesBetweenQuestionsDouble, up to the longest, and begin anew once what was
// lacking has been there.
func TestPausesBetweenQuestionsDouble(t *testing.T) {
	c := NewChoice()
	udp := []transport.Kind{transport.SCTPUDP}
	var pauses []time.Duration
	for range 11 {
		c.noteLacking(udp, time.Second)
		c.noteLacking(udp, time.Second) // nothing new: others may ask meanwhile
		if c.beginAsking(false) {
			t.Fatal("it is asked again at once")
		}
		w := c.wanting[transport.SCTPUDP]
		pauses = append(pauses, w.pause)
		w.at = w.at.Add(-w.pause)
		c.wanting[transport.SCTPUDP] = w
		if idle := c.beginAsking(true); idle != (w.pause < avoidFor) {
			t.Errorf("after %v: asked for the sake of an idle link: %v", w.pause, idle)
		}
		c.endAsking()
		if !c.beginAsking(false) || c.beginAsking(false) {
			t.Fatalf("after %v: not asked, or twice at once", w.pause)
		}
		c.endAsking()
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	c.noteLacking(nil, time.Second)
	if c.beginAsking(false) {
		t.Error("nothing is lacking, and it is asked")
	}
	c.noteLacking(udp, time.Second)
	if got := c.wanting[transport.SCTPUDP].pause; got != time.Second {
		t.Errorf("the first pause of the next time is %v", got)
	}
}
