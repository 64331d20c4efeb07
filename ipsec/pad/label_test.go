package pad_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

const secret = "system_u:object_r:rdma_secret_t"

// partitioned is a peer with a link of partition lab at each protocol's port 7480, and a block of programs of it.
func partitioned(label string) pad.Peer {
	p := padtest.Linked(padtest.TCP)
	p.Blocks = []pad.Link{
		{Protocol: transport.ProtoTCP, Port: 7480, Name: "lab", Label: label}, {Protocol: transport.ProtoUDP, Port: 7480, Name: "lab", Label: label},
		{Protocol: transport.ProtoTCP, Port: 18432, Size: 16, Label: label}, {Protocol: transport.ProtoTCP, Port: 3261, Label: label, Standing: true},
	}
	return p
}

func TestLinksOfAPartitionHaveItsNameAndLabel(t *testing.T) {
	p, err := partitioned(secret).WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.ChildSAs() {
		got = append(got, s.Name+" "+s.Link.Label)
	}
	want := []string{"beta-out ", "beta-in ", "beta-out-lab " + secret, "beta-in-lab " + secret, "beta-out-lab-udp " + secret, "beta-in-lab-udp " + secret,
		"beta-out-tcp18432 " + secret, "beta-in-tcp18432 " + secret, "beta-out-tcp3261 " + secret, "beta-in-tcp3261 " + secret}
	if !slices.Equal(got, want) {
		t.Errorf("children\n%q, want\n%q", got, want)
	}
	if k := p.AllLinks()[4]; !p.Stands(k) {
		t.Errorf("%v does not stand", k)
	}
}

func TestNamesAndLabelsOfLinksAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name, label, words string // "": they are fine
	}{
		{"lab", secret, ""},
		{"L_2", "user_u:role_r:type_t:s0-s0:c0.c1023", ""},
		{"tcpx", secret, ""},
		{"tcp", secret, "no name of a partition"},
		{"udp", secret, "no name of a partition"},
		{"tcp18432", secret, "no name of a partition"}, // whose children would be those of a block's
		{"0", secret, "no name of a partition"},        // or of the first of several
		{"a-b", secret, "no name of a partition"},
		{strings.Repeat("a", 32), secret, "no name of a partition"},
		{"lab", "a b", "printable"},
		{"lab", "a\x00b", "printable"},
		{"lab", strings.Repeat("a", pad.MaxLabel+1), "are possible"},
	} {
		p := padtest.Linked(padtest.TCP)
		p.Blocks = []pad.Link{{Protocol: transport.ProtoTCP, Port: 7480, Name: tc.name, Label: tc.label}}
		_, err := p.WithDefaults()
		if (err == nil) != (tc.words == "") || err != nil && !strings.Contains(err.Error(), tc.words) {
			t.Errorf("name %q, label %q: error %v, want one with %q", tc.name, tc.label, err, tc.words)
		}
	}
	p := partitioned(secret)
	p.Profile = padtest.Profile(t, "rfc3723")
	p.Blocks = p.Blocks[:1]
	if _, err := p.WithDefaults(); !errors.Is(err, pad.ErrLabelIKEv1) {
		t.Errorf("a label with IKEv1: %v", err)
	}
	p.Blocks[0].Label = ""
	if _, err := p.WithDefaults(); err != nil {
		t.Errorf("a partition without a label, with IKEv1: %v", err)
	}
}

// TestFlowIsCarriedByAChildOfItsLinksLabelOnly: with another label, without one, and with one that the link
// does not have.
func TestFlowIsCarriedByAChildOfItsLinksLabelOnly(t *testing.T) {
	for _, tc := range []struct {
		want, have string
		words      string // "": it is carried
	}{
		{"", "", ""},
		{secret, secret, ""},
		{secret, "", "no label"},
		{"", secret, "no label"},
		{secret, secret + "x", secret + "x"},
		{secret, secret[1:], secret[1:]},
		{secret, "\x1b[2J", "�[2J"},
	} {
		p, err := partitioned(tc.want).WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		own := p.ChildSAs()[2]
		f := padtest.FlowTo(p)
		f.Remote = netip.AddrPortFrom(p.Remote, 7480)
		child := charon.Child{Name: own.Name, State: charon.StateInstalled, LocalTS: []charon.Selector{own.Local}, RemoteTS: []charon.Selector{own.Remote}, Label: tc.have}
		sas := []charon.SA{{Peer: p.Name, State: "ESTABLISHED", LocalHost: p.Local, RemoteHost: p.Remote, RemoteID: p.RemoteID, Children: []charon.Child{child}}}
		_, got, err := p.Carrier(own.Name, f, sas)
		if (err == nil) != (tc.words == "") || err == nil && got == nil || err != nil && (!errors.Is(err, pad.ErrLabel) || !strings.Contains(err.Error(), tc.words)) {
			t.Errorf("the link has label %q, the child %q: %v", tc.want, tc.have, err)
		}
		if tc.words != "" {
			// The right one beside it, as while the other is being ended.
			good := child
			good.Label, good.UniqueID = tc.want, 7
			sas[0].Children = append(sas[0].Children, good)
			if _, got, err := p.Carrier(own.Name, f, sas); err != nil || got.UniqueID != 7 {
				t.Errorf("the link has label %q, and a child of label %q stands beside its own: %v", tc.want, tc.have, err)
			}
		}
	}
}
