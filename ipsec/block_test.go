package ipsec

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

// fakeBlocks stands for the kernel's blocks.
type fakeBlocks struct {
	mu     sync.Mutex
	have   []guard.BlockEntry
	broken error
	faults []string
	writes int
}

func (k *fakeBlocks) list(string) ([]guard.BlockEntry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.have = slices.DeleteFunc(k.have, func(e guard.BlockEntry) bool { return !e.Until.After(now) })
	return slices.Clone(k.have), k.broken
}

func (k *fakeBlocks) set(_ string, gone []guard.LinkKey, add []guard.BlockEntry) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broken != nil {
		return k.broken
	}
	k.writes++
	k.have = slices.DeleteFunc(k.have, func(e guard.BlockEntry) bool { return slices.Contains(gone, e.LinkKey) })
	k.have, k.faults = append(k.have, add...), nil
	return nil
}

func (k *fakeBlocks) check(string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.faults, k.broken
}

func (k *fakeBlocks) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func (b *bench) blockOfPeer(name string) *guard.Block {
	for _, x := range b.Blocks() {
		if x.Peer == name {
			return &x
		}
	}
	return nil
}

func TestBlockNamesAPeerAndATime(t *testing.T) {
	b := newBench(t)
	b.add(t, padtest.Peer("alpha", 7))
	name := padtest.Peer("alpha", 7).Name
	for _, d := range []time.Duration{-1, 0, guard.MinBlock - 1, guard.MaxBlock + 1} {
		if err := b.Block(t.Context(), name, d, ""); err == nil || !strings.Contains(err.Error(), "from 1s to 720h") {
			t.Errorf("for %v: %v", d, err)
		}
	}
	if err := b.Block(t.Context(), "nobody", time.Hour, ""); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("an unknown peer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Block(ctx, name, time.Hour, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v", err)
	}
	if have := b.Blocks(); len(have) != 0 {
		t.Errorf("blocks after refusals: %v", have)
	}
	b.kernel.change(func() { b.kernel.broken = guard.ErrNoBlock })
	if err := b.Block(t.Context(), name, time.Hour, ""); !errors.Is(err, guard.ErrNoBlock) || !strings.Contains(err.Error(), "modprobe nf_tables") {
		t.Errorf("on a kernel without nf_tables: %v", err)
	}
}

func TestFlowsOfABlockedPeerAreRefused(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	in := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, p.Port), Remote: netip.AddrPortFrom(p.Remote, 40000)}
	out := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, 0), Remote: netip.AddrPortFrom(p.Remote, p.Port)}
	if err := b.Screen(in); err != nil {
		t.Fatal(err)
	}
	if err := b.Block(t.Context(), p.Name, time.Hour, "64 streams a second"); err != nil {
		t.Fatal(err)
	}
	_, admitted := b.Admit(t.Context(), in, false, nil)
	for what, err := range map[string]error{"accepted": b.Screen(in), "dialled": b.Prepare(t.Context(), out), "admitted": admitted} {
		if !errors.Is(err, ErrBlocked) || !errors.Is(err, transport.ErrNotProtected) || errors.Is(err, transport.ErrAway) || !strings.Contains(err.Error(), "64 streams a second") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if st, _ := b.PeerStatus(p.Name); st.Counters.Refusals.Blocked != 2 {
		t.Errorf("refusals: %+v", st.Counters.Refusals)
	}
	if err := b.Unblock(t.Context(), p.Name); err != nil {
		t.Fatal(err)
	}
	if err := b.Screen(in); err != nil {
		t.Errorf("after the block: %v", err)
	}
}

func TestBlockIsReplacedByAShorterOne(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	for _, d := range []time.Duration{time.Hour, time.Minute} {
		if err := b.Block(t.Context(), p.Name, d, d.String()); err != nil {
			t.Fatal(err)
		}
	}
	have := b.Blocks()
	if len(have) != 1 || have[0].Why != "1m0s" || have[0].Until.After(time.Now().Add(time.Minute)) {
		t.Errorf("%v", have)
	}
}

func TestBlockThatSomebodyTakesAwayComesBack(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	events, stop := b.Events()
	defer stop()
	if err := b.Block(t.Context(), p.Name, time.Hour, "flood"); err != nil {
		t.Fatal(err)
	}
	was := b.blockOfPeer(p.Name)
	b.kernel.change(func() {
		for i := range b.kernel.have {
			b.kernel.have[i].Packets = 7
		}
	})
	b.repairBlocks()
	b.kernel.change(func() { b.kernel.have = nil })
	b.repairBlocks()
	if got := b.blockOfPeer(p.Name); got == nil || !got.Until.Equal(was.Until) || got.Why != was.Why || got.Packets != 14 {
		t.Errorf("%+v, want %+v and the 14 packets of before", got, was)
	}
	await(t, events, EventBlockRepair)
	// The rules alone.
	b.kernel.change(func() { b.kernel.faults = []string{"the rules are gone"} })
	b.repairBlocks()
	if f, _ := b.kernel.check(""); len(f) != 0 {
		t.Errorf("the rules are not put back: %v", f)
	}
	await(t, events, EventBlockRepair)
	writes := func() (n int) {
		b.kernel.change(func() { n = b.kernel.writes })
		return n
	}
	before := writes()
	b.repairBlocks()
	if writes() != before {
		t.Error("a block that is whole is written again")
	}
}

