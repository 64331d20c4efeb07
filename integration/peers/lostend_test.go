package peers

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
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
	s.losesTheEnd("tcp", "auto")
}

// TestDiskLeavesATransportAlthoughTheEndOfItsStreamsWasLost is the same with a peer that has their transport no more:
// it refuses the SA that they wait for, for ever.
func TestDiskLeavesATransportAlthoughTheEndOfItsStreamsWasLost(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", "auto"); err != nil {
		t.Fatal(err)
	}
	s.drop(s.beta, transport.ProtoTCP, config.DefaultPort, &expr.Limit{Type: expr.LimitTypePktBytes, Rate: 512 << 10, Unit: expr.LimitTimeSecond, Burst: 32 << 10, Over: true})
	s.attach()
	s.losesTheEnd("sctp-udp", "tcp")
	if c := s.peer(s.alpha, "beta").Carrier; c.Transport != "tcp" || !strings.Contains(c.Why, "no sctp-udp: beta has none for this host") {
		t.Errorf("carrier %+v", c)
	}
	if log := s.alpha.LogTail(1 << 20); !strings.Contains(log, "peer beta has no sctp-udp for this host any more") {
		t.Error("the log does not say why the streams have ended")
	}
}

// losesTheEnd has beta change its transport, which ends the streams of alpha's disk, and alpha hear nothing of their
// end. It waits for others.
func (s *scene) losesTheEnd(from, to string) {
	s.t.Helper()
	// streams are those of the disk once it is ready.
	streams := func() (ids []string) {
		st, err := s.alpha.Client().Status(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, x := range st.Streams {
			if x.Service == "attachments" && st.Attachments[0].State == api.AttachReady {
				ids = append(ids, x.ID)
			}
		}
		return ids
	}
	carrier, port := transport.ProtoTCP, config.DefaultPort
	if from == "sctp-udp" {
		carrier, port = transport.ProtoUDP, config.DefaultUDPPort
	}
	var before []string
	s.until("the disk is ready over "+from, func() bool {
		before = streams()
		st, err := s.alpha.Client().Status(s.t.Context())
		return len(before) > 0 && err == nil && on(st.Streams, from)
	})
	lost, mend := s.drop(s.beta, carrier, uint16(port))
	s.edit(s.beta, "alpha", "transport: "+to+"\n", "transport: auto\n", "")
	s.must(s.beta, "reload")
	s.until("the word of the streams' end is lost", func() bool { return lost() > 0 })
	mend()
	s.until("the disk has other streams", func() bool {
		now := streams()
		return len(now) > 0 && !slices.ContainsFunc(now, func(id string) bool { return slices.Contains(before, id) })
	})
}

// drop drops what a host sends from a port of a protocol, if it also fits when, until mend is called; lost returns the number of
// packets.
func (s *scene) drop(n *node.Node, of transport.Protocol, port uint16, when ...expr.Any) (lost func() uint64, mend func()) {
	s.t.Helper()
	table := &nftables.Table{Name: fmt.Sprintf("no-%d-of-%d", of, port), Family: nftables.TableFamilyINet}
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
	in(func(c *nftables.Conn) error {
		c.AddTable(table)
		c.AddChain(chain)
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat([]expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(of)}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		}, when, []expr.Any{
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		})})
		return nil
	})
	lost = func() (count uint64) {
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
			return err
		})
		return count
	}
	return lost, func() {
		s.t.Helper()
		in(func(c *nftables.Conn) error {
			c.DelTable(table)
			return nil
		})
	}
}
