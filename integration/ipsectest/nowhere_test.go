package ipsectest

import (
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// testInboundSALost removes the SA by which alpha sends from beta's kernel, unknown to both
// strongSwans: a collision of IKE's exchanges can leave hosts with different SAs as
// well. Only the stream can notice that.
func testInboundSALost(t *testing.T, p *pair) {
	t.Helper()
	p.addPeers(t)
	p.echo(t, p.beta, nil)
	c := p.mustOpen(t, p.alpha)
	if err := ping(c, "before"); err != nil {
		t.Fatal(err)
	}
	p.acknowledged(t)
	for _, s := range espStates(t, p.beta.Host) {
		if s.src == p.alpha.at().String() {
			sh(t, p.beta.Host, "ip xfrm state delete src "+s.src+" dst "+s.dst+" proto esp spi "+s.spi)
		}
	}
	if err := ping(c, "after"); err != nil {
		t.Error(err)
	}
	if st, err := p.alpha.m.PeerStatus("beta"); err != nil || st.Counters.Stale == 0 {
		t.Errorf("the SA was not replaced: %+v, %v", st.Counters, err)
	}
}

func TestKernelESPThatLeadsNowhereIsMadeAnew(t *testing.T) {
	row(t, "the peer's kernel loses an SA that strongSwan believes in: TCP notices, and it is made anew")
	testInboundSALost(t, kernelPair(t))
}

func TestKernelSCTPNoticesAnSAThatLeadsNowhere(t *testing.T) {
	requireKernelESP(t)
	row(t, "kernel SCTP: the peer's kernel loses an SA that strongSwan believes in: the association notices, and it is made anew")
	testInboundSALost(t, newPairOf(t, transport.SCTP, lab.Config{DataPlane: esp.Kernel}))
}
