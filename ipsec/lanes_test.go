package ipsec

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

func lanePeer(children int) pad.Peer {
	p := padtest.Peer("beta", 2)
	p.Children = children
	return p
}

func TestDialledFlowsGoToTheChildWithTheFewest(t *testing.T) {
	b := newBench(t)
	p := lanePeer(4)
	b.add(t, p)
	f := padtest.FlowTo(p)
	f.Local = netip.AddrPortFrom(f.Local.Addr(), 0)
	seen := map[uint16]int{}
	for range 8 { // at the same time: none is admitted yet
		lo, hi, err := b.LocalPorts(t.Context(), f)
		if err != nil || int(hi)-int(lo) != 4095 {
			t.Fatalf("ports %d to %d, %v", lo, hi, err)
		}
		seen[lo]++
	}
	for lo, n := range seen {
		if n != 2 || len(seen) != 4 {
			t.Errorf("%d of 8 flows were given to the block at %d: %v", n, lo, seen)
		}
	}
	one := padtest.Peer("gamma", 3)
	b.add(t, one)
	if lo, hi, err := b.LocalPorts(t.Context(), padtest.FlowTo(one)); lo != 0 || hi != 0 || err != nil {
		t.Errorf("with one child: %d to %d, %v", lo, hi, err)
	}
	if lo, hi, err := b.LocalPorts(t.Context(), padtest.FlowTo(padtest.Peer("x", 99))); lo != 0 || hi != 0 || err != nil {
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

func incomingFrom(p pad.Peer, port uint16) transport.Flow {
	return transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, p.Port), Remote: netip.AddrPortFrom(p.Remote, port)}
}

// TestPeerThatSplitsOtherwiseIsToldSo has the peer ask for a block of 8 where
// this host has 4.
func TestPeerThatSplitsOtherwiseIsToldSo(t *testing.T) {
	b := newBench(t)
	p := lanePeer(4)
	b.add(t, p)
	lo, hi := 49152, 51199 // of eight
	sa := saOf(p, "beta-in-0")
	child := sa[0][1].(tree).Get("child-sas").(tree)[0][1].(tree)
	for i := range child {
		switch child[i].Key() {
		case "local-ts":
			child[i][1] = []string{fmt.Sprintf("%v/32[tcp/%d]", p.Local, p.Port)}
		case "remote-ts":
			child[i][1] = []string{fmt.Sprintf("%v/32[tcp/%d-%d]", p.Remote, lo, hi)}
		}
	}
	b.f.Set(func() { b.f.SAs = []tree{sa} })
	b.f.Set(func() {
		b.f.Answer = func(cmd string, req tree) ([]string, tree) {
			if cmd == "terminate" && req.Str("child-id") == "1" {
				b.f.Set(func() { b.f.SAs = nil })
			}
			return nil, nil
		}
	})
	b.f.Raise("child-updown", tree{{"up", "yes"}, {"beta", tree{{"child-sas", tree{{"c", tree{{"name", "beta-in-0"}}}}}}}})
	eventually(t, "the child is ended, and why", func() bool {
		st, _ := b.PeerStatus("beta")
		return strings.Contains(st.LastError, "8 child SAs per direction, and this host into 4") && errors.Is(st.Err, negotiation.ErrTrafficSelectors) && b.f.Count("terminate") > 0
	})
}
