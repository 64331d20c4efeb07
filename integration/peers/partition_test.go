package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

const (
	partitionPort = 7480
	portalPort    = 7481 // of the partition's targets
	hpcLabel      = "system_u:system_r:hpc_t"
	labLabel      = "system_u:object_r:lab_part_t"
)

// labPolicy lets types into the partition of a label.
func labPolicy(allowed ...string) string {
	text := "module lab 1.0;\nrequire { class rdma_partition { modify }; }\ntype hpc_t;\ntype viewer_t;\ntype lab_part_t;\ntype other_part_t;\n"
	for _, a := range allowed {
		text += "allow " + a + " { lab_part_t other_part_t } : rdma_partition { modify };\n"
	}
	return text
}

// partitioned is two hosts with partition lab, each a member; label is that of the partition at a host, and members says which
// members it has there.
type partitioned struct {
	*scene
	plain map[*node.Node]string // what the configuration had before
	more  string                // of the partition's declaration
}

func newPartitioned(t *testing.T, transport string) *partitioned {
	t.Helper()
	s := partitionedWith(t, transport, "")
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "alpha", "--partition", "lab", "disk", image)
	return s
}

// partitionedWith is the hosts without beta's disk, and with more in the partition's declaration.
func partitionedWith(t *testing.T, transport, more string) *partitioned {
	t.Helper()
	s := &partitioned{newScene(t), map[*node.Node]string{}, more}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		s.plain[n] = n.More
		s.policy(n, "hpc_t")
		s.declare(n, labLabel, "full", "full")
	}
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		if transport != "tcp" {
			s.must(n, "peer", "set", "--transport", transport, s.other(n).Name())
		}
	}
	return s
}

func (s *partitioned) other(n *node.Node) *node.Node {
	if n == s.alpha {
		return s.beta
	}
	return s.alpha
}

// policy writes a host's policy.
func (s *partitioned) policy(n *node.Node, allowed ...string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(n.Config), "lab.te"), []byte(labPolicy(allowed...)), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// declare declares the partition at a host, with a label and memberships of alpha and beta, and reloads.
func (s *partitioned) declare(n *node.Node, label, alpha, beta string) {
	s.t.Helper()
	n.More = s.plain[n] + fmt.Sprintf(`labels: {policy: lab.te, engine: policy}
partitions:
  - {name: lab, pkey: 0x0012, label: %q, port: %d, membership: %s, members: {%s: %s, %s: %s}%s}
services: {exports: {label: %[9]q}, attachments: {label: %[9]q}, targets: {label: %[9]q}}
`, label, partitionPort, map[*node.Node]string{s.alpha: alpha, s.beta: beta}[n], s.alpha.Addr(), alpha, s.beta.Addr(), beta, s.more, hpcLabel)
	main := fmt.Sprintf("state_dir: %s/state\n%s", n.Dir(), n.More)
	if err := os.WriteFile(n.Config, []byte(main), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.must(n, "reload")
}

// lane is the SA of a host's child.
func (s *partitioned) lane(n *node.Node, child string) (api.SA, bool) {
	s.t.Helper()
	list, err := n.Client().SAs(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(a api.SA) bool { return a.Child == child && a.State == "INSTALLED" })
	if i < 0 {
		return api.SA{}, false
	}
	return list[i], true
}

// attachIn attaches beta's disk in the partition.
func (s *partitioned) attachIn() (socket string, err error) { return s.attachFrom(s.alpha) }

// attachFrom attaches the other host's disk in the partition.
func (s *partitioned) attachFrom(n *node.Node) (socket string, err error) {
	out, err := n.Ironwarp(s.t.Context(), nil, "attach", "--quiet", "--timeout", "20s", "--partition", "lab", s.other(n).Name()+"/disk")
	return strings.TrimSpace(string(out)), err
}

// mustAttachIn is attachIn once the partition has its SA, for which a busy machine may need longer than one attempt.
func (s *partitioned) mustAttachIn() (socket string) {
	s.t.Helper()
	s.until("it is attached in the partition", func() bool {
		var err error
		if socket, err = s.attachIn(); err != nil {
			s.t.Logf("not yet: %v", err)
		}
		return err == nil
	})
	return socket
}

// shows waits until `peer show` at a host has words.
func (s *partitioned) shows(n *node.Node, words ...string) {
	s.t.Helper()
	var out string
	s.until(fmt.Sprintf("%s shows %q", n.Name(), words), func() bool {
		out = s.must(n, "peer", "show", s.other(n).Name())
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(out, w) })
	})
	s.t.Logf("%s:\n%s", n.Name(), out)
}

