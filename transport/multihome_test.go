package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

var (
	here1, here2   = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	there1, there2 = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.2")
)

func at(port uint16, addrs ...netip.Addr) (out []netip.AddrPort) {
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

// twoPaths are the flows of an association between the four addresses.
func twoPaths() []Flow {
	return []Flow{
		{ProtoSCTP, netip.AddrPortFrom(here1, 0), netip.AddrPortFrom(there1, linkPort)},
		{ProtoSCTP, netip.AddrPortFrom(here2, 0), netip.AddrPortFrom(there2, linkPort)},
	}
}

// perPath is a Protector with an answer for each address of the peer.
type perPath struct {
	mu       sync.Mutex
	answers  map[netip.Addr]func(ctx context.Context) (Protection, error)
	prepared map[netip.Addr]int
	prepare  map[netip.Addr]func(ctx context.Context) error
}

func (p *perPath) Prepare(ctx context.Context, f Flow) error {
	p.mu.Lock()
	if p.prepared == nil {
		p.prepared = map[netip.Addr]int{}
	}
	p.prepared[f.Remote.Addr()]++
	answer := p.prepare[f.Remote.Addr()]
	p.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

func (p *perPath) Admit(ctx context.Context, f Flow, _ bool, _ Monitored) (Protection, error) {
	p.mu.Lock()
	answer := p.answers[f.Remote.Addr()]
	p.mu.Unlock()
	if answer == nil {
		return nil, fmt.Errorf("%w: nobody knows %v", ErrNotProtected, f.Remote.Addr())
	}
	return answer(ctx)
}

func (p *perPath) set(a netip.Addr, answer func(context.Context) (Protection, error)) {
	p.mu.Lock()
	p.answers[a] = answer
	p.mu.Unlock()
}

func yes(c *counted) func(context.Context) (Protection, error) {
	return func(context.Context) (Protection, error) { return c, nil }
}

func no(err error) func(context.Context) (Protection, error) {
	return func(context.Context) (Protection, error) { return nil, err }
}

func hang(ctx context.Context) (Protection, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// dialTwo has an association of the kernel between all four addresses admitted.
func dialTwo(p *perPath, cfg *Config) (*Assoc, *fakeAssoc, *log, error) {
	a := newFakeAssoc(at(40000, here1, here2), at(linkPort, there1, there2))
	c := *cfg
	c.Protector = p
	l := &log{}
	as, err := c.dialled(context.Background(), a, twoPaths(), func(assoc.Association) assoc.Receiver { return l })
	return as, a, l, err
}

func beta() *counted { return &counted{fixed: fixed{peer: "fqdn:beta", kind: "test"}} }

func TestBothPathsAreAdmittedAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := beta(), beta()
		p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(one), there2: yes(two)}}
		as, a, l, err := dialTwo(p, &Config{})
		if err != nil {
			t.Fatal(err)
		}
		if as.Protection().Peer() != "fqdn:beta" || !reflect.DeepEqual(l.calls, []string{"up"}) {
			t.Errorf("peer %v, calls %q", as.Protection().Peer(), l.calls)
		}
		want := twoPaths()
		for i := range want {
			want[i].Local = netip.AddrPortFrom(want[i].Local.Addr(), 40000)
		}
		if !reflect.DeepEqual(as.Flows(), want) || as.Flow() != want[0] {
			t.Errorf("flows %v", as.Flows())
		}
		a.Abort("over")
		as.Close()
		if one.released() != 1 || two.released() != 1 {
			t.Errorf("released %d and %d times", one.released(), two.released())
		}
	})
}

