package attack

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/transport"
)

// partitionAttack is what somebody tries who has no right to a partition.
type partitionAttack struct {
	name  string
	check checks.Check
	try   func(*testing.T) (succeeded bool)
}

func runPartition(t *testing.T, attacks ...partitionAttack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			switch succeeded := a.try(t); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// A peer brings an SA of another label, or of none, to the port of a partition (P4).
func TestSAOfAnotherLabel(t *testing.T) {
	const label = "system_u:object_r:rdma_secret_t"
	with := func(have string) func(*testing.T) bool {
		return func(t *testing.T) bool {
			p := padtest.Linked(padtest.TCP)
			p.Blocks = []pad.Link{{Protocol: transport.ProtoTCP, Port: 7480, Name: "lab", Label: label}}
			p, err := p.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			in := p.ChildSAs()[3]
			f := transport.Flow{Protocol: transport.ProtoTCP, Local: netip.AddrPortFrom(p.Local, 7480), Remote: netip.AddrPortFrom(p.Remote, 40000)}
			child := charon.Child{Name: in.Name, State: charon.StateInstalled, LocalTS: []charon.Selector{in.Local}, RemoteTS: []charon.Selector{in.Remote}, Label: have}
			_, _, err = p.Carrier(in.Name, f, []charon.SA{{Peer: p.Name, State: "ESTABLISHED", LocalHost: p.Local, RemoteHost: p.Remote, RemoteID: p.RemoteID, Children: []charon.Child{child}}})
			return err == nil
		}
	}
	runPartition(t,
		partitionAttack{"of another label", checks.LabelOfSA, with("system_u:object_r:rdma_public_t")},
		partitionAttack{"without a label", checks.LabelOfSA, with("")},
		partitionAttack{"of a label that begins like it", checks.LabelOfSA, with(label + "\x00")},
	)
}
