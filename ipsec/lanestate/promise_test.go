package lanestate

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestIdleLaneDeletedAtRestStaysDown: nobody brings up an SA for streams that have nothing
// to send, until one of them has, or would soon be given up.
func TestIdleLaneDeletedAtRestStaysDown(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt.Fatalf, rapid.Bool().Draw(rt, "dialler"), rapid.Bool().Draw(rt, "leads"))
		for range rapid.IntRange(1, 3).Draw(rt, "flows") {
			w.connect()
		}
		w.now = w.now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(rt, "life")))
		if out := w.happen(Listed{IKEGone: rapid.Bool().Draw(rt, "no IKE SA"), Reaped: rapid.Bool().Draw(rt, "reaped")}); !out.Do.Has(Pause) {
			rt.Fatalf("the streams are not paused: %+v", out)
		}
		// Neither charon's end nor another IKE SA concerns who was at rest.
		switch rapid.IntRange(0, 2).Draw(rt, "then") {
		case 1:
			w.happen(Listed{CharonGone: true})
		case 2:
			w.happen(Listed{Afresh: true})
		}
		w.run(time.Minute, func(k Work) bool { rt.Fatalf("an idle lane wants %d done", k); return false })
		f := w.flows[0]
		want := NeedTraffic
		if rapid.Bool().Draw(rt, "fading") {
			f.fading, want = true, NeedSign
		} else {
			f.waiting = true
		}
		asked := w.now
		if w.run(time.Minute, func(k Work) bool { return k != Initiate }) == 0 {
			rt.Fatalf("the stream does not get its SA")
		}
		if took := w.now.Sub(asked); took > fadeCheck+IdlePoll || w.lane.Why() != want {
			rt.Fatalf("the stream gets its SA after %v since %d, want %d", took, w.lane.Why(), want)
		}
	})
}

// TestPeerThatEndsEachChildAtOnceKeepsNobodyBusy counts the attempts of a minute in which
// data waits and each child lives for a moment, is never listed, or is refused.
func TestPeerThatEndsEachChildAtOnceKeepsNobodyBusy(t *testing.T) {
	for _, tc := range []struct {
		name string
		most int // attempts
		end  func(rt *rapid.T, w *world)
	}{
		{"it lives for a moment", 320, func(rt *rapid.T, w *world) {
			w.lists(1)
			w.ends(AttemptEnds{})
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, int(stableAfter)-1).Draw(rt, "life")))
			w.happen(Listed{Waiting: true, Draw: rapid.Float64Range(0, 0.999).Draw(rt, "draw")})
		}},
		{"it is never listed", 100, func(rt *rapid.T, w *world) {
			w.ends(AttemptEnds{Draw: rapid.Float64Range(0, 0.999).Draw(rt, "draw")})
		}},
		{"it is refused", 25, func(rt *rapid.T, w *world) {
			w.ends(AttemptEnds{Failed: true, Draw: rapid.Float64Range(0, 0.999).Draw(rt, "draw")})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				w := newWorld(rt.Fatalf, rapid.Bool().Draw(rt, "dialler"), rapid.Bool().Draw(rt, "leads"))
				w.connect().waiting = true
				w.now = w.now.Add(time.Hour)
				w.happen(Listed{Waiting: true})
				w.initiations = 0
				for end := w.now.Add(time.Minute); w.now.Before(end) && w.initiations <= tc.most; {
					w.run(end.Sub(w.now), func(k Work) bool {
						if k == Initiate {
							w.happen(AttemptBegins{})
							tc.end(rt, w)
						}
						return false
					})
				}
				if w.initiations > tc.most || w.initiations < 3 {
					rt.Fatalf("%d attempts in a minute, at most %d", w.initiations, tc.most)
				}
			})
		})
	}
}

// TestPausesBetweenAttemptsGrowToABound and are never less than half of what they could be.
func TestPausesBetweenAttemptsGrowToABound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var b backoff
		full := retryMin
		for range 100 {
			d := b.next(retryMin, RetryMax, rapid.Float64Range(0, 0.999).Draw(rt, "draw"))
			if d > full || d < full/2 {
				rt.Fatalf("%v where %v to %v is due", d, full/2, full)
			}
			full = min(2*full, RetryMax)
		}
	})
}