// TestDiskOfAPartitionIsCarriedByItsLabelsSA over each transport: each host's SA for the partition's port has the label, before
// and after fresh keys; what is read by it is not on the wire; the port is guarded; and the commands show it.
func TestDiskOfAPartitionIsCarriedByItsLabelsSA(t *testing.T) {
	for _, over := range []string{"tcp", "sctp-udp"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			s := newPartitioned(t, over)
			wire, err := s.beta.Capture(t.Context(), lab.CaptureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			socket := s.mustAttachIn()
			s.readDisk(socket)
			child := map[string]string{"tcp": "-lab", "sctp-udp": "-lab-udp"}[over]
			check := func() {
				t.Helper()
				for _, n := range []*node.Node{s.alpha, s.beta} {
					name := s.other(n).Name() + map[bool]string{true: "-out", false: "-in"}[n == s.alpha] + child
					if sa, ok := s.lane(n, name); !ok || sa.Label != labLabel {
						t.Errorf("%s: SA %s: %v, label %q", n.Name(), name, ok, sa.Label)
					}
				}
			}
			check()
			before, _ := s.lane(s.alpha, "beta-out"+child)
			s.must(s.alpha, "sa", "rekey", "--child", "beta-out"+child, "beta")
			s.until("the SA has fresh keys", func() bool {
				now, ok := s.lane(s.alpha, "beta-out"+child)
				return ok && now.ChildID != before.ChildID
			})
			s.until("the peer has it", func() bool { _, ok := s.lane(s.beta, "alpha-in"+child); return ok })
			check()
			s.readDisk(socket)
			counts, err := wire.Stop()
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range wire.Faults() {
				t.Error(fault)
			}
			if counts.Clear(partitionPort) != 0 || counts.ESP == 0 {
				t.Errorf("on the wire: %v", counts)
			}
			have, err := guard.List(s.alpha.NetNS())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(have, func(p guard.Policy) bool { return p.PeerPort == partitionPort }) {
				t.Errorf("the partition's port is not guarded: %+v", have)
			}
			s.shows(s.alpha, "lab, pkey 0x0012, port 7480, here full, there full: up")
			for command, words := range map[string]string{"partition ls": labLabel, "partition show lab": "policy", "stream ls": "lab", "sa ls": labLabel, "status": "partition lab: pkey 0x0012, port 7480", "doctor": "partition lab"} {
				if out, _ := s.alpha.Ironwarp(t.Context(), nil, strings.Fields(command)...); !strings.Contains(string(out), words) {
					t.Errorf("`ironwarp %s` has no %q:\n%s", command, words, out)
				}
			}
		})
	}
}

// TestPartitionWithOtherLabelsIsExplainedAtBothHosts: another label at one of them, or none. Neither has an SA for it, and says
// why; the IKE SA stays, other links go on, and nothing of the partition is on the wire.
func TestPartitionWithOtherLabelsIsExplainedAtBothHosts(t *testing.T) {
	t.Parallel()
	s := newPartitioned(t, "tcp")
	image := filepath.Join(s.alpha.Dir(), "disk.img")
	if err := os.WriteFile(image, s.alpha.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.alpha, "export", "add", "--allow", "beta", "--partition", "lab", "disk", image)
	s.declare(s.beta, "system_u:object_r:other_part_t", "full", "full")
	wire, err := s.beta.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		// An SA that was there before the other label, and that nobody uses, is not tried again; and one attempt to attach may
		// end before strongSwan's answer.
		s.until(n.Name()+" says of which partition there is no SA", func() bool {
			_, err := s.attachFrom(n)
			if err == nil {
				t.Fatal("it is attached")
			}
			t.Log(err)
			return strings.Contains(err.Error(), "of partition lab")
		})
		s.shows(n, "partition lab between", "compare the partition's port, label and members on both hosts")
	}
	s.ping()
	counts, err := wire.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if counts.Clear(partitionPort) != 0 {
		t.Errorf("on the wire: %v", counts)
	}
	s.declare(s.beta, labLabel, "full", "full")
	s.mustAttachIn()
}

