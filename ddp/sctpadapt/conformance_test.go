package sctpadapt_test

import (
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

// RFC 5043: what RDMAP promises holds over SCTP, with several streams in one
// association.
func TestConformance(t *testing.T) {
	x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, nil)
	pair := func(t testing.TB) (a, b ddp.LLP) { return x.session(t) }
	connect := conformance.OverLLP(t, pair)
	conformance.Run(t, connect, conformance.Cases())
	if n, k := x.a.Streams(), x.b.Streams(); n != 0 || k != 0 {
		t.Errorf("%d and %d sessions are left", n, k)
	}
}