// TestWatchOfADialEnds: whatever becomes of flows that are dialled, the child is not
// suspect for them for ever.
func TestWatchOfADialEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*world)
	}{
		{"admitted", func(w *world) { w.connect(); w.happen(FlowAdmitted{Dialled: true}); w.happen(DialOver{}) }},
		{"over before it was admitted", func(w *world) { w.happen(DialOver{}) }},
		{"never over", func(*world) {}},
		{"the child is gone", func(w *world) { w.lists(0) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t.Fatalf, true, true)
			w.lists(1)
			w.silence = Silence{Of: 0} // others are heard
			w.until = w.now.Add(DialWait)
			w.happen(DialBegins{Until: w.until})
			if !w.lane.WatchesDial() {
				t.Fatal("the dial is not watched")
			}
			tc.end(w)
			w.run(DialWait+2*stallCheck, func(k Work) bool { return true })
			if w.lane.WatchesDial() {
				t.Error("the dial is watched for ever")
			}
		})
	}
}

// TestSecondDialIsWatchedAfterTheFirst was admitted: the child may be lost at the peer
// while the second one connects.
func TestSecondDialIsWatchedAfterTheFirst(t *testing.T) {
	w := newWorld(t.Fatalf, true, true)
	w.lists(1)
	w.until = w.now.Add(DialWait)
	w.happen(DialBegins{Until: w.until})
	w.happen(DialBegins{Until: w.until})
	w.flows = append(w.flows, &flow{admitted: true})
	w.happen(FlowComes{})
	w.happen(FlowAdmitted{Dialled: true})
	w.happen(DialOver{})
	w.now = w.now.Add(2 * StallAfter)
	if out := w.tick(); out.Work != Probe {
		t.Errorf("the SA is not suspect for the second dial: %+v", out)
	}
}

// TestChildThatIsHeardOfIsNotMadeAnew for a dial that gets no further.
func TestChildThatIsHeardOfIsNotMadeAnew(t *testing.T) {
	for _, heard := range []bool{true, false} {
		w := newWorld(t.Fatalf, true, true)
		w.lists(1)
		w.until = w.now.Add(DialWait)
		w.happen(DialBegins{Until: w.until})
		w.now = w.now.Add(2 * StallAfter)
		if heard {
			w.list.Packets++
			w.lists(1)
		}
		out := w.happen(Suspected{Silence: w.silence})
		if renewed := out.Work == Renew; renewed == heard {
			t.Errorf("packets have come in: %v, and it is made anew: %v", heard, renewed)
		}
		if w.lane.WatchesDial() != heard {
			t.Errorf("packets have come in: %v, and the dial is watched: %v", heard, w.lane.WatchesDial())
		}
	}
}

// TestNewChildHasTimeToProveItself before it is suspect, or is reaped.
func TestNewChildHasTimeToProveItself(t *testing.T) {
	w := newWorld(t.Fatalf, true, true)
	f := w.connect()
	w.reap, w.silence = time.Second, Silence{Of: time.Hour, Vain: true}
	f.used = w.now.Add(-time.Hour)
	w.run(time.Second-time.Millisecond, func(k Work) bool { t.Errorf("work %d on a new child", k); return false })
	w.reap = 0
	w.run(StallAfter, func(k Work) bool { return k != Probe })
	if since := w.now.Sub(w.rose); since < StallAfter || since > StallAfter+stallCheck {
		t.Errorf("it is suspect after %v", since)
	}
}

