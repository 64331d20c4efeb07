package verbs_test

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/mpa"
)

// The conformance suite, whole over one lower layer of each kind, its core over
// the variants that change how segments travel.
func TestConformance(t *testing.T) {
	memory := func(o iwarptest.Options) func(testing.TB) conformance.Connect {
		return func(t testing.TB) conformance.Connect {
			return conformance.OverLLP(t, func(testing.TB) (a, b ddp.LLP) {
				a, b = iwarptest.Pair(o)
				return a, b
			})
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

	for _, l := range []struct {
		name    string
		cases   []conformance.Case
		connect func(testing.TB) conformance.Connect
	}{
		{"memory", conformance.Cases(), memory(iwarptest.Options{})},
		{"memory direct", conformance.Cases(), memory(iwarptest.Options{Direct: true, MULPDU: 128})},
		{"memory shuffled", conformance.Cases(), memory(iwarptest.Options{MULPDU: 128, Window: 16, Shuffle: true, Seed: 1})},
		{"memory shuffled far", conformance.Core(), memory(iwarptest.Options{Window: 64, Shuffle: true, Seed: 2})},
		{"MPA", conformance.Cases(), both(mpa.Config{})},
		{"MPA without CRC", conformance.Cases(), both(mpa.Config{CRC: mpa.CRCAvoid})},
		{"MPA IPv6", conformance.Core(), over(v6, mpa.Config{}, mpa.Config{})},
		{"MPA large FPDUs", conformance.Core(), both(mpa.Config{LargeFPDU: mpa.MaxLargeFPDU})},
		{"MPA large FPDUs without CRC", conformance.Core(), both(mpa.Config{LargeFPDU: mpa.MaxLargeFPDU, CRC: mpa.CRCAvoid})},
		{"MPA markers to the client", conformance.Core(), over(v4, mpa.Config{Markers: true}, mpa.Config{})},
		{"MPA markers to the server", conformance.Core(), over(v4, mpa.Config{}, mpa.Config{Markers: true, EMSS: emss(1460)})},
		{"MPA markers both ways", conformance.Core(), both(mpa.Config{Markers: true, EMSS: emss(1460)})},
		{"MPA markers without CRC", conformance.Core(), both(mpa.Config{Markers: true, CRC: mpa.CRCAvoid})},
		{"MPA Ethernet", conformance.Core(), both(mpa.Config{EMSS: emss(1448)})},
		{"MPA tiny segments", conformance.Core(), both(mpa.Config{EMSS: emss(tiny)})},
		{"MPA tiny segments with markers without CRC", conformance.Core(), both(mpa.Config{EMSS: emss(tiny), Markers: true, CRC: mpa.CRCAvoid})},
		{"MPA peer-to-peer by write", conformance.Core(), both(mpa.Config{PeerToPeer: mpa.RTRWrite})},
		{"MPA peer-to-peer by read", conformance.Core(), both(mpa.Config{PeerToPeer: mpa.RTRRead})},
		{"MPA revision 1", conformance.Core(), both(mpa.Config{Revision: 1})},
	} {
		t.Run(l.name, func(t *testing.T) { conformance.Run(t, l.connect(t), l.cases) })
	}
}
