package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
)

// newTestIntake is an intake with a clock that the test moves.
func newTestIntake(p config.Block) (i *intake, now *time.Time) {
	i, t := newIntake(p), time.Unix(1000, 0)
	i.now = func() time.Time { return t }
	return i, &t
}

// RFC 5042 section 6.4.1: who creates no more streams than the policy permits is
// never blocked, however long it goes on and however it is spread.
func TestPeerWithinItsRateIsNeverBlocked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := config.Block{PerSecond: rapid.IntRange(1, 100).Draw(t, "per second"), Burst: rapid.IntRange(16, 200).Draw(t, "burst"), For: time.Minute}
		i, now := newTestIntake(p)
		// A bucket of the test's own, in whole nanoseconds of credit: what is in it may
		// be created.
		const second = int64(time.Second)
		full := int64(p.Burst) * second
		credit := full
		for range rapid.IntRange(1, 500).Draw(t, "steps") {
			pause := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 7 * time.Millisecond, time.Second, time.Minute}).Draw(t, "pause")
			*now = now.Add(pause)
			credit = min(full, credit+int64(pause)*int64(p.PerSecond))
			// One thousandth is for the rounding of the other bucket.
			for n := rapid.IntRange(0, 20).Draw(t, "streams"); n > 0 && credit >= second+second/1000; n-- {
				credit -= second
				i.created("beta", nil)
			}
		}
		select {
		case x := <-i.excess:
			t.Fatalf("blocked: %+v", x)
		default:
		}
	})
}

// Who creates more is asked to be blocked, once; others are not touched by it.
func TestPeerBeyondItsRateIsBlocked(t *testing.T) {
	p := config.Block{PerSecond: 10, Burst: 100, For: 3 * time.Minute}
	i, now := newTestIntake(p)
	excess := func() (all []excess) {
		for {
			select {
			case x := <-i.excess:
				all = append(all, x)
			default:
				return all
			}
		}
	}
	for range 100 {
		i.created("beta", errors.New("it failed in start-up"))
		i.created("gamma", nil)
	}
	if x := excess(); len(x) != 0 {
		t.Fatalf("after a burst that is permitted: %+v", x)
	}
	*now = now.Add(time.Second)
	for range 11 {
		i.created("beta", nil)
	}
	for range 10_000 {
		i.created("beta", nil)
	}
	i.created("gamma", nil)
	x := excess()
	if len(x) != 1 || x[0].peer != "beta" || x[0].time != p.For || !strings.Contains(x[0].why, "more than 100 streams at once and 10 each second") {
		t.Fatalf("asked to block %+v, want beta once", x)
	}
	// When it was done, beta begins anew.
	i.forget("beta")
	for range 100 {
		i.created("beta", nil)
	}
	if x := excess(); len(x) != 0 {
		t.Errorf("after the block: %+v", x)
	}
	i.created("beta", nil)
	if x := excess(); len(x) != 1 {
		t.Errorf("beyond it again: %+v", x)
	}
}

// A peer that is blocked already, and a host without a policy, block nobody.
func TestBlockedPeersAndNoPolicyCountNothing(t *testing.T) {
	i, _ := newTestIntake(config.Block{PerSecond: 1, Burst: 16, For: time.Minute})
	for range 100 {
		i.created("beta", fmt.Errorf("refused: %w", ipsec.ErrBlocked))
	}
	i.set(config.Block{})
	for range 100 {
		i.created("gamma", nil)
	}
	select {
	case x := <-i.excess:
		t.Errorf("asked to block %+v", x)
	default:
	}
	if d := i.blockTime(); d != config.DefaultBlock {
		t.Errorf("a block by hand lasts %v", d)
	}
}

