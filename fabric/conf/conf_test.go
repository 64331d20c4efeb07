package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// The defaults are those of the manual, and there is no key that everybody knows.
func TestDefaults(t *testing.T) {
	want := Options{
		SMInfoPollingTimeout: 10 * time.Second, PollingRetryNumber: 4,
		SAETMAllowUntrustedGUIDInfoRec: true, SAETMAllowGUIDInfoRecByVF: true, SAETMAllowUntrustedProxyRequests: true,
		SACheckSGIDSpoofing: true,
	}
	missing, err := Load(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	empty, err := Parse("fabric.conf", nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*Config{"Default": Default(), "no file": missing, "an empty file": empty} {
		if c.Options != want || len(c.KeyFiles) != 0 || c.Keys.M() != 0 || c.Keys.SM() != 0 || c.Keys.SA() != 0 {
			t.Errorf("%s: %+v, want %+v", what, c.Options, want)
		}
	}
}

func TestEachOptionIsReadFromItsName(t *testing.T) {
	for _, tc := range []struct {
		line string
		want func(*Config)
	}{
		{"m_key /k/m", func(c *Config) { c.KeyFiles[MKey] = "/k/m"; c.MKeyLookup = true }},
		{"sm_key '/k/s m'", func(c *Config) { c.KeyFiles[SMKey] = "/k/s m" }},
		{`sa_key "/k/sa" # trusted`, func(c *Config) { c.KeyFiles[SAKey] = "/k/sa" }},
		{"m_key (null)", func(*Config) {}},
		{"m_key 0x0000000000000000", func(*Config) {}},
		{"m_key_protection 2", func(c *Config) { c.MKeyProtection = 2 }},
		{"m_key_protection_level 0x3", func(c *Config) { c.MKeyProtection = 3 }},
		{"m_key_lease_period 65535", func(c *Config) { c.MKeyLeasePeriod = 65535 }},
		{"m_key_lookup TRUE", func(c *Config) { c.MKeyLookup = true }},
		{"m_key_per_port TRUE", func(c *Config) { c.MKeyPerPort, c.MKeyProtection, c.MKeyLookup = true, 2, true }},
		{"m_key_per_port TRUE\nm_key_protection 1\nm_key_lookup FALSE", func(c *Config) { c.MKeyPerPort, c.MKeyProtection, c.MKeyLookup = true, 2, true }},
		{"m_key_protection 3\nm_key_per_port TRUE", func(c *Config) { c.MKeyPerPort, c.MKeyProtection, c.MKeyLookup = true, 3, true }},
		{"\t sm_priority\t15  \r", func(c *Config) { c.SMPriority = 15 }},
		{"sminfo_polling_timeout 500", func(c *Config) { c.SMInfoPollingTimeout = 500 * time.Millisecond }},
		{"polling_retry_number 0", func(c *Config) { c.PollingRetryNumber = 0 }},
		{"sa_enhanced_trust_model TRUE", func(c *Config) { c.SAEnhancedTrustModel = true }},
		{"sa_etm_allow_untrusted_guidinfo_rec FALSE", func(c *Config) { c.SAETMAllowUntrustedGUIDInfoRec = false }},
		{"sa_etm_allow_guidinfo_rec_by_vf FALSE", func(c *Config) { c.SAETMAllowGUIDInfoRecByVF = false }},
		{"sa_etm_allow_untrusted_proxy_requests FALSE", func(c *Config) { c.SAETMAllowUntrustedProxyRequests = false }},
		{"sa_etm_max_num_mcgs 1", func(c *Config) { c.SAETMMaxNumMCGs = 1 }},
		{"sa_etm_max_num_srvcs 4294967295", func(c *Config) { c.SAETMMaxNumSrvcs = 1<<32 - 1 }},
		{"sa_etm_max_num_event_subs 3", func(c *Config) { c.SAETMMaxNumEventSubs = 3 }},
		{"sa_check_sgid_spoofing FALSE", func(c *Config) { c.SACheckSGIDSpoofing = false }},
		{"# m_key_protection 2\n\n   # nothing", func(*Config) {}},
	} {
		want := Default()
		want.File = "fabric.conf"
		tc.want(want)
		got, err := Parse("fabric.conf", []byte(tc.line))
		if err != nil {
			t.Errorf("%q: %v", tc.line, err)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v %v, want %+v %v", tc.line, got.Options, got.KeyFiles, want.Options, want.KeyFiles)
		}
	}
}

// What OpenSM would silently ignore or misread is an error, with its line, and never with a value.
func TestFaults(t *testing.T) {
	const key = "0x1122334455667788"
	for _, tc := range []struct{ text, words string }{
		{"m_key_protecton 2", `fabric.conf:1: unknown option "m_key_protecton"; did you mean m_key_protection?`},
		{"\n\nrouting_engine ftree", `fabric.conf:3: unknown option "routing_engine"; docs/fabric.md has all`},
		{"M_KEY_LOOKUP TRUE", `did you mean m_key_lookup?`},
		{"m_key_protection 4", "from 0 to 3"},
		{"m_key_protection -1", "from 0 to 3"},
		{"m_key_protection 02", "from 0 to 3"},
		{"m_key_protection 1_0", "from 0 to 3"},
		{"m_key_protection", "has no value"},
		{"m_key_protection \"\"", "has no value"},
		{"m_key_lease_period 65536", "seconds, from 0 to 65535"},
		{"m_key_lease_period 0x", "seconds, from 0 to 65535"},
		{"sa_enhanced_trust_model true", "TRUE or FALSE"}, // FALSE for OpenSM
		{"sa_enhanced_trust_model 1", "TRUE or FALSE"},
		{"sm_priority 16", "from 0 to 15"},
		{"sminfo_polling_timeout 99", "milliseconds, from 100"},
		{"sa_etm_max_num_srvcs 4294967296", "0 (unlimited)"},
		{"sa_etm_max_num_srvcs 18446744073709551616", "0 (unlimited)"},
		{"m_key_protection 2\n#\nm_key_protection_level 1", "fabric.conf:3: m_key_protection_level is set again, after line 1"},
		{"m_key_lookup FALSE\nm_key /k", "fabric.conf:1: m_key_lookup has to be TRUE"},
		{"m_key " + key, "write it to secrets/fabric.m_key (umask 077; echo 0x... > secrets/fabric.m_key)"},
		{"sm_key 1122334455667788", "secrets/fabric.sm_key"},
		{"sa_key deadbeef" + key, "secrets/fabric.sa_key"},
		{"sa_key secrets/sa_key", "the absolute path of a file"},
		{"m_key=" + key, "a space separates m_key from its value"},
		{"mkey=" + key, `unknown option "mkey"; did you mean m_key?`},
		{key, "a line begins with the name of an option"},
		{"m_key " + strings.Repeat(" ", maxLine), "the line has 1028 bytes"},
		{strings.Repeat("x", maxFile+1), "some other file"},
		{"\x1b[31m 1", "begins with the name"},
		{"écrit 1", "begins with the name"},
	} {
		_, err := Parse("fabric.conf", []byte(tc.text))
		if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%.60q: %v, want %q", tc.text, err, tc.words)
			continue
		}
		if text := err.Error(); strings.Contains(text, "1122334455667788") || strings.Contains(text, "\x1b") || len(text) > 500 {
			t.Errorf("%.60q: the error shows too much: %q", tc.text, text)
		}
	}
}

func TestAllFaultsAreReportedAndNotWithoutEnd(t *testing.T) {
	_, err := Parse("f", []byte("a 1\nsm_priority 1\nb 1\n"))
	if err == nil || !strings.Contains(err.Error(), "f:1:") || !strings.Contains(err.Error(), "f:3:") || strings.Contains(err.Error(), "f:2:") {
		t.Error(err)
	}
	var fault *Error
	if !errors.As(err, &fault) || fault.Line != 1 {
		t.Errorf("%+v", fault)
	}
	_, err = Parse("f", bytes.Repeat([]byte("a 1\n"), 1000))
	if n := strings.Count(err.Error(), "\n") + 1; n != maxErrors+1 || !strings.Contains(err.Error(), "more faults") {
		t.Errorf("%d lines: %v", n, err)
	}
}

// configFile writes a fabric.conf with keys and loads it.
func configFile(t *testing.T, m, sm, sa, more string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	text := more
	for name, key := range map[string]string{"m_key": m, "sm_key": sm, "sa_key": sa} {
		if key == "" {
			continue
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("\n%s %s\n", name, path)
	}
	path := filepath.Join(dir, "fabric.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestKeysAreReadFromTheirFiles(t *testing.T) {
	c, err := configFile(t, "0x1122334455667788\n", "42", "0xFFFFFFFFFFFFFFFF  \r\n", "m_key_protection 2")
	if err != nil {
		t.Fatal(err)
	}
	if c.Keys.M() != 0x1122334455667788 || c.Keys.SM() != 42 || c.Keys.SA() != 0xffffffffffffffff {
		t.Errorf("%#x %#x %#x", uint64(c.Keys.M()), uint64(c.Keys.SM()), uint64(c.Keys.SA()))
	}
	if c.PortKey(1) != c.Keys.M() || c.PortKey(2) != c.Keys.M() {
		t.Error("all ports have the m_key unless m_key_per_port")
	}
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	for _, tc := range []struct {
		key   string
		err   error
		words string
	}{
		{"0", ErrKey, "0, which is no key"},
		{"0x11223344556677889", ErrKey, "one number of 64 bits"},
		{"1122334455667788aa", ErrKey, "one number of 64 bits"},
		{"0x1122334455667788\n0x1", ErrKey, "one number of 64 bits"},
		{" ", ErrKey, "one number of 64 bits"},
		{"42" + strings.Repeat(" ", maxKeyFile), ErrKey, "one number of 64 bits"},
	} {
		_, err := configFile(t, tc.key, "", "", "")
		if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.words) || !strings.Contains(err.Error(), "m_key") || strings.Contains(err.Error(), "1122334455") {
			t.Errorf("%.20q: %v", tc.key, err)
		}
	}
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o604: true, 0o620: true} {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte("0x1122334455667788"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		conf := filepath.Join(t.TempDir(), "fabric.conf")
		if err := os.WriteFile(conf, []byte("sm_key "+path), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(conf); errors.Is(err, auth.ErrSecretFile) != refused || (err != nil) != refused {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
	conf := filepath.Join(t.TempDir(), "fabric.conf")
	if err := os.WriteFile(conf, []byte("sm_key /nonexistent/key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(conf); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestKeysAreNeverShown(t *testing.T) {
	c := Default()
	c.Keys = NewKeys(0x1122334455667788, 0x2122334455667788, 0x3122334455667788)
	table, err := LoadPortKeys(filepath.Join(t.TempDir(), "table"))
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Set(map[mad.GUID]mad.Key{1: c.Keys.M()}); err != nil {
		t.Fatal(err)
	}
	type holder struct {
		keys  Keys
		table *PortKeys
	}
	hidden := holder{c.Keys, table}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "keys", c.Keys, "config", c, "table", table, "hidden", hidden, "key", c.Keys.M())
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "keys", c.Keys, "config", c, "table", table, "hidden", hidden, "key", c.Keys.M())
	js, err := json.Marshal(map[string]any{"keys": c.Keys, "config": c, "table": table})
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(js), c.Keys.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b"} {
		for _, v := range []any{c.Keys, &c.Keys, c, *c, table, hidden, &hidden, c.Keys.M(), []Keys{c.Keys}} {
			shown = append(shown, fmt.Sprintf(verb, v))
		}
	}
	for _, text := range shown {
		for _, leak := range []string{"22334455667788", "1234605616436508552", fmt.Sprintf("%o", uint64(0x1122334455667788))[1:], "2388", "1000100100010001100110100010001010101011001100111011110001000"} {
			if strings.Contains(text, leak) {
				t.Errorf("a key is in %.200q", text)
			}
		}
	}
}

func TestInsecureSettingsAreNamed(t *testing.T) {
	const key = "0x1122334455667788"
	for _, tc := range []struct {
		m, sm, sa, more string
		words           []string
	}{
		{"", "", "", "", nil},
		{key, key, key, "m_key_protection 1", nil},
		{key, "", "", "", []string{"m_key_protection 0"}},
		{"1", "", "", "m_key_protection 2", []string{"0x1, which everybody tries"}},
		{key, "", "", "m_key_per_port TRUE", nil},
		{"", "", "", "m_key_per_port TRUE", []string{"m_key_per_port"}},
		{"0x1", "", "", "m_key_per_port TRUE", []string{"m_key_per_port"}},
		{"", "1", "0x0000000000000001", "", []string{"sm_key", "sa_key"}},
	} {
		c, err := configFile(t, tc.m, tc.sm, tc.sa, tc.more)
		if err != nil {
			t.Fatal(err)
		}
		lines := c.Insecure()
		if len(lines) != len(tc.words) {
			t.Errorf("%+v: %q", tc, lines)
			continue
		}
		for i, w := range tc.words {
			if !strings.Contains(lines[i], w) || strings.Contains(lines[i], "1122") {
				t.Errorf("%+v: %q", tc, lines)
			}
		}
	}
}

// Each port has a key of its own, which says nothing about another's.
func TestKeysOfPorts(t *testing.T) {
	a := Default()
	a.MKeyPerPort = true
	a.Keys = NewKeys(0x1122334455667788, 0, 0)
	seen := map[mad.Key]bool{a.Keys.M(): true, 0: true}
	for guid := mad.GUID(1); guid < 1000; guid++ {
		k := a.PortKey(guid)
		if seen[k] {
			t.Fatalf("port %s has a key that another has", guid)
		}
		seen[k] = true
		if k != a.PortKey(guid) {
			t.Fatal("it changes")
		}
	}
	// HMAC-SHA-256 by another hand:
	// printf '\0\0\0\0\0\0\0\x2a' | openssl dgst -sha256 -mac HMAC -macopt hexkey:1122334455667788
	if k := a.PortKey(42); k != 0xc1c87b7bcefd564d {
		t.Errorf("%#016x", uint64(k))
	}
	b := Default()
	b.MKeyPerPort = true
	if b.PortKey(42) == a.PortKey(42) || b.PortKey(42) == 0 {
		t.Error("without an m_key ports have keys of the base 0x1")
	}
}

func TestWriteKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "fabric.conf")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.KeyPath(SMKey) != "/etc/ironwarp/secrets/fabric.sm_key" {
		t.Error(c.KeyPath(SMKey))
	}
	if c, err = Parse(path, nil); err != nil {
		t.Fatal(err)
	}
	first, second := NewKey(), NewKey()
	if first == second || first <= 1 || second <= 1 {
		t.Fatal("keys are not drawn at random")
	}
	for _, key := range []mad.Key{first, second} {
		if err := c.WriteKey(MKey, key); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("m_key "+c.KeyPath(MKey)), 0o644); err != nil {
			t.Fatal(err)
		}
		again, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if again.Keys.M() != key || c.Keys.M() != 0 {
			t.Error("the key that is read is not the one that was written")
		}
	}
	st, err := os.Stat(filepath.Dir(c.KeyPath(MKey)))
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Error(st.Mode(), err)
	}
	if err := c.WriteKey(MKey, 0); !errors.Is(err, ErrKey) {
		t.Error(err)
	}
	c.KeyFiles[MKey] = filepath.Join(path, "none")
	if err := c.WriteKey(MKey, first); err == nil {
		t.Error("a key is written below a file")
	}
}

func TestPortKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guid2mkey")
	p, err := LoadPortKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Keys = NewKeys(7, 0, 0)
	c.MKeyLookup = true
	for _, set := range []map[mad.GUID]mad.Key{{2: 5}, {1: 7, 2: 6}, {1: 7}} {
		if err := p.Set(set); err != nil {
			t.Fatal(err)
		}
	}
	if p, err = LoadPortKeys(path); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[mad.GUID][]mad.Key{1: {7}, 2: {6, 7}, 3: {7}} {
		if got := c.Candidates(port, p); !reflect.DeepEqual(got, want) {
			t.Errorf("port %d: %d keys", port, len(got))
		}
	}
	if k, recorded := c.KeyOf(3, p); k != 7 || recorded {
		t.Error("a port that is not in the table is taken for recorded")
	}
	if k, recorded := c.KeyOf(2, p); k != 6 || !recorded {
		t.Error("a port in the table is not taken for recorded")
	}
	c.MKeyLookup = false
	if got := c.Candidates(2, p); len(got) != 1 || got[0] != 7 {
		t.Error("without m_key_lookup the table is used")
	}
	if got := c.Candidates(2, nil); len(got) != 1 {
		t.Error("there is no table")
	}
	for _, text := range []string{"0x1", "0x1 0x2 0x3", "0x0 0x0", "0x0 0x1\n0x0 0x2\n0x0 0x3", "x 0x1", "0x1 0x2\n0x1 0x3", strings.Repeat(" ", maxPortKeysFile+1)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadPortKeys(path); !errors.Is(err, ErrPortKeys) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadPortKeys(path); !errors.Is(err, auth.ErrSecretFile) {
		t.Error(err)
	}
	full := map[mad.GUID]mad.Key{}
	for i := range mad.GUID(maxPortKeys) {
		full[i+1] = 1
	}
	p.keys = &full
	if err := p.Set(map[mad.GUID]mad.Key{maxPortKeys + 1: 1}); !errors.Is(err, ErrPortKeys) {
		t.Error(err)
	}
	if err := p.Set(map[mad.GUID]mad.Key{1: 2}); err != nil {
		t.Error(err)
	}
}

