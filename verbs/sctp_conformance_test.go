package verbs_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// sctpLocal is where listeners over SCTP in UDP are.
var sctpLocal = netip.MustParseAddrPort("127.0.0.1:7471")

// relayed is a Config of a dialler which goes through a relay with these faults.
func relayed(t testing.TB, server *transport.Config, f sctptest.Faults) *transport.Config {
	t.Helper()
	r, err := sctptest.NewRelay(netip.AddrPortFrom(sctpLocal.Addr(), server.UDPPort), f, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		t.Logf("the relay: %+v", r.Counts())
	})
	client := *server
	client.UDPPort = r.Addr().Port()
	return &client
}

// The whole suite over SCTP in UDP, with all streams in one association; over IPv6
// and with shared receive queues its core.
func TestConformanceOverSCTP(t *testing.T) {
	t.Run("whole", func(t *testing.T) {
		cfg := iwarptest.SCTPInUDP(t)
		conformance.Run(t, conformance.OverCarrier(t, sctpLocal, cfg, cfg), conformance.Without(conformance.Cases(), conformance.SharedReceives))
	})
	t.Run("IPv6", func(t *testing.T) {
		at := netip.AddrPortFrom(netip.IPv6Loopback(), sctpLocal.Port())
		cfg := iwarptest.SCTPInUDP(t)
		conformance.Run(t, conformance.OverCarrier(t, at, cfg, cfg), conformance.Core())
	})
	t.Run("shared receive queues", func(t *testing.T) {
		cfg := iwarptest.SCTPInUDP(t)
		conformance.Run(t, conformance.OverCarrier(t, sctpLocal, cfg, cfg, conformance.WithSRQ), conformance.Core())
	})
	t.Run("handlers", func(t *testing.T) {
		cfg := iwarptest.SCTPInUDP(t)
		conformance.Run(t, conformance.OverCarrier(t, sctpLocal, cfg, cfg, conformance.WithHandler), conformance.Without(conformance.Core(), conformance.Arming))
	})
}

// The core of the suite through a network that loses, reorders, duplicates,
// delays and corrupts.
func TestConformanceOverSCTPInABadNetwork(t *testing.T) {
	for name, f := range map[string]sctptest.Faults{
		"loss":        {Loss: 0.02},
		"reordering":  {Reorder: 0.2},
		"duplication": {Duplicate: 0.2},
		"delay":       {Latency: time.Millisecond},
		"all":         {Loss: 0.01, Reorder: 0.05, Duplicate: 0.05, Corrupt: 0.01, Latency: 200 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting for retransmissions
			cfg := iwarptest.SCTPInUDP(t)
			conformance.Run(t, conformance.OverCarrier(t, sctpLocal, relayed(t, cfg, f), cfg), conformance.Core())
		})
	}
}
