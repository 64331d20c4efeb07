package config

import (
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// load reads a configuration of a main file and one peer's file.
func load(t *testing.T, main, peer string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	path := write(t, dir, "ironwarp.yaml", main)
	if peer != "" {
		write(t, dir, "peers.d/p.yaml", peer)
	}
	return Load(path, true)
}

func TestPeerWithCertificatesReadsBack(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "ipsec:\n  profiles:\n    ours: {base: rfc7146, mode: transport}\n")
	p := defaultPeer()
	p.Name, p.Address, p.Port = "beta", netip.MustParseAddr("192.0.2.2"), DefaultPort
	p.Auth, p.CertFile, p.KeyFile, p.CAFiles = AuthCert, "/c.pem", "/c.key", []string{"/ca1.pem", "/ca2.pem"}
	p.CRLURIs, p.OCSPURIs, p.Revocation = []string{"file:///ca.crl"}, []string{"http://192.0.2.9/ocsp"}, auth.RevocationStrict
	p.Profile, p.Mode, p.Gateway = "ours", "tunnel", netip.MustParseAddr("192.0.2.254")
	p.ChildSAs, p.IdleReap, p.LocalID, p.RemoteID = 4, 90*time.Minute, "alpha.example", "ops@beta.example"
	if _, err := AddPeer(main, p); err != nil {
		t.Fatal(err)
	}
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := c.Peer("beta")
	if got.Resolved == nil || got.Resolved.Name != "ours" || got.Resolved.Mode != profile.Tunnel {
		t.Errorf("the profile is %+v", got.Resolved)
	}
	got.Resolved = nil
	if !got.Equal(p) {
		t.Errorf("\n got %+v\nwant %+v", got, p)
	}
}

func TestRelativeFilesCountFromTheConfiguration(t *testing.T) {
	c, err := load(t, "", "name: beta\naddress: 192.0.2.2\ncert_file: pki/a.pem\nkey_file: pki/a.key\nca_files: pki/ca.pem\n")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	if want := filepath.Join(c.Dir(), "pki/a.key"); p.KeyFile != want || len(p.CAFiles) != 1 || p.CAFiles[0] != filepath.Join(c.Dir(), "pki/ca.pem") || p.Auth != AuthCert {
		t.Errorf("%+v, want %s", p, want)
	}
}

func TestOwnProfileIsABuiltInOneWithDifferences(t *testing.T) {
	c, err := load(t, `
ipsec:
  profiles:
    slow:
      esp: [aes256gcm16-ecp384]
      child_rekey: 30m
      rekey_bytes: 64GiB
      pfs: true
      base: rfc7146
    old:
      base: rfc3723
      dpd_delay: 30s
`, "name: beta\naddress: 192.0.2.2\npsk_file: /x\nprofile: slow\n")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := c.Peer("beta")
	want := profile.Default()
	want.Name, want.ESP, want.ChildRekey, want.RekeyBytes = "slow", []string{"aes256gcm16-ecp384"}, 30*time.Minute, 64<<30
	if !reflect.DeepEqual(p.Resolved, want) {
		t.Errorf("\n got %+v\nwant %+v", p.Resolved, want)
	}
	if names := c.ProfileNames(); !slices.Contains(names, "old") || !slices.Contains(names, "rfc7146") {
		t.Errorf("profiles %v", names)
	}
	old, err := c.ProfileByName("old")
	if err != nil || old.Version != 1 || old.DPDDelay != 30*time.Second {
		t.Errorf("old: %+v, %v", old, err)
	}
}

// TestChangedProfileIsAChangedPeer: a reload has to notice it.
func TestChangedProfileIsAChangedPeer(t *testing.T) {
	const peer = "name: beta\naddress: 192.0.2.2\npsk_file: /x\nprofile: own\n"
	read := func(main string) Peer {
		c, err := load(t, main, peer)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := c.Peer("beta")
		return p
	}
	one, two := read("ipsec: {profiles: {own: {child_rekey: 30m}}}\n"), read("ipsec: {profiles: {own: {child_rekey: 31m}}}\n")
	if one.Equal(two) {
		t.Error("a peer whose profile has changed is the same")
	}
	if !one.Equal(read("ipsec: {profiles: {own: {child_rekey: 30m}}}\n")) {
		t.Error("a peer that has not changed is another")
	}
	if !one.SameEndpoints(two) {
		t.Error("another profile means other ends")
	}
}