// TestWaitingFlowsAreKickedWhenTheirChildIsBack a few times, and longer where TCP is stuck,
// but not for ever.
func TestWaitingFlowsAreKickedWhenTheirChildIsBack(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		w := newWorld(t.Fatalf, true, true)
		f := w.connect()
		f.waiting = stuck
		w.lists(0)
		w.lists(1)
		kicks := 0
		begin := w.now
		for {
			out := w.happen(Tick{})
			if out.Do.Has(Kick) {
				kicks++
				if out = w.happen(Kicked{Stuck: stuck}); out.Do.Has(RestoreRTO) {
					break
				}
			}
			if out.Again <= 0 || w.now.Sub(begin) > time.Minute {
				t.Fatalf("kicked %d times within %v, and nothing ends it", kicks, w.now.Sub(begin))
			}
			w.now = w.now.Add(out.Again)
		}
		took := w.now.Sub(begin)
		if !stuck && kicks != KickTimes || stuck && (kicks <= KickTimes || took < kickFor || took > kickFor+kickSlowly) {
			t.Errorf("stuck: %v: kicked %d times within %v", stuck, kicks, took)
		}
	}
}

// TestStreamsAreSoughtWhenThePeerHasStartedAfresh: idle ones as well.
func TestStreamsAreSoughtWhenThePeerHasStartedAfresh(t *testing.T) {
	for _, dialler := range []bool{true, false} {
		w := newWorld(t.Fatalf, dialler, true)
		w.connect()
		w.now = w.now.Add(time.Minute)
		w.lists(0)
		w.happen(Listed{Anew: true})
		if w.run(time.Second, func(k Work) bool { return k != Initiate }) == 0 || w.lane.Why() != NeedRestart {
			t.Fatalf("dialler %v: idle streams are not sought", dialler)
		}
		w.happen(AttemptBegins{})
		w.lists(1)
		w.ends(AttemptEnds{})
		if out := w.happen(Tick{}); !out.Do.Has(KickAll) {
			t.Errorf("dialler %v: idle streams are not kicked: %+v", dialler, out)
		}
	}
}

// TestBothHostsDoNotAct at the same moment: the one that dials acts first, and the one that
// leads where the IKE SA has gone as well.
func TestBothHostsDoNotAct(t *testing.T) {
	delay := func(dialler, leads, noIKE bool) time.Duration {
		w := newWorld(t.Fatalf, dialler, leads)
		w.connect().waiting = true
		w.now = w.now.Add(time.Minute)
		w.happen(Listed{IKEGone: noIKE, Waiting: true})
		fell := w.now
		w.run(time.Minute, func(k Work) bool { return k != Initiate })
		return w.now.Sub(fell)
	}
	for _, leads := range []bool{true, false} {
		if a, b := delay(true, leads, false), delay(false, !leads, false); a != 0 || b < listenerGrace {
			t.Errorf("the dialler acts after %v, the listener after %v", a, b)
		}
	}
	if a, b := delay(true, true, true), delay(true, false, true); a != 0 || b < followerGrace {
		t.Errorf("without an IKE SA: the leader acts after %v, the follower after %v", a, b)
	}
	until := func(leads bool, work Work, bring func(*world)) time.Duration {
		w := newWorld(t.Fatalf, true, leads)
		bring(w)
		w.run(time.Minute, func(k Work) bool { return k != work })
		return w.now.Sub(begin)
	}
	greet := func(w *world) { w.happen(Greet{}) }
	if a, b := until(true, Initiate, greet), until(false, Initiate, greet); a != 0 || b < greetDelay || b > time.Second {
		t.Errorf("the first child: the leader acts after %v, the follower after %v", a, b)
	}
	two := func(w *world) { w.connect(); w.lists(2) }
	if a, b := until(true, Dedupe, two), until(false, Dedupe, two); a != leaderDedupe || b != followerDedupe {
		t.Errorf("a duplicate: the leader acts after %v, the follower after %v", a, b)
	}
}

// TestChildIsReapedOnlyWhileNobodyUsesIt takes away one by one what has to be true.
func TestChildIsReapedOnlyWhileNobodyUsesIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		use   func(*world, *flow)
		reaps bool
	}{
		{"idle", func(*world, *flow) {}, true},
		{"no flow", func(w *world, _ *flow) { w.leave(0) }, true},
		{"not asked for", func(w *world, _ *flow) { w.reap = 0 }, false},
		{"data waits", func(_ *world, f *flow) { f.waiting = true }, false},
		{"used at last", func(w *world, f *flow) { f.used = w.now.Add(59 * time.Minute) }, false},
		{"a flow waits to be admitted", func(w *world, _ *flow) {
			w.flows = append(w.flows, &flow{used: w.now})
			w.happen(FlowComes{})
		}, false},
		{"a flow is dialled", func(w *world, _ *flow) {
			w.until = w.now.Add(2 * time.Hour)
			w.happen(DialBegins{Until: w.until})
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t.Fatalf, true, true)
			w.reap, w.silence = 2*time.Minute, Silence{}
			tc.use(w, w.connect())
			w.now = w.now.Add(time.Hour)
			if out := w.tick(); (out.Work == Reap) != tc.reaps {
				t.Errorf("%+v", out)
			}
		})
	}
}

