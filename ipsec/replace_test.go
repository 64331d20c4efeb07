package ipsec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// TestReplacedPeerKeepsItsGuard: between the old settings and the new ones the
// port must not be open.
func TestReplacedPeerKeepsItsGuard(t *testing.T) {
	b := newBench(t)
	removed, ended := 0, 0
	b.uninstall = func(guard.Spec) error { removed++; return nil }
	b.empty = func(guard.Spec) error { ended++; return nil }
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	p.RemoteID = "beta.example"
	b.add(t, p)
	if removed != 0 {
		t.Errorf("the guard was removed %d times when the identity changed", removed)
	}
	if ended != 1 {
		t.Errorf("the sockets of the old identity were ended %d times, want once", ended)
	}
	if st, err := b.PeerStatus("beta"); err != nil || st.RemoteID != "beta.example" || !st.Guarded {
		t.Errorf("status %+v, %v", st, err)
	}
	p.Port++
	b.add(t, p)
	if removed != 1 {
		t.Errorf("the guard of the old port was removed %d times when the port changed, want once", removed)
	}
	if err := b.RemovePeer(t.Context(), "beta"); err != nil || removed != 2 {
		t.Errorf("after RemovePeer: removed %d times, %v", removed, err)
	}
}

// TestOtherGuardsAreLookedAfterWhileSocketsEnd removes a peer whose sockets take their
// time.
func TestOtherGuardsAreLookedAfterWhileSocketsEnd(t *testing.T) {
	b := newBench(t)
	ending, end := make(chan struct{}), make(chan struct{})
	b.empty = func(guard.Spec) error { close(ending); <-end; return nil }
	b.add(t, padtest.Peer("beta", 2))
	b.add(t, padtest.Peer("gamma", 3))
	removed := make(chan error, 1)
	go func() { removed <- b.RemovePeer(t.Context(), "beta") }()
	<-ending
	looked := make(chan struct{})
	go func() { b.repairGuards(t.Context()); close(looked) }()
	select {
	case <-looked:
	case <-time.After(time.Minute):
		t.Error("nobody looks after the guard of gamma")
	}
	close(end)
	if err := <-removed; err != nil {
		t.Error(err)
	}
}

// TestIKEv1PeerGetsTimeToInstallItsHalf counts on nothing but the order of things:
// Prepare returns after the pause, however long that takes.
func TestIKEv1PeerGetsTimeToInstallItsHalf(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	p.Profile = p.Profile.Clone()
	p.Profile.Version = 1
	p.Profile.IKE, p.Profile.ESP = []string{"aes128-sha256-modp2048"}, []string{"aes128gcm16-modp2048"}
	b.add(t, p)
	b.f.answering(p)
	begin := time.Now()
	if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < quickModeSettle {
		t.Errorf("Prepare returned after %v", d)
	}
	b.Close()
	if err := b.Prepare(t.Context(), padtest.FlowTo(p)); err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestDialOfAPeerThatIsJustRemovedDoesNotWait: a dial has found the peer, which goes before the dial is among those
// that are told so.
func TestDialOfAPeerThatIsJustRemovedDoesNotWait(t *testing.T) {
	b := newBench(t)
	cfg := padtest.Peer("beta", 2)
	b.add(t, cfg)
	p, ln := b.find(padtest.FlowTo(cfg), true)
	if err := b.RemovePeer(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := b.prepare(ctx, p, ln); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("the dial ends with %v", err)
	}
}
