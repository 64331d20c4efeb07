package ipsec

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/transport"
)

func TestPortBlocksAreAlignedAndCoverTheDynamicPorts(t *testing.T) {
	for n := 2; n <= MaxChildren; n *= 2 {
		next := firstLanePort
		for k := range n {
			lo, hi := portBlock(k, n)
			size := int(hi) - int(lo) + 1
			if int(lo) != next || size&(size-1) != 0 || int(lo)%size != 0 {
				t.Errorf("block %d of %d is %d to %d: no port and mask expresses it, or it does not follow the one before", k, n, lo, hi)
			}
			if got := splitOf(charon.Selector{PortFrom: lo, PortTo: hi}); got != n {
				t.Errorf("block %d of %d is taken for one of %d", k, n, got)
			}
			next = int(hi) + 1
		}
		if next != 1<<16 {
			t.Errorf("the %d blocks end at %d", n, next)
		}
	}
	if lo, hi := portBlock(0, 1); lo != 0 || hi != 65535 {
		t.Errorf("one child has ports %d to %d", lo, hi)
	}
	if n := splitOf(charon.Selector{PortFrom: 7471, PortTo: 7471}); n != 0 {
		t.Errorf("the link's port is taken for a block of %d", n)
	}
}

func lanePeer(children int) Peer {
	p := testPeer("beta", 2)
	p.Children = children
	return p
}

func TestPeerWithOneChildHasItsNamesAndPortsAsEver(t *testing.T) {
	specs := testPeer("beta", 2).laneSpecs()
	if len(specs) != 2 || specs[0].child != "beta-out" || specs[1].child != "beta-in" || !specs[0].local.AnyPort() || !specs[1].remote.AnyPort() {
		t.Errorf("children %+v", specs)
	}
}

func TestDialledFlowsGoToTheChildWithTheFewest(t *testing.T) {
	b := newBench(t)
	p := lanePeer(4)
	b.add(t, p)
	f := flowTo(p)
	f.Local = netip.AddrPortFrom(f.Local.Addr(), 0)
	seen := map[uint16]int{}
	for range 8 { // at the same time: none is admitted yet
		lo, hi, err := b.LocalPorts(t.Context(), f)
		if err != nil || int(hi)-int(lo) != lanePorts/4-1 {
			t.Fatalf("ports %d to %d, %v", lo, hi, err)
		}
		seen[lo]++
	}
	for lo, n := range seen {
		if n != 2 || len(seen) != 4 {
			t.Errorf("%d of 8 flows were given to the block at %d: %v", n, lo, seen)
		}
	}
	one := testPeer("gamma", 3)
	b.add(t, one)
	if lo, hi, err := b.LocalPorts(t.Context(), flowTo(one)); lo != 0 || hi != 0 || err != nil {
		t.Errorf("with one child: %d to %d, %v", lo, hi, err)
	}
	if lo, hi, err := b.LocalPorts(t.Context(), flowTo(testPeer("x", 99))); lo != 0 || hi != 0 || err != nil {
		t.Errorf("for a stranger: %d to %d, %v", lo, hi, err)
	}
}

func TestFlowFromAPortOfNoBlockIsExplained(t *testing.T) {
	b := newBench(t)
	p := lanePeer(4)
	b.add(t, p)
	_, err := b.Admit(t.Context(), incomingFrom(p, 40000), false, &traffic{})
	if !errors.Is(err, ErrUnknownPeer) || !strings.Contains(err.Error(), "child_sas") {
		t.Errorf("error %v", err)
	}
}

func incomingFrom(p Peer, port uint16) transport.Flow {
	return transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, p.Port), Remote: netip.AddrPortFrom(p.Remote, port)}
}

// TestPeerThatSplitsOtherwiseIsToldSo has the peer ask for a block of 8 where
// this host has 4.
func TestPeerThatSplitsOtherwiseIsToldSo(t *testing.T) {
	b := newBench(t)
	p := lanePeer(4)
	b.add(t, p)
	lo, hi := portBlock(0, 8)
	sa := saOf(p, "beta-in-0")
	child := sa[0].value.(tree).get("child-sas").(tree)[0].value.(tree)
	for i := range child {
		switch child[i].key {
		case "local-ts":
			child[i].value = []string{fmt.Sprintf("%v/32[tcp/%d]", p.Local, p.Port)}
		case "remote-ts":
			child[i].value = []string{fmt.Sprintf("%v/32[tcp/%d-%d]", p.Remote, lo, hi)}
		}
	}
	b.f.set(func() { b.f.sas = []tree{sa} })
	b.f.set(func() {
		b.f.answer = func(cmd string, req tree) ([]string, tree) {
			if cmd == "terminate" && req.str("child-id") == "1" {
				b.f.set(func() { b.f.sas = nil })
			}
			return nil, nil
		}
	})
	b.f.raise("child-updown", tree{{"up", "yes"}, {"beta", tree{{"child-sas", tree{{"c", tree{{"name", "beta-in-0"}}}}}}}})
	eventually(t, "the child is ended, and why", func() bool {
		st, _ := b.PeerStatus("beta")
		return strings.Contains(st.LastError, "8 child SAs per direction, and this host into 4") && errors.Is(st.Err, ErrTrafficSelectors) && b.f.count("terminate") > 0
	})
}
