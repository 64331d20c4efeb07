package sctp

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// RFC 9260 section 7.2.1: the initial window is min(4 PMDCS, max(2 PMDCS, 4404 or 4344)).
func TestInitialWindow(t *testing.T) {
	for _, c := range []struct {
		pmdcs int
		v6    bool
		want  int
	}{{500, false, 2000}, {1460, false, 4404}, {1440, true, 4344}, {8960, false, 17920}} {
		var w window
		if w.initial(c.pmdcs, c.v6); w.cwnd != c.want || w.ssthresh < 1<<29 {
			t.Errorf("%+v: a window of %d, threshold %d", c, w.cwnd, w.ssthresh)
		}
	}
}

// full acknowledges n bytes of a window that was in use.
func full(w *window, n int) progress { return progress{n: n, flight: w.cwnd, left: 1} }

// RFC 9260 section 7.2.1: up to the threshold a window in use grows by what is
// acknowledged, and no faster than by L packets a SACK.
func TestSlowStart(t *testing.T) {
	w, c := window{pmdcs: 1000, cwnd: 4000, ssthresh: 20000}, new(standard)
	for _, k := range []struct {
		p    progress
		want int
	}{
		{progress{n: 3000, flight: 3999, left: 999}, 4000}, // not in use
		{full(&window{cwnd: 4000}, 900), 4900},
		{progress{n: 4900, flight: 4900}, 9800},
		{progress{n: 9000, flight: 9800, left: 800}, 9800 + slowStartL*1000},
		{progress{n: 2200, flight: 17800, left: 1}, 20000}, // the threshold itself is of slow start
		{progress{n: 500, flight: 20000, left: 1}, 20500},
		{progress{n: 500, flight: 20500, left: 1}, 20500},
	} {
		if c.acked(&w, k.p); w.cwnd != k.want {
			t.Fatalf("%+v: a window of %d, want %d", k.p, w.cwnd, k.want)
		}
	}
}

// RFC 9260 section 7.2.2: above the threshold a window in use grows by a packet when as
// much as it was acknowledged, and what was acknowledged counts no longer once nothing
// is outstanding.
func TestCongestionAvoidance(t *testing.T) {
	w, c := window{pmdcs: 1000, cwnd: 8000, ssthresh: 4000}, new(standard)
	for range 3 {
		before := w.cwnd
		for range before/1000 - 1 {
			c.acked(&w, full(&w, 1000))
		}
		if w.cwnd != before {
			t.Fatalf("a window of %d became %d before it was acknowledged", before, w.cwnd)
		}
		if c.acked(&w, full(&w, 1000)); w.cwnd != before+1000 {
			t.Fatalf("a window of %d became %d", before, w.cwnd)
		}
	}
	w.cwnd = 8000
	c.acked(&w, full(&w, 7900))
	c.acked(&w, progress{n: 50, flight: 50})
	if c.acked(&w, full(&w, 7900)); w.cwnd != 8000 {
		t.Errorf("%d: what was acknowledged before all was counts", w.cwnd)
	}
	for range 100 { // not in use: at most one window is saved up
		c.acked(&w, progress{n: 7900, flight: 7900, left: 1})
	}
	c.acked(&w, full(&w, 1))
	if c.acked(&w, full(&w, 1)); w.cwnd != 9000 {
		t.Errorf("a window that was not in use became %d", w.cwnd)
	}
}

// RFC 9260 sections 7.2.3 and 7.2.4: a loss halves the window, a timeout leaves a packet,
// and slow start goes on to half of what it was. Neither threshold is below 4 packets.
func TestLossAndTimeout(t *testing.T) {
	for _, c := range []struct{ cwnd, half int }{{40000, 20000}, {8000, 4000}, {5000, 4000}, {1000, 4000}} {
		w, s := window{pmdcs: 1000, cwnd: c.cwnd, ssthresh: 1 << 30}, new(standard)
		if s.lost(&w); w.cwnd != c.half || w.ssthresh != c.half {
			t.Errorf("a window of %d is %d after a loss, threshold %d", c.cwnd, w.cwnd, w.ssthresh)
		}
		w = window{pmdcs: 1000, cwnd: c.cwnd, ssthresh: 1 << 30}
		if s.timedOut(&w); w.cwnd != 1000 || w.ssthresh != c.half {
			t.Errorf("a window of %d is %d after a timeout, threshold %d", c.cwnd, w.cwnd, w.ssthresh)
		}
	}
	// What was saved up for the next packet is gone.
	w, s := window{pmdcs: 1000, cwnd: 8000, ssthresh: 4000}, new(standard)
	s.acked(&w, full(&w, 7999))
	s.lost(&w)
	w.ssthresh = 0
	if s.acked(&w, full(&w, 1)); w.cwnd != 4000 {
		t.Errorf("a window of %d right after a loss", w.cwnd)
	}
}

