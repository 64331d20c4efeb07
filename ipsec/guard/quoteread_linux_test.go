package guard

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/transport"
)

// asManyAsPossible are the guards of as many peers as a manager has, each with a link of each protocol.
func asManyAsPossible() []Spec {
	var specs []Spec
	for i := range 1024 {
		for _, p := range []transport.Protocol{transport.ProtoTCP, transport.ProtoUDP, transport.ProtoSCTP} {
			specs = append(specs, Spec{Remote: netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), Port: 7471, Protocol: p})
		}
	}
	return specs
}

// TestGuardsOfAsManyPeersAsArePossible puts them in place at first, and again when
// somebody has flushed nf_tables: no change of it leaves out a link.
func TestGuardsOfAsManyPeersAsArePossible(t *testing.T) {
	if testing.Short() {
		t.Skip("tens of thousands of policies")
	}
	inFreshNS(t, func() {
		specs := asManyAsPossible()
		for _, when := range []string{"at first", "when the table was removed"} {
			results, err := Reconcile("", specs)
			if err != nil {
				t.Fatal(when, err)
			}
			for i, r := range results {
				if r.Err != nil || r.Others == 0 {
					t.Fatalf("%s: %d parts were missing of %v, %v", when, r.Others, specs[i], r.Err)
				}
			}
			holes, err := Holes(specs...)
			if err != nil || len(holes) != 0 {
				t.Fatalf("%s: %d holes, the first of them %v; %v", when, len(holes), slices.Concat(holes, []Hole{{}})[0], err)
			}
			c, err := nftables.New()
			if err != nil {
				t.Fatal(err)
			}
			c.DelTable(&nftables.Table{Name: quotesTable, Family: nftables.TableFamilyINet})
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestQuotesOfALinkGoByThemselves adds and removes links one by one: those of the
// same host and the same port stay.
func TestQuotesOfALinkGoByThemselves(t *testing.T) {
	inFreshNS(t, func() {
		specs := []Spec{
			{Remote: netip.MustParseAddr("10.0.0.1"), Port: 7471},
			{Remote: netip.MustParseAddr("10.0.0.1"), Port: 7472},
			{Remote: netip.MustParseAddr("fd99::1"), Port: 7471, Protocol: transport.ProtoUDP},
		}
		for _, g := range specs {
			if err := Install(g); err != nil {
				t.Fatal(err)
			}
		}
		for i, g := range specs {
			if err := TakeDown(g); err != nil {
				t.Fatal(err)
			}
			left := specs[i+1:]
			if holes, err := Holes(left...); err != nil || len(holes) != 0 {
				t.Errorf("without %v: %v, %v", g, holes, err)
			}
			err := inNS("", func(k *kernel) error {
				q, err := k.quotes()
				if err != nil {
					return err
				}
				links, hosts := map[LinkKey]bool{}, map[netip.Addr]bool{}
				for _, g := range left {
					for _, key := range g.Keys() {
						links[key], hosts[key.Addr] = true, true
					}
				}
				if len(q.links) != len(links) || len(q.hosts) != len(hosts) || q.there != (len(left) > 0) {
					t.Errorf("without %v the table has %v and %v, there: %v", g, q.links, q.hosts, q.there)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
