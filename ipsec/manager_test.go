package ipsec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/transport"
)

// bench is a Manager over a fake charon and a fake kernel.
type bench struct {
	*Manager
	f       *fakeCharon
	guarded atomic.Int32
	kernel  fakeBlocks
	ahead   atomic.Int64 // of its clock, for lanes
	still   atomic.Pointer[time.Time]
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchWith(t, t.Output())
}

// lineCounter keeps the lines of a log.
type lineCounter struct {
	mu    sync.Mutex
	lines []string
}

func (c *lineCounter) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, string(b))
	return len(b), nil
}

func newBenchWith(t *testing.T, log io.Writer) *bench {
	t.Helper()
	return newBenchOf(t, Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
}

func newBenchOf(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{f: newFakeCharon(t)}
	cfg.Socket = b.f.Socket
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Manager = m
	m.now = func() time.Time {
		now := time.Now()
		if at := b.still.Load(); at != nil {
			now = *at
		}
		return now.Add(time.Duration(b.ahead.Load()))
	}
	m.install = func(_ string, specs []guard.Spec) ([]guard.Result, error) {
		b.guarded.Store(int32(len(specs)))
		return make([]guard.Result, len(specs)), nil
	}
	m.empty = func(guard.Spec) error { return nil }
	m.uninstall = func(guard.Spec) error { b.guarded.Store(0); return nil }
	m.route = func(guard.Spec, netip.Addr, bool) error { return nil }
	m.probe = func(guard.Spec) error { return nil }
	m.confirm = func(guard.Spec, *charon.SA, *charon.Child) error { return nil }
	m.listBlocks, m.setBlocks, m.checkBlocks = b.kernel.list, b.kernel.set, b.kernel.check
	ended := make(chan error, 1)
	go func() { ended <- m.Run(context.Background()) }()
	t.Cleanup(func() {
		m.Close()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	eventually(t, "connected", func() bool { return m.DaemonStatus().Connected })
	return b
}

// pass lets time pass for lanes.
func (b *bench) pass(d time.Duration) { b.ahead.Add(int64(d)) }

// stand lets no other time pass for lanes than pass does, however long a busy machine keeps the test waiting.
func (b *bench) stand() {
	now := time.Now()
	b.still.Store(&now)
}

func (b *bench) add(t *testing.T, p pad.Peer) {
	t.Helper()
	if err := b.AddPeer(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// up lets the fake charon have these children of a peer, and says so.
func (f *fakeCharon) up(p pad.Peer, children ...string) {
	f.Set(func() { f.SAs = []tree{saOf(p, children...)} })
	for _, c := range children {
		f.Raise("child-updown", tree{{"up", "yes"}, {p.Name, tree{{"child-sas", tree{{c + "-1", tree{{"name", c}}}}}}}})
	}
}

// down takes them away.
func (f *fakeCharon) down(p pad.Peer, children ...string) {
	f.Set(func() { f.SAs = nil })
	for _, c := range children {
		f.Raise("child-updown", tree{{p.Name, tree{{"child-sas", tree{{c + "-1", tree{{"name", c}}}}}}}})
	}
}

// answering makes an initiate bring the child up.
func (f *fakeCharon) answering(p pad.Peer) {
	f.Set(func() {
		f.Answer = func(cmd string, req tree) ([]string, tree) {
			if cmd == "initiate" {
				f.up(p, req.Str("child"))
			}
			return nil, nil
		}
	})
}

type traffic struct{ n atomic.Int64 }

func (c *traffic) Outq() (int, error) { return int(c.n.Load()), nil }

func incoming(p pad.Peer) transport.Flow {
	return transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, p.Port), Remote: netip.AddrPortFrom(p.Remote, 50000)}
}

func TestConcurrentPreparesShareOneAttempt(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	release := make(chan struct{})
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			if cmd == "initiate" {
				<-release
				b.f.up(p, req.Str("child"))
			}
			return nil, nil
		}
	})
	b.add(t, p)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		q, _ := b.peer("beta")
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.lanes[0].waiters) == 50
	})
	close(release)
	wg.Wait()
	if n := b.f.Count("initiate beta-out"); n != 1 {
		t.Errorf("%d attempts for 50 calls", n)
	}
	if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil || b.f.Count("initiate beta-out") != 1 {
		t.Errorf("with the SA up: %v, %d attempts", err, b.f.Count("initiate beta-out"))
	}
}

