package ipsec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

func programs(first, size uint16) pad.Link {
	return pad.Link{Protocol: transport.ProtoTCP, Port: first, Size: size}
}

func blockPeer(blocks ...pad.Link) pad.Peer {
	p := padtest.Linked(padtest.TCP)
	p.Blocks = blocks
	return p
}

// TestFlowsOfABlockUseItsChildren: they come up for a flow, and are of all ports of the block alone.
func TestFlowsOfABlockUseItsChildren(t *testing.T) {
	b := newBench(t)
	k := programs(18432, 512)
	p := blockPeer(k, programs(18944, 16))
	p.OnDemand = false
	b.f.answering(p)
	b.add(t, p)
	if n := b.guarded.Load(); n != 3 {
		t.Errorf("%d guards of 3 links", n)
	}
	eventually(t, "the first link's child is up", func() bool { return b.f.Count("initiate beta-out") == 1 })
	flowAt := func(port uint16, outgoing bool) transport.Flow {
		return flowOn(p, pad.Link{Protocol: transport.ProtoTCP, Port: port}, outgoing)
	}
	for _, port := range []uint16{18432, 18500, 18943} {
		for _, outgoing := range []bool{true, false} {
			_, ln := b.find(flowAt(port, outgoing), outgoing)
			if ln == nil || ln.Link != k || (ln.Role == pad.Dialler) != outgoing {
				t.Errorf("port %d, outgoing %v: lane %+v", port, outgoing, ln)
			}
		}
		if err := b.Screen(flowAt(port, false)); err != nil {
			t.Errorf("port %d: %v", port, err)
		}
	}
	if _, ln := b.find(flowAt(18944, true), true); ln == nil || ln.Name != "beta-out-tcp18944" {
		t.Errorf("the block behind: lane %+v", ln)
	}
	for _, port := range []uint16{18431, 18960} {
		_, err := b.Admit(t.Context(), flowAt(port, true), true, &traffic{})
		if !errors.Is(err, ErrUnknownPeer) || !strings.Contains(err.Error(), "tcp port 7471, tcp ports 18432-18943, tcp ports 18944-18959") {
			t.Errorf("port %d: %v", port, err)
		}
	}
	if n := b.f.Count("initiate beta-out-tcp18432"); n != 0 {
		t.Errorf("%d attempts for a block that no flow needs", n)
	}
	if err := b.Prepare(t.Context(), flowAt(18500, true)); err != nil {
		t.Fatal(err)
	}
	pr, err := b.Admit(t.Context(), flowAt(18501, true), true, &traffic{})
	if err != nil {
		t.Fatal(err)
	}
	pr.Release()
}

func TestBlocksOfTwoPeersWithAnAddressMayNotOverlap(t *testing.T) {
	b := newBench(t)
	b.add(t, blockPeer(programs(18432, 512)))
	other := padtest.Linked(programs(18944, 16))
	other.Name = "gamma"
	b.add(t, other)
	other.Name, other.Links = "delta", []pad.Link{programs(18512, 16)}
	if err := b.AddPeer(t.Context(), other); !errors.Is(err, ErrPeerExists) || !strings.Contains(err.Error(), "beta has 198.51.100.2 tcp ports 18432-18943") {
		t.Errorf("a block that another peer has a part of: %v", err)
	}
}

// TestBlockThatChangesIsGuardedAllTheTime: the new one is guarded before the old one is let go, when a
// peer is replaced and when it is removed and another stays.
func TestBlockThatChangesIsGuardedAllTheTime(t *testing.T) {
	for name, change := range map[string]func(b *bench, p pad.Peer) error{
		"replaced": func(b *bench, p pad.Peer) error { return b.AddPeer(t.Context(), p) },
		"removed":  func(b *bench, p pad.Peer) error { return b.RemovePeer(t.Context(), p.Name, p.AllLinks()...) },
	} {
		for _, size := range []uint16{256, 1024} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				b := newBench(t)
				var mu sync.Mutex
				var did []string
				note := func(what string, g guard.Spec) {
					mu.Lock()
					defer mu.Unlock()
					did = append(did, what+" "+strings.TrimSuffix(g.String(), " with 198.51.100.2"))
				}
				install := b.install
				b.install = func(ns string, specs []guard.Spec) ([]guard.Result, error) {
					for _, g := range specs {
						note("guard", g)
					}
					return install(ns, specs)
				}
				b.uninstall = func(g guard.Spec) error { note("let go", g); return nil }
				b.empty = func(g guard.Spec) error { note("end", g); return nil }
				b.add(t, blockPeer(programs(18432, 512), programs(20480, 16)))
				mu.Lock()
				did = nil
				mu.Unlock()
				next := blockPeer(programs(18432, size), programs(22528, 16))
				if err := change(b, next); err != nil {
					t.Fatal(err)
				}
				want := []string{"end tcp port 7471", "end tcp ports 18432-18943", "end tcp ports 20480-20495", "guard " + strings.TrimSuffix(guard.Spec{Port: 18432, Size: size, Remote: netip.MustParseAddr("198.51.100.2")}.String(), " with 198.51.100.2"),
					"let go tcp ports 18432-18943", "let go tcp ports 20480-20495"}
				mu.Lock()
				defer mu.Unlock()
				if len(did) < len(want) || !slices.Equal(did[:len(want)], want) {
					t.Errorf("\n did %q\nwant %q", did, want)
				}
			})
		}
	}
}

// TestPeerWithASmallerBlockIsNamed, whoever dials: the child is ended.
func TestPeerWithASmallerBlockIsNamed(t *testing.T) {
	ours, theirs := blockPeer(programs(18432, 512)), blockPeer(programs(18432, 256))
	const words = "the peer has ports 18432-18687 where this host has ports 18432-18943"
	for _, dials := range []bool{true, false} {
		t.Run(fmt.Sprint(dials), func(t *testing.T) {
			b := newBench(t)
			ended := make(chan string, 100)
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					switch cmd {
					case "initiate":
						b.f.up(theirs, req.Str("child"))
					case "terminate":
						ended <- req.Str("child-id")
						b.f.up(theirs)
						return nil, tree{{"success", "yes"}, {"terminated", "1"}}
					}
					return nil, nil
				}
			})
			b.add(t, ours)
			if dials {
				err := b.Prepare(t.Context(), flowOn(ours, programs(18500, 0), true))
				if !errors.Is(err, negotiation.ErrTrafficSelectors) || !strings.Contains(err.Error(), words) {
					t.Errorf("dialled: %v", err)
				}
			} else {
				b.f.up(theirs, "beta-in-tcp18432")
			}
			if id := <-ended; id == "" {
				t.Error("something else than the child is ended")
			}
			eventually(t, "why is said", func() bool {
				st, err := b.PeerStatus("beta")
				return err == nil && strings.Contains(st.LastError, words)
			})
		})
	}
}
