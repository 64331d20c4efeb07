package sctp

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the paths carry and when that changes, each message arrives once, and in
// the end the size in use fits the path, nearly as long as it may be.
func TestModelChangingMTU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { changingMTU(t, jumbo, false, false) })
}

// And so it is where packets with PAD are dropped whole, of one end or both, now and
// then or always, or where no probe is answered at all.
func TestModelChangingMTUWithoutPad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mute := rapid.IntRange(0, 7).Draw(t, "mute") == 0
		begin := jumbo
		if mute || rapid.Bool().Draw(t, "first") {
			begin = first
		}
		changingMTU(t, begin, true, mute)
	})
}

func changingMTU(t *rapid.T, begin func(int, *settings), drops, mute bool) {
	s := newSim(rapid.Uint64().Draw(t, "seed"), netConfig{
		delay: time.Duration(rapid.IntRange(0, 50).Draw(t, "delay")) * time.Millisecond,
		loss:  rapid.IntRange(0, 5).Draw(t, "loss"),
	}, begin)
	s.refuse = rapid.Bool().Draw(t, "refuse")
	var noPad [2]bool // what an end sends with PAD is dropped
	s.drop = func(from int, p packet) bool {
		return noPad[from] && withPad(p) || mute && (withPad(p) || prolonged(p))
	}
	for range rapid.IntRange(1, 8).Draw(t, "changes") {
		for side := range s.mtu {
			noPad[side] = drops && rapid.Bool().Draw(t, "no PAD")
			s.mtu[side] = s.ends[side].t.packetSize(rapid.IntRange(minMTU, 9100).Draw(t, "mtu"))
			if rapid.Bool().Draw(t, "told") {
				s.ends[side].t.setRoute(s.now, s.mtu[side]+28)
			}
			for range rapid.IntRange(0, 12).Draw(t, "n") {
				s.send(side, 1, s.ends[side].t.maxMessage())
			}
		}
		s.run(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms"))*time.Millisecond, never)
	}
	if !s.run(time.Hour, func() bool { return s.all(0)() && s.all(1)() }) {
		t.Fatalf("after an hour %d and %d messages are left", s.ends[0].t.tx.len(), s.ends[1].t.tx.len())
	}
	for side, e := range s.ends {
		if err := s.ends[1-side].once(e.sent); err != nil {
			t.Error(err)
		}
		for range 8 {
			s.send(side, 2, e.t.maxMessage())
			s.run(20*time.Second, never)
		}
		if e.t.size > s.mtu[side] {
			t.Errorf("the path carries %d bytes, %d are used", s.mtu[side], e.t.size)
		}
	}
	if mute {
		return
	}
	s.net.loss = 0
	s.run(raiseInterval+2*time.Minute, never)
	for side, e := range s.ends {
		if most := min(s.mtu[side], e.t.mostSize); e.t.size > most || most-e.t.size > e.t.size/nearly+4 {
			t.Errorf("after a quarter of an hour without losses: the path carries %d bytes, %d are used", most, e.t.size)
		}
	}
}