func TestBlockOfAnEarlierLifeIsFoundAgain(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	if err := b.Block(t.Context(), p.Name, time.Hour, "flood"); err != nil {
		t.Fatal(err)
	}
	b.forgetBlock(p.Name) // as a new process
	b.repairBlocks()
	in := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, p.Port), Remote: netip.AddrPortFrom(p.Remote, 40000)}
	if err := b.Screen(in); !errors.Is(err, ErrBlocked) {
		t.Errorf("a flow of the blocked peer: %v", err)
	}
	// One of a peer that is not configured any more.
	gone := guard.BlockEntry{LinkKey: guard.Spec{Remote: netip.MustParseAddr("192.0.2.7"), Port: 1}.Keys()[0], Peer: "gone", Until: time.Now().Add(time.Hour)}
	b.kernel.change(func() { b.kernel.have = append(b.kernel.have, gone) })
	if b.blockOfPeer("gone") == nil {
		t.Errorf("not listed: %v", b.Blocks())
	}
	if err := b.Unblock(t.Context(), "gone"); err != nil {
		t.Error(err)
	}
	if err := b.Unblock(t.Context(), "gone"); !errors.Is(err, ErrNotBlocked) {
		t.Errorf("again: %v", err)
	}
}

func TestBlockEndsByItself(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	events, stop := b.Events()
	defer stop()
	if err := b.Block(t.Context(), p.Name, guard.MinBlock, "flood"); err != nil {
		t.Fatal(err)
	}
	if e := await(t, events, EventUnblocked); e.Reason != ReasonExpired || e.Peer != p.Name {
		t.Errorf("%+v", e)
	}
	if have := b.Blocks(); len(have) != 0 {
		t.Errorf("%v", have)
	}
}

func TestPeerThatMovesStaysBlocked(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	if err := b.Block(t.Context(), p.Name, time.Hour, "flood"); err != nil {
		t.Fatal(err)
	}
	p.Port++
	p.Remote = p.Remote.Next()
	b.add(t, p)
	have, _ := b.kernel.list("")
	if !slices.ContainsFunc(have, func(e guard.BlockEntry) bool { return e.Addr == p.Remote && e.Port == p.Port && e.Peer == p.Name }) {
		t.Errorf("its new address and port are open: %v", have)
	}
	in := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, p.Port), Remote: netip.AddrPortFrom(p.Remote, 40000)}
	if err := b.Screen(in); !errors.Is(err, ErrBlocked) {
		t.Errorf("a flow from there: %v", err)
	}
	if err := b.Unblock(t.Context(), p.Name); err != nil {
		t.Fatal(err)
	}
	if have, _ := b.kernel.list(""); len(have) != 0 {
		t.Errorf("left of it: %v", have)
	}
}

// TestBlockByAnotherNameIsOneBlock renames a blocked peer.
func TestBlockByAnotherNameIsOneBlock(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	b.add(t, p)
	if err := b.Block(t.Context(), p.Name, time.Hour, "flood"); err != nil {
		t.Fatal(err)
	}
	if err := b.RemovePeer(t.Context(), p.Name); err != nil {
		t.Fatal(err)
	}
	p.Name = "renamed"
	b.add(t, p)
	if err := b.Block(t.Context(), p.Name, time.Hour, "flood"); err != nil {
		t.Fatal(err)
	}
	if have := b.Blocks(); len(have) != 1 || have[0].Peer != p.Name {
		t.Errorf("%v", have)
	}
	if err := b.Unblock(t.Context(), p.Name); err != nil {
		t.Fatal(err)
	}
	b.repairBlocks()
	if have := b.Blocks(); len(have) != 0 {
		t.Errorf("after its end: %v", have)
	}
}

// TestPeerThatMovedMeanwhileStaysBlocked has a new process, whose configuration has
// another port of the peer.
func TestPeerThatMovedMeanwhileStaysBlocked(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("alpha", 7)
	left := guard.BlockEntry{LinkKey: guard.Spec{Remote: p.Remote, Port: p.Port + 1}.Keys()[0], Peer: p.Name, Until: time.Now().Add(time.Hour)}
	b.kernel.change(func() { b.kernel.have = append(b.kernel.have, left) })
	b.blocking.Lock()
	b.blocksRead = false // as a new process
	b.blocking.Unlock()
	b.add(t, p)
	have, _ := b.kernel.list("")
	if !slices.ContainsFunc(have, func(e guard.BlockEntry) bool { return e.Port == p.Port }) {
		t.Errorf("its port is open: %v", have)
	}
}