// After a rotation each port is opened by the key that it has, and by the new one.
func TestRotateMKey(t *testing.T) {
	for _, perPort := range []bool{false, true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "fabric.conf")
		text := fmt.Sprintf("m_key %s/m_key\n", dir)
		if perPort {
			text += "m_key_per_port TRUE\n"
		}
		for name, content := range map[string]string{path: text, filepath.Join(dir, "m_key"): "0x1122334455667788"} {
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		table, err := LoadPortKeys(filepath.Join(dir, "guid2mkey"))
		if err != nil {
			t.Fatal(err)
		}
		// Port 2 was away at the rotation before.
		if err := table.Set(map[mad.GUID]mad.Key{2: 5}); err != nil {
			t.Fatal(err)
		}
		if err := c.RotateMKey(table, []mad.GUID{1, 2}); err != nil {
			t.Fatal(err)
		}
		after, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if table, err = LoadPortKeys(table.path); err != nil {
			t.Fatal(err)
		}
		if after.Keys.M() == c.Keys.M() {
			t.Error("the m_key is the old one")
		}
		// Port 3 was given the old key, and nobody could record that.
		for port, want := range map[mad.GUID][]mad.Key{1: {c.PortKey(1), after.PortKey(1)}, 2: {5, after.PortKey(2), c.PortKey(2)}, 3: {after.PortKey(3), c.PortKey(3)}} {
			if got := after.Candidates(port, table); !reflect.DeepEqual(got, want) {
				t.Errorf("port %d: %d keys", port, len(got))
			}
		}
		// Where the old keys can't be recorded, there is no new one.
		table.path = filepath.Join(path, "none")
		if err := after.RotateMKey(table, []mad.GUID{3}); err == nil {
			t.Error("the old keys are lost")
		}
		if again, err := Load(path); err != nil || again.Keys.M() != after.Keys.M() {
			t.Error("there is a new m_key", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, o := range options {
		f.Add([]byte(o.name + " " + o.def + "\n"))
	}
	f.Add([]byte("m_key \"/k\" # x\nm_key_lookup FALSE\n\xff \x00=\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f", text)
		if err != nil {
			if !errors.Is(err, ErrOption) || len(err.Error()) > 500*(maxErrors+1) {
				t.Fatal(err)
			}
			return
		}
		if c.MKeyProtection > 3 || c.SMPriority > 15 || c.SMInfoPollingTimeout < 100*time.Millisecond || c.MKeyPerPort && c.MKeyProtection < 2 {
			t.Fatalf("%+v", c.Options)
		}
	})
}
