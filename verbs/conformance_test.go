package verbs_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/mpa"
)

// The conformance suite, whole over one lower layer of each kind, its core over
// the variants that change how segments travel.
func TestConformance(t *testing.T) {
	memory := func(o iwarptest.Options, options ...conformance.Option) func(testing.TB) conformance.Connect {
		return func(t testing.TB) conformance.Connect {
			return conformance.OverLLP(t, func(testing.TB) (a, b ddp.LLP) {
				a, b = iwarptest.Pair(o)
				return a, b
			}, options...)
		}
	}
	over := func(local string, client, server mpa.Config) func(testing.TB) conformance.Connect {
		return func(t testing.TB) conformance.Connect {
			return conformance.OverMPA(t, netip.MustParseAddr(local), client, server)
		}
	}
	const v4, v6 = "127.0.0.1", "::1"
	both := func(c mpa.Config) func(testing.TB) conformance.Connect { return over(v4, c, c) }
	emss := func(n int) func() int { return func() int { return n } }
	const tiny = 140 // leaves the least MULPDU there is
	whole := conformance.Without(conformance.Cases(), conformance.SharedReceives)
	core := conformance.Core()
	oneSRQ := slices.DeleteFunc(conformance.Cases(), func(c conformance.Case) bool { return c.B&conformance.SharedReceives == 0 })
	withHandler := conformance.Without(whole, conformance.Arming)
	withSRQ := conformance.Without(whole, conformance.FlushesReceives)

	for _, l := range []struct {
		name    string
		cases   []conformance.Case
		connect func(testing.TB) conformance.Connect
	}{
		{"memory", whole, memory(iwarptest.Options{})},
		{"memory with handlers", withHandler, memory(iwarptest.Options{}, conformance.WithHandler)},
		{"memory with one Read at a time", core, memory(iwarptest.Options{}, conformance.WithReadDepth(1))},
		{"memory direct", whole, memory(iwarptest.Options{Direct: true, MULPDU: 128})},
		{"memory shuffled", whole, memory(iwarptest.Options{MULPDU: 128, Window: 16, Shuffle: true, Seed: 1})},
		{"memory shuffled far", core, memory(iwarptest.Options{Window: 64, Shuffle: true, Seed: 2})},
		{"memory with shared receive queues", withSRQ, memory(iwarptest.Options{}, conformance.WithSRQ)},
		{"memory shuffled with shared receive queues", core, memory(iwarptest.Options{MULPDU: 128, Window: 16, Shuffle: true, Seed: 3}, conformance.WithSRQ)},
		{"memory with one shared receive queue", oneSRQ, memory(iwarptest.Options{}, conformance.WithOneSRQ)},
		{"MPA", whole, both(mpa.Config{})},
		{"MPA without CRC", whole, both(mpa.Config{CRC: mpa.CRCAvoid})},
		{"MPA IPv6", core, over(v6, mpa.Config{}, mpa.Config{})},
		{"MPA large FPDUs", core, both(mpa.Config{LargeFPDU: mpa.MaxLargeFPDU})},
		{"MPA large FPDUs without CRC", core, both(mpa.Config{LargeFPDU: mpa.MaxLargeFPDU, CRC: mpa.CRCAvoid})},
		{"MPA markers to the client", core, over(v4, mpa.Config{Markers: true}, mpa.Config{})},
		{"MPA markers to the server", core, over(v4, mpa.Config{}, mpa.Config{Markers: true, EMSS: emss(1460)})},
		{"MPA markers both ways", core, both(mpa.Config{Markers: true, EMSS: emss(1460)})},
		{"MPA markers without CRC", core, both(mpa.Config{Markers: true, CRC: mpa.CRCAvoid})},
		{"MPA Ethernet", core, both(mpa.Config{EMSS: emss(1448)})},
		{"MPA tiny segments", core, both(mpa.Config{EMSS: emss(tiny)})},
		{"MPA tiny segments with markers without CRC", core, both(mpa.Config{EMSS: emss(tiny), Markers: true, CRC: mpa.CRCAvoid})},
		{"MPA peer-to-peer by write", core, both(mpa.Config{PeerToPeer: enhanced.RTRWrite})},
		{"MPA peer-to-peer by read", core, both(mpa.Config{PeerToPeer: enhanced.RTRRead})},
		{"MPA revision 1", core, both(mpa.Config{Revision: 1})},
	} {
		t.Run(l.name, func(t *testing.T) { conformance.Run(t, l.connect(t), l.cases) })
	}
}
