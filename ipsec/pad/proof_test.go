package pad_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

// TestGatewayIsAcceptedWhereItIsConfigured: RFC 5042 5.4.5 warns of ESP that ends
// before the peer; only who asks for one gateway gets that one.
func TestGatewayIsAcceptedWhereItIsConfigured(t *testing.T) {
	p := padtest.Peer("beta", 2)
	p.Gateway = netip.MustParseAddr("203.0.113.1")
	for _, tc := range []struct {
		host string
		want error
	}{{"203.0.113.1", nil}, {p.Remote.String(), nil}, {"203.0.113.2", pad.ErrGateway}} {
		sa := charon.SA{Peer: "beta", State: "ESTABLISHED", LocalHost: p.Local, RemoteHost: netip.MustParseAddr(tc.host), LocalID: "here", RemoteID: "beta",
			Children: []charon.Child{{Name: "beta-out", State: "INSTALLED",
				LocalTS: mustSelectors("192.0.2.1/32[tcp]"), RemoteTS: mustSelectors("198.51.100.2/32[tcp/7471]")}}}
		if _, _, err := p.Carrier("beta-out", padtest.FlowTo(p), []charon.SA{sa}); !errors.Is(err, tc.want) {
			t.Errorf("ESP that ends at %s: %v, want %v", tc.host, err, tc.want)
		}
		p2 := p
		p2.Gateway = netip.Addr{}
		if _, _, err := p2.Carrier("beta-out", padtest.FlowTo(p), []charon.SA{sa}); (err == nil) != (tc.host == p.Remote.String()) {
			t.Errorf("ESP that ends at %s, without a gateway: %v", tc.host, err)
		}
	}
}

func TestFlowIsJudgedByTheSAThatCoversIt(t *testing.T) {
	p := padtest.Peer("beta", 2)
	good := func() charon.SA {
		return charon.SA{Peer: "beta", State: "ESTABLISHED", LocalHost: p.Local, RemoteHost: p.Remote, LocalID: "here", RemoteID: "beta",
			Children: []charon.Child{{Name: "beta-out", State: "INSTALLED",
				LocalTS: mustSelectors("192.0.2.1/32[tcp]"), RemoteTS: mustSelectors("198.51.100.2/32[tcp/7471]")}}}
	}
	other := good()
	other.Peer, other.RemoteID = "vpn", "gateway"
	other.Children[0].LocalTS, other.Children[0].RemoteTS = mustSelectors("0.0.0.0/0"), mustSelectors("0.0.0.0/0")
	for _, tc := range []struct {
		name   string
		change func(*charon.SA, *transport.Flow)
		more   []charon.SA
		want   error
	}{
		{"all is well", nil, nil, nil},
		{"the identity is written otherwise", func(s *charon.SA, _ *transport.Flow) { s.RemoteID = "BETA" }, nil, nil},
		{"while the IKE SA is rekeyed", func(s *charon.SA, _ *transport.Flow) { s.State = "REKEYING" }, nil, nil},
		{"another connection has other traffic", nil, []charon.SA{{Peer: "vpn", State: "ESTABLISHED", Children: []charon.Child{{Name: "net", State: "INSTALLED",
			LocalTS: mustSelectors("10.0.0.0/8"), RemoteTS: mustSelectors("10.0.0.0/8")}}}}, nil},
		{"child not installed yet", func(s *charon.SA, _ *transport.Flow) { s.Children[0].State = "CREATED" }, nil, pad.ErrNotCovered},
		{"child being deleted", func(s *charon.SA, _ *transport.Flow) { s.Children[0].State = "DELETING" }, nil, pad.ErrNotCovered},
		{"while the child is rekeyed", func(s *charon.SA, _ *transport.Flow) { s.Children[0].State = "REKEYING" }, nil, nil},
		{"child of a rekeyed past", func(s *charon.SA, _ *transport.Flow) { s.Children[0].State = "REKEYED" }, nil, pad.ErrNotCovered},
		{"no child", func(s *charon.SA, _ *transport.Flow) { s.Children = nil }, nil, pad.ErrNotCovered},
		{"IKE SA not authenticated", func(s *charon.SA, _ *transport.Flow) { s.State = "CONNECTING" }, nil, pad.ErrNotCovered},
		{"IKE SA being deleted", func(s *charon.SA, _ *transport.Flow) { s.State = "DELETING" }, nil, pad.ErrNotCovered},
		{"another port", func(_ *charon.SA, f *transport.Flow) { f.Remote = netip.AddrPortFrom(p.Remote, 7472) }, nil, pad.ErrNotCovered},
		{"another protocol", func(_ *charon.SA, f *transport.Flow) { f.Protocol = transport.ProtoSCTP }, nil, pad.ErrNotCovered},
		{"another local address", func(_ *charon.SA, f *transport.Flow) { f.Local = netip.MustParseAddrPort("192.0.2.9:40000") }, nil, pad.ErrNotCovered},
		{"selectors too narrow", func(s *charon.SA, _ *transport.Flow) { s.Children[0].LocalTS = mustSelectors("192.0.2.1/32[tcp/1]") }, nil, pad.ErrNotCovered},
		{"selectors not understood", func(s *charon.SA, _ *transport.Flow) { s.Children[0].RemoteTS = nil }, nil, pad.ErrNotCovered},
		{"another child of the same peer", func(s *charon.SA, _ *transport.Flow) { s.Children[0].Name = "beta-in" }, nil, pad.ErrNotCovered},
		{"another identity", func(s *charon.SA, _ *transport.Flow) { s.RemoteID = "mallory" }, nil, pad.ErrWrongIdentity},
		{"an address as identity", func(s *charon.SA, _ *transport.Flow) { s.RemoteID = "198.51.100.2" }, nil, pad.ErrWrongIdentity},
		{"ESP ends at a gateway", func(s *charon.SA, _ *transport.Flow) { s.RemoteHost = netip.MustParseAddr("203.0.113.1") }, nil, pad.ErrGateway},
		{"ESP ends at a gateway of ours", func(s *charon.SA, _ *transport.Flow) { s.LocalHost = netip.MustParseAddr("203.0.113.1") }, nil, pad.ErrGateway},
		{"another connection covers the flow as well", nil, []charon.SA{other}, pad.ErrWrongIdentity},
	} {
		sa, f := good(), padtest.FlowTo(p)
		if tc.change != nil {
			tc.change(&sa, &f)
		}
		_, _, err := p.Carrier("beta-out", f, append([]charon.SA{sa}, tc.more...))
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
}

func mustSelectors(texts ...string) (out []charon.Selector) {
	for _, s := range texts {
		sel, err := charon.ParseSelector(s)
		if err != nil {
			panic(err)
		}
		out = append(out, sel)
	}
	return out
}
