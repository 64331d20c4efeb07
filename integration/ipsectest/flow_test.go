package ipsectest

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/transport"
)

func TestFlowIsAdmittedUnderTheIdentityThatIKEAuthenticated(t *testing.T) {
	p := newPair(t, lab.Config{})
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	begin := time.Now()
	c := p.alpha.mustDial(t, p.beta)
	t.Logf("from no SA to an admitted flow: %v", time.Since(begin).Round(time.Millisecond))
	if err := ping(c, "hello"); err != nil {
		t.Fatal(err)
	}
	pr := c.Protection()
	if pr.Peer() != "beta" || pr.Paused() || pr.Kind() != "ipsec ("+p.lab.DataPlane().String()+")" {
		t.Errorf("protection: peer %q, paused %v, kind %q", pr.Peer(), pr.Paused(), pr.Kind())
	}
	if n := installed(t, p.alpha, "beta-out"); n != 1 {
		t.Errorf("alpha has %d children beta-out", n)
	}
	if n := installed(t, p.beta, "alpha-in"); n != 1 {
		t.Errorf("beta has %d children alpha-in", n)
	}
	st, err := p.alpha.m.PeerStatus("beta")
	if err != nil || st.State != ipsec.StateUp || st.Flows != 1 || !st.Guarded {
		t.Errorf("status %+v, %v", st, err)
	}
	if k := counted(t, wire); k.Clear(port) != 0 || k.ESP == 0 || k.IKE == 0 {
		t.Errorf("on the wire: %v", k)
	}
}

func TestChildDeletedTenTimesFromBothSidesUnderEcho(t *testing.T) {
	p := newPair(t, lab.Config{})
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 50)
	var gaps []time.Duration
	for i := range 10 {
		h, name := p.alpha, "beta"
		if i%2 == 1 {
			h, name = p.beta, "alpha"
		}
		k.longest()
		deleteChild(t, h, name)
		k.moves(t, 50)
		gaps = append(gaps, k.longest().Round(time.Millisecond))
	}
	k.end(t)
	counts := counted(t, wire)
	t.Logf("%d echoes; longest gap after each delete: %v; %v", k.count(), gaps, counts)
	if counts.Clear(port) != 0 {
		t.Errorf("clear packets on the wire: %v", counts)
	}
	for _, h := range []*host{p.alpha, p.beta} {
		name := p.other(h).Name()
		var st ipsec.Status
		eventually(t, h.Name()+" has counted the 10 deletes", func() bool {
			st, _ = h.m.PeerStatus(name)
			return st.Counters.ChildDeletes >= 10
		})
		t.Logf("%s: %+v", h.Name(), st)
	}
}

func TestWrongKeySaysThatTheKeysDiffer(t *testing.T) {
	p := newPair(t, lab.Config{})
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	p.key = auth.GenerateSecret()
	if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
		t.Fatal(err)
	}
	p.awaitCharon(t)
	p.beta.echo(t, nil)
	_, err := p.alpha.dial(t, p.beta)
	if !errors.Is(err, negotiation.ErrAuthFailed) {
		t.Fatalf("dialling with another key than the peer's: %v", err)
	}
	t.Log(err)
}