func TestFaultsOfIPsecSettings(t *testing.T) {
	const base = "name: beta\naddress: 192.0.2.2\n"
	const psk, cert = base + "psk_file: /x\n", base + "cert_file: /c\nkey_file: /k\nca_files: [/a]\n"
	for _, tc := range []struct{ name, main, peer, want string }{
		{"auth", "", psk + "auth: kerberos\n", `p.yaml:4:7: auth is "kerberos"; allowed: psk, cert`},
		{"certificates beside a secret", "", psk + "auth: psk\ncert_file: /c\n", "auth: psk beside settings of certificates"},
		{"secret beside certificates", "", cert + "auth: cert\npsk_file: /x\n", "auth: cert beside psk_file"},
		{"no certificate", "", base + "auth: cert\n", "peer beta without cert_file"},
		{"no private key", "", base + "cert_file: /c\n", "peer beta without key_file"},
		{"no authority", "", base + "cert_file: /c\nkey_file: /k\n", "peer beta without ca_files"},
		{"revocation", "", cert + "revocation: maybe\n", `p.yaml:6:13: revocation is "maybe"; allowed: strict, ifuri, relaxed`},
		{"revocation of a secret", "", psk + "revocation: strict\n", "auth: psk beside settings of certificates"},
		{"crl", "", cert + "crl_uris: [ca.crl]\n", `p.yaml:6:12: crl_uris "ca.crl" is not a URI`},
		{"ocsp", "", cert + "ocsp_uris: [\"file:///x\"]\n", "write http:// or https:// and where it is"},
		{"password in a URI", "", cert + "crl_uris: [\"http://me:secret@192.0.2.1/crl\"]\n", "is not a URI that can be used"},
		{"mode", "", psk + "mode: beet\n", `p.yaml:4:7: mode is "beet"; allowed: tunnel, transport`},
		{"transport without kernel ESP", "ipsec: {data_plane: userland}\n", psk + "mode: transport\n", "userland ESP has tunnel mode only"},
		{"children", "", psk + "child_sas: 3\n", "powers of two up to 16"},
		{"many children", "", psk + "child_sas: 17\n", `p.yaml:4:12: child_sas is 17; allowed: 1 to 16`},
		{"children of IKEv1", "", psk + "profile: rfc3723\nchild_sas: 2\n", "IKEv1 has one child SA per direction"},
		{"reap", "", psk + "idle_reap: 1s\n", `p.yaml:4:12: idle_reap is "1s"; allowed: 10s to 24h, such as 90s`},
		{"reap without unit", "", psk + "idle_reap: 60\n", `idle_reap is "60"; allowed`},
		{"gateway", "", psk + "gateway: 192.0.2.2\n", "its own address as gateway"},
		{"gateway family", "", psk + "gateway: \"::7\"\n", "mixes IPv4 and IPv6"},
		{"gateway in transport mode", "", psk + "gateway: 192.0.2.9\nmode: transport\n", "ESP that ends at a gateway is tunnel mode"},
		{"key id", "", psk + "remote_id: \"@#deadbeef\"\n", "p.yaml:4:12: remote_id \"@#deadbeef\" cannot be an IKE identity"},
		{"subnet", "", psk + "remote_id: 192.0.2.0/24\n", "cannot be an IKE identity"},
		{"same identity", "", psk + "local_id: a.example\nremote_id: a.example\n", "the same IKE identity a.example"},
		{"aggressive with addresses", "", psk + "profile: rfc3723-aggressive\n", "aggressive mode is for names"},
		{"profile", "", psk + "profile: best\n", `p.yaml:4:10: profile is "best"; allowed: rfc7146, `},
		{"loopback", "", "name: beta\naddress: 127.0.0.9\nprotection: loopback\nmode: tunnel\nchild_sas: 2\n", "IPsec settings (child_sas, mode) but its protection is loopback"},
		{"base", "ipsec: {profiles: {a: {base: best}}}\n", "", `ironwarp.yaml:1:30: base is "best"; allowed: rfc7146`},
		{"built in", "ipsec: {profiles: {rfc7146: {esn: false}}}\n", "", "profile rfc7146 is built in"},
		{"profile name", "ipsec: {profiles: {\"a b\": {}}}\n", "", `profile name "a b" is not a valid name`},
		{"key of a profile", "ipsec:\n  profiles:\n    a:\n      epsilon: 1\n", "", `ironwarp.yaml:4:7: unknown key "epsilon" in profile a`},
		{"no integrity", "ipsec:\n  profiles:\n    a:\n      esp: [aes128-modp2048]\n", "", `ironwarp.yaml:3:5: profile a is refused: ESP proposal aes128-modp2048`},
		{"no replay protection", "ipsec: {profiles: {a: {replay_window: 0}}}\n", "", "replay protection must be used (RFC 3723 2.3.1)"},
		{"weak group", "ipsec: {profiles: {a: {ike: [aes128-sha256-modp1024]}}}\n", "", "profile a is refused: IKE proposal aes128-sha256-modp1024"},
		{"scalar profile", "ipsec: {profiles: {a: strong}}\n", "", "profile a is a string; write it as a mapping of"},
		{"profiles as a list", "ipsec: {profiles: [a]}\n", "", "profiles is a list"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := load(t, tc.main, tc.peer); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestExportsMayNameIdentities(t *testing.T) {
	dir := t.TempDir()
	main := write(t, dir, "ironwarp.yaml", "")
	write(t, dir, "peers.d/beta.yaml", "name: beta\naddress: 192.0.2.2\npsk_file: /x\nremote_id: beta.example\n")
	write(t, dir, "peers.d/here.yaml", "name: here\naddress: 127.0.0.2\nprotection: loopback\n")
	write(t, dir, "exports.d/x.yaml", "name: docs\npath: /x\nallow: [\"id:beta.example\"]\n")
	c, err := Load(main, true)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := c.Export("docs")
	beta, _ := c.Peer("beta")
	here, _ := c.Peer("here")
	if !e.Allows(beta) || e.Allows(here) {
		t.Errorf("allows beta %v, here %v", e.Allows(beta), e.Allows(here))
	}
	for _, bad := range []struct{ allow, want string }{
		{"id:gamma.example", "allows the IKE identity gamma.example, which no configured peer has"},
		{"id:127.0.0.2", "which no configured peer has"},
		{"id:", "cannot be an IKE identity"},
		{"beta.example:", "an IKE identity is written with id: before it"},
	} {
		write(t, dir, "exports.d/x.yaml", "name: docs\npath: /x\nallow: [\""+bad.allow+"\"]\n")
		if _, err := Load(main, true); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: got %v, want %s", bad.allow, err, bad.want)
		}
	}
}

func TestInsecureChoicesAreNamed(t *testing.T) {
	for _, tc := range []struct{ peer, want string }{
		{"psk_file: /x\nprofile: rfc7146\n", ""},
		{"psk_file: /x\nprofile: rfc7146-null\n", "RFC 7146 2.2"},
		{"psk_file: /x\nprofile: rfc3723-aggressive\nlocal_id: a.example\nremote_id: b.example\n", "RFC 3723"},
		{"psk_file: /x\ngateway: 192.0.2.254\n", "RFC 5042 5.4.5"},
		{"insecure_plaintext: true\n", "in clear"},
	} {
		c, err := load(t, "", "name: beta\naddress: 192.0.2.2\n"+tc.peer)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := c.Peer("beta")
		got := p.Insecure()
		if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
			t.Errorf("%q: %q, want %q", tc.peer, got, tc.want)
		}
	}
}

func TestDurationsReadBack(t *testing.T) {
	for d, want := range map[time.Duration]string{
		90 * time.Second: "1m30s", 10 * time.Minute: "10m", 2 * time.Hour: "2h", 90 * time.Minute: "1h30m", 24 * time.Hour: "24h", 30 * time.Second: "30s",
	} {
		got := FormatDuration(d)
		if back, err := time.ParseDuration(got); got != want || err != nil || back != d {
			t.Errorf("%v: %q, %v, %v", d, got, back, err)
		}
	}
}