func TestFailedAttemptsSayWhatTheyMean(t *testing.T) {
	for _, tc := range []struct {
		log, errmsg string
		kind        error
		words       string
	}{
		{"received AUTHENTICATION_FAILED notify error", "establishing CHILD_SA 'x' failed", negotiation.ErrAuthFailed, "pre-shared keys differ"},
		{"received NO_PROPOSAL_CHOSEN notify error", "establishing CHILD_SA 'x' failed", negotiation.ErrNoProposal, "compare the profiles"},
		{"received TS_UNACCEPTABLE notify, no CHILD_SA built", "establishing CHILD_SA 'x' failed", negotiation.ErrTrafficSelectors, "compare the ports"},
		{"giving up after 3 retransmits", "establishing CHILD_SA 'x' failed", negotiation.ErrUnreachable, "UDP ports 500 and 4500"},
		{"sending packet", "CHILD_SA 'x' not established after 10000ms", negotiation.ErrUnreachable, "198.51.100.2"},
		{"something new", "establishing CHILD_SA 'x' failed", negotiation.ErrFailed, "establishing CHILD_SA 'x' failed"},
		{"unable to install inbound and outbound IPsec SA (SAD) in kernel", "failed", esp.ErrCannot, "data plane"},
	} {
		t.Run(tc.log, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.f.Set(func() {
				b.f.Answer = func(cmd string, _ tree) ([]string, tree) {
					if cmd == "initiate" {
						return []string{"initiating IKE_SA", tc.log}, tree{{"success", "no"}, {"errmsg", tc.errmsg}}
					}
					return nil, nil
				}
			})
			b.add(t, p)
			err := b.Prepare(t.Context(), padtest.FlowTo(p))
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("error %v, want %v with %q", err, tc.kind, tc.words)
			}
			st, serr := b.PeerStatus("beta")
			if serr != nil || !strings.Contains(st.LastError, tc.kind.Error()) || st.Counters.Failures != 1 || st.State != StateDown {
				t.Errorf("status %+v, %v", st, serr)
			}
		})
	}
}

// A busy host's strongSwan answers late: who dials waits for the end of the attempt to
// reach it, and for no other.
func TestDialWaitsForTheAttemptToReachCharon(t *testing.T) {
	for name, comes := range map[string]bool{"it answers": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			b.sessionWait = time.Nanosecond
			asked, goOn := make(chan struct{}, 100), make(chan struct{})
			b.f.Stop()
			eventually(t, "away", func() bool { return !b.DaemonStatus().Connected })
			b.f.answering(p)
			b.f.Set(func() {
				answer := b.f.Answer
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					if cmd == "version" {
						asked <- struct{}{}
						<-goOn
						if !comes {
							return nil, tree{{"success", "no"}, {"errmsg", "too busy"}}
						}
					}
					return answer(cmd, req)
				}
			})
			b.f.start()
			<-asked
			dialled := make(chan error, 1)
			go func() { dialled <- b.Prepare(t.Context(), padtest.FlowTo(p)) }()
			select {
			case err := <-dialled:
				t.Errorf("while an attempt is under way: %v", err)
				dialled <- err
			case <-time.After(50 * time.Millisecond): // longer than it would wait without one
			}
			close(goOn)
			if err := <-dialled; (err == nil) != comes || err != nil && !errors.Is(err, ErrNotConnected) {
				t.Errorf("after it: %v", err)
			}
		})
	}
}

func TestLostChildComesBackForTrafficAndOnlyThen(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.answering(p)
	if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
		t.Fatal(err)
	}
	c := &traffic{}
	pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, c)
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	if pr.Peer() != "beta" || pr.Paused() || pr.Kind() != "ipsec (userland ESP)" {
		t.Errorf("protection: %q, paused %v, %q", pr.Peer(), pr.Paused(), pr.Kind())
	}
	b.f.down(p, "beta-out")
	eventually(t, "paused, and the lane knows why", func() bool {
		st, err := b.PeerStatus("beta")
		return err == nil && pr.Paused() && st.Counters.ChildDeletes == 1
	})
	// Some polls of the idle flow later there is still no attempt.
	q, _ := b.peer("beta")
	polls := 0
	eventually(t, "the keeper sleeps beside an idle flow", func() bool {
		d := q.step(t.Context()) // 0 on a busy machine, where it is late
		if d > 4*lanestate.IdlePoll {
			t.Errorf("the keeper sleeps for %v beside an idle flow", d)
		}
		if d > 0 {
			polls++
		}
		return polls >= 3
	})
	if n := b.f.Count("initiate beta-out"); n != 1 {
		t.Errorf("%d attempts while the flow is idle, 1 was made before", n)
	}
	c.n.Store(100)
	eventually(t, "back", func() bool { return !pr.Paused() })
	if n := b.f.Count("initiate beta-out"); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
	eventually(t, "the outage is counted", func() bool {
		st, _ := b.PeerStatus("beta")
		k := st.Counters
		return st.State == StateUp && k.ChildDeletes == 1 && k.Reinitiations == 1 && k.Outages == 1 && k.LongestOutage > 0
	})
	pr.Release()
	pr.Release()
	b.f.down(p, "beta-out")
	eventually(t, "down without flows", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StateDown })
}