func TestWrongIdentityAndWrongPortAreExplained(t *testing.T) {
	p := newPair(t, lab.Config{})
	if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*pad.Peer)
		kind   error
	}{
		{"the peer is somebody else", func(c *pad.Peer) { c.RemoteID = "gamma" }, negotiation.ErrAuthFailed},
		{"the peer expects somebody else", func(c *pad.Peer) { c.LocalID = "mallory" }, negotiation.ErrAuthFailed},
		{"other algorithms", func(c *pad.Peer) {
			c.Profile = profile.Default()
			c.Profile.IKE = []string{"aes256ctr-sha512-prfsha512-modp4096"}
		}, negotiation.ErrNoProposal},
		{"another port", func(c *pad.Peer) { c.Port = port + 1 }, negotiation.ErrTrafficSelectors},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := p.peerOf(p.alpha)
			tc.change(&c)
			if err := p.alpha.m.AddPeer(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			p.awaitCharon(t)
			err := p.alpha.m.Prepare(t.Context(), transport.Flow{Protocol: transport.ProtoTCP, Remote: netip.AddrPortFrom(p.beta.Addr(), c.Port)})
			if !errors.Is(err, tc.kind) {
				t.Fatalf("error %v, want %v", err, tc.kind)
			}
			t.Log(err)
			if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFlowWithoutAnSAIsRefused(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	if err := p.beta.m.RemoveGuard(t.Context(), "alpha"); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	p.beta.echo(t, func(err error) { refused <- err })
	if err := p.alpha.m.RemoveGuard(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	// With both guards removed a clear connection gets as far as TCP; the Protector still
	// refuses it.
	c, err := p.alpha.Dial(t.Context(), netip.AddrPortFrom(p.beta.Addr(), port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case err := <-refused:
		if !errors.Is(err, pad.ErrNotCovered) || !errors.Is(err, transport.ErrNotProtected) {
			t.Errorf("refused with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("a clear flow was admitted")
	}
	if st, _ := p.beta.m.PeerStatus("alpha"); st.Counters.Refused != 1 || st.Flows != 0 {
		t.Errorf("status %+v", st)
	}
}

func TestPeerThatForgotEverythingIsReachedAtOnce(t *testing.T) {
	p := newPair(t, lab.Config{})
	greet := func(h *host) {
		t.Helper()
		c := p.peerOf(h)
		c.OnDemand = false
		if err := h.m.AddPeer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	greet(p.alpha)
	greet(p.beta)
	p.awaitCharon(t)
	eventually(t, "the hosts find each other by themselves", func() bool {
		// A host that sends IKE before the other has its configuration fails and does not try
		// again.
		return installed(t, p.alpha, "beta-out")+installed(t, p.alpha, "beta-in") >= 1 &&
			installed(t, p.beta, "alpha-in")+installed(t, p.beta, "alpha-out") >= 1
	})
	// Beta loses its state, as by a power cut; alpha's charon still has its SA.
	p.beta.KillCharon()
	p.beta.stop()
	if err := p.beta.StartCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.beta.start(t)
	greet(p.beta)
	p.awaitCharon(t)
	p.beta.echo(t, nil)
	begin := time.Now()
	// A connection that was made before alpha noticed may be lost, with the reset that
	// beta could not send.
	eventually(t, "beta is reached again", func() bool {
		c, err := p.alpha.dial(t, p.beta)
		if err != nil {
			t.Log(err)
			return false
		}
		defer c.Close()
		err = pingWithin(c, "again", 5*time.Second)
		return err == nil
	})
	t.Logf("dialled and answered in %v", time.Since(begin).Round(time.Millisecond))
}

func TestKeyIsRotatedUnderALiveStream(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 20)
	p.key = auth.GenerateSecret()
	p.addPeers(t)
	k.moves(t, 20)
	if _, err := p.alpha.m.DeleteIKE(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	k.moves(t, 20)
	k.end(t)
	if st, _ := p.alpha.m.PeerStatus("beta"); st.Counters.Failures != 0 {
		t.Errorf("status %+v", st)
	}
}

func TestIPv6IsGuardedAndSurvivesDeletes(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.alpha.v6, p.beta.v6 = true, true
	p.awaitCharon(t)
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	for range 3 {
		k.moves(t, 20)
		deleteChild(t, p.beta, "alpha")
		k.moves(t, 20)
	}
	k.end(t)
	if c := counted(t, wire); c.Clear(port) != 0 || c.ESP == 0 {
		t.Errorf("on the wire: %v", c)
	}
}

func TestWireCutForAWhile(t *testing.T) {
	p := newPair(t, lab.Config{})
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	k := talk(p.alpha.mustDial(t, p.beta))
	k.moves(t, 20)
	if err := p.alpha.Link(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := p.alpha.m.DeleteIKE(t.Context(), "beta"); err != nil {
		t.Log("delete over a cut wire:", err)
	}
	eventually(t, "an attempt over the cut wire", func() bool {
		st, _ := p.alpha.m.PeerStatus("beta")
		return st.Counters.Initiations >= 2
	})
	if err := p.alpha.Link(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	k.moves(t, 20)
	t.Logf("the stream went on %v after the wire was whole again; its longest gap was %v", time.Since(begin).Round(time.Millisecond), k.longest().Round(time.Millisecond))
	k.end(t)
	if c := counted(t, wire); c.Clear(port) != 0 {
		t.Errorf("on the wire: %v", c)
	}
}

// TestNoESPAnywhereIsExplained runs strongSwan without its userland plugin on a
// kernel that has no ESP.
func TestNoESPAnywhereIsExplained(t *testing.T) {
	lab.Require(t)
	if err := esp.ProbeKernel(); !errors.Is(err, esp.ErrNoKernel) {
		t.Skipf("this kernel has ESP, or that cannot be found out: %v", err)
	}
	p := newPair(t, lab.Config{DataPlane: esp.Kernel})
	wire := capture(t, p.beta)
	p.addPeers(t)
	p.beta.echo(t, nil)
	_, err := p.alpha.dial(t, p.beta)
	t.Log(err)
	var ne *negotiation.Error
	if !errors.As(err, &ne) || !errors.Is(err, esp.ErrNoKernel) || !strings.Contains(ne.Advice, "kernel-libipsec") || !strings.Contains(ne.Advice, "ironwarp doctor") {
		t.Errorf("dialling without ESP: %v", err)
	}
	if st, err := p.alpha.m.PeerStatus("beta"); err != nil || !st.Guarded || st.LastError == "" || st.Flows != 0 {
		t.Errorf("status %+v, %v", st, err)
	}
	if n := counted(t, wire).Clear(port); n != 0 {
		t.Errorf("%d clear packets", n)
	}
}
