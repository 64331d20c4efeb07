package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/transport"
)

const policyText = `module lab 1.0;
require { class rdma_partition { modify }; }
type hpc_t;
type viewer_t;
type lab_part_t;
type out_part_t;
allow hpc_t lab_part_t : rdma_partition { modify };
#partcon 0x0013 system_u:object_r:out_part_t
`

// withPartitions is a configuration of host "here" with peers beta, gamma and delta by IPsec; with "old" in rest also
// one with IKEv1; and with the file lab.te.
func withPartitions(t *testing.T, rest string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	key := write(t, dir, "key", "0123456789abcdef0123456789abcdef\n")
	write(t, dir, "lab.te", policyText)
	write(t, dir, "bad.te", "module lab 1.0;\ntype a_t\ntype b_t;\n")
	peer := func(name string, n int, more string) string {
		return fmt.Sprintf("  - {name: %s, address: 192.0.2.%d, local_address: 192.0.2.1, local_id: here, remote_id: %s.example, psk_file: %s%s}\n", name, n, name, key, more)
	}
	peers := peer("beta", 2, "") + peer("gamma", 3, ", transport: auto, paths: [{address: 198.51.100.3, local_address: 198.51.100.1}]") + peer("delta", 4, "")
	if strings.Contains(rest, "old") {
		peers += peer("old", 5, ", profile: rfc3723")
	}
	return Load(write(t, dir, "ironwarp.yaml", "peers:\n"+peers+rest), true)
}

const (
	labLabels = "labels: {policy: lab.te}\n"
	labOf     = "partitions:\n  - {name: lab, pkey: 0x0012, label: 'system_u:object_r:lab_part_t', port: 7480, members: {here: full, beta.example: limited, gamma.example: full}}\n"
)

