package ipsectest

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// newMultihomed is a pair on two wires whose association uses both. change may alter
// the second path's entry among a host's peers.
func newMultihomed(t *testing.T, change func(h *host, c *pad.Peer)) *pair {
	t.Helper()
	p := newPairOf(t, transport.SCTP, lab.Config{Wires: 2})
	for _, h := range []*host{p.alpha, p.beta} {
		first := p.peerOf(h)
		second := first
		second.Name += ".path2"
		second.Local, second.Remote = h.AddrOn(1), p.other(h).AddrOn(1)
		if change != nil {
			change(h, &second)
		}
		for _, c := range []pad.Peer{first, second} {
			if !c.Remote.IsValid() {
				continue
			}
			if err := h.m.AddPeer(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.awaitCharon(t)
	p.more = func(h *host, cfg *transport.Config, dials bool) {
		cfg.MoreLocal = []netip.Addr{h.AddrOn(1)}
		if dials {
			cfg.MoreRemote = []netip.Addr{p.other(h).AddrOn(1)}
		}
	}
	return p
}

// wires captures both.
func wires(t *testing.T, h *host) [2]*lab.Capture {
	t.Helper()
	var all [2]*lab.Capture
	for i := range all {
		c, err := h.Capture(t.Context(), lab.CaptureOptions{Wire: i})
		if err != nil {
			t.Fatal(err)
		}
		all[i] = c
	}
	return all
}

// allESP fails the test if anything of the link is in clear on either wire.
func (p *pair) allESP(t *testing.T, all [2]*lab.Capture) {
	t.Helper()
	for i, w := range all {
		c := counted(t, w)
		t.Logf("wire %d: %v", i, c)
		if p.clear(c) != 0 || c.ESP == 0 {
			t.Errorf("on wire %d: %v", i, c)
		}
	}
}

func (h *host) sever(t *testing.T, wire int, cut bool) {
	t.Helper()
	if err := h.Sever(t.Context(), wire, cut); err != nil {
		t.Fatal(err)
	}
}

// pathLog records what Config.OnPath reports.
type pathLog struct {
	mu  sync.Mutex
	log []bool
}

func (l *pathLog) note(_ transport.Flow, up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, up)
}

func (l *pathLog) last() (up, reported bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.log) == 0 {
		return false, false
	}
	return l.log[len(l.log)-1], true
}

func TestMultihomedAssociationFailsOverWithinESP(t *testing.T) {
	p := newMultihomed(t, nil)
	row(t, "kernel SCTP on two wires: each is cut in turn, the association goes on over the other, in ESP on both")
	p.echo(t, p.beta, nil)
	all := wires(t, p.beta)
	var paths pathLog
	c, err := p.open(t, p.alpha, transport.Config{OnPath: paths.note})
	if err != nil {
		t.Fatal(err)
	}
	k := talk(c)
	k.moves(t, 50)
	eventually(t, "both paths have an SA", func() bool {
		return installed(t, p.alpha, "beta-out-sctp") == 1 && installed(t, p.alpha, "beta.path2-out-sctp") == 1
	})
	// A path is away when SCTP reports that, or when its SA has gone, which SCTP does not
	// notice.
	away := func(wire int) bool {
		up, reported := paths.last()
		return reported && !up || installed(t, p.alpha, [...]string{"beta-out-sctp", "beta.path2-out-sctp"}[wire]) == 0
	}
	for wire := range 2 {
		k.longest()
		p.alpha.sever(t, wire, true)
		k.moves(t, 50)
		eventually(t, "the path is away", func() bool { return away(wire) })
		t.Logf("wire %d cut: longest gap %v", wire, k.longest())
		p.alpha.sever(t, wire, false)
		eventually(t, "the path is back", func() bool { return !away(wire) })
		k.moves(t, 50)
	}
	// The SA of one path is lost, too, and those of both.
	for _, peers := range [][]string{{"beta"}, {"beta.path2"}, {"beta", "beta.path2"}} {
		for _, name := range peers {
			childOf(t, p.alpha, name+"-out-sctp") // the association may move by the other path
			deleteChild(t, p.alpha, name)
		}
		k.moves(t, 50)
	}
	k.end(t)
	p.allESP(t, all)
}

// TestMultihomedAssociationBeginsOnOnePath starts with one wire cut: its path is used
// once its SA has come up.
func TestMultihomedAssociationBeginsOnOnePath(t *testing.T) {
	p := newMultihomed(t, nil)
	row(t, "kernel SCTP on two wires, one of which is cut at first: used when its SA is up, in clear never")
	p.echo(t, p.beta, nil)
	all := wires(t, p.beta)
	p.alpha.sever(t, 1, true)
	k := talk(p.mustOpen(t, p.alpha))
	k.moves(t, 50)
	p.alpha.sever(t, 1, false)
	eventually(t, "the second path has an SA and is admitted", func() bool {
		a, err := p.alpha.m.PeerStatus("beta.path2")
		b, err2 := p.beta.m.PeerStatus("alpha.path2")
		return err == nil && err2 == nil && a.Flows == 1 && b.Flows == 1 && a.State == ipsec.StateUp
	})
	p.alpha.sever(t, 0, true)
	k.moves(t, 50)
	p.alpha.sever(t, 0, false)
	k.end(t)
	p.allESP(t, all)
}

// TestMultihomedAssociationIsCoveredOrRefused: every address has to be the peer's,
// and every path the same identity's.
func TestMultihomedAssociationIsCoveredOrRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(h *host, c *pad.Peer)
		kind   error
	}{
		{"the second address is nobody's", func(h *host, c *pad.Peer) {
			if h.Name() == "beta" {
				c.Remote = netip.Addr{}
			}
		}, ipsec.ErrUnknownPeer},
		{"the second path is another identity's", func(h *host, c *pad.Peer) {
			if h.Name() == "beta" {
				c.RemoteID = "gamma"
			} else {
				c.LocalID = "gamma"
			}
		}, transport.ErrTwoPeers},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newMultihomed(t, tc.change)
			row(t, "kernel SCTP on two wires: "+tc.name+", the association is refused")
			refused, note := refusals()
			p.echo(t, p.beta, note)
			all := wires(t, p.beta)
			c, err := p.open(t, p.alpha, transport.Config{})
			if err == nil {
				// Beta, which looks second, ends it.
				<-c.(*association).Done()
			}
			t.Log(err)
			err = <-refused
			if !errors.Is(err, tc.kind) || !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("refused with %v, want %v", err, tc.kind)
			}
			for _, w := range all {
				if c := counted(t, w); p.clear(c) != 0 {
					t.Errorf("on the wire: %v", c)
				}
			}
			if st, _ := p.beta.m.PeerStatus("alpha"); st.Flows != 0 {
				t.Errorf("status %+v", st)
			}
		})
	}
}