// paused is a flow that came on a child which has gone since.
func (b *bench) paused(t *testing.T, p pad.Peer) (*traffic, transport.Protection) {
	t.Helper()
	b.f.up(p, "beta-in")
	c := &traffic{}
	pr, err := b.Admit(t.Context(), incoming(p), false, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pr.Release)
	b.f.down(p, "beta-in")
	eventually(t, "paused", pr.Paused)
	return c, pr
}

// What the peer sends on a child that it has brought up may be answered here before charon's
// event tells of the child.
func TestChildThatThePeerHasBroughtUpCostsNoAttempt(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	c, pr := b.paused(t, p)
	b.f.Set(func() { b.f.SAs = []tree{saOf(p, "beta-in")} })
	c.n.Store(1)
	eventually(t, "the stream goes on", func() bool { return !pr.Paused() })
	if n := b.f.Count("initiate beta-in"); n != 0 {
		t.Errorf("%d attempts to bring up what the peer had brought up", n)
	}
}

// A charon that can't list its SAs may be able to make them.
func TestChildIsBroughtUpAlthoughCharonDoesNotList(t *testing.T) {
	for version := 1; version <= 2; version++ {
		t.Run(fmt.Sprintf("IKEv%d", version), func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			p.Profile = profile.Default()
			if p.Profile.Version = version; version == 1 {
				p.Profile.IKE, p.Profile.ESP = []string{"aes128-sha256-modp2048"}, []string{"aes128-sha256-modp2048"}
			}
			b.add(t, p)
			c, pr := b.paused(t, p)
			var lists atomic.Bool
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					switch {
					case cmd == "list-sas" && !lists.Load():
						return nil, tree{{"success", "no"}, {"errmsg", "not now"}}
					case cmd == "initiate":
						lists.Store(true)
						b.f.up(p, req.Str("child"))
					}
					return nil, nil
				}
			})
			c.n.Store(1)
			eventually(t, "the stream goes on", func() bool { return !pr.Paused() })
		})
	}
}

// On a busy machine a list comes late: a flow came on a child that has gone again before any
// list had it, and nobody but this host knows that the flow waits.
func TestFlowThatCameOnAChildThatNoListHadGetsAnother(t *testing.T) {
	b := newBench(t)
	b.admitWait = time.Hour // a busy machine may see the end of the child late
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.answering(p)
	admitted := make(chan error, 1)
	go func() {
		pr, err := b.Admit(t.Context(), incoming(p), false, &traffic{})
		if err == nil {
			pr.Release()
		}
		admitted <- err
	}()
	eventually(t, "the flow waits", func() bool { st, _ := b.PeerStatus("beta"); return st.Flows == 1 })
	if n := b.f.Count("initiate beta-in"); n != 0 {
		t.Errorf("%d attempts for a flow that came out of nowhere", n)
	}
	b.f.down(p, "beta-in")
	if err := <-admitted; err != nil {
		t.Errorf("the flow was refused: %v", err)
	}
}

func TestFailedReinitiationIsTriedAgainWhileTrafficWaits(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.up(p, "beta-in")
	c := &traffic{}
	c.n.Store(1)
	pr, err := b.Admit(t.Context(), incoming(p), false, c)
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	var tries atomic.Int32
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			if cmd != "initiate" {
				return nil, nil
			}
			if tries.Add(1) < 4 {
				return []string{"received TEMPORARY_FAILURE notify error"}, tree{{"success", "no"}, {"errmsg", "failed"}}
			}
			b.f.up(p, req.Str("child"))
			return nil, nil
		}
	})
	b.f.down(p, "beta-in")
	eventually(t, "back after failures", func() bool { return tries.Load() == 4 && !pr.Paused() })
	st, _ := b.PeerStatus("beta")
	if st.Counters.Failures != 3 || st.LastError != "" {
		t.Errorf("status %+v", st)
	}
}

