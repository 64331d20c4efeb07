package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	hpcLabel    = "system_u:system_r:hpc_t"
	viewerLabel = "system_u:system_r:viewer_t"
)

// labPolicy lets types into partition lab.
func labPolicy(allowed ...string) string {
	text := "module lab 1.0;\nrequire { class rdma_partition { modify }; }\ntype hpc_t;\ntype viewer_t;\ntype lab_part_t;\n"
	for _, a := range allowed {
		text += "allow " + a + " lab_part_t : rdma_partition { modify };\n"
	}
	return text + "#partcon 0x0012 system_u:object_r:lab_part_t\n"
}

// labPair is two hosts, each a full member of partition lab and a limited one of partition thin, over a transport. Beta offers
// docs in the partition, and plain in none.
func labPair(t *testing.T, how string) (alpha, beta *host) {
	t.Helper()
	port, thin := iwarptest.FreePort(t), iwarptest.FreePort(t)
	more := fmt.Sprintf(`labels: {policy: lab.te, engine: policy}
partitions:
  - {name: lab, pkey: 0x0012, port: %d, members: {127.0.0.2: full, 127.0.0.3: full}}
  - {name: thin, pkey: 0x0013, label: 'system_u:object_r:lab_part_t', port: %d, members: {127.0.0.2: limited, 127.0.0.3: limited}}
services: {exports: {label: %q}, attachments: {label: %[3]q}}
`, port, thin, hpcLabel)
	alpha, beta = &host{t: t}, &host{t: t}
	for _, h := range []*host{alpha, beta} {
		h.before = func() { h.write("lab.te", labPolicy("hpc_t")) }
		h.begin(more)
	}
	for _, x := range []struct {
		on, other          *host
		name, mine, theirs string
	}{{beta, alpha, "alpha", "127.0.0.3", "127.0.0.2"}, {alpha, beta, "beta", "127.0.0.2", "127.0.0.3"}} {
		x.on.write("peers.d/"+x.name+".yaml", fmt.Sprintf("name: %s\naddress: %s\nlocal_address: %s\nport: %d\nprotection: loopback\n%s", x.name, x.theirs, x.mine, x.other.port, over(how, x.other)))
		if _, err := x.on.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	beta.offer(api.ExportSpec{Name: "docs", Path: beta.image("docs.img", 1<<20), Partition: "lab"})
	beta.offer(api.ExportSpec{Name: "plain", Path: beta.image("plain.img", 1<<20)})
	return alpha, beta
}

// attachIn attaches a disk of beta's in a partition.
func (h *host) attachIn(partition, disk string) error {
	_, err := h.api.Attach(h.t.Context(), api.AttachRequest{Peer: "beta", Export: disk, Partition: partition, TimeoutSeconds: 20}, nil)
	return err
}

// offersIn are the names of what beta offers in a partition.
func (h *host) offersIn(partition string) (names []string) {
	h.t.Helper()
	list, err := h.api.OffersIn(h.t.Context(), "beta", partition)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, o := range list {
		names = append(names, o.Name)
	}
	return names
}

// partition describes a partition.
func (h *host) partition(name string) api.Partition {
	h.t.Helper()
	all, err := h.api.Partitions(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(p api.Partition) bool { return p.Name == name })
	if i < 0 {
		h.t.Fatalf("no partition %s: %+v", name, all)
	}
	return all[i]
}

// TestDiskOfAPartitionIsAttachedThere: an export is offered in its partition alone, on that partition's port, with its
// label, over each transport; the attachment comes back in the partition when the daemon is started again.
func TestDiskOfAPartitionIsAttachedThere(t *testing.T) {
	for _, how := range []string{"tcp", "sctp-udp"} {
		t.Run(how, func(t *testing.T) {
			alpha, beta := labPair(t, how)
			if got := alpha.offersIn("lab"); !slices.Equal(got, []string{"docs"}) {
				t.Errorf("offered in the partition: %q", got)
			}
			if got := alpha.offersIn(""); !slices.Equal(got, []string{"plain"}) {
				t.Errorf("offered in none: %q", got)
			}
			says(t, alpha.attachIn("", "docs"), api.CodeNotFound, "docs")
			says(t, alpha.attachIn("lab", "plain"), api.CodeNotFound, "plain")
			says(t, alpha.attachIn("thin", "docs"), api.CodeForbidden, "no link of partition thin", "partition show thin")
			says(t, alpha.attachIn("none", "docs"), api.CodeNotFound, "no partition")
			for disk, partition := range map[string]string{"docs": "lab", "plain": ""} {
				if err := alpha.attachIn(partition, disk); err != nil {
					t.Fatal(err)
				}
			}
			says(t, alpha.attachIn("lab", "plain"), api.CodeInUse, "in no partition")
			want := bytes.Repeat([]byte{7}, 4096)
			ok(t, alpha.nbd("docs"), cmdWrite, 8192, 4096, want)
			port := fmt.Sprintf(":%d", alpha.partition("lab").Port)
			check := func(when string) {
				t.Helper()
				if got := ok(t, alpha.nbd("docs"), cmdRead, 8192, 4096, nil); !bytes.Equal(got, want) {
					t.Errorf("%s: read %x", when, got[:8])
				}
				for _, h := range []*host{alpha, beta} {
					// Those of the daemon before may end between the two.
					eventually(t, when+": as many streams of the partition are counted as there are", func() bool {
						n := 0
						for _, s := range h.status().Streams {
							in := strings.Contains(s.Flow, "127.0.0.3"+port)
							if in != (s.Partition == "lab") || in && s.Label != hpcLabel || !in && s.Label != "" {
								t.Errorf("%s: stream %s: partition %q, label %q", when, s.Flow, s.Partition, s.Label)
							}
							if in {
								n++
							}
						}
						return n > 0 && h.partition("lab").Streams == n
					})
				}
			}
			check("attached")
			alpha.stop()
			alpha.start()
			eventually(t, "the disk is there again", func() bool {
				return slices.ContainsFunc(alpha.status().Attachments, func(a api.Attachment) bool {
					return a.Export == "docs" && a.State == api.AttachReady && a.Partition == "lab"
				})
			})
			check("after a restart")
		})
	}
}

// TestChangedPolicyEndsStreamsOfThePartition: under I/O the policy changes, and the daemon reads it again. The streams of the
// partition end, at whichever host it changes, with an event and the reason; those of none go on. When it is
// changed back the disk goes on.
func TestChangedPolicyEndsStreamsOfThePartition(t *testing.T) {
	for _, where := range []string{"alpha", "beta"} {
		t.Run(where, func(t *testing.T) {
			alpha, beta := labPair(t, "tcp")
			for disk, partition := range map[string]string{"docs": "lab", "plain": ""} {
				if err := alpha.attachIn(partition, disk); err != nil {
					t.Fatal(err)
				}
			}
			docs, plain := alpha.nbd("docs"), alpha.nbd("plain")
			ok(t, docs, cmdWrite, 0, 4096, make([]byte, 4096))
			h := map[string]*host{"alpha": alpha, "beta": beta}[where]
			h.write("lab.te", labPolicy("viewer_t"))
			if _, err := h.api.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "no stream of the partition is listed", func() bool {
				return !slices.ContainsFunc(h.status().Streams, func(s api.Stream) bool { return s.Partition != "" })
			})
			if !slices.ContainsFunc(h.resources().Events, func(e api.EventCount) bool { return e.Kind == verbs.EventPartition.String() && e.Count > 0 }) {
				eventually(t, "the event is counted", func() bool {
					return slices.ContainsFunc(h.resources().Events, func(e api.EventCount) bool { return e.Kind == verbs.EventPartition.String() && e.Count > 0 })
				})
			}
			ok(t, plain, cmdWrite, 0, 4096, make([]byte, 4096))
			if where == "alpha" {
				says(t, alpha.attachIn("lab", "more"), api.CodeForbidden, hpcLabel, "lab", "lab.te")
			}
			u := h.partition("lab").Users
			if where == "beta" && (len(u) != 1 || u[0].Name != "docs" || !strings.Contains(u[0].Denied, hpcLabel) || u[0].Permitted) {
				t.Errorf("who is of it: %+v", u)
			}
			h.write("lab.te", labPolicy("hpc_t"))
			if _, err := h.api.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			ok(t, docs, cmdWrite, 4096, 4096, make([]byte, 4096)) // it has waited
		})
	}
}

