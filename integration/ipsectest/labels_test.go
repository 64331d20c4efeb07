package ipsectest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// The link of a partition of these tests, and labels for it.
const (
	labPort     = 7480
	secretLabel = "system_u:object_r:rdma_secret_t"
	publicLabel = "system_u:object_r:rdma_public_t"
)

// labelled gives both hosts a link of partition lab, with these labels.
func (p *pair) labelled(t *testing.T, alpha, beta string) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		if err := h.m.AddPeer(t.Context(), p.labelledPeer(h, map[*host]string{p.alpha: alpha, p.beta: beta}[h])); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitCharon(t)
}

func (p *pair) labelledPeer(h *host, label string) pad.Peer {
	cfg := p.peerOf(h)
	cfg.Blocks = []pad.Link{{Protocol: transport.ProtoTCP, Port: labPort, Name: "lab", Label: label}}
	return cfg
}

// labelsOf are the labels of a host's installed children of a name.
func labelsOf(t *testing.T, h *host, child string) (labels []string) {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sa := range sas {
		for _, c := range sa.Children {
			if c.Name == child && c.IsInstalled() {
				labels = append(labels, c.Label)
			}
		}
	}
	return labels
}

// TestLabelIsNegotiatedAndStaysOverRekeys: each host's child for the partition's port has the label, before and
// after fresh keys, and the link beside it has none.
func TestLabelIsNegotiatedAndStaysOverRekeys(t *testing.T) {
	row(t, "a partition's link: its SAs have the partition's label, also after fresh keys, and that of the default link has none")
	p := newPair(t, lab.Config{})
	p.labelled(t, secretLabel, secretLabel)
	wire := capture(t, p.beta)
	for _, h := range []*host{p.alpha, p.beta} {
		o := p.other(h)
		o.echoAt(t, labPort, nil)
		c, err := h.dialAt(t, o, labPort, patience)
		if err != nil {
			t.Fatal(err)
		}
		if err := ping(c, "hello"); err != nil {
			t.Fatal(err)
		}
		child := o.Name() + "-out-lab"
		if got := labelsOf(t, h, child); len(got) != 1 || got[0] != secretLabel {
			t.Errorf("%s: labels of %s are %q", h.Name(), child, got)
		}
		before := idsOf(t, h, child)
		if n, err := h.m.Rekey(t.Context(), o.Name(), child); err != nil || n != 1 {
			t.Fatalf("%d children are rekeyed: %v", n, err)
		}
		eventually(t, "the child has fresh keys", func() bool {
			now := idsOf(t, h, child)
			return len(now) == 1 && now[0] != before[0]
		})
		if got := labelsOf(t, h, child); len(got) != 1 || got[0] != secretLabel {
			t.Errorf("%s: after fresh keys the labels of %s are %q", h.Name(), child, got)
		}
		if got := labelsOf(t, o, h.Name()+"-in-lab"); len(got) != 1 || got[0] != secretLabel {
			t.Errorf("%s: after fresh keys the labels of %s-in-lab are %q", o.Name(), h.Name(), got)
		}
		if err := ping(c, "hello again"); err != nil {
			t.Error(err)
		}
	}
	p.beta.echo(t, nil)
	c := p.alpha.mustDial(t, p.beta)
	if err := ping(c, "hello"); err != nil {
		t.Error(err)
	}
	if got := labelsOf(t, p.alpha, "beta-out"); len(got) != 1 || got[0] != "" {
		t.Errorf("labels of the default link: %q", got)
	}
	if k := counted(t, wire); k.Clear(labPort) != 0 || k.ESP == 0 {
		t.Errorf("on the wire: %v", k)
	}
}

// idsOf are the numbers of a host's settled children of a name.
func idsOf(t *testing.T, h *host, child string) (ids []uint32) {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sa := range sas {
		for _, c := range sa.Children {
			if c.Name == child && c.State == charon.StateInstalled {
				ids = append(ids, c.UniqueID)
			}
		}
	}
	return ids
}

