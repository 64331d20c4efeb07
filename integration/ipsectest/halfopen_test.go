package ipsectest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// TestStreamWhoseSAIsLostWhileItConnects loses the child SA when the peer has answered
// the first packet of a dial and the next one is on its way. With TCP, the accepting
// kernel drops the connection if it can't repeat the SYN-ACK a second later; the
// dialling one still has it, and its first byte would be answered by a reset. The dial
// takes longer, but the stream comes up as it should.
func TestStreamWhoseSAIsLostWhileItConnects(t *testing.T) {
	for _, k := range []struct {
		name  string
		kind  transport.Kind
		first int // length of the first packet of a dial in AES-GCM
	}{{"TCP", transport.TCP, 116}, {"SCTP in UDP", transport.SCTPUDP, 124}} {
		t.Run(k.name, func(t *testing.T) {
			p := newPairOf(t, k.kind, lab.Config{Charon: "retransmit_tries = 9"}) // so that a slow machine's does not give up
			p.addPeers(t)
			requests := p.listen(t)
			link := linkOf(k.kind)
			if err := p.alpha.m.Prepare(t.Context(), transport.Flow{Protocol: link.Protocol, Remote: netip.AddrPortFrom(p.beta.Addr(), link.Port)}); err != nil {
				t.Fatal(err)
			}
			// All but the first packet, and IKE's messages for another child.
			held := p.hold(t, fmt.Sprintf("(ip proto 50 and ip[2:2] != %d) or (udp dst port 4500 and udp[8:4] != 0 and ip[2:2] != %d)"+
				" or (udp dst port 500 and udp[26] = 36) or (udp dst port 4500 and udp[8:4] = 0 and udp[30] = 36)", k.first, k.first+8))
			said := charonSaid(t, p.alpha)
			dialled := make(chan error, 1)
			begin := time.Now()
			_, pd, cfg := rnic(t)
			go func() { dialled <- p.dialQP(t.Context(), pd, cfg) }()
			eventually(t, "beta has answered", func() bool { return held.Count() > 0 })
			// On a busy machine there may be none any more: alpha has deleted it, since nothing came back.
			if _, err := p.beta.m.DeleteChild(t.Context(), "alpha", ""); err != nil {
				t.Fatal(err)
			}
			eventually(t, "alpha has asked for another for more than a second", func() bool { return strings.Contains(said(), "retransmit 3 of request") })
			eventually(t, "beta's kernel has dropped what was half open", func() bool {
				out, err := p.beta.Run(t.Context(), "ss", "-tnH", "state", "syn-recv")
				return err == nil && !strings.Contains(out, p.beta.Addr().String())
			})
			if err := held.Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-dialled; err != nil {
				t.Fatal(err)
			}
			t.Logf("the stream was up after %v", time.Since(begin).Round(time.Millisecond))
			if offered := <-requests; offered.IRD == -1 {
				t.Error("the stream was set up as with a peer that knows only MPA's revision 1")
			}
			if n := len(requests); n != 0 {
				t.Errorf("beta's ULP has %d more requests", n)
			}
		})
	}
}

// listen makes beta accept queue pairs, and returns the depths that each was offered.
func (p *pair) listen(t *testing.T) <-chan verbs.Depths {
	t.Helper()
	dev, pd, cfg := rnic(t)
	var ln *verbs.Listener
	err := p.beta.Do(func() (err error) {
		ln, err = dev.Listen(t.Context(), netip.AddrPortFrom(p.beta.Addr(), port), verbs.ListenConfig{Transport: &transport.Config{Kind: p.kind, Protector: p.beta.m}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	requests, done := make(chan verbs.Depths, 10), make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			requests <- r.Depths()
			if _, err := r.Accept(context.Background(), pd, verbs.AcceptConfig{QP: cfg}); err != nil {
				t.Log(err)
			}
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return requests
}

// dialQP dials a queue pair from alpha.
func (p *pair) dialQP(ctx context.Context, pd *verbs.PD, cfg verbs.QPConfig) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.alpha.Do(func() error {
		_, err := pd.Dial(ctx, verbs.DialConfig{Remote: netip.AddrPortFrom(p.beta.Addr(), port), QP: cfg,
			Transport: &transport.Config{Kind: p.kind, Protector: p.alpha.m, Local: p.alpha.Addr()}})
		return err
	})
}

// rnic opens a device.
func rnic(t *testing.T) (*verbs.Device, *verbs.PD, verbs.QPConfig) {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	u, err := dev.NewULP("service", verbs.ULPConfig{Trust: verbs.ST})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := u.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := u.CreateCQ(16, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dev, pd, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}
}
