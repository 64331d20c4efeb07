package ipsec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

func flowOn(p pad.Peer, k pad.Link, outgoing bool) transport.Flow {
	f := transport.Flow{Protocol: k.Protocol, Local: netip.AddrPortFrom(p.Local, 50000), Remote: netip.AddrPortFrom(p.Remote, k.Port)}
	if !outgoing {
		f.Local, f.Remote = netip.AddrPortFrom(p.Local, k.Port), netip.AddrPortFrom(p.Remote, 50000)
	}
	return f
}

func TestFlowsOfALinkUseItsChildren(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.TCP, padtest.UDP, padtest.SCTP)
	b.add(t, p)
	if n := b.guarded.Load(); n != 3 {
		t.Errorf("%d guards of 3 links", n)
	}
	for _, k := range p.Links {
		for _, outgoing := range []bool{true, false} {
			_, ln := b.find(flowOn(p, k, outgoing), outgoing)
			if ln == nil || ln.Link != k || (ln.Role == pad.Dialler) != outgoing {
				t.Errorf("%v, outgoing %v: lane %+v", k, outgoing, ln)
			}
		}
		f := flowOn(p, k, true)
		f.Local = netip.AddrPortFrom(f.Local.Addr(), 0)
		if _, ln := b.find(f, true); ln == nil || ln.Link != k {
			t.Errorf("%v, a flow without a port: lane %+v", k, ln)
		}
	}
	// The UDP port of one link is no port of another protocol's.
	for _, f := range []transport.Flow{flowOn(p, pad.Link{Protocol: transport.ProtoTCP, Port: 9899}, true), flowOn(p, pad.Link{Protocol: transport.ProtoUDP, Port: 7471}, true)} {
		_, err := b.Admit(t.Context(), f, true, &traffic{})
		if !errors.Is(err, ErrUnknownPeer) || !strings.Contains(err.Error(), "tcp port 7471, udp port 9899, sctp port 7471") {
			t.Errorf("%v: %v", f, err)
		}
	}
	b.f.up(p, "beta-out-udp")
	eventually(t, "the child is up", func() bool {
		_, ln := b.find(flowOn(p, padtest.UDP, true), true)
		return ln.up.Load()
	})
	pr, err := b.Admit(t.Context(), flowOn(p, padtest.UDP, true), true, &traffic{})
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Release()
	if pr.Paused() || pr.Peer() != "beta" {
		t.Errorf("protection of %q, paused %v", pr.Peer(), pr.Paused())
	}
	eventually(t, "a TCP flow beside a child for UDP is not covered", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := b.Admit(ctx, flowOn(p, padtest.TCP, true), true, &traffic{})
		if err == nil {
			t.Fatal("a TCP flow is admitted beside a child for UDP")
		}
		return errors.Is(err, pad.ErrNotCovered) // else that was too short for the question to strongSwan
	})
}

// What strongSwan lists has to be where the packets come by, too.
func TestFlowWhoseSAIsListedAndNotInPlaceIsRefused(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.up(p, "beta-out", "beta-in")
	b.confirm = func(guard.Spec, *charon.SA, *charon.Child) error { return errors.New("nothing of it in the kernel") }
	for _, out := range []bool{true, false} {
		f := padtest.FlowTo(p)
		if !out {
			f = incoming(p)
		}
		eventually(t, "the flow is refused since its SA is not in place", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := b.Admit(ctx, f, out, &traffic{})
			if err == nil {
				t.Fatal("a flow is admitted whose SA is not in place")
			}
			return errors.Is(err, pad.ErrNotCovered) && strings.Contains(err.Error(), "nothing of it in the kernel")
		})
	}
	b.confirm = func(guard.Spec, *charon.SA, *charon.Child) error { return nil }
	pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, &traffic{})
	if err != nil {
		t.Fatal(err)
	}
	pr.Release()
}

// TestOnlyTheFirstLinkIsGreeted: the others wait for a flow.
func TestOnlyTheFirstLinkIsGreeted(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.UDP, padtest.TCP)
	p.OnDemand = false
	b.f.answering(p)
	b.add(t, p)
	eventually(t, "the first link's child is up", func() bool { return b.f.Count("initiate beta-out-udp") == 1 })
	f := flowOn(p, padtest.TCP, true)
	if err := b.Prepare(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if n := b.f.Count("initiate beta-out"); n != 1 {
		t.Errorf("%d attempts for the second link, want the flow's", n)
	}
}

