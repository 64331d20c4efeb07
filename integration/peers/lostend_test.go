package peers

import (
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestDiskComesBackAlthoughTheEndOfItsStreamsWasLost makes the exporting host end the
// streams of an unused disk, by a reload, while the other host gets no packet of that.
// This happens in practice where the SA goes before what was sent under it has left.
func TestDiskComesBackAlthoughTheEndOfItsStreamsWasLost(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	s.attach()
	// streams are those of the disk once it is ready.
	streams := func() (ids []string) {
		st, err := s.alpha.Client().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range st.Streams {
			if x.Service == "attachments" && st.Attachments[0].State == api.AttachReady {
				ids = append(ids, x.ID)
			}
		}
		return ids
	}
	var before []string
	s.until("the disk is ready", func() bool { before = streams(); return len(before) > 0 })
	lost := s.loseTCP(s.beta)
	s.edit(s.beta, "alpha", "transport: auto\n")
	s.must(s.beta, "reload")
	if lost() == 0 {
		t.Error("nothing was lost: this proves nothing")
	}
	s.until("the disk has other streams", func() bool {
		now := streams()
		return len(now) > 0 && !slices.ContainsFunc(now, func(id string) bool { return slices.Contains(before, id) })
	})
}

// loseTCP drops what a host sends by TCP until the returned function is called, which
// returns the number of packets.
func (s *scene) loseTCP(n *node.Node) (lost func() uint64) {
	s.t.Helper()
	table := &nftables.Table{Name: "no-tcp", Family: nftables.TableFamilyINet}
	chain := &nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter}
	in := func(do func(c *nftables.Conn) error) {
		s.t.Helper()
		if err := n.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			if err := do(c); err != nil {
				return err
			}
			return c.Flush()
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	const tcp = 6
	in(func(c *nftables.Conn) error {
		c.AddTable(table)
		c.AddChain(chain)
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{tcp}},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		return nil
	})
	return func() (count uint64) {
		s.t.Helper()
		in(func(c *nftables.Conn) error {
			rules, err := c.GetRules(table, chain)
			for _, r := range rules {
				for _, e := range r.Exprs {
					if k, ok := e.(*expr.Counter); ok {
						count += k.Packets
					}
				}
			}
			c.DelTable(table)
			return err
		})
		return count
	}
}
