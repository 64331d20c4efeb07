package ipsectest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/transport"
)

// overEach runs a test over each kind of association that this kernel has.
func overEach(t *testing.T, what string, cfg lab.Config, test func(*testing.T, *pair)) {
	t.Helper()
	for _, k := range associations {
		t.Run(k.name, func(t *testing.T) {
			row(t, k.name+": "+what)
			test(t, newPairOf(t, k.kind, cfg))
		})
	}
}

// TestPhase2DeleteLeavesAssociationsUp is TestPhase2DeleteLeavesTheStreamUp for
// SCTP (RFC 5042 5.4.5).
func TestPhase2DeleteLeavesAssociationsUp(t *testing.T) {
	for _, k := range associations {
		for _, v := range versions {
			t.Run(k.name+" "+v.name, func(t *testing.T) {
				row(t, k.name+", "+v.name+": the child is deleted by either side or both, busy, idle and during a rekey; the association goes on")
				deleteMatrix(t, newPairOf(t, k.kind, lab.Config{}), v.name, v.profile())
			})
		}
	}
}

// TestControlAnAssociationWithoutGuardAndSALeaks shows that the other tests' captures
// find what the guard prevents.
func TestControlAnAssociationWithoutGuardAndSALeaks(t *testing.T) {
	overEach(t, "control: without guard and SA clear packets are found", lab.Config{},
		func(t *testing.T, p *pair) { leak(t, p, profile.Default()) })
}

func TestAssociationSurvivesEveryLoss(t *testing.T) {
	overEach(t, "echoes while the IKE SA or the child is deleted by either side or both at once, rekeyed, charon stopped or killed", lab.Config{}, survive)
}

func TestAssociationsSurviveOverIPv6(t *testing.T) {
	overEach(t, "IPv6: echoes while either side deletes the child", lab.Config{}, func(t *testing.T, p *pair) {
		p.alpha.v6, p.beta.v6 = true, true
		wire := capture(t, p.beta)
		p.addPeers(t)
		p.echo(t, p.beta, nil)
		k := talk(p.mustOpen(t, p.alpha))
		for _, h := range []*host{p.alpha, p.beta} {
			k.moves(t, 20)
			deleteChild(t, h, p.other(h).Name())
			k.moves(t, 50)
		}
		k.end(t)
		if c := counted(t, wire); p.clear(c) != 0 || c.ESP == 0 {
			t.Errorf("on the wire: %v", c)
		}
	})
}

func TestSimultaneousInitiationForAssociations(t *testing.T) {
	overEach(t, "both hosts dial and initiate at once: one child per direction is left", lab.Config{}, initiateTogether)
}

func TestIdleAssociationOutlivesItsSA(t *testing.T) {
	overEach(t, "an idle association outlives its SA, whose guard holds the heartbeats back", lab.Config{}, outlive)
}

func TestPeerOfAnAssociationThatRebooted(t *testing.T) {
	overEach(t, "the peer loses its SAs and associations without a word: the old association ends, a new one comes up", lab.Config{},
		func(t *testing.T, p *pair) { rebooted(t, p, profile.Default()) })
}