// TestStandingLinkIsUpAtAllTimes: it has a guard, its children are brought up without a flow, also
// again, and its flows are admitted beside those of the link.
func TestStandingLinkIsUpAtAllTimes(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.TCP)
	p.Standing = 3260
	children := map[string]bool{}
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			switch child := req.Str("child"); cmd {
			case "initiate":
				children[child] = true
			case "terminate":
				delete(children, child)
			default:
				return nil, nil
			}
			b.f.up(p, slices.Sorted(maps.Keys(children))...)
			return nil, nil
		}
	})
	b.add(t, p)
	if n := b.guarded.Load(); n != 2 {
		t.Errorf("%d guards of 2 links", n)
	}
	for _, child := range []string{"beta-out-tcp3260", "beta-in-tcp3260"} {
		eventually(t, child+" is up", func() bool { return b.f.Count("initiate "+child) == 1 })
	}
	k := pad.Link{Protocol: transport.ProtoTCP, Port: 3260}
	pr, err := b.Admit(t.Context(), flowOn(p, k, false), false, &traffic{})
	if err != nil {
		t.Fatal(err)
	}
	pr.Release()
	q, err := b.peer("beta")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are listed", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.laneNamed("beta-out-tcp3260").up.Load() && q.laneNamed("beta-in-tcp3260").up.Load()
	})
	b.f.Set(func() { delete(children, "beta-in-tcp3260") })
	b.f.up(p, "beta-out-tcp3260")
	b.f.Raise("child-updown", tree{{p.Name, tree{{"child-sas", tree{{"1", tree{{"name", "beta-in-tcp3260"}}}}}}}})
	eventually(t, "a child that was deleted is up again, which no flow needs", func() bool { return b.f.Count("initiate beta-in-tcp3260") == 2 })
}

func TestTwoPeersMayHaveDifferentLinksOfAnAddress(t *testing.T) {
	b := newBench(t)
	b.add(t, padtest.Linked(padtest.TCP, padtest.UDP))
	other := padtest.Linked(padtest.SCTP)
	other.Name = "gamma"
	b.add(t, other)
	other.Name, other.Links = "delta", []pad.Link{{Protocol: transport.ProtoTCP, Port: 7472}, padtest.UDP}
	if err := b.AddPeer(t.Context(), other); !errors.Is(err, ErrPeerExists) || !strings.Contains(err.Error(), "beta has 198.51.100.2 udp port 9899") {
		t.Errorf("a link that another peer has: %v", err)
	}
	other.Name, other.Local, other.Remote = "epsilon", netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("64:ff9b::198.51.100.2")
	if err := b.AddPeer(t.Context(), other); !errors.Is(err, ErrPeerExists) {
		t.Errorf("a link that another peer has by the address's other form: %v", err)
	}
}

// TestGuardOfALinkThatStaysIsNotTakenDown replaces a peer by one with other
// links.
func TestGuardOfALinkThatStaysIsNotTakenDown(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	var dropped []string
	b.uninstall = func(g guard.Spec) error {
		mu.Lock()
		defer mu.Unlock()
		dropped = append(dropped, g.String())
		return nil
	}
	b.add(t, padtest.Linked(padtest.TCP, padtest.UDP))
	b.add(t, padtest.Linked(padtest.TCP, padtest.SCTP))
	mu.Lock()
	if len(dropped) != 1 || dropped[0] != "udp port 9899 with 198.51.100.2" {
		t.Errorf("taken down: %q", dropped)
	}
	dropped = nil
	mu.Unlock()
	if err := b.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if len(dropped) != 2 {
		t.Errorf("taken down with the peer: %q", dropped)
	}
}

func TestPeerIsReadyWhenEveryLinkIsTested(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	open := true
	b.probe = func(g guard.Spec) error {
		mu.Lock()
		defer mu.Unlock()
		if open && g.Protocol == transport.ProtoUDP {
			return fmt.Errorf("%w: no route", guard.ErrUntested)
		}
		return nil
	}
	p := padtest.Linked(padtest.TCP, padtest.UDP)
	b.add(t, p)
	for _, k := range p.Links {
		if err := b.Screen(flowOn(p, k, false)); !errors.Is(err, guard.ErrUntested) {
			t.Errorf("%v before the guard is tested: %v", k, err)
		}
	}
	mu.Lock()
	open = false
	mu.Unlock()
	b.repairGuards(t.Context())
	for _, k := range p.Links {
		if err := b.Screen(flowOn(p, k, false)); err != nil {
			t.Errorf("%v: %v", k, err)
		}
	}
	if st, _ := b.PeerStatus("beta"); !st.Guarded {
		t.Errorf("status %+v", st)
	}
}