// RFC 9260 section 7.2.1: a path that is not used loses half of its window each RTO, down
// to 4 packets, and gets it back by slow start.
func TestIdlePath(t *testing.T) {
	w, c := window{pmdcs: 1000, cwnd: 20000, ssthresh: 4000}, new(standard)
	for _, want := range []int{10000, 5000, 4000, 4000} {
		if c.idle(&w); w.cwnd != want || w.ssthresh != 20000 {
			t.Errorf("a window of %d, threshold %d, want %d and 20000", w.cwnd, w.ssthresh, want)
		}
	}
	w.cwnd = 2000
	if c.idle(&w); w.cwnd != 2000 {
		t.Errorf("a window of 2000 became %d by idling", w.cwnd)
	}
}

// RFC 9260 section 7.3: packets of another length leave the window at what a new
// association has, or more; after a timeout at one packet.
func TestWindowFollowsTheMTU(t *testing.T) {
	w := window{pmdcs: 600, cwnd: 2400, ssthresh: 1 << 30}
	if w.resize(1460, false, false); w.cwnd != 4404 || w.pmdcs != 1460 {
		t.Errorf("%+v", w)
	}
	w.cwnd = 50000
	if w.resize(1240, false, false); w.cwnd != 50000 {
		t.Errorf("%+v", w)
	}
	if w.resize(1460, false, true); w.cwnd != 1460 {
		t.Errorf("%+v after a timeout", w)
	}
}

// cubic is the controller of RFC 9438, as far as it says MUST: a second one, which shows
// that the seam has what another controller needs.
type cubic struct {
	standard
	epoch  time.Duration // since when the window follows the curve, 0: not yet
	max, k float64       // W_max in packets, K in seconds
}

const (
	cubicC    = 0.4
	cubicBeta = 0.7
)

func (c *cubic) acked(w *window, p progress) {
	if w.cwnd < w.ssthresh { // section 4.10
		c.standard.acked(w, p)
		return
	}
	if p.flight < w.cwnd {
		return
	}
	cwnd := float64(w.cwnd) / float64(w.pmdcs)
	if c.epoch == 0 {
		c.epoch, c.max = p.now, max(c.max, cwnd)
		c.k = math.Cbrt((c.max - cwnd) / cubicC)
	}
	t := (p.now - c.epoch + p.rtt).Seconds() - c.k
	target := min(max(cubicC*t*t*t+c.max, cwnd), 1.5*cwnd) // section 4.2
	w.cwnd += int((target - cwnd) / cwnd * float64(p.n))
}

func (c *cubic) lost(w *window) { // section 4.6
	c.epoch, c.max = 0, float64(w.cwnd)/float64(w.pmdcs)
	w.ssthresh = max(int(float64(w.cwnd)*cubicBeta), 2*w.pmdcs)
	w.cwnd = w.ssthresh
}

func (c *cubic) timedOut(w *window) {
	c.lost(w)
	w.cwnd = w.pmdcs
}

// What either controller owes to the network holds after any sequence of events: a
// window of a packet or more, no growth where it is not in use nor beyond what is
// acknowledged, less after a loss, one packet after a timeout.
func TestAnyControllerKeepsTheRules(t *testing.T) {
	for name, control := range map[string]func() controller{
		"RFC 9260": newStandard,
		"RFC 9438": func() controller { return new(cubic) },
	} {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			var w window
			w.initial(rapid.IntRange(500, 9000).Draw(t, "PMDCS"), false)
			c, now := control(), time.Second
			for range rapid.IntRange(1, 200).Draw(t, "events") {
				before := w
				switch rapid.SampledFrom([]string{"full", "full", "full", "half", "lost", "timeout", "idle"}).Draw(t, "event") {
				case "full", "half":
					p := progress{now: now, rtt: 20 * time.Millisecond, flight: w.cwnd}
					if rapid.Bool().Draw(t, "half") {
						p.flight = w.cwnd / 2
					}
					p.n = rapid.IntRange(1, max(p.flight, 1)).Draw(t, "n")
					p.left = p.flight - p.n
					c.acked(&w, p)
					if w.cwnd < before.cwnd || w.cwnd > before.cwnd && p.flight < before.cwnd {
						t.Fatalf("%+v became %+v by %+v", before, w, p)
					}
					if grown := w.cwnd - before.cwnd; grown > max(p.n, w.pmdcs) {
						t.Fatalf("it grew by %d for %d bytes", grown, p.n)
					}
				case "lost":
					if c.lost(&w); w.cwnd > max(before.cwnd*3/4, 4*w.pmdcs) || w.cwnd != w.ssthresh {
						t.Fatalf("%+v became %+v by a loss", before, w)
					}
				case "timeout":
					if c.timedOut(&w); w.cwnd != w.pmdcs || w.ssthresh > max(before.cwnd*3/4, 4*w.pmdcs) {
						t.Fatalf("%+v became %+v by a timeout", before, w)
					}
				case "idle":
					if c.idle(&w); w.cwnd > before.cwnd {
						t.Fatalf("%+v became %+v by idling", before, w)
					}
				}
				if w.cwnd < w.pmdcs || w.pmdcs != before.pmdcs {
					t.Fatalf("%+v", w)
				}
				now += time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond
			}
		}))
	}
}