func TestAPathThatIsNotAdmittedEndsTheAssociation(t *testing.T) {
	stranger := &counted{fixed: fixed{peer: "fqdn:mallory", kind: "test"}}
	for _, tc := range []struct {
		name   string
		second func(context.Context) (Protection, error)
		is     error
		says   string
	}{
		{"control", yes(beta()), nil, ""},
		{"unknown", nil, ErrNotProtected, "nobody knows 198.51.100.2"},
		{"nil", func(context.Context) (Protection, error) { return nil, nil }, ErrNotProtected, ""},
		{"somebody else", yes(stranger), ErrTwoPeers, "fqdn:mallory"},
		{"hangs and refuses", func(ctx context.Context) (Protection, error) {
			wait(ctx, pathGrace/2)
			return nil, ErrNotProtected
		}, ErrNotProtected, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := beta()
				p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(one), there2: tc.second}}
				as, a, l, err := dialTwo(p, &Config{})
				if tc.is == nil {
					if err != nil {
						t.Fatal(err)
					}
					as.Close()
					return
				}
				var fe *FlowError
				if !errors.Is(err, tc.is) || !errors.As(err, &fe) || fe.Op != "admit" || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %v", err)
				}
				if !a.isOver() || len(l.calls) > 0 || one.released() != 1 {
					t.Errorf("over %v, calls %q, released %d times", a.isOver(), l.calls, one.released())
				}
			})
		})
	}
	if stranger.released() != 1 {
		t.Errorf("the stranger's protection was released %d times", stranger.released())
	}
}

func TestAnAssociationBeginsWithThePathsThatAreUp(t *testing.T) {
	for _, late := range []struct {
		name   string
		second func(context.Context) (Protection, error)
	}{
		{"away", no(fmt.Errorf("no SA: %w", ErrAway))},
		{"slow", func(ctx context.Context) (Protection, error) {
			wait(ctx, 10*pathGrace)
			return nil, ErrAway
		}},
	} {
		t.Run(late.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, two := beta(), beta()
				p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(one), there2: late.second}}
				as, a, _, err := dialTwo(p, &Config{})
				if err != nil {
					t.Fatal(err)
				}
				wait(t.Context(), time.Minute)
				p.set(there2, yes(two))
				wait(t.Context(), pathRetryMax)
				synctest.Wait()
				if a.isOver() || p.prepared[there2] == 0 || p.prepared[there1] != 0 {
					t.Errorf("over %v, prepared %v", a.isOver(), p.prepared)
				}
				as.Close()
				if one.released() != 1 || two.released() != 1 {
					t.Errorf("released %d and %d times", one.released(), two.released())
				}
			})
		})
	}
}

// TestAPathThatAnswersIsAskedAboutAtOnce is about an association that the peer has
// set up: this end does not bring its SAs up.
func TestAPathThatAnswersIsAskedAboutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		away := func(context.Context) (Protection, error) { asked++; return nil, ErrAway }
		p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(beta()), there2: away}}
		a := newFakeAssoc(at(linkPort, here1, here2), at(4000, there1, there2))
		as, err := admitKernel(t.Context(), a, twoPaths(), false, &Config{Protector: p}, inboxes, func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer as.Close()
		wait(t.Context(), time.Hour)
		synctest.Wait()
		if asked > 40 {
			t.Errorf("asked %d times in an hour", asked)
		}
		two := beta()
		p.set(there2, yes(two))
		a.recv.Event(assoc.Event{Kind: assoc.EventPathUp, Path: at(4000, there2)[0]})
		begin := time.Now()
		synctest.Wait()
		as.prot.(*paths).mu.Lock()
		defer as.prot.(*paths).mu.Unlock()
		if as.prot.(*paths).parts[1] != two || time.Since(begin) != 0 || len(p.prepared) != 0 {
			t.Errorf("parts %v, prepared %v", as.prot.(*paths).parts, p.prepared)
		}
	})
}

func TestAnSAThatCannotBeBroughtUpIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		away := func(context.Context) (Protection, error) { asked++; return nil, ErrAway }
		p := &perPath{
			answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(beta()), there2: away},
			prepare: map[netip.Addr]func(context.Context) error{there2: func(context.Context) error { return errors.New("no proposal chosen") }},
		}
		as, a, _, err := dialTwo(p, &Config{})
		if err != nil {
			t.Fatal(err)
		}
		wait(t.Context(), time.Hour)
		synctest.Wait()
		if asked != 1 || p.prepared[there2] < 10 || a.isOver() {
			t.Errorf("admitted %d times, prepared %d times, over %v", asked, p.prepared[there2], a.isOver())
		}
		as.Close()
	})
}

