package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestULPsHaveFilesOfTheirOwn beside the main file, whose own come first: the first that names a group is its users'.
func TestULPsHaveFilesOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", peersOfULPs+"ulps:\n  - {name: zeta, groups: [2001], peers: [beta]}\n")
	write(t, dir, "ulps.d/hpc.yaml", "name: hpc\ngroups: [2002]\npeers: [beta]\nports: 18432/512\nlisten: true\n")
	write(t, dir, "ulps.d/alpha.yaml", "name: alpha\ngroups: [2003]\nprivileged: true\n")
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.ULPs) != 3 || c.ULPs[0].Name != "zeta" || c.ULPs[1].Name != "alpha" || c.ULPs[2].Name != "hpc" {
		t.Fatalf("%+v", c.ULPs)
	}
	if u, _ := c.ULPOf(4000, []uint32{2002, 2001}); u.Name != "zeta" {
		t.Errorf("of two groups that of %q counts", u.Name)
	}
	if c.IsInOwnFile(c.ULPs[0]) || !c.IsInOwnFile(c.ULPs[2]) || c.ULPs[2].Origin.File != filepath.Join(dir, "ulps.d", "hpc.yaml") {
		t.Errorf("%v, %v", c.ULPs[0].Origin, c.ULPs[2].Origin)
	}
	if p, _ := c.Peer("beta"); len(p.Programs) != 1 || p.Programs[0] != (PortBlock{First: 18432, Size: 512}) {
		t.Errorf("%v", p.Programs)
	}
}

func TestFaultsOfFilesOfULPs(t *testing.T) {
	for _, tc := range []struct{ name, main, file, want string }{
		{"empty", "", "\n", "ulps.d/x.yaml: the file is empty; remove it or declare one peer, export, target or ULP in it"},
		{"a list", "", "- name: x\n", "ulps.d/x.yaml:1:1: a ULP is a list"},
		{"unknown key", "", "name: x\nusers: [1001]\npeers: [beta]\nport: 1\n", `ulps.d/x.yaml:4:1: unknown key "port" in a ULP; did you mean "ports"?`},
		{"not aligned", "", "name: x\npeers: [beta]\nports: [18440/16]\n", `ulps.d/x.yaml:3:9: block of ports "18440/16" does not begin at a multiple of 16`},
		{"unknown peer", "", "name: x\nusers: [1001]\npeers: [gamma]\n", "ulps.d/x.yaml:1:1: ULP x may use peer gamma, which is not configured"},
		{"the main file's name", "ulps:\n  - {name: x, users: [1001], peers: [beta]}\n", "name: x\nusers: [1002]\npeers: [beta]\n", "ulps.d/x.yaml:1:1: ULP x is already declared at "},
		{"the main file's user", "ulps:\n  - {name: y, users: [1001], peers: [beta]}\n", "name: x\nusers: [1001]\npeers: [beta]\n", "ulps.d/x.yaml:1:1: user 1001 is of ULP y already"},
		{"the main file's ports", "ulps:\n  - {name: y, users: [1001], peers: [beta], ports: [18432/512]}\n", "name: x\npeers: [bet]\nports: [18512/16]\n", "ulps.d/x.yaml:1:1: ULP x has the block of ports 18512/16, and ULP y has 18432/512"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "ulps.d/x.yaml", tc.file)
			_, err := Load(write(t, dir, "ironwarp.yaml", peersOfULPs+tc.main), true)
			if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, tc.want)) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestWrittenULPsAreReadAsTheyWere, with all that they can have, and with nothing that is the default.
