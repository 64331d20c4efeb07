package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/fabric/partition"
)

func TestHostNames(t *testing.T) {
	for s, ok := range map[string]bool{
		"beta.example": true, "b.c": true, "xn--bcher-kva.example": true, "1.example": true, "Beta.Example": true, "a-b.c-d.e": true,
		"": false, "beta": false, "192.0.2.300": false, "1.2.3": false, "beta.example.": false, ".example": false, "a..b": false, "-a.example": false, "a-.example": false,
		"a b.example": false, "a_b.example": false, "bücher.example": false, "a.example;id": false, "a/b.example": false, "fe80::1": false, "\x1b[2J.example": false,
		strings.Repeat("a", 64) + ".example": false, strings.Repeat("a.", 126) + "aa": false,
	} {
		if err := CheckHostName(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func FuzzHostName(f *testing.F) {
	f.Add("beta.example")
	f.Fuzz(func(t *testing.T, s string) {
		if CheckHostName(s) != nil {
			return
		}
		if _, err := netip.ParseAddr(s); err == nil || len(s) > MaxHostName || strings.ContainsAny(s, " /\\\n\x1b'\"$;:") {
			t.Fatalf("%q", s)
		}
	})
}

// loadNamed loads a configuration with these files of peers, and what its daemon has written down of names.
func loadNamed(t *testing.T, names string, peers ...string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	main := filepath.Join(dir, "ironwarp.yaml")
	files := map[string]string{main: "state_dir: state\n", filepath.Join(dir, "state", "names.json"): names}
	for i, p := range peers {
		files[filepath.Join(dir, "peers.d", string(rune('a'+i))+".yaml")] = p + "psk_file: /x\n"
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(main, true)
}

// TestNamedPeerIsWhereItsNameWasFound, and where it cannot be it has no address, while the rest of the configuration is right.
func TestNamedPeerIsWhereItsNameWasFound(t *testing.T) {
	beta := "name: beta\naddress: Beta.example\n"
	other := "name: other\naddress: 192.0.2.9\n"
	for name, c := range map[string]struct{ names, peer, want string }{
		"found":                {`{"beta.example": "192.0.2.2"}`, beta, "192.0.2.2"},
		"not found":            {`{}`, beta, ""},
		"garbage":              {`]`, beta, ""},
		"loopback":             {`{"beta.example": "127.0.0.1"}`, beta, ""},
		"multicast":            {`{"beta.example": "224.0.0.1"}`, beta, ""},
		"link-local":           {`{"beta.example": "fe80::1"}`, beta, ""},
		"no address":           {`{"beta.example": ""}`, beta, ""},
		"another peer's":       {`{"beta.example": "192.0.2.9"}`, beta, ""},
		"another form of that": {`{"beta.example": "64:ff9b::c000:209"}`, beta, ""},
		"other family":         {`{"beta.example": "2001:db8::2"}`, beta + "local_address: 192.0.2.1\n", ""},
		"this host's":          {`{"beta.example": "192.0.2.1"}`, beta + "local_address: 192.0.2.1\n", ""},
		"nothing is there":     {`{"beta.example": "100::1"}`, beta, ""},
	} {
		cfg, err := loadNamed(t, c.names, c.peer, other)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, _ := cfg.Peer("beta")
		if p.Unresolved() != (c.want == "") || c.want != "" && p.Address.String() != c.want || p.Host != "beta.example" || p.Identity() != "beta.example" {
			t.Errorf("%s: %v %v %v", name, p.Address, p.Host, p.Identity())
		}
	}
}

// TestNamedPeerKeepsItsIdentityAndMoves: its identity is its name or remote_id, wherever it is.
func TestNamedPeerKeepsItsIdentityAndMoves(t *testing.T) {
	cfg, err := loadNamed(t, `{}`, "name: beta\naddress: beta.example\nremote_id: beta@example\n", "name: other\naddress: 192.0.2.9\n")
	if err != nil {
		t.Fatal(err)
	}
	next, err := cfg.WithAddress("beta", netip.MustParseAddr("192.0.2.2"))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := cfg.Peer("beta")
	after, _ := next.Peer("beta")
	if before.Identity() != "beta@example" || after.Identity() != "beta@example" || after.Address.String() != "192.0.2.2" || !before.Unresolved() || before.SameEndpoints(after) {
		t.Errorf("%v %v", before.Address, after.Address)
	}
	for _, a := range []string{"192.0.2.9", "127.0.0.1", "::", "224.0.0.1"} {
		if _, err := cfg.WithAddress("beta", netip.MustParseAddr(a)); err == nil {
			t.Errorf("%s is taken", a)
		}
	}
	if _, err := cfg.WithAddress("other", netip.MustParseAddr("192.0.2.3")); err == nil {
		t.Error("a peer that is declared by an address moves")
	}
	if err := os.MkdirAll(next.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := next.SaveAddresses(); err != nil {
		t.Fatal(err)
	}
	again, err := Load(next.Path, true)
	if p, _ := again.Peer("beta"); err != nil || p.Address != after.Address {
		t.Errorf("%v, %v", p.Address, err)
	}
}

func TestFaultsOfNamedPeers(t *testing.T) {
	for peer, want := range map[string]string{
		"name: beta\naddress: beta.example\ngateway: 192.0.2.9\n":                                                                "and a gateway",
		"name: beta\naddress: beta.example\nlocal_address: 192.0.2.1\npaths: [{address: 192.0.2.3, local_address: 192.0.2.4}]\n": "and further ones",
		"name: beta\naddress: beta.example\nlocal_id: beta.example\n":                                                            "the same IKE identity",
	} {
		if _, err := loadNamed(t, `{}`, peer); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", peer, err, want)
		}
	}
}

// TestPortsThatStreamsHave are none for an invitation: guards cover them, or will once there is another peer.
func TestPortsThatStreamsHave(t *testing.T) {
	c := Default("/x/ironwarp.yaml")
	c.ULPs = []ULP{{Name: "rdma", Ports: []PortBlock{{First: 18432, Size: 64}}}}
	c.Partitions = []Partition{{Partition: partition.Partition{Name: "lab", Port: 7480, ISCSIPort: 3261}}}
	c.Peers = []Peer{{Name: "beta", ISCSIPort: 3260, NVMePort: 4420}}
	c.Targets = []Target{{Name: "disks", Port: 3262}}
	c.Subsystems = []Subsystem{{Name: "nvm", Port: 4421}}
	for port, want := range map[uint16]string{DefaultPort: "RDMA streams", 18432: "ULP rdma", 18495: "ULP rdma", 7480: "partition lab", 3261: "partition lab", 3260: "iSCSI with peer beta", 4420: "NVMe with peer beta", 3262: "target disks", 4421: "subsystem nvm", 7473: "", 18496: ""} {
		if got := c.UseOfPort(port); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("port %d: %q, want %q", port, got, want)
		}
	}
}