func TestALatePathOfSomebodyElseEndsTheAssociation(t *testing.T) {
	for name, second := range map[string]func(context.Context) (Protection, error){
		"another identity": yes(&counted{fixed: fixed{peer: "fqdn:mallory"}}),
		"refused":          no(ErrNotProtected),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := beta()
				p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(one), there2: no(ErrAway)}}
				var refused []Flow
				as, a, l, err := dialTwo(p, &Config{OnRefused: func(f Flow, err error) {
					if !errors.Is(err, ErrNotProtected) {
						t.Errorf("refused: %v", err)
					}
					refused = append(refused, f)
				}})
				if err != nil {
					t.Fatal(err)
				}
				p.set(there2, second)
				<-as.Done()
				as.Close()
				if len(refused) != 1 || refused[0].Remote.Addr() != there2 || one.released() != 1 || l.calls[len(l.calls)-1] != "down" {
					t.Errorf("refused %v, released %d times, calls %q, aborts %q", refused, one.released(), l.calls, a.aborted)
				}
			})
		})
	}
}

func TestAPathThatIsRefusedAfterTheGraceEndsTheAssociation(t *testing.T) {
	for _, when := range []time.Duration{pathGrace, 3 * pathGrace} {
		for range 20 { // at the end of the grace either may be seen first
			synctest.Test(t, func(t *testing.T) {
				p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: yes(beta()), there2: func(ctx context.Context) (Protection, error) {
					wait(ctx, when)
					return nil, ErrNotProtected
				}}}
				as, a, _, err := dialTwo(p, &Config{})
				if err == nil {
					<-as.Done()
					as.Close()
				} else if !errors.Is(err, ErrNotProtected) || !a.isOver() {
					t.Errorf("error %v, over %v", err, a.isOver())
				}
			})
		}
	}
}

func TestWithoutAnyPathThereIsNoAssociation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: no(ErrAway), there2: no(ErrAway)}}
		_, a, l, err := dialTwo(p, &Config{})
		if !errors.Is(err, ErrAway) || !a.isOver() || len(l.calls) > 0 {
			t.Errorf("error %v, over %v, calls %q", err, a.isOver(), l.calls)
		}
		for _, addr := range []netip.Addr{there1, there2} {
			if !strings.Contains(err.Error(), addr.String()) {
				t.Errorf("%v does not say what is wrong with %v", err, addr)
			}
		}
	})
}

func TestAnAssociationThatEndsWhileItIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := beta()
		a := newFakeAssoc(at(40000, here1, here2), at(linkPort, there1, there2))
		p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there2: hang, there1: func(ctx context.Context) (Protection, error) {
			a.Abort("the peer is gone")
			return hang(ctx)
		}}}
		_, err := (&Config{Protector: p}).dialled(t.Context(), a, twoPaths(), inboxes)
		if !errors.Is(err, &assoc.AbortError{Local: true}) || !strings.Contains(err.Error(), "ended meanwhile") {
			t.Errorf("error %v", err)
		}
		if one.released() != 0 {
			t.Error("released what was never given")
		}
	})
}

func TestADialIsGivenUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a := newFakeAssoc(at(40000, here1, here2), at(linkPort, there1, there2))
		p := &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){there1: hang, there2: hang}}
		_, err := (&Config{Protector: p}).dialled(ctx, a, twoPaths(), inboxes)
		if !errors.Is(err, context.DeadlineExceeded) || !a.isOver() {
			t.Errorf("error %v, over %v", err, a.isOver())
		}
	})
}

func TestAnAssociationHasNoAddressesButThoseOfItsPaths(t *testing.T) {
	elsewhere := netip.MustParseAddr("203.0.113.9")
	all := func() *perPath {
		return &perPath{answers: map[netip.Addr]func(context.Context) (Protection, error){
			there1: yes(beta()), there2: yes(beta()), elsewhere: yes(beta()),
		}}
	}
	for _, tc := range []struct {
		name        string
		local, peer []netip.AddrPort
		flows       int // 0: refused
	}{
		{"both", at(4000, here1, here2), at(linkPort, there1, there2), 2},
		{"mapped", at(4000, here1, here2), at(linkPort, netip.AddrFrom16(there1.As16()), there2), 2},
		{"the peer has one", at(4000, here1, here2), at(linkPort, there1), 1},
		{"this host has one", at(4000, here2), at(linkPort, there1, there2), 0},
		{"the peer has more", at(4000, here1, here2), at(linkPort, there1, there2, elsewhere), 0},
		{"this host has more", at(4000, here1, here2, elsewhere), at(linkPort, there1, there2), 0},
		{"another port of the peer", at(4000, here1, here2), at(linkPort+1, there1, there2), 0},
		{"crossed", at(4000, here1), at(linkPort, there2), 0},
		{"none", nil, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newFakeAssoc(tc.local, tc.peer)
				as, err := (&Config{Protector: all()}).dialled(t.Context(), a, twoPaths(), inboxes)
				if tc.flows == 0 {
					if !errors.Is(err, ErrNotProtected) || !a.isOver() {
						t.Fatalf("error %v, over %v", err, a.isOver())
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer as.Close()
				if len(as.Flows()) != tc.flows || as.Flow().Local.Port() != 4000 {
					t.Errorf("flows %v", as.Flows())
				}
			})
		})
	}
}