func TestPartitionsAreLinksOfTheirMembers(t *testing.T) {
	c, err := withPartitions(t, labLabels+labOf+`  - {name: out, pkey: 19, port: 7481, iscsi_port: 3261, members: {here: limited, beta.example: limited, delta.example: full}}
ulps:
  - {name: hpc, users: [1001], peers: [beta, delta], ports: [18432/16], partition: lab, label: 'u:r:hpc_t'}
services: {exports: {partition: lab, label: 'u:r:hpc_t'}, attachments: {label: 'u:r:viewer_t'}}
exports:
  - {name: docs, path: /srv/docs.img, allow: [beta]}
  - {name: more, path: /srv/more.img, allow: [delta], partition: out, label: 'u:r:viewer_t'}
targets:
  - {name: t, iqn: 'iqn.2026-01.org.example:t', peers: [delta], partition: out, luns: [{number: 0, path: /srv/lun.img}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	const labLabel, outLabel = "system_u:object_r:lab_part_t", "system_u:object_r:out_part_t"
	lab, _ := c.Partition("lab")
	out, _ := c.Partition("out")
	if lab.PKey != 0x12 || out.PKey != 0x13 || out.Label != outLabel || c.Labels.Loaded == nil || c.Labels.Engine != EngineAuto || len(c.PartitionTable().All()) != 2 {
		t.Errorf("%+v, %+v, %+v", lab, out, c.Labels)
	}
	for name, want := range map[string][]string{
		"beta":  {"tcp port 7471 ", "tcp ports 18432-18447 " + labLabel, "tcp port 7480 of partition lab " + labLabel},
		"gamma": {"tcp port 7471 ", "sctp port 7471 ", "udp port 9899 ", "tcp port 7480 of partition lab " + labLabel, "sctp port 7480 of partition lab " + labLabel, "udp port 7480 of partition lab " + labLabel},
		"delta": {"tcp port 7471 ", "tcp port 7481 of partition out " + outLabel, "tcp port 3261 " + outLabel},
	} {
		p, _ := c.Peer(name)
		for _, q := range p.Pairs() {
			var got []string
			for _, k := range q.AllLinks() {
				got = append(got, k.String()+" "+k.Label)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s by %s:\n%q, want\n%q", name, q.Path, got, want)
			}
		}
	}
	beta, _ := c.Peer("beta")
	if len(beta.Partitions) != 2 || beta.Partitions[1].Linked() || beta.MayUsePartition("out") || !beta.MayUsePartition("lab") || !beta.MayUsePartition("") || beta.MayUsePartition("none") {
		t.Errorf("%+v", beta.Partitions)
	}
	gamma, _ := c.Peer("gamma")
	in, ok := gamma.InPartition("lab")
	if !ok || in.Port != 7480 || in.UDPPort != 7480 || in.Paths[0].Port != 7480 || in.Paths[0].UDPPort != 7480 || gamma.Paths[0].Port != 7471 {
		t.Errorf("%+v", in)
	}
	if _, ok := beta.InPartition("out"); ok {
		t.Error("two limited members have a link")
	}
	docs, _ := c.Export("docs")
	more, _ := c.Export("more")
	target, _ := c.Target("t")
	hpc, _ := c.ULP("hpc")
	if docs.Partition != "lab" || more.Partition != "out" || target.Port != 3261 || target.Partition != "out" || c.ULPPartition(hpc) != "lab" {
		t.Errorf("partitions of the uses: %+v, %+v, %+v", docs, more, target)
	}
	for port, want := range map[uint16]string{7471: "", 7480: "lab", 7481: "out", 3261: "out", 18433: "lab", 18448: ""} {
		if got := c.PartitionAt(transport.ProtoTCP, port); got != want {
			t.Errorf("port %d is of partition %q, want %q", port, got, want)
		}
	}
}

func TestOwnMembershipMayBeSaidOfThePartition(t *testing.T) {
	dir := t.TempDir()
	text := "peers: [{name: beta, address: 127.0.0.2, protection: loopback}]\npartitions: [{name: lab, pkey: 1, port: 7480, members: {127.0.0.2: limited}%s}]\n"
	if _, err := Load(write(t, dir, "a.yaml", fmt.Sprintf(text, "")), true); err == nil || !strings.Contains(err.Error(), "add membership:") {
		t.Errorf("nobody knows who this host is: %v", err)
	}
	c, err := Load(write(t, dir, "b.yaml", fmt.Sprintf(text, ", membership: full")), true)
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := c.Peer("beta"); len(p.Partitions) != 1 || !p.Partitions[0].Linked() || p.Partitions[0].Own != partition.Full {
		t.Errorf("%+v", p.Partitions)
	}
}

func TestFaultsOfPartitions(t *testing.T) {
	one := func(keys string) string { return "partitions:\n  - {name: lab, " + keys + "}\n" }
	const m = ", members: {here: full, beta.example: full}"
	for _, tc := range []struct{ what, rest, words string }{
		{"no pkey", one("port: 7480" + m), "without pkey"},
		{"no port", one("pkey: 1" + m), "without port"},
		{"no members", one("pkey: 1, port: 7480"), "without members"},
		{"the default partition", one("pkey: 0x7fff, port: 7480" + m), "default partition"},
		{"the membership bit", one("pkey: 0x8001, port: 7480" + m), "write 0x0001"},
		{"a pkey that is none", one("pkey: many, port: 7480" + m), "no P_Key"},
		{"another membership", one("pkey: 1, port: 7480, members: {here: half}"), "allowed: full, limited"},
		{"an identity that is none", one("pkey: 1, port: 7480, members: {'a b': full}"), "IKE identity"},
		{"IKE's port", one("pkey: 1, port: 500" + m), "IKE's own"},
		{"the port of streams", one("pkey: 1, port: 7471" + m), "listen: port:"},
		{"the port of SCTP in UDP", one("pkey: 1, port: 9899" + m), "udp_port"},
		{"both ports", one("pkey: 1, port: 7480, iscsi_port: 7480" + m), "port of their own"},
		{"a name that is a link's", "partitions: [{name: udp, pkey: 1, port: 7480" + m + "}]\n", "no name of a partition"},
		{"a label that is none", one("pkey: 1, port: 7480, label: secret" + m), "security context"},
		{"a label that nothing decides about", one("pkey: 1, port: 7480, label: 'u:r:t'" + m), "add labels:"},
		{"no label where labels are decided about", labLabels + one("pkey: 1, port: 7480"+m), "#partcon 0x0001"},
		{"no policy", "labels: {engine: policy}\n", "add policy:"},
		{"an engine that is none", "labels: {engine: apparmor}\n", "auto, selinux, policy"},
		{"a policy that is not there", "labels: {policy: none.te}\n", "none.te cannot be read"},
		{"a policy that is wrong", "labels: {policy: bad.te}\n", "bad.te:3:1: "},
		{"a default that is none", "labels: {policy: lab.te, default: hpc_t}\n", "security context"},
		{"two of a name", labLabels + labOf + "  - {name: lab, pkey: 2, port: 7481, label: 'u:r:t'" + m + "}\n", "already declared"},
		{"two of a pkey", labLabels + labOf + "  - {name: b, pkey: 0x12, port: 7481, label: 'u:r:t'" + m + "}\n", "same pkey 0x0012"},
		{"two of a port", labLabels + labOf + "  - {name: b, pkey: 2, port: 7480, label: 'u:r:t'" + m + "}\n", "a port in common"},
		{"a program's port", one("pkey: 1, port: 18433"+m) + "ulps: [{name: hpc, users: [1001], peers: [beta], ports: [18432/16]}]\n", "one of ULP hpc"},
		{"IKEv1 with a label", labLabels + "partitions: [{name: lab, pkey: 1, port: 7480, label: 'u:r:t', members: {here: full, old.example: full}}]\n", "IKEv1, which negotiates none"},
		{"an export of none", "exports: [{name: docs, path: /srv/a, partition: lab}]\n", "partition lab, which is not declared"},
		{"an export for who is no member", labLabels + labOf + "exports: [{name: docs, path: /srv/a, partition: lab, allow: [delta]}]\n", "allows delta, with whom this host has no link"},
		{"a service of none", "services: {exports: {partition: lab}}\n", "service exports is of partition lab"},
		{"pings in a partition", "services: {ping: {partition: lab}}\n", "unknown key"},
		{"a ULP of none", "ulps: [{name: hpc, users: [1001], peers: [beta], partition: lab}]\n", "ULP hpc is of partition lab"},
		{"a target without a port", labLabels + labOf + "targets: [{name: t, iqn: 'iqn.2026-01.org.example:t', partition: lab}]\n", "has no iscsi_port"},
	} {
		_, err := withPartitions(t, tc.rest)
		if err == nil || !strings.Contains(err.Error(), tc.words) || !strings.Contains(err.Error(), ".yaml:") && !strings.Contains(err.Error(), ".te:") {
			t.Errorf("%s: %v\nwant %q and a place", tc.what, err, tc.words)
		}
	}
}

// TestPartitionsAndLabelsAreWritten: what a command changes of an export, a target or a ULP leaves its partition as
// it is.
func TestPartitionsAndLabelsAreWritten(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "lab.te", policyText)
	main := write(t, dir, "ironwarp.yaml", "peers: [{name: beta, address: 127.0.0.2, protection: loopback}]\nlabels: {policy: lab.te}\n"+
		"partitions: [{name: lab, pkey: 0x12, label: 'u:r:lab_part_t', port: 7480, iscsi_port: 3261, membership: full, members: {127.0.0.2: full}}]\n")
	e := Export{Name: "docs", Path: "/srv/docs.img", Allow: []string{"beta"}, Partition: "lab", Label: "u:r:hpc_t"}
	if _, err := AddExport(main, e); err != nil {
		t.Fatal(err)
	}
	e.ReadOnly = true
	if _, err := SetExport(main, e); err != nil {
		t.Fatal(err)
	}
	if _, err := AddTarget(main, Target{Name: "t", IQN: "iqn.2026-01.org.example:t", Port: DefaultISCSIPort, Recovery: DefaultErrorRecoveryLevel, Partition: "lab", Label: "u:r:hpc_t"}); err != nil {
		t.Fatal(err)
	}
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := c.Export("docs")
	if got.Partition != "lab" || got.Label != "u:r:hpc_t" || !got.ReadOnly {
		t.Errorf("%+v", got)
	}
	if got, _ := c.Target("t"); got.Partition != "lab" || got.Label != "u:r:hpc_t" || got.Port != 3261 {
		t.Errorf("%+v", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, exportsDir, "docs.yaml")); err != nil || !strings.Contains(string(text), "partition: lab") {
		t.Errorf("%s, %v", text, err)
	}
}