func TestRestartOfCharonReloadsRelistsAndRestores(t *testing.T) {
	b := newBench(t)
	p, idle := padtest.Peer("beta", 2), padtest.Peer("gamma", 3)
	b.add(t, p)
	b.add(t, idle)
	b.f.up(p, "beta-in")
	pr, err := b.Admit(t.Context(), incoming(p), false, &traffic{})
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	for round := range 3 {
		b.f.Stop()
		eventually(t, "paused", pr.Paused)
		if b.DaemonStatus().Connected {
			t.Error("connected to a charon that is dead")
		}
		b.f.Set(func() { b.f.SAs = nil })
		b.f.answering(p)
		b.f.start()
		// The peer's charon believes in its SA: it is restored although no data waits.
		eventually(t, "restored", func() bool { return !pr.Paused() })
		for _, cmd := range []string{"load-conn beta", "load-conn gamma", "load-shared ironwarp-beta", "load-shared ironwarp-gamma"} {
			eventually(t, cmd, func() bool { return b.f.Count(cmd) == 1 })
		}
		if b.f.Count("initiate gamma-out")+b.f.Count("initiate gamma-in") != 0 {
			t.Errorf("round %d: a peer that nobody needs was initiated", round)
		}
	}
	if n := b.DaemonStatus().Restarts; n != 3 {
		t.Errorf("%d restarts counted", n)
	}
}

func TestPeerAddedWithoutCharonIsGuardedAndLoadedLater(t *testing.T) {
	b := newBench(t)
	b.f.Stop()
	eventually(t, "disconnected", func() bool { return !b.DaemonStatus().Connected })
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	if b.guarded.Load() != 1 {
		t.Error("no guard before charon is there")
	}
	b.f.start()
	eventually(t, "loaded", func() bool { return b.f.Count("load-conn beta") == 1 })
}

func TestPeerWithoutGuardIsNotLoaded(t *testing.T) {
	b := newBench(t)
	broken := errors.New("the kernel said no")
	b.install = func(string, []guard.Spec) ([]guard.Result, error) { return make([]guard.Result, 1), broken }
	if err := b.AddPeer(t.Context(), padtest.Peer("beta", 2)); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if n := b.f.Count("load-conn beta"); n != 0 {
		t.Error("the connection was loaded without a guard")
	}
	if err := b.Prepare(t.Context(), padtest.FlowTo(padtest.Peer("beta", 2))); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("prepare: %v", err)
	}
}