// TestTwoLimitedMembersHaveNoLink: nothing is attached, and nobody listens.
func TestTwoLimitedMembersHaveNoLink(t *testing.T) {
	t.Parallel()
	s := newPartitioned(t, "tcp")
	s.must(s.beta, "export", "rm", "disk")
	for _, n := range []*node.Node{s.alpha, s.beta} {
		s.declare(n, labLabel, "limited", "limited")
	}
	if _, err := s.attachIn(); err == nil || !strings.Contains(err.Error(), "have no link of partition lab") {
		t.Errorf("attach: %v", err)
	}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		s.shows(n, "here limited, there limited: apart")
		for _, child := range []string{"-out-lab", "-in-lab"} {
			s.until(n.Name()+" has no SA for it any more", func() bool { _, ok := s.lane(n, s.other(n).Name()+child); return !ok })
		}
	}
	s.ping()
	// An export for whom there is no link is refused by the configuration.
	if _, err := s.beta.Ironwarp(t.Context(), nil, "export", "add", "--allow", "alpha", "--partition", "lab", "disk", filepath.Join(s.beta.Dir(), "disk.img")); err == nil || !strings.Contains(err.Error(), "has no link") && !strings.Contains(err.Error(), "no link of it") {
		t.Errorf("export: %v", err)
	}
}

// mpaRequest is an MPA Request Frame without private data (RFC 5044 section 7.1.1).
var mpaRequest = append([]byte("MPA ID Req Frame"), 0, 1, 0, 0)

// TestLabelThatMayNotGetsNothing: at the host that dials no packet leaves, as the SA's counters have it, and the user is told the
// label, the partition and the policy; at the host that is dialled a request inside the SA is reset without a byte.
func TestLabelThatMayNotGetsNothing(t *testing.T) {
	t.Parallel()
	s := newPartitioned(t, "tcp")
	s.until("the SA is up", func() bool { _, ok := s.lane(s.alpha, "beta-out-lab"); return ok })
	s.policy(s.alpha, "viewer_t")
	s.must(s.alpha, "reload")
	before, _ := s.lane(s.alpha, "beta-out-lab")
	_, err := s.attachIn()
	if err == nil {
		t.Error("a label that may not has attached it")
	} else {
		for _, w := range []string{hpcLabel, "partition lab", "lab.te"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v\nhas no %q", err, w)
			}
		}
	}
	if after, ok := s.lane(s.alpha, "beta-out-lab"); !ok || after.PacketsOut != before.PacketsOut {
		t.Errorf("%d packets were sent, and before %d", after.PacketsOut, before.PacketsOut)
	}
	// A program of alpha's dials beta's port within the SA, past its daemon.
	request := func() (reply int, err error) {
		c, err := s.alpha.Dial(t.Context(), netip.AddrPortFrom(s.beta.Addr(), partitionPort))
		if err != nil {
			return 0, err
		}
		defer c.Close()
		if _, err := c.Write(mpaRequest); err != nil {
			return 0, err
		}
		b := make([]byte, 512)
		return c.Read(b)
	}
	if n, err := request(); n == 0 {
		t.Errorf("a label that may use it gets no reply: %v", err)
	}
	s.policy(s.beta, "viewer_t")
	s.must(s.beta, "reload")
	n, err := request()
	if n != 0 || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a label that may not: %d bytes, %v", n, err)
	}
}