// TestDifferentLabelsAreExplainedAndHurtNoOtherLink: with another label, or with one on one host only, neither
// host's stream of the partition has an SA, each says why, nothing of it is on the wire, and the default link goes on.
func TestDifferentLabelsAreExplainedAndHurtNoOtherLink(t *testing.T) {
	for _, tc := range []struct{ what, alpha, beta string }{
		{"different labels", secretLabel, publicLabel},
		{"one that is longer", secretLabel, secretLabel + "x"},
		{"a label on one host only", secretLabel, ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, lab.Config{})
			p.labelled(t, tc.alpha, tc.beta)
			p.beta.echo(t, nil)
			c := p.alpha.mustDial(t, p.beta)
			wire := capture(t, p.beta)
			for _, h := range []*host{p.alpha, p.beta} {
				o := p.other(h)
				o.echoAt(t, labPort, nil)
				_, err := h.dialAt(t, o, labPort, patience)
				if !errors.Is(err, negotiation.ErrTrafficSelectors) {
					t.Errorf("%s: %v", h.Name(), err)
					continue
				}
				words := map[*host]string{p.alpha: tc.alpha, p.beta: tc.beta}[h]
				if words == "" {
					words = "which has no label" // an SA of another link has ports in common
				}
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%s: %v\nhas no %q", h.Name(), err, words)
				}
				t.Log(h.Name(), err)
				st, err := h.m.PeerStatus(o.Name())
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range st.Lanes {
					if l.Child == o.Name()+"-out-lab" && (l.Err == nil || l.State == "up") || l.Child == o.Name()+"-out" && l.Err != nil {
						t.Errorf("%s: %+v", h.Name(), l)
					}
				}
				if st.Live == nil {
					t.Errorf("%s: the IKE SA is gone", h.Name())
				}
			}
			if err := ping(c, "the default link goes on"); err != nil {
				t.Error(err)
			}
			if k := counted(t, wire); k.Clear(labPort) != 0 {
				t.Errorf("on the wire: %v", k)
			}
		})
	}
}

// TestPortWithoutALabelIsRefused: somebody has loaded alpha's connection without the label into its
// strongSwan, so that beta, which has none, gets an SA for the partition's port. Alpha admits nothing by it, says
// which label is missing, and ends it.
func TestPortWithoutALabelIsRefused(t *testing.T) {
	p := newPair(t, lab.Config{})
	p.labelled(t, secretLabel, "")
	refused := make(chan error, 1)
	p.alpha.echoAt(t, labPort, func(err error) {
		select {
		case refused <- err:
		default:
		}
	})
	s, err := ike.Connect(t.Context(), p.alpha.ViciSocket(), esp.Auto, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	bare := p.labelledPeer(p.alpha, "")
	if bare, err = bare.WithDefaults(); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), &bare); err != nil {
		t.Fatal(err)
	}
	c, err := p.beta.dialAt(t, p.alpha, labPort, 10*time.Second)
	if err == nil {
		err = pingWithin(c, "hello", 5*time.Second)
	}
	if err == nil {
		t.Error("a stream without the partition's label got through")
	}
	t.Log("beta:", err)
	eventually(t, "alpha says which label is missing", func() bool {
		st, err := p.alpha.m.PeerStatus("beta")
		return err == nil && strings.Contains(st.LastError, `the peer has no label for tcp port 7480 of partition lab, and this host the label "`+secretLabel+`"`)
	})
	eventually(t, "alpha has ended the SA", func() bool { return installed(t, p.alpha, "beta-in-lab") == 0 })
	select {
	case err := <-refused:
		if !errors.Is(err, pad.ErrLabel) && !errors.Is(err, pad.ErrNotCovered) {
			t.Errorf("refused: %v", err)
		}
		t.Log(err)
	default: // the SA was ended before the SYN came
	}
}