func TestRefusalsOfFlowsThatNoPeerHas(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.up(p, "beta-out", "beta-in")
	stranger := padtest.FlowTo(padtest.Peer("x", 99))
	if err := b.Prepare(t.Context(), stranger); !errors.Is(err, ErrUnknownPeer) || !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("prepare for a stranger: %v", err)
	}
	if _, err := b.Admit(t.Context(), stranger, false, &traffic{}); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("admit of a stranger: %v", err)
	}
	wrongPort := padtest.FlowTo(p)
	wrongPort.Remote = netip.AddrPortFrom(p.Remote, 80)
	if err := b.Prepare(t.Context(), wrongPort); !errors.Is(err, ErrUnknownPeer) || !strings.Contains(err.Error(), "port 7471") {
		t.Errorf("another port: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	elsewhere := padtest.FlowTo(p)
	elsewhere.Local = netip.MustParseAddrPort("192.0.2.77:40000")
	if _, err := b.Admit(ctx, elsewhere, true, &traffic{}); !errors.Is(err, pad.ErrNotCovered) {
		t.Errorf("another local address: %v", err)
	}
	mapped := padtest.FlowTo(p)
	mapped.Remote = netip.AddrPortFrom(netip.AddrFrom16(p.Remote.As16()), p.Port)
	pr, err := b.Admit(t.Context(), mapped, true, &traffic{})
	if err != nil {
		t.Fatalf("an address in IPv6 form: %v", err)
	}
	pr.Release()
	if err := b.AddPeer(t.Context(), padtest.Peer("again", 2)); !errors.Is(err, ErrPeerExists) {
		t.Errorf("a second peer with the same address and port: %v", err)
	}
}

func TestCallsReturnPromptlyWhenTheManagerCloses(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.f.Set(func() { b.f.Hang["initiate"] = true })
	b.add(t, p)
	got := make(chan error, 1)
	go func() { got <- b.Prepare(context.Background(), padtest.FlowTo(p)) }()
	eventually(t, "initiating", func() bool { return b.f.Count("initiate beta-out") == 1 })
	events, _ := b.Events()
	b.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("prepare: %v", err)
	}
	for range events {
	}
	if _, err := b.SAs(t.Context()); err == nil {
		t.Error("SAs after Close gave no error")
	}
	if err := b.AddPeer(t.Context(), padtest.Peer("gamma", 3)); !errors.Is(err, ErrClosed) {
		t.Errorf("AddPeer after Close: %v", err)
	}
	if err := b.Run(t.Context()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestDuplicateChildrenAreEndedButTheYoungest(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			if cmd == "terminate" && req.Str("child-id") == "1" {
				b.f.Set(func() {
					sa := saOf(p, "beta-out")
					sa[0][1].(tree).Get("child-sas").(tree)[0][1].(tree)[1][1] = "2"
					b.f.SAs = []tree{sa}
				})
				return nil, tree{{"success", "yes"}, {"terminated", "1"}}
			}
			return nil, nil
		}
	})
	b.f.up(p, "beta-out", "beta-out")
	eventually(t, "one is left", func() bool { st, _ := b.PeerStatus("beta"); return st.Counters.Duplicates == 1 })
	sas, err := b.SAs(t.Context())
	if err != nil || len(sas) != 1 || len(sas[0].Children) != 1 || sas[0].Children[0].UniqueID != 2 {
		t.Errorf("left: %+v, %v", sas, err)
	}
}

// Both hosts remove each other at the same moment: charon calls it a failure that
// the peer's delete was there first, and finds nothing when it is asked again.
func TestPeerIsRemovedAlthoughItsSAsGoMeanwhile(t *testing.T) {
	for name, tc := range map[string]struct {
		again string // charon's words at the second attempt
		ok    bool
	}{
		"gone":        {"no matching SAs to terminate found", true},
		"still there": {"terminating SA failed", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			tries := 0
			b.f.Set(func() {
				b.f.Answer = func(cmd string, _ tree) ([]string, tree) {
					if cmd != "terminate" {
						return nil, nil
					}
					if tries++; tries == 1 {
						return nil, tree{{"success", "no"}, {"errmsg", "terminating SA failed"}}
					}
					return nil, tree{{"success", "no"}, {"errmsg", tc.again}}
				}
			})
			if err := b.RemovePeer(t.Context(), "beta"); (err == nil) != tc.ok {
				t.Errorf("RemovePeer: %v", err)
			}
		})
	}
}

// A delete may cross the exchange that brings a child up: charon says that it is
// up, and it is in no list. Those who wait for it do not get a failure at once.
func TestChildThatIsDeletedAsItComesUpIsTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		deleted int // how many are deleted
		ok      bool
	}{"twice": {2, true}, "always": {1000, false}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			tries := 0
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					if cmd == "initiate" {
						if tries++; tries > tc.deleted {
							b.f.up(p, req.Str("child"))
						}
					}
					return nil, nil
				}
			})
			err := b.Prepare(t.Context(), padtest.FlowTo(p))
			if (err == nil) != tc.ok {
				t.Errorf("Prepare: %v", err)
			}
			if !tc.ok && (!errors.Is(err, negotiation.ErrFailed) || b.f.Count("initiate beta-out") > 10) {
				t.Errorf("%v after %d attempts", err, b.f.Count("initiate beta-out"))
			}
		})
	}
}

func TestExchangeThatADeleteHasCrossedIsTriedAgain(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.up(p, "beta-in")
	eventually(t, "the peer's child is up", func() bool { st, _ := b.PeerStatus("beta"); return st.State == StateUp })
	tries := 0
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			if cmd != "initiate" {
				return nil, nil
			}
			if tries++; tries == 1 {
				return nil, tree{{"success", "no"}, {"errmsg", "establishing CHILD_SA 'beta-out' failed"}}
			}
			b.f.up(p, "beta-in", req.Str("child"))
			return nil, nil
		}
	})
	if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
		t.Errorf("Prepare: %v", err)
	}
}