// TestPeerShowsItsPartitions: those with a link, and those without, and why.
func TestPeerShowsItsPartitions(t *testing.T) {
	alpha, _ := labPair(t, "tcp")
	got := alpha.peer("beta").Partitions
	if len(got) != 2 || got[0].Name != "lab" || got[0].State != api.PartitionReady || got[0].PKey != "0x0012" || got[0].Problem != nil ||
		got[1].Name != "thin" || got[1].State != api.PartitionApart || got[1].Problem == nil || !strings.Contains(got[1].Problem.Message, "this host is a limited member there, and the peer a limited member") {
		t.Errorf("%+v", got)
	}
	if !slices.ContainsFunc(alpha.status().Listeners, func(l api.Listener) bool { return l.Partition == "lab" && l.State == "listening" }) ||
		slices.ContainsFunc(alpha.status().Listeners, func(l api.Listener) bool { return l.Partition == "thin" }) {
		t.Errorf("listeners: %+v", alpha.status().Listeners)
	}
}

// TestFaultOfAPolicyChangesNothing: a reload says where it is, and the policy of before stays in force.
func TestFaultOfAPolicyChangesNothing(t *testing.T) {
	alpha, _ := labPair(t, "tcp")
	if err := alpha.attachIn("lab", "docs"); err != nil {
		t.Fatal(err)
	}
	alpha.write("lab.te", labPolicy("nobody_t"))
	_, err := alpha.api.Reload(t.Context())
	says(t, err, api.CodeInvalid, filepath.Join(alpha.dir, "lab.te")+":6:")
	ok(t, alpha.nbd("docs"), cmdWrite, 0, 4096, make([]byte, 4096))
	if err := os.Remove(filepath.Join(alpha.dir, "lab.te")); err != nil {
		t.Fatal(err)
	}
	_, err = alpha.api.Reload(t.Context())
	says(t, err, api.CodeInvalid, "cannot be read")
}