// TestChildComesBackForFlowsThatAreOnTheirWay, dialled or accepted under the one that went.
// A flow that comes when there was none is not worth an SA.
func TestChildComesBackForFlowsThatAreOnTheirWay(t *testing.T) {
	comes := func(w *world) { w.flows = append(w.flows, &flow{used: w.now}); w.happen(FlowComes{}) }
	for _, tc := range []struct {
		name  string
		bring func(*world)
		back  bool
	}{
		{"accepted under it", func(w *world) { comes(w); w.lists(0) }, true},
		{"accepted long after", func(w *world) { w.lists(0); w.now = w.now.Add(time.Minute); comes(w) }, false},
		{"accepted under one that no list had", func(w *world) { w.lists(0); w.now = w.now.Add(time.Minute); comes(w); w.happen(Passed{}) }, true},
		{"accepted long after one that no list had", func(w *world) {
			w.lists(0)
			w.now = w.now.Add(time.Minute)
			w.happen(Passed{})
			w.now = w.now.Add(time.Minute)
			comes(w)
		}, false},
		{"dialled", func(w *world) {
			w.until = w.now.Add(DialWait)
			w.happen(DialBegins{Until: w.until})
			w.lists(0)
		}, true},
		{"dialled, and not known to have come to anything", func(w *world) {
			w.until = w.now.Add(DialWait)
			w.happen(DialBegins{Until: w.until})
			w.happen(DialOver{})
			w.lists(0)
		}, true},
		{"dialled long before", func(w *world) {
			w.until = w.now.Add(DialWait)
			w.happen(DialBegins{Until: w.until})
			w.now = w.until
			w.lists(0)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t.Fatalf, true, true)
			w.lists(1)
			w.now = w.now.Add(time.Second)
			tc.bring(w)
			if back := w.run(10*time.Second, func(k Work) bool { return k != Initiate }) > 0; back != tc.back {
				t.Errorf("it comes back: %v", back)
			}
		})
	}
}

// TestStreamsGetTheirSAWhenCharonIsBack without traffic, and whatever had failed before: the
// peer's charon believes in the old one.
func TestStreamsGetTheirSAWhenCharonIsBack(t *testing.T) {
	w := newWorld(t.Fatalf, true, true)
	w.connect()
	w.now = w.now.Add(time.Minute)
	w.fails(8)
	w.lists(1)
	w.happen(Listed{CharonGone: true})
	if out := w.tick(); out.Work != Initiate || w.lane.Why() != NeedRestart {
		t.Errorf("%+v since %d", out, w.lane.Why())
	}
}

// TestStableChildMakesUpForFailures: the pause after the next failure is a short one.
func TestStableChildMakesUpForFailures(t *testing.T) {
	w := newWorld(t.Fatalf, true, true)
	w.connect()
	w.fails(8)
	w.lists(1)
	w.now = w.now.Add(stableAfter)
	w.fails(1)
	failed := w.now
	w.run(time.Minute, func(k Work) bool { return k != Initiate })
	if d := w.now.Sub(failed); d > retryMin {
		t.Errorf("a pause of %v", d)
	}
}

// fails takes the child away from a stream with data, and lets so many attempts fail.
func (w *world) fails(times int) {
	w.flows[0].waiting = true
	w.lists(0)
	for range times {
		if w.run(time.Minute, func(k Work) bool { return k != Initiate }) == 0 {
			w.fatalf("no attempt")
		}
		w.happen(AttemptBegins{})
		w.ends(AttemptEnds{Failed: true})
	}
}