// TestChangedPolicyEndsStreamsOnTheWire: under I/O beta's policy changes. The streams of the partition end at both hosts, and when
// they have, no packet of it goes any more; the default link goes on.
func TestChangedPolicyEndsStreamsOnTheWire(t *testing.T) {
	t.Parallel()
	s := newPartitioned(t, "tcp")
	socket := s.mustAttachIn()
	s.readDisk(socket)
	s.policy(s.beta, "viewer_t")
	s.must(s.beta, "reload")
	streams := func(n *node.Node) (k int) {
		list, err := n.Client().Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			if x.Partition == "lab" {
				k++
			}
		}
		return k
	}
	for _, n := range []*node.Node{s.beta, s.alpha} {
		s.until("they are gone at "+n.Name(), func() bool { return streams(n) == 0 })
	}
	s.until("an event is counted", func() bool { return strings.Contains(s.must(s.beta, "status", "--resources"), "partition denied") })
	s.ping()
	s.policy(s.beta, "hpc_t")
	s.must(s.beta, "reload")
	s.readDisk(socket)
}

// TestTargetOfAPartitionIsServedInItsLabelsSA: QEMU on alpha writes and reads a LUN of the partition's portal. The SA that carries
// it has the label; what it wrote is nowhere on the wire, before and after the SAs were deleted; and when beta's policy changes
// its session ends, and no other begins.
func TestTargetOfAPartitionIsServedInItsLabelsSA(t *testing.T) {
	needTools(t)
	t.Parallel()
	s := partitionedWith(t, "tcp", fmt.Sprintf(", iscsi_port: %d", portalPort))
	wire, err := s.beta.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(s.beta.Dir(), "lun.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "target", "add", "--peer", "alpha", "--partition", "lab", "--iqn", targetName, "--path", image, "disks")
	carriers := func() (bytes uint64, all []api.SA) {
		list, err := s.alpha.Client().SAs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sa := range list {
			if sa.State == "INSTALLED" && strings.Contains(sa.LocalTS+sa.RemoteTS, fmt.Sprint(portalPort)) {
				bytes, all = bytes+sa.BytesOut+sa.BytesIn, append(all, sa)
			}
		}
		return bytes, all
	}
	s.until("there are SAs of the portal", func() bool { _, all := carriers(); return len(all) > 0 })
	before, _ := carriers()
	q := startQEMU(t, s.alpha, fmt.Sprintf("iscsi://%s/%s/0", netip.AddrPortFrom(s.beta.Addr(), portalPort), targetName))
	q.do("read 0 512k", "read 524288/524288")
	after, all := carriers()
	for _, sa := range all {
		if sa.Label != labLabel {
			t.Errorf("SA %s of the portal has the label %q", sa.Child, sa.Label)
		}
	}
	if after < before+512<<10 {
		t.Errorf("SAs of the portal have carried %d bytes of 512 KiB: %+v", after-before, all)
	}
	s.must(s.beta, "sa", "delete", "alpha")
	q.do("write -P 0x33 64k 64k", "wrote 65536/65536")
	q.do("read -P 0x33 64k 64k", "read 65536/65536")
	sessions := func() int {
		list, err := s.beta.Client().TargetSessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	list := func() (string, error) {
		return s.alpha.Run(t.Context(), "iscsi-ls", "-s", fmt.Sprintf("iscsi://%s", netip.AddrPortFrom(s.beta.Addr(), portalPort)))
	}
	if out, err := list(); err != nil || !strings.Contains(out, targetName) {
		t.Errorf("the portal lists %q: %v", out, err)
	}
	s.policy(s.beta, "viewer_t")
	s.must(s.beta, "reload")
	s.until("its session has ended", func() bool { return sessions() == 0 })
	_ = q.cmd.Process.Kill()
	_ = q.cmd.Wait()
	if out, err := list(); err == nil {
		t.Errorf("the portal answers: %s", out)
	}
	counts, err := wire.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range wire.Faults() {
		t.Error(fault)
	}
	if counts.Clear(portalPort) != 0 || counts.ESP == 0 {
		t.Errorf("on the wire: %v", counts)
	}
}
