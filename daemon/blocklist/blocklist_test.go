package blocklist

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kernel has the blocks of paths.
type kernel map[string]string

func (k kernel) Block(_ context.Context, path string, _ time.Duration, why string) error {
	k[path] = why
	return nil
}

func (k kernel) Unblock(_ context.Context, path string) error {
	if _, ok := k[path]; !ok {
		return ipsec.ErrNotBlocked
	}
	delete(k, path)
	return nil
}

func (k kernel) Blocks() (all []guard.Block) {
	for path, why := range k {
		all = append(all, guard.Block{Peer: path, Addr: netip.MustParseAddr("192.0.2.1"), Why: why, Until: time.Now().Add(time.Hour)})
	}
	return all
}

// newList is a list for beta, which the kernel knows by two paths, and gamma, which it does
// not know.
func newList(p config.Block) (l *List, k kernel, begun *[]string) {
	k, begun = kernel{}, new([]string)
	addr := netip.MustParseAddr("192.0.2.1")
	l = New(Config{
		Log: slog.New(slog.DiscardHandler), Policy: p, Kernel: func() Kernel { return k },
		Peers: func() []Peer {
			return []Peer{{Name: "beta", Address: addr, Paths: []string{"beta", "beta-2"}, IPsec: true}, {Name: "gamma", Address: addr, Paths: []string{"gamma"}}}
		},
		Begun: func(p Peer, why error) { *begun = append(*begun, why.Error()) },
	})
	return l, k, begun
}

// A peer is blocked on all of its paths, or by the daemon where the kernel does not know it,
// and let in again by its name.
func TestPeerIsBlockedWhereverItComesFrom(t *testing.T) {
	l, k, begun := newList(config.Block{})
	for _, name := range []string{"beta", "gamma"} {
		if _, err := l.Block(t.Context(), *l.find(name), api.BlockRequest{Seconds: 60, Why: "repair"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(k) != 2 || k["beta"] != "repair" || k["beta-2"] != "repair" || l.Blocked("beta") != nil || !errors.Is(l.Blocked("gamma"), ipsec.ErrBlocked) {
		t.Errorf("the kernel has %v", k)
	}
	if len(*begun) != 2 || !strings.Contains((*begun)[0], "peer beta is blocked until") {
		t.Errorf("begun: %q", *begun)
	}
	all := l.All()
	if len(all) != 3 || all[0].Peer != "beta" || all[1].Peer != "beta" || all[2].Peer != "gamma" || all[2].Packets != 1 || all[2].By != api.BlockedByDaemon {
		t.Errorf("%+v", all)
	}
	for _, name := range []string{"beta", "gamma"} {
		if err := l.Unblock(t.Context(), name); err != nil {
			t.Error(err)
		}
		var e *api.Error
		if err := l.Unblock(t.Context(), name); !errors.As(err, &e) || e.Code != api.CodeNotFound {
			t.Errorf("once more: %v", err)
		}
	}
	if len(l.All()) != 0 || l.Blocked("gamma") != nil {
		t.Error("a block is left")
	}
}

// A block that a peer has is not shortened by the policy.
func TestPolicyLeavesABlockAsItIs(t *testing.T) {
	l, _, begun := newList(config.Block{PerSecond: 1, Burst: 1, For: time.Minute})
	if _, err := l.Block(t.Context(), *l.find("gamma"), api.BlockRequest{Seconds: 3600, Why: "repair"}); err != nil {
		t.Fatal(err)
	}
	l.Created("gamma", nil)
	l.Created("gamma", nil)
	l.Created("beta", nil)
	l.Created("beta", nil)
	ctx, cancel := context.WithCancel(t.Context())
	l.cfg.Begun = func(p Peer, why error) {
		*begun = append(*begun, p.Name)
		cancel()
	}
	l.Watch(ctx)
	if len(*begun) != 2 || (*begun)[1] != "beta" {
		t.Errorf("begun: %q", *begun)
	}
	if all := l.All(); len(all) != 3 || all[2].Why != "repair" {
		t.Errorf("%+v", all)
	}
}

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
				i.countStream("beta", nil)
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
		i.countStream("beta", errors.New("it failed in start-up"))
		i.countStream("gamma", nil)
	}
	if x := excess(); len(x) != 0 {
		t.Fatalf("after a burst that is permitted: %+v", x)
	}
	*now = now.Add(time.Second)
	for range 11 {
		i.countStream("beta", nil)
	}
	for range 10_000 {
		i.countStream("beta", nil)
	}
	i.countStream("gamma", nil)
	x := excess()
	if len(x) != 1 || x[0].peer != "beta" || x[0].time != p.For || !strings.Contains(x[0].why, "more than 100 streams at once and 10 each second") {
		t.Fatalf("asked to block %+v, want beta once", x)
	}
	// When it was done, beta begins anew.
	i.forgetPeer("beta")
	for range 100 {
		i.countStream("beta", nil)
	}
	if x := excess(); len(x) != 0 {
		t.Errorf("after the block: %+v", x)
	}
	i.countStream("beta", nil)
	if x := excess(); len(x) != 1 {
		t.Errorf("beyond it again: %+v", x)
	}
}

// A peer that is blocked already, and a host without a policy, block nobody.
func TestBlockedPeersAndNoPolicyCountNothing(t *testing.T) {
	i, _ := newTestIntake(config.Block{PerSecond: 1, Burst: 16, For: time.Minute})
	for range 100 {
		i.countStream("beta", fmt.Errorf("refused: %w", ipsec.ErrBlocked))
	}
	i.setPolicy(config.Block{})
	for range 100 {
		i.countStream("gamma", nil)
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
