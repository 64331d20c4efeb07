package guard

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func TestPeerIsBlockedByTheAddressOfATranslatorToo(t *testing.T) {
	for remote, want := range map[string][]string{
		"10.99.0.2":          {"10.99.0.2", "64:ff9b::a63:2"},
		"fd99::2":            {"fd99::2"},
		"64:ff9b::a63:2":     {"64:ff9b::a63:2", "10.99.0.2"},
		"2001:db8::10.1.2.3": {"2001:db8::a01:203"},
	} {
		var got []string
		for _, a := range (Spec{Remote: netip.MustParseAddr(remote)}).Addresses() {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", remote, got, want)
		}
	}
}

func TestRulesBeforeTheGuardsAreFoundOut(t *testing.T) {
	g := Spec{Remote: netip.MustParseAddr("fd99::2"), Port: 7471, DataPlane: esp.Userland}
	whole := func() []netlink.Rule {
		local := *netlink.NewRule()
		local.Priority, local.Table = 0, 255
		have := []netlink.Rule{local}
		for _, r := range g.rules() {
			have = append(have, *r)
		}
		return have
	}
	before := func(change func(*netlink.Rule)) []netlink.Rule {
		r := *netlink.NewRule()
		r.Priority, r.Table = 100, mainTable
		change(&r)
		return append(whole(), r)
	}
	for name, tc := range map[string]struct {
		have  []netlink.Rule
		open  int
		fault int
	}{
		"whole":       {whole(), 0, 0},
		"nothing":     {nil, 2, 3},
		"all packets": {before(func(*netlink.Rule) {}), 1, 0},
		"the peer's":  {before(func(r *netlink.Rule) { r.Dst = hostNet(g.Remote) }), 1, 0},
		"the port":    {before(func(r *netlink.Rule) { r.Dport = netlink.NewRulePortRange(7000, 8000) }), 1, 0},
		"another port": {before(func(r *netlink.Rule) {
			r.Dport, r.Sport = netlink.NewRulePortRange(1, 2), netlink.NewRulePortRange(1, 2)
		}), 0, 0},
		"another host":        {before(func(r *netlink.Rule) { r.Dst = hostNet(netip.MustParseAddr("fd99::3")) }), 0, 0},
		"marked packets only": {before(func(r *netlink.Rule) { r.Mark = 1 }), 0, 0},
		"UDP":                 {before(func(r *netlink.Rule) { r.IPProto = 17 }), 0, 0},
		"without a way":       {before(func(r *netlink.Rule) { r.Table = 0 }), 0, 0},
		"any route of the table": {func() []netlink.Rule {
			have := whole()
			for i := range have {
				have[i].SuppressIfgroup = -1
			}
			return have
		}(), 2, 2},
	} {
		open, fault := 0, 0
		for _, h := range g.ruleFaults(tc.have) {
			if h.Shut {
				fault++
			} else {
				open++
			}
		}
		if open != tc.open || fault != tc.fault {
			t.Errorf("%s: %d holes and %d faults, want %d and %d: %v", name, open, fault, tc.open, tc.fault, g.ruleFaults(tc.have))
		}
	}
}
