package sctpadapt_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport/sctp"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// RFC 5043: what RDMAP promises holds over SCTP, with several streams in one
// association.
func TestConformance(t *testing.T) {
	x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, nil)
	pair := func(t testing.TB) (a, b ddp.LLP) { return x.session(t) }
	connect := conformance.OverLLP(t, pair)
	conformance.Run(t, connect, conformance.Cases())
	for _, m := range []*sctpadapt.Mux{x.a, x.b} {
		if err := m.Quiet(patient(t)); err != nil {
			t.Errorf("%d sessions are left: %v", m.Streams(), err)
		}
	}
}

// The least MTU, jumbo frames, and sockets without UDP_SEGMENT and UDP_GRO.
func TestConformanceOfVariants(t *testing.T) {
	for name, change := range map[string]func(*sctp.Config){
		"mtu 640":     func(c *sctp.Config) { c.MTU = 640 },
		"mtu 9000":    func(c *sctp.Config) { c.MTU = 9000 },
		"mtu 65535":   func(c *sctp.Config) { c.MTU = 65535 },
		"no offload":  func(c *sctp.Config) { c.NoOffload = true },
		"tiny window": func(c *sctp.Config) { c.RecvWindow = 4000 },
		"tiny queue":  func(c *sctp.Config) { c.SendBuffer = 4000 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := connectWith(t, change, sctpadapt.Config{}, sctpadapt.Config{}, nil)
			connect := conformance.OverLLP(t, func(t testing.TB) (a, b ddp.LLP) { return x.session(t) })
			conformance.Run(t, connect, conformance.Core())
		})
	}
}

// relayed puts a relay with these faults between the ends.
func relayed(f sctptest.Faults) func(testing.TB, netip.AddrPort) netip.AddrPort {
	return func(t testing.TB, to netip.AddrPort) netip.AddrPort {
		t.Helper()
		r, err := sctptest.NewRelay(to, f, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			r.Close()
			t.Logf("the relay: %+v", r.Counts())
		})
		return r.Addr()
	}
}

// The same through a network that loses, reorders, duplicates, delays and
// corrupts.
func TestConformanceOverABadNetwork(t *testing.T) {
	for name, f := range map[string]sctptest.Faults{
		"loss":        {Loss: 0.02},
		"reordering":  {Reorder: 0.2},
		"duplication": {Duplicate: 0.2},
		"delay":       {Latency: time.Millisecond},
		"all":         {Loss: 0.01, Reorder: 0.05, Duplicate: 0.05, Corrupt: 0.01, Latency: 200 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting for retransmissions
			x := connect(t, sctpadapt.Config{}, sctpadapt.Config{}, relayed(f))
			connect := conformance.OverLLP(t, func(t testing.TB) (a, b ddp.LLP) { return x.session(t) })
			conformance.Run(t, connect, conformance.Core())
		})
	}
}