func TestFlowsOfTheConfiguredAddresses(t *testing.T) {
	routed := netip.MustParseAddr("192.0.2.77")
	source := func(r netip.AddrPort) (netip.Addr, error) {
		if r.Addr() == here1 {
			return netip.Addr{}, errors.New("no route")
		}
		return routed, nil
	}
	mapped := netip.AddrFrom16(there2.As16())
	type pair struct{ local, remote netip.Addr }
	for _, tc := range []struct {
		name  string
		local netip.Addr
		cfg   Config
		want  []pair // nil: an error
	}{
		{"one", here1, Config{}, []pair{{here1, there1}}},
		{"one, by its route", netip.Addr{}, Config{}, []pair{{routed, there1}}},
		{"two", here1, Config{MoreLocal: []netip.Addr{here2}, MoreRemote: []netip.Addr{mapped}}, []pair{{here1, there1}, {here2, there2}}},
		{"two, by their routes", here1, Config{MoreRemote: []netip.Addr{there2}}, []pair{{here1, there1}, {routed, there2}}},
		{"two of this host", here1, Config{MoreLocal: []netip.Addr{here2}}, []pair{{here1, there1}, {here2, there1}}},
		{"no route", here1, Config{MoreRemote: []netip.Addr{here1}}, nil},
		{"twice the same", here1, Config{MoreRemote: []netip.Addr{there1}}, nil},
		{"twice the same here", here1, Config{MoreLocal: []netip.Addr{here1}}, nil},
		{"all of this host's", netip.IPv4Unspecified(), Config{}, nil},
		{"all of the peer's", here1, Config{MoreRemote: []netip.Addr{netip.IPv4Unspecified()}}, nil},
		{"invalid", here1, Config{MoreRemote: []netip.Addr{{}}}, nil},
		{"invalid here", here1, Config{MoreLocal: []netip.Addr{{}}}, nil},
	} {
		f := Flow{Protocol: ProtoSCTP, Local: netip.AddrPortFrom(tc.local, 61440), Remote: netip.AddrPortFrom(there1, linkPort)}
		flows, err := tc.cfg.flowsTo(f, source)
		var got []pair
		for _, f := range flows {
			if f.Protocol != ProtoSCTP || f.Local.Port() != 61440 || f.Remote.Port() != linkPort {
				t.Errorf("%s: flow %v", tc.name, f)
			}
			got = append(got, pair{f.Local.Addr(), f.Remote.Addr()})
		}
		if !reflect.DeepEqual(got, tc.want) || (err == nil) != (tc.want != nil) {
			t.Errorf("%s: %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}

func TestFlowsOfAnAssociationThatAPeerHasSetUp(t *testing.T) {
	source := func(r netip.AddrPort) (netip.Addr, error) { return here1, nil } // of both
	known := map[Flow]bool{}
	for _, f := range twoPaths() {
		f.Local = netip.AddrPortFrom(f.Local.Addr(), linkPort)
		f.Remote = netip.AddrPortFrom(f.Remote.Addr(), 4000)
		known[f] = true
	}
	s := &screened{screen: func(f Flow) error {
		if !known[f] {
			return fmt.Errorf("%w: %v", ErrNotProtected, f)
		}
		return nil
	}}
	l := &SCTPListener{cfg: &Config{Protector: s}}
	flows, err := l.flowsFrom(at(linkPort, here1, here2), at(4000, there1, there2), source)
	if err != nil || len(flows) != 2 || !known[flows[0]] || !known[flows[1]] {
		t.Errorf("%v, %v", flows, err)
	}
	flows, err = l.flowsFrom(at(linkPort, here1, here2), at(4000, there1, netip.MustParseAddr("203.0.113.9")), source)
	if !errors.Is(err, ErrNotProtected) || len(flows) != 1 {
		t.Errorf("with a strange address: %v, %v", flows, err)
	}
	if _, err = l.flowsFrom(nil, nil, source); err == nil {
		t.Error("no addresses are none to admit")
	}
	// A Protector that can't tell is asked about the address that the route names.
	l.cfg = &Config{Protector: &fake{}}
	flows, err = l.flowsFrom(at(linkPort, here2, here1), at(4000, there1), source)
	if err != nil || flows[0].Local.Addr() != here1 {
		t.Errorf("%v, %v", flows, err)
	}
}

func TestPathsThatAreReadyComeFirst(t *testing.T) {
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	fails := func(context.Context) error { return ErrAway }
	for _, tc := range []struct {
		name     string
		one, two func(context.Context) error
		want     []netip.Addr
		takes    time.Duration
	}{
		{"both", nil, nil, []netip.Addr{there1, there2}, 0},
		{"the first hangs", hangs, nil, []netip.Addr{there2, there1}, pathGrace},
		{"the first fails", fails, nil, []netip.Addr{there2, there1}, 0},
		{"the second hangs", nil, hangs, []netip.Addr{there1, there2}, pathGrace},
		{"both fail", fails, fails, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &perPath{prepare: map[netip.Addr]func(context.Context) error{there1: tc.one, there2: tc.two}}
				begin := time.Now()
				ready, err := (&Config{Protector: p}).prepareAll(t.Context(), twoPaths())
				if d := time.Since(begin); d != tc.takes {
					t.Errorf("took %v, want %v", d, tc.takes)
				}
				if tc.want == nil {
					if !errors.Is(err, ErrAway) || !strings.Contains(err.Error(), there2.String()) {
						t.Errorf("error %v", err)
					}
					return
				}
				if err != nil || !reflect.DeepEqual(ready, at(linkPort, tc.want...)) {
					t.Errorf("%v, %v, want %v", ready, err, tc.want)
				}
			})
		})
	}
}

// TestPathsAreDialledUntilThatIsOver: the Protector watches over a dial for as long as the
// context of its Prepare.
func TestPathsAreDialledUntilThatIsOver(t *testing.T) {
	ctxs := make(chan context.Context, 2)
	ready := func(ctx context.Context) error { ctxs <- ctx; return nil }
	dial, over := context.WithCancel(t.Context())
	defer over()
	p := &perPath{prepare: map[netip.Addr]func(context.Context) error{there1: ready, there2: ready}}
	if _, err := (&Config{Protector: p}).prepareAll(dial, twoPaths()); err != nil {
		t.Fatal(err)
	}
	one, two := <-ctxs, <-ctxs
	if one.Err() != nil || two.Err() != nil {
		t.Errorf("a dial is over as soon as it is prepared: %v, %v", one.Err(), two.Err())
	}
	over()
	<-one.Done()
	<-two.Done()
}

func TestDiallingIsTriedAgainWhileTheGuardRefuses(t *testing.T) {
	for after, want := range map[int]error{1: nil, 3: nil, 4: errEPERM} {
		prepared, dialled := 0, 0
		err := attempts(t.Context(), testFlow, func() error { prepared++; return nil }, func() error {
			if dialled++; dialled < after {
				return &assoc.Error{Op: "dial", Err: errEPERM}
			}
			return nil
		})
		if !errors.Is(err, want) || dialled != min(after, 3) || prepared != dialled {
			t.Errorf("after %d: %v, %d prepared, %d dialled", after, err, prepared, dialled)
		}
	}
	dialled := 0
	err := attempts(t.Context(), testFlow, func() error { return nil }, func() error { dialled++; return assoc.ErrPeerUnreachable })
	if !errors.Is(err, assoc.ErrPeerUnreachable) || dialled != 1 || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("%v after %d attempts", err, dialled)
	}
}