func TestStrangersAreScreenedOut(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.TCP, padtest.UDP)
	p.Children = 4
	b.add(t, p)
	good := flowOn(p, padtest.UDP, false)
	if err := b.Screen(good); err != nil {
		t.Errorf("a peer's flow: %v", err)
	}
	mapped := good
	mapped.Remote = netip.AddrPortFrom(netip.AddrFrom16(p.Remote.As16()), good.Remote.Port())
	if err := b.Screen(mapped); err != nil {
		t.Errorf("with its address mapped into IPv6: %v", err)
	}
	for name, change := range map[string]func(*transport.Flow){
		"a stranger":            func(f *transport.Flow) { f.Remote = netip.AddrPortFrom(netip.MustParseAddr("198.51.100.3"), 50000) },
		"another port":          func(f *transport.Flow) { f.Local = netip.AddrPortFrom(p.Local, 9898) },
		"another protocol":      func(f *transport.Flow) { f.Protocol = transport.ProtoSCTP },
		"another local address": func(f *transport.Flow) { f.Local = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), 9899) },
		"a port of no block":    func(f *transport.Flow) { f.Remote = netip.AddrPortFrom(p.Remote, 1024) },
		"no address at all":     func(f *transport.Flow) { *f = transport.Flow{Protocol: transport.ProtoUDP} },
	} {
		f := good
		change(&f)
		if err := b.Screen(f); !errors.Is(err, ErrUnknownPeer) || !errors.Is(err, transport.ErrNotProtected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.RemoveGuard(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if err := b.Screen(good); err != nil {
		t.Errorf("a peer whose guard was taken down on request: %v", err)
	}
	if err := b.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if err := b.Screen(good); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("a peer that was removed: %v", err)
	}
	if len(b.byAddr) != 0 {
		t.Errorf("left of it: %v", b.byAddr)
	}
}

// TestWhatOnlyLacksAnSAIsAway is what transport goes by when an association has
// several paths.
func TestWhatOnlyLacksAnSAIsAway(t *testing.T) {
	b := newBench(t)
	p := padtest.Linked(padtest.UDP)
	b.add(t, p)
	f := flowOn(p, padtest.UDP, true)
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	elsewhere, stranger := f, f
	elsewhere.Local = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), 50000)
	stranger.Remote = netip.AddrPortFrom(netip.MustParseAddr("198.51.100.99"), 9899)
	b.f.Set(func() { b.f.Hang["initiate"] = true })
	for name, tc := range map[string]struct {
		flow transport.Flow
		away bool
	}{
		"no SA":                 {f, true},
		"another local address": {elsewhere, false},
		"a stranger":            {stranger, false},
	} {
		err := b.Prepare(soon(), tc.flow)
		_, err2 := b.Admit(soon(), tc.flow, true, &traffic{})
		if err == nil || !errors.Is(err2, transport.ErrNotProtected) || errors.Is(err, transport.ErrAway) != tc.away || errors.Is(err2, transport.ErrAway) != tc.away {
			t.Errorf("%s: prepare %v, admit %v; away should be %v", name, err, err2, tc.away)
		}
	}
	b.f.Set(func() {
		b.f.SAs = []tree{renamed(saOf(p, "beta-out-udp"), "beta", map[string]string{"remote-id": "mallory"})}
	})
	if _, err := b.Admit(t.Context(), f, true, &traffic{}); !errors.Is(err, pad.ErrWrongIdentity) || !errors.Is(err, transport.ErrNotProtected) || errors.Is(err, transport.ErrAway) {
		t.Errorf("under another identity: %v", err)
	}
	for err, want := range map[error]bool{
		&negotiation.Error{Kind: negotiation.ErrUnreachable}: true, ErrNotSupervised: true, ErrNotConnected: true,
		ErrClosed: false, fmt.Errorf("%w: x", pad.ErrGateway): false,
	} {
		if got := away(err); errors.Is(got, transport.ErrAway) != want || !errors.Is(got, err) || got.Error() != err.Error() {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}