// TestBulkOverAnAssociation fills the path, whose MTU ESP makes smaller: messages of
// the association's largest size arrive whole, and no offload is left that ESP does not
// know.
func TestBulkOverAnAssociation(t *testing.T) {
	overEach(t, "2 MB of messages as long as the path takes arrive as they were", lab.Config{}, func(t *testing.T, p *pair) {
		wire := capture(t, p.beta)
		p.addPeers(t)
		p.echo(t, p.beta, nil)
		c := p.mustOpen(t, p.alpha).(*association)
		if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		ahead := make(chan struct{}, 256) // messages without an answer
		sent := make(chan int, 1)
		go func() {
			defer close(sent)
			r := rand.New(rand.NewPCG(1, 2))
			for n := 0; n < 2<<20; {
				b := make([]byte, c.MaxMessage())
				for i := 4; i+8 <= len(b); i += 8 {
					binary.LittleEndian.PutUint64(b[i:], r.Uint64())
				}
				binary.BigEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
				ahead <- struct{}{}
				if _, err := c.Write(b); err != nil {
					t.Error(err)
					return
				}
				n += len(b)
				sent <- len(b)
			}
		}()
		n, longest := 0, 0
		for size := range sent {
			n, longest = n+size, max(longest, size)
			var answer [8]byte
			if _, err := io.ReadFull(c, answer[:]); err != nil {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			if !bytes.Equal(answer[:4], answer[4:]) {
				t.Fatal("a message has arrived in another form")
			}
			<-ahead
		}
		detail(t, "%.1f MB/s; the longest message had %d bytes", float64(n)/time.Since(begin).Seconds()/1e6, longest)
		if counts := counted(t, wire); p.clear(counts) != 0 || counts.ESP == 0 {
			t.Errorf("on the wire: %v", counts)
		}
	})
}

func TestIdleAssociationsSAIsReaped(t *testing.T) {
	overEach(t, "the SA of an idle association is reaped, and comes back with the first byte", lab.Config{},
		func(t *testing.T, p *pair) { reap(t, p, profile.Default()) })
}

func TestAssociationDoesNotGoOnUnderAnotherIdentity(t *testing.T) {
	overEach(t, "the peer authenticates as somebody else: the association pauses, and goes on when it is itself again", lab.Config{}, stayWithPeer)
}

// dialClear dials in clear, as far as the dialling host knows, and keeps the connection
// until the other host ends it.
func (p *pair) dialClear(t *testing.T, from *host, d time.Duration) error {
	t.Helper()
	to := p.other(from)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	cfg := &transport.Config{Kind: p.kind, Protector: transport.Plaintext(slog.New(slog.DiscardHandler), to.at()), Local: from.at()}
	return from.Do(func() error {
		a, err := transport.DialSCTP(ctx, netip.AddrPortFrom(to.at(), port), cfg, newInbox)
		if err == nil {
			select {
			case <-a.Done():
			case <-ctx.Done():
			}
			a.Close()
		}
		return err
	})
}

// refusals keeps a listener's refusals.
func refusals() (chan error, func(error)) {
	c := make(chan error, 100)
	return c, func(err error) {
		select {
		case c <- err:
		default:
		}
	}
}

func TestAssociationOfRightAddressesUnderAnotherIdentityIsRefused(t *testing.T) {
	overEach(t, "an association under an SA of another identity is refused", lab.Config{}, func(t *testing.T, p *pair) {
		p.addPeers(t)
		refused, note := refusals()
		p.echo(t, p.alpha, note)
		p.loadImpostor(t)
		p.becomeMallory(t)
		k := linkOf(p.kind)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		err := p.alpha.m.Prepare(ctx, transport.Flow{Protocol: k.Protocol, Remote: netip.AddrPortFrom(p.beta.Addr(), k.Port)})
		if !errors.Is(err, pad.ErrWrongIdentity) || errors.Is(err, transport.ErrAway) || !strings.Contains(err.Error(), "mallory") {
			t.Errorf("dialling under mallory's SA: %v", err)
		}
		// On beta nothing but this connection carries the link, and no Protector asks.
		if esp.ProbeKernel() == nil {
			// The guard comes before the policies of any SA but the peer's own.
			if err := p.dialClear(t, p.beta, 3*time.Second); err == nil {
				t.Error("an association through mallory's SA met no guard")
			}
			return
		}
		if err := p.dialClear(t, p.beta, 2*time.Minute); err != nil {
			t.Log("the dialling side:", err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, pad.ErrWrongIdentity) || !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("refused with %v", err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("an association under mallory's SA was not refused")
		}
		if st, _ := p.alpha.m.PeerStatus("beta"); st.Counters.Refusals.WrongIdentity != 1 || st.Flows != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestClearAssociationIsNotAdmitted removes both guards: the Protector still refuses
// what no SA covers.
func TestClearAssociationIsNotAdmitted(t *testing.T) {
	overEach(t, "without guard and SA an association gets no further than the Protector", lab.Config{}, func(t *testing.T, p *pair) {
		p.addPeers(t)
		for _, h := range []*host{p.alpha, p.beta} {
			if err := h.m.RemoveGuard(t.Context(), p.other(h).Name()); err != nil {
				t.Fatal(err)
			}
		}
		refused, note := refusals()
		p.echo(t, p.beta, note)
		if err := p.dialClear(t, p.alpha, 2*time.Minute); err != nil {
			t.Log("the dialling side:", err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, pad.ErrNotCovered) || !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("refused with %v", err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("a clear association was admitted")
		}
		if st, _ := p.beta.m.PeerStatus("alpha"); st.Counters.Refused != 1 || st.Flows != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestLinksOfAPeerAreIndependent has TCP and associations with the same peer: a delete
// of one's child does not affect the other.
func TestLinksOfAPeerAreIndependent(t *testing.T) {
	overEach(t, "beside TCP with the same peer: the child of one is deleted, the other goes on under its own", lab.Config{}, func(t *testing.T, p *pair) {
		kind := p.kind
		p.addWith(t, func(_ *host, c *pad.Peer) {
			c.Links = []pad.Link{linkOf(transport.TCP), linkOf(kind)}
		})
		wire := capture(t, p.beta)
		p.beta.echo(t, nil)
		p.echo(t, p.beta, nil)
		over := map[transport.Kind]stream{transport.TCP: p.alpha.mustDial(t, p.beta), kind: p.mustOpen(t, p.alpha)}
		for k, s := range over {
			if err := ping(s, "hello"); err != nil {
				t.Fatalf("%v: %v", k, err)
			}
		}
		p.acknowledged(t)
		suffix := "-" + kind.Protocol().String()
		all := childrenOf(t, p.alpha)
		if a, b := all["beta-out"], all["beta-out"+suffix]; a.Flows != 1 || b.Flows != 1 || a.BytesIn == 0 || b.BytesIn == 0 {
			t.Errorf("children %+v", all)
		}
		for deleted, child := range map[transport.Kind]string{transport.TCP: "alpha-in", kind: "alpha-in" + suffix} {
			if n, err := p.beta.m.DeleteChild(t.Context(), "alpha", child); n != 1 || err != nil {
				t.Fatalf("delete of %s: %d, %v", child, n, err)
			}
			eventually(t, "the stream of the deleted child is paused", over[deleted].Protection().Paused)
			for k, s := range over {
				if k != deleted && s.Protection().Paused() {
					t.Errorf("%v is paused by the delete of %s", k, child)
				}
				if k != deleted {
					if err := ping(s, "goes on"); err != nil {
						t.Errorf("%v after the delete of %s: %v", k, child, err)
					}
				}
			}
			if !over[deleted].Protection().Paused() {
				t.Errorf("%s came back although its stream is idle", child)
			}
			for k, s := range over {
				if err := ping(s, "all of them"); err != nil {
					t.Errorf("%v: %v", k, err)
				}
			}
			p.acknowledged(t)
		}
		c := counted(t, wire)
		if p.clear(c) != 0 || c.Clear(port) != 0 || c.ESP == 0 {
			t.Errorf("on the wire: %v", c)
		}
		if err := p.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
			t.Fatal(err)
		}
		if n := guardSize(t, p.alpha); n != 0 {
			t.Errorf("%d policies are left", n)
		}
	})
}

func TestAssociationsSpreadOverSeveralChildSAs(t *testing.T) {
	const n = 4
	overEach(t, fmt.Sprintf("associations spread over %d child SAs of a peer", n), lab.Config{}, func(t *testing.T, p *pair) {
		p.addWith(t, func(_ *host, c *pad.Peer) { c.Children = n })
		p.echo(t, p.beta, nil)
		for range n {
			if err := ping(p.mustOpen(t, p.alpha), "hello"); err != nil {
				t.Fatal(err)
			}
		}
		all := childrenOf(t, p.alpha)
		for i := range n {
			name := fmt.Sprintf("beta-out-%v-%d", p.kind.Protocol(), i)
			if c := all[name]; c.Flows != 1 || c.BytesOut == 0 || c.BytesIn == 0 {
				t.Errorf("child %s: %+v", name, c)
			}
		}
	})
}

// TestAssociationWithAPeerOnAnotherPortIsExplained uses hosts that disagree about the
// link.
func TestAssociationWithAPeerOnAnotherPortIsExplained(t *testing.T) {
	p := newPairOf(t, transport.SCTPUDP, lab.Config{})
	p.addWith(t, func(h *host, c *pad.Peer) {
		if h == p.beta {
			c.Links = []pad.Link{linkOf(transport.TCP)}
		}
	})
	_, err := p.open(t, p.alpha, transport.Config{})
	if !errors.Is(err, negotiation.ErrTrafficSelectors) || !strings.Contains(err.Error(), "udp port 9899") || !strings.Contains(err.Error(), "transports") {
		t.Errorf("dialling a peer that has TCP alone: %v", err)
	}
}