// labHost is a host with partition lab, of which peer alpha on loopback is a member, and a port for targets.
func labHost(t *testing.T, more string) (h *host, iscsi uint16) {
	t.Helper()
	h, iscsi = &host{t: t}, iwarptest.FreePort(t)
	h.before = func() { h.write("lab.te", labPolicy("hpc_t")) }
	h.begin(fmt.Sprintf(`labels: {policy: lab.te, engine: policy, default: %q}
peers: [{name: alpha, address: 127.0.0.1, port: 1, protection: loopback}]
partitions: [{name: lab, pkey: 0x0012, port: %d, iscsi_port: %d, membership: full, members: {127.0.0.1: full}}]
%s`, hpcLabel, iwarptest.FreePort(t), iscsi, more))
	return h, iscsi
}

// policy puts another policy in force.
func (h *host) policy(allowed ...string) {
	h.t.Helper()
	h.write("lab.te", labPolicy(allowed...))
	if _, err := h.api.Reload(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// TestTargetOfAPartition: its portals are at the partition's port; sessions end, and the portals close, when the policy does not
// allow its label any more.
func TestTargetOfAPartition(t *testing.T) {
	h, port := labHost(t, "")
	if _, err := h.api.AddTarget(t.Context(), api.TargetSpec{Name: "disks", IQN: diskIQN, Peers: []string{"alpha"}, Partition: "lab", LUNs: []api.LUNSpec{{Path: h.image("lun.img", 1<<20)}}}); err != nil {
		t.Fatal(err)
	}
	if v := h.target(); v.Port != port || v.Partition != "lab" {
		t.Errorf("%+v", v)
	}
	x := mustLogin(t, port, "iqn.2026-01.org.example:initiator")
	h.policy("viewer_t")
	x.nc.SetReadDeadline(time.Now().Add(waitTime))
	var err error
	for err == nil { // it may be told of the end
		_, _, err = x.receive()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("its session goes on")
	}
	if _, st := login(t, port, "iqn.2026-01.org.example:initiator"); st == iscsi.LoginOK {
		t.Error("an initiator is let in")
	}
	h.policy("hpc_t")
	mustLogin(t, port, "iqn.2026-01.org.example:initiator")
}

// TestProgramsOfAPartition: streams at the ports of a ULP of a partition are made and listed with it, and end when the policy does not
// allow the ULP's label any more.
func TestProgramsOfAPartition(t *testing.T) {
	otheruser.Need(t)
	h, _ := labHost(t, fmt.Sprintf("ulps: [{name: alice, users: [%d], peers: [alpha], ports: [%d/16], partition: lab}]\n", alice, firstPort))
	if err := os.Chmod(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := h.program(alice)
	s := p.mustConnect(firstPort + 3)
	if !s.works() {
		t.Fatal("it carries nothing")
	}
	if list := h.status().Streams; len(list) != 1 || list[0].Partition != "lab" || list[0].Program == "" {
		t.Errorf("%+v", list)
	}
	h.policy("viewer_t")
	if !s.isOver() {
		t.Error("the stream goes on")
	}
	if _, err := p.connect(firstPort+3, false); !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("another stream: %v", err)
	}
	h.policy("hpc_t")
	p.mustConnect(firstPort + 3)
}

// lenient is a policy that enforces what it denies to all labels but one.
type lenient struct {
	policy.Decider
	label string
}

func (l lenient) Enforces(subject string) bool { return subject != l.label }

// One label that a policy is permissive for is a weakness, whoever has it.
func TestPolicyThatIsPermissiveForOneLabelIsReported(t *testing.T) {
	decider, err := policy.Parse("lab.te", []byte(labPolicy("hpc_t")))
	if err != nil {
		t.Fatal(err)
	}
	c := &config.Config{
		Partitions: []config.Partition{{}},
		Services:   map[string]config.Service{config.ServiceExports: {Label: "service"}},
		Exports:    []config.Export{{Label: "export"}},
		Targets:    []config.Target{{Label: "target"}},
		ULPs:       []config.ULP{{Label: "ulp"}},
	}
	for _, label := range []string{"default", "service", "export", "target", "ulp"} {
		now := &partition.Snapshot{Default: "default", Decider: lenient{decider, label}}
		if got := permissiveIn(c, now); !strings.HasSuffix(got, "for label "+label) {
			t.Errorf("permissive for %s: reported is %q", label, got)
		}
	}
	if got := permissiveIn(c, &partition.Snapshot{Default: "default", Decider: lenient{decider, "somebody else's"}}); got != "" {
		t.Errorf("reported is %q where no configured label is concerned", got)
	}
}
