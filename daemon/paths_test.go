package daemon

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/metrics"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

func TestPathsThatFailAreShown(t *testing.T) {
	h := newHost(t, "")
	h.declare("beta", h, "local_address: 127.0.0.1\ntransport: sctp\nmultihoming: [{address: 127.0.0.3, local_address: 127.0.0.2}]\n")
	first, second := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.3")
	flow := func(a netip.Addr) transport.Flow {
		return transport.Flow{Protocol: transport.ProtoSCTP, Local: netip.MustParseAddrPort("127.0.0.2:1"), Remote: netip.AddrPortFrom(a, 2)}
	}
	states := func() []api.PathState { return h.d.pathStates(h.d.peers.byAddress(second), true) }
	for _, ev := range []struct {
		at   netip.Addr
		up   bool
		want string
	}{
		{first, true, "[yes ]"}, {second, true, "[yes yes]"}, {second, false, "[yes no]"}, {second, false, "[yes no]"}, {second, true, "[yes yes]"}, {first, false, "[no yes]"},
		{netip.MustParseAddr("192.0.2.9"), false, "[no yes]"}, // of nobody
	} {
		h.d.carriers.OnPath(flow(ev.at), ev.up)
		if s := states(); fmt.Sprint([]string{s[0].Reachable, s[1].Reachable}) != ev.want {
			t.Errorf("after %+v: %+v", ev, s)
		}
	}
	s := states()
	if s[0].Failures != 1 || s[1].Failures != 1 || s[1].Address != "127.0.0.3" || s[1].LocalAddress != "127.0.0.2" || s[0].LocalAddress != "127.0.0.1" {
		t.Errorf("%+v", s)
	}
	if p := h.peer("beta"); len(p.PathStates) != 2 || p.PathStates[1].Reachable != "" || p.PathStates[1].Failures != 1 {
		t.Errorf("without streams: %+v", p.PathStates)
	}
	if got := h.metric("ironwarp_path_failures_total"); got != "[127.0.0.1 beta: 1] [127.0.0.3 beta: 1]" {
		t.Errorf("failures in the metrics: %s", got)
	}
	if got := h.metric("ironwarp_path_reachable"); got != "" {
		t.Errorf("without streams nothing is known of the paths, but the metrics say %s", got)
	}
	if n := strings.Count(h.log.String(), "a path of SCTP does not answer"); n != 2 {
		t.Errorf("%d failures in the log, want 2", n)
	}
}

// TestEachAddressOfAPeerIsGuardedAndAuthenticatedAlike holds what the IPsec
// manager is told of a peer with several addresses and several carriers.
func TestEachAddressOfAPeerIsGuardedAndAuthenticatedAlike(t *testing.T) {
	addr := netip.MustParseAddr
	local := addr("192.0.2.1")
	c := config.Peer{Name: "beta", Address: addr("192.0.2.2"), LocalAddress: local, Port: 7471, Transport: config.TransportSCTP,
		Multihoming: []config.Addresses{{Address: addr("198.51.100.2"), LocalAddress: addr("198.51.100.1")}}}
	one, two := ipsecPeer(c, c.Pairs()[0], local, credentials{}), ipsecPeer(c, c.Pairs()[1], local, credentials{})
	if one.Name != "beta" || one.Local != local || one.Remote != c.Address || one.LocalID != "" || one.RemoteID != "" {
		t.Errorf("the first path: %+v", one)
	}
	if two.Name != "beta.path2" || two.Local != addr("198.51.100.1") || two.Remote != addr("198.51.100.2") || two.LocalID != "192.0.2.1" || two.RemoteID != "192.0.2.2" {
		t.Errorf("the second path: %+v", two)
	}
	spec := func(a string, p transport.Protocol, port uint16) guard.Spec {
		return guard.Spec{Remote: addr(a), Protocol: p, Port: port}
	}
	if got, want := guardsOf(c), []guard.Spec{spec("192.0.2.2", transport.ProtoSCTP, 7471), spec("198.51.100.2", transport.ProtoSCTP, 7471)}; !reflect.DeepEqual(got, want) {
		t.Errorf("guards %v, want %v", got, want)
	}
	c.Transport, c.UDPPort, c.Multihoming = config.TransportAuto, 9899, nil
	want := []guard.Spec{spec("192.0.2.2", transport.ProtoTCP, 7471), spec("192.0.2.2", transport.ProtoSCTP, 7471), spec("192.0.2.2", transport.ProtoUDP, 9899)}
	if got := guardsOf(c); !reflect.DeepEqual(got, want) {
		t.Errorf("guards %v, want %v", got, want)
	}
	if links := ipsecPeer(c, c.Pairs()[0], local, credentials{}).Links; len(links) != 3 || links[0] != (pad.Link{Protocol: transport.ProtoTCP, Port: 7471}) {
		t.Errorf("links %v: the first one is brought up at once, and auto asks over it", links)
	}
}

// metric is what a metric says now: the values of its labels, and its own.
func (h *host) metric(name string) string {
	h.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(metrics.Collector(h.t.Context(), h.d))
	families, err := reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out = append(out, fmt.Sprintf("[%s: %g]", strings.Join(labels, " "), m.GetCounter().GetValue()+m.GetGauge().GetValue()))
		}
	}
	return strings.Join(out, " ")
}
