package attack

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
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

// A label that a policy keeps from partition lab, and one that it lets in.
const (
	hpcLabel    = "system_u:system_r:hpc_t"
	viewerLabel = "system_u:system_r:viewer_t"
	labLabel    = "system_u:object_r:lab_part_t"
)

// labPolicy lets some types into partition lab.
func labPolicy(t *testing.T, allowed ...string) policy.Decider {
	t.Helper()
	text := "module lab 1.0;\nrequire { class rdma_partition { modify }; }\ntype hpc_t;\ntype viewer_t;\ntype lab_part_t;\n"
	for _, a := range allowed {
		text += "allow " + a + " lab_part_t : rdma_partition { modify };\n"
	}
	p, err := policy.Parse("lab.te", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// labHost is a host with partition lab, of whose members it is one, and the peer on loopback too.
type labHost struct {
	*testing.T
	rules *partition.Published
	dev   *verbs.Device
	pd    *verbs.PD
	qp    verbs.QPConfig
}

func newLabHost(t *testing.T, label string, allowed ...string) *labHost {
	t.Helper()
	h := &labHost{T: t, rules: new(partition.Published)}
	h.publish(allowed...)
	var err error
	if h.dev, err = verbs.Open(verbs.Config{Partitions: h.rules}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.dev.Close() })
	u, err := h.dev.NewULP("service", verbs.ULPConfig{Trust: verbs.ST, Label: label})
	if err != nil {
		t.Fatal(err)
	}
	if h.pd, err = u.AllocPD(); err != nil {
		t.Fatal(err)
	}
	cq, err := u.CreateCQ(256, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.qp = verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 8, MaxRecv: 8, IRD: 1, ORD: 1, Partition: "lab"}
	return h
}

// publish puts a policy in force.
func (h *labHost) publish(allowed ...string) {
	h.Helper()
	h.rules.Publish(&partition.Snapshot{Table: partition.NewTable([]partition.Partition{{Name: "lab", PKey: 0x12, Label: labLabel, Port: 7480}}),
		Decider: labPolicy(h.T, allowed...), Links: func(string, string) bool { return true }})
}

// serve takes streams of the partition.
func (h *labHost) serve(label string) (*verbs.Listener, <-chan *verbs.ConnRequest) {
	h.Helper()
	ln, err := h.dev.Listen(h.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Partition: "lab", Label: func() string { return label },
		Transport: &transport.Config{Protector: transport.LoopbackOnly()}})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { ln.Close() })
	came := make(chan *verbs.ConnRequest, 1)
	go func() {
		defer close(came)
		for {
			cr, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			came <- cr
		}
	}()
	return ln, came
}

func (h *labHost) dial(to netip.AddrPort) (*verbs.QP, error) {
	return h.pd.Dial(h.Context(), verbs.DialConfig{QP: h.qp, Remote: to, Transport: &transport.Config{Protector: transport.LoopbackOnly()}})
}

// Queue pairs and requests of a label that the policy keeps from a partition (P1, P2).
func TestLabelThatMayNotUseAPartition(t *testing.T) {
	runPartition(t,
		partitionAttack{"makes a queue pair of it", checks.PartitionQP, func(t *testing.T) bool {
			h := newLabHost(t, viewerLabel, "hpc_t")
			_, err := h.pd.CreateQP(h.qp)
			return err == nil
		}},
		partitionAttack{"sends a packet in it", checks.PartitionDial, func(t *testing.T) bool {
			at, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer at.Close()
			h := newLabHost(t, viewerLabel, "hpc_t")
			if _, err := h.dial(at.Addr().(*net.TCPAddr).AddrPort()); err == nil {
				t.Fatal("nobody has answered")
			}
			mark, err := net.Dial("tcp4", at.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer mark.Close()
			c, err := at.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			return c.RemoteAddr().String() != mark.LocalAddr().String()
		}},
		partitionAttack{"is asked for a stream in it", checks.PartitionRequest, func(t *testing.T) bool {
			h := newLabHost(t, viewerLabel, "hpc_t")
			ln, came := h.serve(viewerLabel)
			ended := make(chan error, 1)
			o := newLabHost(t, hpcLabel, "hpc_t")
			go func() {
				_, err := o.dial(ln.Addr())
				ended <- err
			}()
			select {
			case cr := <-came: // it reaches the service, which answers
				_ = cr.Reject(t.Context(), nil)
				<-ended
				return true
			case <-ended:
				return false
			}
		}},
	)
}

// What was allowed when it began goes on when it is not any more (P5).
func TestQueuePairWhosePolicyHasChanged(t *testing.T) {
	runPartition(t, partitionAttack{"goes on", checks.PartitionChange, func(t *testing.T) bool {
		h, o := newLabHost(t, hpcLabel, "hpc_t"), newLabHost(t, hpcLabel, "hpc_t")
		ln, came := h.serve(hpcLabel)
		taken := make(chan *verbs.QP, 1)
		go func() {
			cr := <-came
			qp, err := cr.Accept(context.Background(), h.pd, verbs.AcceptConfig{QP: h.qp})
			if err != nil {
				t.Error(err)
			}
			taken <- qp
		}()
		if _, err := o.dial(ln.Addr()); err != nil {
			t.Fatal(err)
		}
		qp := <-taken
		h.publish("viewer_t")
		h.dev.CheckPartitions()
		return qp.State() == verbs.QPRTS
	}})
}

// Two limited members have a link with each other (P3).
func TestTwoLimitedMembers(t *testing.T) {
	runPartition(t, partitionAttack{"talk", checks.PartitionMember, func(*testing.T) bool {
		return partition.Links(partition.Limited, partition.Limited)
	}})
}

// A peer's session of no partition asks for an export of one (P6).
func TestExportOfAPartition(t *testing.T) {
	run(t, attack{"is opened in no partition", checks.ExportPartition, func(v *target) bool {
		srv := rnbd.NewServer(rnbd.ServerConfig{})
		v.Cleanup(func() { srv.Close() })
		if err := srv.AddExport(rnbd.Export{Name: "disk", Storage: newDisk(), AllowAll: true, Partition: "lab"}); err != nil {
			v.Fatal(err)
		}
		_, err := v.mount("host", v.serveRTRS(srv.NewSession), rnbd.OpenOptions{})
		return err == nil
	}})
}
