package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTargetsAreChecked: a target that cannot be is refused, with its place and why.
func TestTargetsAreChecked(t *testing.T) {
	const good = "name: disks\niqn: iqn.2026-01.org.example:disks\n"
	for _, tc := range []struct{ file, words string }{
		{good, ""},
		{good + "peers: [beta]\nluns: [{number: 0, export: docs, block_size: 4096}, {number: 7, path: a.img, thin: false, removable: true}]", ""},
		{good + "port: 3261\npeers: [beta]", "allows peer beta at port 3261, and the SAs with that peer do not cover the port"},
		{good + "peers: [\"id:192.0.2.2\"]\nport: 3261", "do not cover the port"},
		{good + "peers: [lab]\nport: 3261", ""},
		{good + "peers: [gamma]", "allows gamma, which is no configured peer"},
		{good + "port: 7471", "which this host listens on for RDMA streams"},
		{good + "iser: false", ""},
		{good + "iser: 1", "iser"},
		{good + "size: 1", "size"},
		{good + "error_recovery_level: 2", ""},
		{good + "error_recovery_level: 3", "allowed: 0 to 2"},
		{"name: disks", "target disks without iqn"},
		{"iqn: iqn.2026-01.org.example:disks", "a target without name"},
		{"name: disks\niqn: iqn.2026-13.org.example", "is no iSCSI name"},
		{"name: disks\niqn: iqn.2026-01.Org.example", "is no iSCSI name"},
		{"name: disks\niqn: eui.02004567A425678D", ""},
		{good + "initiators: [me]", "is no iSCSI name"},
		{good + "luns: [{export: docs}]", "a LUN without number"},
		{good + "luns: [{number: 0}]", "has not one of export and path"},
		{good + "luns: [{number: 0, export: docs, path: x}]", "has not one of export and path"},
		{good + "luns: [{number: 256, path: x}]", "allowed: 0 to 255"},
		{good + "luns: [{number: 0, path: x, block_size: 1024}]", "allowed: 512, 4096"},
		{good + "luns: [{number: 0, export: docs}, {number: 0, path: x}]", "has LUN 0 twice"},
		{good + "luns: [{number: 0, export: other}]", "is export other, which is not declared"},
		{good + "luns: [{number: 0, export: docs}, {number: 1, export: docs}]", "and may be written"},
		{good + "luns: [{number: 0, export: docs, read_only: true}, {number: 1, export: docs, read_only: true}]", ""},
		{good + "redirect: 192.0.2.9:3260", ""},
		{good + "redirect: \"[2001:db8::9]\"\nredirect_permanent: true", ""},
		{good + "redirect: \"[2001:db8::9]:860\"", ""},
		{good + "redirect: disks.example.org", ""},
		{good + "redirect: \"2001:db8::9\"", "an IPv6 address is written in brackets"},
		{good + "redirect: \"[192.0.2.9]\"", "no IPv6 address in brackets"},
		{good + "redirect: \"[fe80::1%eth0]\"", "no IPv6 address in brackets"},
		{good + "redirect: 192.0.2.9:0", "no port from 1 to 65535"},
		{good + "redirect: 192.0.2.9:3260,1", "no port from 1 to 65535"},
		{good + "redirect: a b", "is no address"},
		{good + "redirect_permanent: true", "has redirect_permanent, and no redirect"},
		{good + "luns: [{number: 0, path: x, sanitize: true}]", ""},
		{good + "luns: [{number: 0, path: x, sanitize: true, read_only: true}]", "is read_only, and sanitize would erase it"},
		{good + "chap: [{user: alice}]", "without user or secret_file"},
		{good + "chap: [{user: alice, secret: abcdefabcdef}]", "secret"},
		{good + "chap: [{user: alice, secret_file: a, target_user: b}]", "belong together"},
		{good + "chap: [{user: alice, secret_file: a, target_user: b, target_secret_file: a}]", "one secret for both directions"},
		{good + "chap: [{user: alice, secret_file: a}, {user: alice, secret_file: b}]", "the CHAP user alice twice"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"ironwarp.yaml": "peers:\n  - {name: beta, address: 192.0.2.2, psk_file: x, iscsi_port: 3260}\n  - {name: lab, address: 192.0.2.9, insecure_plaintext: true}\n" +
				"exports:\n  - {name: docs, path: /srv/docs.img}\n",
			"targets.d/disks.yaml": tc.file,
		} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := Load(filepath.Join(dir, "ironwarp.yaml"), true)
		switch {
		case tc.words == "" && err != nil:
			t.Errorf("%s: %v", tc.file, err)
		case tc.words != "" && (err == nil || !strings.Contains(err.Error(), tc.words) || !strings.Contains(err.Error(), "disks.yaml:")):
			t.Errorf("%s: %v, want %q", tc.file, err, tc.words)
		case err == nil:
			for _, l := range c.Targets[0].LUNs {
				if e, ok := c.Export(l.Export); !ok || !e.LUN {
					t.Errorf("%s: LUN %d has no export: %+v", tc.file, l.Number, c.Exports)
				}
			}
		}
	}
}

// TestPortOfISCSIIsALinkOfItsPeer, with a guard and SAs, at each of its addresses.
func TestPortOfISCSIIsALinkOfItsPeer(t *testing.T) {
	p := defaultPeer()
	p.Name, p.ISCSIPort, p.Port, p.Paths = "beta", 3260, 7471, []Path{{Name: "lan", Transport: TransportTCP, Port: 7471}}
	for _, q := range p.Pairs() {
		if l := q.AllLinks(); len(l) != 2 || l[1].Port != 3260 || len(q.Links) != 1 {
			t.Errorf("%+v: %v", q, l)
		}
	}
	q := p
	if q.ISCSIPort = 0; p.SameEndpoints(q) {
		t.Error("streams go on although their peer's SAs are made anew")
	}
}

func TestDefaultIQNIsAName(t *testing.T) {
	for _, host := range []string{"alpha", "Alpha.Example.ORG", "-", "ünïcode_1"} {
		if err := CheckIQN(DefaultIQN(host, "Disk_1.a")); err != nil {
			t.Errorf("%q: %s %v", host, DefaultIQN(host, "Disk_1.a"), err)
		}
	}
}

// TestErrorRecoveryLevelIsKept: what a target offers is what its file says, also after the file was changed by a
// command, and what is the default stays so.
func TestErrorRecoveryLevelIsKept(t *testing.T) {
	main := filepath.Join(t.TempDir(), "ironwarp.yaml")
	if err := os.WriteFile(main, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for level := range uint32(MaxErrorRecoveryLevel + 1) {
		name := "disk" + string(rune('0'+level))
		path, err := AddTarget(main, Target{Name: name, IQN: DefaultIQN("host", name), Port: DefaultISCSIPort, Recovery: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := SetTarget(main, name, func(x *Target) error { x.Alias = "x"; return nil }); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "error_recovery_level") != (level != DefaultErrorRecoveryLevel) {
			t.Errorf("%v: %s", err, text)
		}
		c, err := Load(main, true)
		if err != nil {
			t.Fatal(err)
		}
		if x, ok := c.Target(name); !ok || x.Recovery != level || x.Alias != "x" {
			t.Errorf("%+v", x)
		}
	}
}