func TestWrittenULPsAreReadAsTheyWere(t *testing.T) {
	main := write(t, t.TempDir(), "ironwarp.yaml", peersOfULPs)
	for _, tc := range []struct {
		u    ULP
		text string
	}{
		{ULP{Name: "rdma", Peers: []string{"beta"}, Ports: []PortBlock{{First: 18432, Size: 512}}, Listen: true, Attachments: DefaultAttachments},
			"name: rdma\npeers: [beta]\nports: [18432/512]\nlisten: true\n"},
		{ULP{Name: "udp", Peers: []string{"beta"}, Ports: []PortBlock{{First: 18944, Size: 64, UDP: true}}, Transport: TransportSCTPUDP, Attachments: DefaultAttachments},
			"name: udp\npeers: [beta]\nports: [18944/64]\ntransport: sctp-udp\n"},
		{ULP{Name: "admins", Groups: []Account{{2001, "2001"}}, Privileged: true, Attachments: DefaultAttachments}, "name: admins\ngroups: [\"2001\"]\nprivileged: true\n"},
		{ULP{Name: "all", Users: []Account{{1001, "1001"}}, Groups: []Account{{2002, "2002"}}, Trust: "S-LT", Attachments: 2, Peers: []string{"bet", "beta"}, Exports: []string{"beta/docs"},
			Limits: Quota{Bytes: 64 << 20, Streams: 8, MRs: 100, IRRQEntries: 7}, Ports: []PortBlock{{First: 20480, Size: 16}, {First: 20496, Size: 1}}},
			"name: all\nusers: [\"1001\"]\ngroups: [\"2002\"]\npeers: [bet, beta]\nexports: [beta/docs]\nports: [20480/16, 20496/1]\ntrust: S-LT\n" +
				"limits: {memory: 64MiB, streams: 8, memory_regions: 100, inbound_reads: 7, attachments: 2}\n"},
	} {
		file, err := AddULP(main, tc.u)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil || string(data) != tc.text || filepath.Base(filepath.Dir(file)) != "ulps.d" {
			t.Errorf("%s: %v\n%s", file, err, data)
		}
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		c, err := Load(main, true)
		if err != nil {
			t.Fatal(err)
		}
		if u, _ := c.ULP(tc.u.Name); !u.Equal(tc.u) {
			t.Errorf("\n got %+v\nwant %+v", u, tc.u)
		}
	}
	if _, err := AddULP(main, ULP{Name: "all", Privileged: true, Groups: []Account{{2003, "2003"}}}); !errors.Is(err, ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := AddULP(main, ULP{Name: "exports"}); err == nil || !strings.Contains(err.Error(), "name of a service") {
		t.Errorf("a service's name: %v", err)
	}
	// What does not check is not written.
	if _, err := AddULP(main, ULP{Name: "other", Peers: []string{"bet"}, Ports: []PortBlock{{First: 18512, Size: 16}}, Attachments: DefaultAttachments}); err == nil || !strings.Contains(err.Error(), "ULP rdma has the block of ports 18432/512, and ULP other has 18512/16") {
		t.Errorf("ports of another: %v", err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(main), "ulps.d", "other.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
}

// TestSetULPChangesWhatWasAskedForAlone: comments, limits that no command writes, and users whom this host does not
// have any more stay.
func TestSetULPChangesWhatWasAskedForAlone(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", peersOfULPs+"ulps:\n  - {name: fixed, users: [1003], peers: [beta]}\n")
	file := write(t, dir, "ulps.d/hpc.yaml", `# The cluster.
name: hpc
users: [no-such-user, 1001] # of last May
peers: [beta]
# It writes much.
limits: {memory_regions: 100}
`)
	if _, err := SetULP(main, "hpc", func(u *ULP) error {
		u.Ports, u.Listen, u.Limits.Streams = []PortBlock{{First: 18432, Size: 512}}, true, 8
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# The cluster.\n", "# of last May\n- no-such-user\n- 1001\n", "# It writes much.\n", "memory_regions: 100", "streams: 8", "- 18432/512\n", "listen: true\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := c.ULP("hpc")
	if !reflect.DeepEqual(u.UserNames(), []string{"1001", "no-such-user"}) || u.Disabled == nil || u.Limits != (Quota{MRs: 100, Streams: 8}) || !u.Listen {
		t.Errorf("%+v", u)
	}
	if _, err := SetULP(main, "hpc", func(u *ULP) error {
		u.UnknownUsers, u.Ports, u.Listen = nil, nil, false
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); strings.Contains(string(data), "no-such-user") || strings.Contains(string(data), "ports") || strings.Contains(string(data), "listen") {
		t.Errorf("%s", data)
	}
	for what, err := range map[string]error{
		"set":    second(SetULP(main, "fixed", func(u *ULP) error { u.Privileged, u.Peers = true, nil; return nil })),
		"remove": RemoveULP(main, "fixed", func(ULP) error { t.Error("asked about a ULP of the main file"); return nil }),
	} {
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "ULP fixed is declared at "+main+":5:5: ") {
			t.Errorf("%s of the main file's: %v", what, err)
		}
	}
	no := errors.New("no")
	for what, err := range map[string]error{
		"set": second(SetULP(main, "other", func(*ULP) error { return nil })), "remove": RemoveULP(main, "other", func(ULP) error { return nil }),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of one that is not there: %v", what, err)
		}
	}
	if err := RemoveULP(main, "hpc", func(u ULP) error { return no }); !errors.Is(err, no) {
		t.Errorf("one that may not go: %v", err)
	}
	if err := RemoveULP(main, "hpc", func(u ULP) error { return nil }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file stays: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestULPWithoutAPeer(t *testing.T) {
	u := ULP{Name: "x", Users: []Account{{1, "1"}}, Peers: []string{"bet", "beta"}, Exports: []string{"bet/a", "beta/a"}}
	rest, ok := u.WithoutPeer("bet")
	if !ok || !reflect.DeepEqual(rest.Peers, []string{"beta"}) || !reflect.DeepEqual(rest.Exports, []string{"beta/a"}) || len(u.Peers) != 2 {
		t.Errorf("%v, %+v", ok, rest)
	}
	if _, ok := rest.WithoutPeer("beta"); ok {
		t.Error("nothing is left of it")
	}
}