// A peer that keeps connecting is blocked by itself: its streams end, new ones are
// refused, the log and the status say so, and when the block is taken back it comes
// in again. A peer that does not is not touched.
func TestFloodOfStreamsIsBlocked(t *testing.T) {
	alpha := newHost(t, "")
	beta := newHost(t, "block: {per_second: 1, burst: 20, for: 1h}\n")
	link(t, alpha, beta)
	image := beta.image("disk.img", 1<<20)
	beta.export("disk", image, false)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	if err := alpha.ping(); err != nil {
		t.Fatal(err)
	}
	for n := 0; alpha.ping() == nil; n++ {
		if n > 10_000 {
			t.Fatal("10,000 streams and nobody minds")
		}
	}
	eventually(t, "the streams of the flood and of the session end", func() bool { return len(beta.status().Streams) == 0 })
	if alpha.ping() == nil {
		t.Error("a blocked peer has a stream")
	}
	st := beta.status()
	if len(st.Blocks) != 1 || st.Blocks[0].Peer != "alpha" || st.Blocks[0].By != api.BlockedByDaemon || st.Blocks[0].Packets == 0 || !strings.Contains(st.Blocks[0].Why, "more than 20 streams at once") {
		t.Errorf("blocks %+v", st.Blocks)
	}
	if n := strings.Count(beta.log.String(), `msg="peer is blocked"`); n != 1 {
		t.Errorf("the log has %d lines about the block", n)
	}
	r, err := beta.api.Resources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocked := 0
	for _, e := range r.Events {
		if e.Kind == "blocked" && e.Peer == "alpha" {
			blocked += int(e.Count)
		}
	}
	if blocked != 1 {
		t.Errorf("events %+v, want one of the block", r.Events)
	}
	if err := beta.api.Unblock(t.Context(), "alpha"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the peer comes in again", func() bool { return alpha.ping() == nil })
	ok(t, c, cmdRead, 0, 512, nil)
}

// A block that somebody asks for replaces the one before, ends by itself, and goes
// with its peer.
func TestBlocksByHand(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	block := func(seconds float64, why string) api.Block {
		t.Helper()
		b, err := beta.api.Block(t.Context(), api.BlockRequest{Peer: "alpha", Seconds: seconds, Why: why})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := block(0, ""); b.Until.Sub(b.Since) != config.DefaultBlock || b.Why != "by hand" {
		t.Errorf("by default: %+v", b)
	}
	b := block(3600, "repair")
	if list, err := beta.api.Blocks(t.Context()); err != nil || len(list) != 1 || list[0].Why != "repair" || !list[0].Until.Equal(b.Until) {
		t.Errorf("blocks %+v, %v", list, err)
	}
	// It is not shortened by the policy, which has a bucket for the peer meanwhile.
	beta.d.intake.created("alpha", nil)
	beta.d.intake.excess <- excess{"alpha", "a flood", time.Minute}
	eventually(t, "the policy has been asked", func() bool {
		beta.d.intake.mu.Lock()
		defer beta.d.intake.mu.Unlock()
		return beta.d.intake.peers["alpha"] == nil
	})
	if list := beta.d.Blocks(); len(list) != 1 || list[0].Why != "repair" {
		t.Errorf("blocks %+v, want the longer one", list)
	}
	if err := alpha.ping(); err == nil {
		t.Error("a blocked peer has a stream")
	}
	eventually(t, "the log says why the peer is refused", func() bool { return strings.Contains(beta.log.String(), "the peer is blocked until") })
	block(1, "a second")
	eventually(t, "the block ends by itself", func() bool { return alpha.ping() == nil })
	says(t, beta.api.Unblock(t.Context(), "alpha"), api.CodeNotFound, `peer "alpha" is not blocked`)
	for what, req := range map[string]api.BlockRequest{
		"too short": {Peer: "alpha", Seconds: 0.1}, "into the past": {Peer: "alpha", Seconds: -5}, "without end": {Peer: "alpha", Seconds: 1e12},
		"a novel": {Peer: "alpha", Why: strings.Repeat("x", maxWhy+1)},
	} {
		_, err := beta.api.Block(t.Context(), req)
		says(t, err, api.CodeInvalid)
		if list, err := beta.api.Blocks(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s: blocks %+v, %v", what, list, err)
		}
	}
	_, err := beta.api.Block(t.Context(), api.BlockRequest{Peer: "nobody"})
	says(t, err, api.CodeNotFound, `unknown peer "nobody"`)
	block(3600, "")
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	if _, err := beta.api.RemovePeer(t.Context(), "alpha", false); err != nil {
		t.Fatal(err)
	}
	if list, err := beta.api.Blocks(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("blocks after the peer has gone: %+v, %v", list, err)
	}
}
