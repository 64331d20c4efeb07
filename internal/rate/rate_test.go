package rate

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However it is spread, no more happens than the burst and the rate permit, and whoever
// stays within them is never refused.
func TestBucketLetsThroughWhatTheLimitPermits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 1000).Draw(t, "per second"), rapid.IntRange(1, 200).Draw(t, "burst")
		l := Limit{float64(perSecond), float64(burst)}
		var b Bucket
		now := time.Unix(1000, 0)
		// What may happen, in whole nanoseconds of credit.
		const second = int64(time.Second)
		full := int64(burst) * second
		credit := full
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			pause := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 7 * time.Millisecond, time.Second, time.Hour}).Draw(t, "pause")
			now = now.Add(pause)
			credit = min(full, credit+int64(pause)*int64(perSecond))
			for range rapid.IntRange(0, 20).Draw(t, "times") {
				ok := b.Take(l, now)
				// One thousandth is for the rounding of the bucket.
				if !ok && credit >= second+second/1000 || ok && credit < second-second/1000 {
					t.Fatalf("taken: %v, with a credit of %v", ok, time.Duration(credit))
				}
				if ok {
					credit -= second
				}
			}
		}
	})
}

func TestReserveBooksAheadUpToALimit(t *testing.T) {
	l := Limit{PerSecond: 100, Burst: 5}
	var b Bucket
	now := time.Unix(1000, 0)
	take := func(n int, want time.Duration, wantOK bool) {
		t.Helper()
		if wait, ok := b.Reserve(l, now, n, time.Second); ok != wantOK || wait != want {
			t.Errorf("%d at %v: %v, %v; want %v, %v", n, now.Sub(time.Unix(1000, 0)), wait, ok, want, wantOK)
		}
	}
	take(5, 0, true)
	take(1, 10*time.Millisecond, true)
	take(2, 30*time.Millisecond, true)
	take(98, 0, false) // more than a second's: nothing is booked
	take(97, time.Second, true)
	now = now.Add(time.Second)
	take(1, 10*time.Millisecond, true)
	now = now.Add(-time.Hour) // a clock that goes back gives nothing
	take(1, 20*time.Millisecond, true)
	now = now.Add(2 * time.Hour) // does not add up to more than the burst
	if !b.Full(l, now) {
		t.Error("not full after an hour")
	}
	take(5, 0, true)
	if b.Full(l, now) {
		t.Error("full although all was taken")
	}
	take(1, 10*time.Millisecond, true)
}

// Without a rate the burst is all that there will ever be.
func TestNoRateIsNoneEver(t *testing.T) {
	l := Limit{Burst: 2}
	var b Bucket
	now := time.Unix(1000, 0)
	for i := range 5 {
		if _, ok := b.Reserve(l, now.Add(time.Duration(i)*time.Hour), 1, math.MaxInt64); ok != (i < 2) {
			t.Errorf("%d: %v", i, ok)
		}
	}
}

func TestPacerRefusesWhatTakesTooLongAndEndsWithItsCaller(t *testing.T) {
	p := NewPacer(time.Hour, 1)
	if err := p.Wait(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t.Context(), 1, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an hour within a minute: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(ctx, 1, 2*time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	quick := NewPacer(time.Millisecond, 1)
	for range 3 {
		if err := quick.Wait(t.Context(), 1, time.Minute); err != nil {
			t.Error(err)
		}
	}
}
