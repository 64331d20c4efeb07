package ipsec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// The kernel lists all of its policies to whoever asks about one, so that peers which
// were looked at one by one would cost the square of their number: when they are
// added, and each time that strongSwan is restarted.
func TestManyPeersAreLookedAtTogether(t *testing.T) {
	const n = 40
	b := newBench(t)
	var few, leftovers atomic.Int32 // looks at fewer than all peers
	install := b.install
	b.guarding.Lock()
	b.install = func(netns string, specs []guard.Spec) ([]guard.Result, error) {
		if len(specs) < n {
			few.Add(1)
		}
		return install(netns, specs)
	}
	b.childStates = func(_ string, links []guard.ChildLink) ([][]guard.State, error) {
		if len(links) < n {
			leftovers.Add(1)
		}
		return make([][]guard.State, len(links)), nil
	}
	b.guarding.Unlock()
	var peers []pad.Peer
	for i := range n {
		peers = append(peers, padtest.Peer(fmt.Sprintf("peer%d", i), byte(i+1)))
	}
	for i, err := range b.AddPeers(t.Context(), peers) {
		if err != nil {
			t.Fatalf("peer %d: %v", i, err)
		}
	}
	loaded := func() bool {
		for _, p := range peers {
			if st, err := b.PeerStatus(p.Name); err != nil || !st.Loaded {
				return false
			}
		}
		return true
	}
	if !loaded() {
		t.Error("not all peers were handed to strongSwan")
	}
	b.f.Stop()
	eventually(t, "charon is gone", func() bool { return !b.DaemonStatus().Connected })
	b.f.start()
	eventually(t, "all peers are loaded again", loaded)
	if few.Load() > 0 || leftovers.Load() > 0 {
		t.Errorf("%d looks at the guards and %d at what is left in the kernel were about fewer than all of %d peers", few.Load(), leftovers.Load(), n)
	}
}

// One of many that can't be added keeps no other from it, and each has its own error.
func TestPeersAreAddedEachForItself(t *testing.T) {
	b := newBench(t)
	refused := errors.New("the kernel says no")
	install := b.install
	b.guarding.Lock()
	b.install = func(netns string, specs []guard.Spec) ([]guard.Result, error) {
		results, err := install(netns, specs)
		for i, g := range specs {
			if g.Remote == netip.AddrFrom4([4]byte{198, 51, 100, 3}) {
				results[i].Err = refused
			}
		}
		return results, err
	}
	b.guarding.Unlock()
	twice := padtest.Peer("again", 1)
	errs := b.AddPeers(context.Background(), []pad.Peer{padtest.Peer("one", 1), twice, padtest.Peer("three", 3), padtest.Peer("four", 4), padtest.Peer("four", 5), {}})
	for i, want := range []error{nil, ErrPeerExists, refused, nil, ErrPeerExists, nil} {
		if i < 5 && !errors.Is(errs[i], want) || i == 5 && errs[i] == nil {
			t.Errorf("peer %d: %v, want %v", i, errs[i], want)
		}
	}
	for name, want := range map[string]bool{"one": true, "again": false, "three": false, "four": true} {
		if _, err := b.PeerStatus(name); (err == nil) != want {
			t.Errorf("peer %s: %v", name, err)
		}
	}
	if n := b.f.Count("load-conn one") + b.f.Count("load-conn four"); n != 2 {
		t.Errorf("%d of 2 peers were handed to strongSwan", n)
	}
}