// told is a controller that keeps the window at a size and counts what it is told.
type told struct {
	size                           int
	ackeds, losts, timeouts, idles int
	bytes                          int
	last                           progress
}

func (c *told) acked(w *window, p progress) {
	c.ackeds++
	c.bytes += p.n
	c.last = p
	w.cwnd = c.size
}
func (c *told) lost(w *window)     { c.losts++; w.cwnd = c.size }
func (c *told) timedOut(w *window) { c.timeouts++; w.cwnd = c.size }
func (c *told) idle(w *window)     { c.idles++; w.cwnd = c.size }

// Another controller is told of what happens, each thing once, and nobody else moves the
// window.
func TestAnotherControllerRulesTheWindow(t *testing.T) {
	c := &told{size: 30000}
	s := established(t, netConfig{delay: time.Millisecond}, func(side int, s *settings) {
		s.window = 1 << 20
		if side == 0 {
			s.control = func() controller { return c }
		}
	})
	tx := &s.ends[0].t
	is := func(what string, want told) {
		t.Helper()
		got := told{losts: c.losts, timeouts: c.timeouts, idles: c.idles}
		if got != want || tx.path.cwnd != c.size {
			t.Errorf("%s: it was told of %+v, and the window is %d", what, got, tx.path.cwnd)
		}
	}
	size := len(appendDataHeader(nil, 0, 0, 0, 0, 0, 1200)) + 1200
	s.send(0, 300, 1200)
	if !s.run(time.Minute, s.all(0)) {
		t.Fatal("the messages do not come")
	}
	is("no loss", told{})
	if c.bytes != 400*size || c.last.rtt != tx.path.srtt || c.last.left != 0 || c.last.now != s.now {
		t.Errorf("it was told of %d bytes of %d, last of %+v at %v", c.bytes, 400*size, c.last, s.now)
	}
	lost, n := tx.tx.next+3, 0
	s.drop = func(from int, q packet) bool {
		if from == 0 && chunkType(q[headerLen]) == typeData && dataChunk(q.chunks()).tsn()-lost <= 2 {
			n++
			return n <= 3
		}
		return false
	}
	s.send(0, 40, 1200)
	s.run(time.Minute, s.all(0))
	if is("three losses in a window", told{losts: 1}); n != 6 {
		t.Errorf("three packets were sent %d times", n)
	}
	s.drop = func(from int, q packet) bool {
		if tx.path.cwnd != c.size {
			t.Errorf("a window of %d", tx.path.cwnd)
		}
		return tx.stats.Timeouts == 0
	}
	s.send(0, 1, 1200)
	s.run(time.Minute, s.all(0))
	is("a timeout", told{losts: 1, timeouts: 1})
	s.run(2*tx.Heartbeat, never)
	if c.idles == 0 {
		t.Error("it was not told of an idle path")
	}
	is("idle", told{losts: 1, timeouts: 1, idles: c.idles})
}

// With RFC 9438's controller each message arrives exactly once, whatever gets lost, and a
// loss takes 0.3 of the window instead of half.
func TestCubicInPlaceOfTheStandard(t *testing.T) {
	use := func(_ int, s *settings) {
		s.window = 1 << 20
		s.control = func() controller { return new(cubic) }
	}
	s := established(t, netConfig{delay: time.Millisecond}, use)
	tx := &s.ends[0].t
	s.send(0, 300, 1200)
	s.run(time.Minute, s.all(0))
	window, lost, n := tx.path.cwnd, tx.tx.next+3, 0
	s.drop = func(from int, q packet) bool {
		if from == 0 && chunkType(q[headerLen]) == typeData && dataChunk(q.chunks()).tsn() == lost {
			n++
			return n == 1
		}
		return false
	}
	s.send(0, 40, 1200)
	if !s.run(time.Minute, s.all(0)) || tx.path.ssthresh != int(float64(window)*cubicBeta) || tx.stats.FastRetransmits != 1 || tx.stats.Timeouts != 0 {
		t.Errorf("a window of %d, threshold %d: %+v", window, tx.path.ssthresh, tx.stats)
	}
	for seed := range uint64(20) {
		s := newSim(seed, netConfig{loss: 10, dup: 5, delay: 5 * time.Millisecond, jitter: 10 * time.Millisecond, lossless: 10 * time.Minute}, func(side int, s *settings) {
			use(side, s)
			s.AssocMaxRetrans = 1000
		})
		s.send(0, 500, 1200)
		if !s.run(time.Hour, s.all(0)) {
			t.Fatalf("seed %d: %d messages of 500 came", seed, len(s.ends[1].got))
		}
		if err := s.ends[1].once(500); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
