package config

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadFillsInDefaultsAndReadsEverySetting(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", `
# everything that can be said
listen:
  port: 7000
  addresses: [192.0.2.1, "2001:db8::1"]
state_dir: state
runtime_dir: /tmp/run
log: {level: debug, format: json}
metrics: {listen: "127.0.0.1:9471"}
ipsec: {vici: "unix:///tmp/vici", data_plane: userland}
limits: {memory: 2GiB, streams: 9, sessions: 3, all_sessions: 30, iscsi_sessions: 12, queue_size: 64}
peers:
  - name: gamma
    address: 127.0.0.9
    protection: loopback
    fpdu: emss
  - name: lab
    address: 192.0.2.44
    insecure_plaintext: true
exports:
  - {name: a, path: /dev/sda, read_only: true, allow: [lab, gamma, lab]}
`)
	write(t, dir, "peers.d/beta.yaml", `
name: beta
address: 192.0.2.2
local_address: 192.0.2.1
port: 7000
local_id: alpha.example
remote_id: beta.example
psk_file: secrets/beta.psk
crc: off
connections: 4
`)
	write(t, dir, "peers.d/.hidden.yaml", "nonsense: [")
	write(t, dir, "exports.d/docs.yaml", "name: docs\npath: docs.img\n")
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	if c.ListenPort != 7000 || len(c.ListenOn) != 2 || c.StateDir != filepath.Join(dir, "state") ||
		c.ControlSocket != "/tmp/run/ironwarp.sock" || c.Limits.Device.Bytes != 2<<30 || c.Limits.Device.Streams != 9 || c.Limits.Sessions != 3 || c.Limits.ISCSISessions != 12 || c.Limits.QueueSize != 64 ||
		c.Metrics.Listen != netip.MustParseAddrPort("127.0.0.1:9471") || c.IPsec.DataPlane != "userland" || c.Log.Format != "json" {
		t.Errorf("main settings: %+v", c)
	}
	beta, _ := c.Peer("beta")
	want := Peer{
		Name: "beta", Address: netip.MustParseAddr("192.0.2.2"), LocalAddress: netip.MustParseAddr("192.0.2.1"), Port: 7000,
		Transport: TransportTCP, LocalID: "alpha.example", RemoteID: "beta.example", PSKFile: filepath.Join(dir, "secrets/beta.psk"),
		Protection: ProtectIPsec, LargeFPDU: true, Connections: 4, Auth: AuthPSK, ChildSAs: 1,
	}
	beta.Resolved = nil // TestProfiles is about it
	if !beta.Equal(want) {
		t.Errorf("beta\n got %+v\nwant %+v", beta, want)
	}
	gamma, _ := c.Peer("gamma")
	if gamma.Port != 7000 || gamma.LargeFPDU || !gamma.CRC || gamma.Connections != DefaultConnections {
		t.Errorf("gamma %+v", gamma)
	}
	if lab, _ := c.Peer("lab"); lab.Protection != ProtectPlaintext {
		t.Errorf("lab %+v", lab)
	}
	a, _ := c.Export("a")
	if !a.ReadOnly || len(a.Allow) != 2 || !a.Allows(gamma) || a.Allows(beta) {
		t.Errorf("export a %+v", a)
	}
	if docs, _ := c.Export("docs"); docs.Path != filepath.Join(dir, "docs.img") {
		t.Errorf("docs %+v", docs)
	}
}

func TestFaultsNamePlaceAndWhatIsAllowed(t *testing.T) {
	const good = "name: beta\naddress: 192.0.2.2\npsk_file: /x\n"
	for _, tc := range []struct{ name, main, peer, export, want string }{
		{name: "unknown key", main: "listen:\n  prot: 7471\n", want: `ironwarp.yaml:2:3: unknown key "prot" in listen; did you mean "port"? allowed here: addresses, port, udp_port`},
		{name: "unknown key of a peer", peer: good + "adress: 1\n", want: `peers.d/p.yaml:4:1: unknown key "adress" in a peer; did you mean "address"?`},
		{name: "number for a string", peer: "name: 7\naddress: 192.0.2.2\npsk_file: /x\n", want: `p.yaml:1:7: peer name is a number; put it in quotes: "7"`},
		{name: "string for a number", main: "listen: {port: many}\n", want: `:1:16: port is "many"; allowed: 1 to 65535`},
		{name: "port out of range", main: "listen:\n  port: 70000\n", want: `:2:9: port is 70000; allowed: 1 to 65535`},
		{name: "all addresses and one", main: "listen:\n  addresses: [0.0.0.0, 192.0.2.1]\n", want: `:2:14: addresses has all addresses (0.0.0.0 or ::) beside others`},
		{name: "listen at a multicast address", main: "listen: {addresses: [224.0.0.1]}\n", want: `listen address is "224.0.0.1"; write an IPv4 or IPv6 address, such as 192.0.2.7, or 0.0.0.0 for all`},
		{name: "peer at all addresses", peer: "name: beta\naddress: 0.0.0.0\npsk_file: /x\n", want: `address is "0.0.0.0"; write an IPv4 or IPv6 address, such as 192.0.2.7;`},
		{name: "negative", main: "listen:\n  port: -1\n", want: `:2:9: port is -1; allowed`},
		{name: "list for a mapping", main: "listen: [1]\n", want: `:1:9: listen is a list; write it as a mapping of addresses, port, udp_port`},
		{name: "scalar document", main: "hello\n", want: `:1:1: the configuration is a string; write it as a mapping of`},
		{name: "mapping for a list", main: "peers: {a: 1}\n", want: `:1:8: peers is a mapping; write it as a list`},
		{name: "bad yaml", main: "listen:\n  port: [1\n", want: "ironwarp.yaml:2:9: not YAML:"},
		{name: "duplicate key", main: "state_dir: /a\nstate_dir: /b\n", want: `ironwarp.yaml:2:1: not YAML: mapping key "state_dir" already defined`},
		{name: "two documents", main: "state_dir: /a\n---\nstate_dir: /b\n", want: "a second document in one file"},
		{name: "anchor", main: "state_dir: &a /a\n", want: ":1:12: state_dir is a YAML anchor"},
		{name: "enum", main: "log: {level: loud}\n", want: `level is "loud"; allowed: debug, info, warn, error`},
		{name: "size", main: "limits: {memory: 3MB}\n", want: `memory is "3MB"; allowed: 64MiB or more`},
		{name: "vici", main: "ipsec: {vici: /var/run/charon.vici}\n", want: "write unix:// and an absolute path"},
		{name: "metrics", main: "metrics: {listen: localhost}\n", want: "is not an address and a port"},
		{name: "host name", peer: "name: beta\naddress: beta\npsk_file: /x\n", want: `p.yaml:2:10: address is "beta"; write an IPv4 or IPv6 address`},
		{name: "multicast", peer: "name: beta\naddress: 224.0.0.1\npsk_file: /x\n", want: `address is "224.0.0.1"`},
		{name: "bad name", peer: "name: ../../etc\naddress: 192.0.2.2\npsk_file: /x\n", want: `peer name "../../etc" is not a valid name`},
		{name: "long name", peer: "name: " + strings.Repeat("x", 33) + "\naddress: 192.0.2.2\npsk_file: /x\n", want: "has 33 bytes; 32 are allowed"},
		{name: "no name", peer: "address: 192.0.2.2\n", want: "p.yaml:1:1: a peer without name"},
		{name: "no address", peer: "name: beta\n", want: "peer beta without address"},
		{name: "no psk", peer: "name: beta\naddress: 192.0.2.2\n", want: "peer beta without psk_file"},
		{name: "loopback elsewhere", peer: "name: beta\naddress: 192.0.2.2\nprotection: loopback\n", want: "192.0.2.2 is not on this host"},
		{name: "ipsec on loopback", peer: "name: beta\naddress: 127.0.0.1\npsk_file: /x\n", want: "use protection: loopback"},
		{name: "plaintext is no protection", peer: "name: beta\naddress: 192.0.2.2\nprotection: plaintext\n", want: `protection is "plaintext"; allowed: ipsec, loopback`},
		{name: "plaintext and ipsec", peer: "name: beta\naddress: 192.0.2.2\nprotection: ipsec\ninsecure_plaintext: true\n", want: "insecure_plaintext: true beside protection: ipsec"},
		{name: "plaintext with psk", peer: good + "insecure_plaintext: true\n", want: "its protection is plaintext"},
		{name: "crc off in clear", peer: "name: beta\naddress: 192.0.2.2\ninsecure_plaintext: true\ncrc: off\n", want: "crc: off without ESP"},
		{name: "profile", peer: good + "profile: best\n", want: `profile is "best"; allowed: rfc7146`},
		{name: "port", peer: good + "port: 9\n", want: "peer beta listens on port 9 and this host on 7471; the SAs of a link are for one port"},
		{name: "families", peer: good + "local_address: \"::1\"\n", want: "mixes IPv4 and IPv6"},
		{name: "boolean", export: "name: docs\npath: /x\nread_only: maybe\n", want: `x.yaml:3:12: read_only is "maybe"; allowed: true, false`},
		{name: "no path", export: "name: docs\n", want: "export docs without path"},
		{name: "unknown peer", export: "name: docs\npath: /x\nallow: [nobody]\n", want: "x.yaml:1:1: export docs allows peer nobody, which is not configured"},
		{name: "allow is no list", export: "name: docs\npath: /x\nallow: beta\n", want: "allow is a string; write it as a list"},
		{name: "empty file", export: "\n", want: "x.yaml: the file is empty"},
		{name: "twice", main: "peers:\n - {name: beta, address: 192.0.2.9, psk_file: /x}\n", peer: good, want: "p.yaml:1:1: peer beta is already declared at"},
		{name: "same address", main: "peers:\n - {name: eta, address: 192.0.2.2, psk_file: /x}\n", peer: good, want: "peers eta and beta have the same address"},
		{name: "same address, translated", main: "peers:\n - {name: eta, address: \"64:ff9b::c000:202\", remote_id: eta, psk_file: /x}\n", peer: good, want: "peers eta and beta have the same address 192.0.2.2, for which 64:ff9b::c000:202 is another form"},
		{name: "same identity", main: "peers:\n - {name: eta, address: 192.0.2.9, remote_id: 192.0.2.2, psk_file: /x}\n", peer: good, want: "same IKE identity"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			main := write(t, dir, "ironwarp.yaml", tc.main)
			if tc.peer != "" {
				write(t, dir, "peers.d/p.yaml", tc.peer)
			}
			if tc.export != "" {
				write(t, dir, "exports.d/x.yaml", tc.export)
			}
			_, err := Load(main, true)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "nonsense: 1\nlog: {level: x, format: y}\n")
	write(t, dir, "peers.d/p.yaml", "nme: x\n")
	_, err := Load(main, true)
	var errs Errors
	if !errors.As(err, &errs) || len(errs) != 4 {
		t.Errorf("want 4 faults, got %v", err)
	}
}

func TestMissingMainFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironwarp.yaml")
	if _, err := Load(path, true); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a named file that is missing: %v", err)
	}
	c, err := Load(path, false)
	if err != nil || c.ListenPort != DefaultPort || c.ControlSocket != DefaultSocket {
		t.Errorf("defaults: %+v, %v", c, err)
	}
}

func TestAddedDeclarationsReadBack(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "listen: {port: 9}\n")
	p := defaultPeer()
	p.Name, p.Address, p.PSKFile, p.CRC, p.LargeFPDU, p.Connections = "123", netip.MustParseAddr("2001:db8::7"), "/s: #x", false, false, 3
	p.RemoteID, p.Port, p.Auth = "null", 9, AuthPSK
	path, err := AddPeer(main, p)
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	e := Export{Name: "null", Path: "/x y", ReadOnly: true, Allow: []string{"123"}}
	if _, err := AddExport(main, e); err != nil {
		t.Fatal(err)
	}
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := c.Peer("123")
	if got.Resolved = nil; !got.Equal(p) {
		t.Errorf("\n got %+v\nwant %+v", got, p)
	}
	if got, _ := c.Export("null"); !got.Equal(e) {
		t.Errorf("\n got %+v\nwant %+v", got, e)
	}
	if _, err := AddPeer(main, p); !errors.Is(err, ErrExists) {
		t.Errorf("second add: %v", err)
	}
	if err := RemovePeer(main, "123", false); err == nil || !strings.Contains(err.Error(), "allows peer 123") {
		t.Errorf("removing a peer that an export allows: %v", err)
	}
	if err := errors.Join(RemoveExport(main, "null"), RemovePeer(main, "123", false)); err != nil {
		t.Error(err)
	}
	if err := RemovePeer(main, "123", false); !errors.Is(err, ErrNotFound) {
		t.Errorf("second remove: %v", err)
	}
}

func TestAddWritesNothingThatDoesNotCheck(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "")
	p := defaultPeer()
	p.Name, p.Address = "beta", netip.MustParseAddr("192.0.2.2")
	if _, err := AddPeer(main, p); err == nil || !strings.Contains(err.Error(), "without psk_file") {
		t.Errorf("got %v", err)
	}
	if files, _ := os.ReadDir(filepath.Join(dir, "peers.d")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestHandWrittenDeclarationsAreNotRemoved(t *testing.T) {
	main := write(t, t.TempDir(), "ironwarp.yaml", "peers:\n  - {name: b, address: 127.0.0.1, protection: loopback}\n")
	err := RemovePeer(main, "b", false)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "ironwarp.yaml:2:") {
		t.Errorf("got %v", err)
	}
}

// TestEachPeerKeepsASecretOfItsOwn: a file that another peer has is never
// replaced, by whatever name, and what is undone is as it was.
func TestEachPeerKeepsASecretOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "{}\n")
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	holds := func(path string, want auth.Secret) {
		t.Helper()
		if got, err := auth.LoadSecret(path); err != nil || !got.Equal(want) {
			t.Errorf("%s has another secret (%v)", path, err)
		}
	}
	first, second := auth.GenerateSecret(), auth.GenerateSecret()
	k, err := KeepSecret(c, "beta", first)
	if err != nil || k.Path != SecretPath(main, "beta") {
		t.Fatalf("%+v, %v", k, err)
	}
	holds(k.Path, first)
	if err := k.Undo(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(k.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it stays after all: %v", err)
	}
	if k, err = KeepSecret(c, "beta", first); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(k.Path, filepath.Join(dir, "link.psk")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "peers.d/gamma.yaml", "name: gamma\naddress: 192.0.2.3\npsk_file: link.psk\n")
	if c, err = Load(main, true); err != nil {
		t.Fatal(err)
	}
	two, err := KeepSecret(c, "beta", second)
	if err != nil || two.Path == k.Path {
		t.Fatalf("%+v, %v", two, err)
	}
	holds(k.Path, first)
	holds(two.Path, second)
	again, err := KeepSecret(c, "gamma", second)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Undo(); err != nil {
		t.Error(err)
	}
	holds(k.Path, first)
	if k, err = KeepSecret(c, "delta", first); err != nil {
		t.Fatal(err)
	}
	if k, err = KeepSecret(c, "delta", second); err != nil {
		t.Fatal(err)
	}
	if err := k.Undo(); err != nil {
		t.Error(err)
	}
	holds(k.Path, first)
}

func FuzzLoad(f *testing.F) {
	f.Add("listen: {port: 7471}\npeers:\n - {name: b, address: 127.0.0.1, protection: loopback}\n")
	f.Add("a: &x [*x]\n")
	f.Add("- \n-")
	f.Fuzz(func(t *testing.T, text string) {
		d := &decoder{file: "x.yaml"}
		if root := d.parse([]byte(text)); root != nil {
			d.config(root, Default("/x.yaml"))
		}
	})
}

// TestSampleShowsTheDefaults holds packaging/ironwarp.yaml to the code: as it is
// it says nothing, and with its settings switched on it says the defaults.
func TestSampleShowsTheDefaults(t *testing.T) {
	sample, err := os.ReadFile("../../packaging/ironwarp.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", string(sample))
	quiet, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	def := Default(main)
	def.ControlSocket = DefaultSocket
	if !reflect.DeepEqual(quiet, def) {
		t.Errorf("as it is\n got %+v\nwant %+v", quiet, def)
	}
	on := regexp.MustCompile(`(?m)^#( {2,}|[a-z_]+:)`).ReplaceAllString(string(sample), "$1")
	write(t, dir, "ironwarp.yaml", on)
	write(t, dir, "lab.te", policyText)
	loud, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(loud.Peers) != 6 || len(loud.Exports) != 4 || len(loud.Pools) != 2 || len(loud.Targets) != 1 || len(loud.Subsystems) != 1 || len(loud.ULPs) != 3 || !loud.Metrics.Listen.IsValid() || len(loud.IPsec.Profiles) != 1 || len(loud.Partitions) != 1 || loud.Labels.Loaded == nil {
		t.Errorf("switched on: %+v", loud)
	}
	loud.Peers, loud.Exports, loud.Pools, loud.Targets, loud.Subsystems, loud.ULPs, loud.Metrics, loud.IPsec.Profiles, loud.positions = nil, nil, nil, nil, nil, nil, Metrics{}, nil, nil
	loud.Partitions, loud.Labels = nil, def.Labels
	if !reflect.DeepEqual(loud, def) {
		t.Errorf("switched on\n got %+v\nwant %+v", loud, def)
	}
}

func TestMissingFileThatWasNamedSaysWhatToDo(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "missing.yaml"), true)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--config") {
		t.Errorf("error %v", err)
	}
	file := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file, true); err != nil {
		t.Errorf("an empty map: %v", err)
	}
}
