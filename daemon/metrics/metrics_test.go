package metrics

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
)

// host has so many peers, whose names are their identities.
type host struct {
	peers     []string
	resources api.Resources
	fabric    *api.FabricStatus
}

func (h *host) Status(context.Context) api.Status      { return api.Status{Fabric: h.fabric} }
func (h *host) Resources() api.Resources               { return h.resources }
func (h *host) PeerNames() []string                    { return h.peers }
func (h *host) CountedAs(id transport.Identity) string { return string(id) }

// However many peers there are, the metrics of what they have are bounded.
func TestPeersBeyondABoundShareTheirMetrics(t *testing.T) {
	h := &host{}
	for i := range maxPeerSeries + 30 {
		name := fmt.Sprintf("p%03d", i)
		h.peers = append(h.peers, name)
		h.resources.Peers = append(h.resources.Peers, api.Principal{Kind: api.PrincipalPeer, Name: name, Identity: name, Uses: []api.Resource{{Name: "streams", Used: 1}}})
	}
	h.resources.Events = []api.EventCount{{Kind: "stream up", Peer: "p000", Count: 3}, {Kind: "stream up", Peer: "p229", Count: 4}, {Kind: "stream up", Peer: Others, Count: 5}}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(Collector(t.Context(), h))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]float64{} // by metric and who has it
	for _, f := range families {
		of := map[string]float64{}
		got[f.GetName()] = of
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "principal" || l.GetName() == "peer" {
					of[l.GetValue()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	if used := got["ironwarp_rnic_resource_used"]; len(used) != maxPeerSeries+1 || used["p000"] != 1 || used[Others] != 30 {
		t.Errorf("%d principals, want %d and %s: %v", len(used), maxPeerSeries, Others, used)
	}
	if events := got["ironwarp_rnic_events_total"]; len(events) != 2 || events["p000"] != 3 || events[Others] != 9 {
		t.Errorf("events %v", events)
	}
}

// A port that is taken is said, with what to do.
func TestMetricsPortThatIsTaken(t *testing.T) {
	l, err := Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), "main.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Listen(t.Context(), netip.MustParseAddrPort(l.Addr().String()), "main.yaml")
	if e, ok := err.(*api.Error); !ok || e.Code != api.CodeInUse {
		t.Errorf("%v", err)
	}
}

// A fabric has metrics on its members, and more on its managers; without one there are none.
func TestFabricHasMetrics(t *testing.T) {
	gather := func(s *api.FabricStatus) map[string]float64 {
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(Collector(t.Context(), &host{fabric: s}))
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := strings.TrimPrefix(f.GetName(), "ironwarp_fabric_")
				if name == f.GetName() {
					continue
				}
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return got
	}
	if got := gather(nil); len(got) != 0 {
		t.Errorf("without a fabric: %v", got)
	}
	member := &api.FabricStatus{Master: "a", Drained: true, Managers: []api.FabricManager{
		{Identity: "a", Peer: "alpha", State: api.FabricMaster}, {Identity: "b", Peer: "beta", State: api.FabricUnreachable, Problem: &api.Error{Message: "away"}}}}
	if got, want := gather(member), map[string]float64{"manager_reachable a": 1, "manager_reachable b": 0, "master_known": 1, "drained": 1, "settings_applied": 1}; !maps.Equal(got, want) {
		t.Errorf("a member has %v, want %v", got, want)
	}
	manager := &api.FabricStatus{Master: "a", Problem: &api.Error{Message: "faults"}, Managers: []api.FabricManager{{Identity: "a", State: api.FabricMaster}}, Totals: &api.FabricTotals{Hosts: 3, Services: 7, Dropped: 2}}
	if got, want := gather(manager), map[string]float64{"manager_reachable a": 1, "master_known": 1, "drained": 0, "settings_applied": 0, "master": 1, "hosts": 3, "services": 7, "requests_dropped_total": 2}; !maps.Equal(got, want) {
		t.Errorf("a manager has %v, want %v", got, want)
	}
}
