package ipsectest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
)

// blockOf returns the block of a peer on a host.
func blockOf(t *testing.T, h *host, peer string) (b ipsec.Block, ok bool) {
	t.Helper()
	for _, b := range h.m.Blocks() {
		if b.Peer == peer {
			return b, true
		}
	}
	return b, false
}

func TestBlockedPeerReachesNothingUntilItIsUnblocked(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.addPeers(t)
	p.beta.echo(t, nil)
	c := p.alpha.mustDial(t, p.beta)
	if err := ping(c, "before\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.beta.m.Block(t.Context(), "alpha", time.Hour, "too many\nstreams"); err != nil {
		t.Fatal(err)
	}
	if err := pingWithin(c, "blocked\n", 500*time.Millisecond); err == nil {
		t.Error("a stream of a blocked peer is served")
	}
	b, ok := blockOf(t, p.beta, "alpha")
	if !ok || b.Packets == 0 || b.Why != "too many streams" || b.Addr != p.alpha.Addr() {
		t.Errorf("the list: %+v", p.beta.m.Blocks())
	}
	if _, err := p.beta.dial(t, p.alpha); !errors.Is(err, ipsec.ErrBlocked) || !strings.Contains(err.Error(), "too many streams") {
		t.Errorf("dialling a blocked peer: %v", err)
	}
	if err := p.beta.m.Unblock(t.Context(), "alpha"); err != nil {
		t.Fatal(err)
	}
	c2 := p.alpha.mustDial(t, p.beta)
	if err := ping(c2, "after\n"); err != nil {
		t.Error(err)
	}
	if err := p.beta.m.Unblock(t.Context(), "alpha"); !errors.Is(err, ipsec.ErrNotBlocked) {
		t.Errorf("unblocked again: %v", err)
	}
}
