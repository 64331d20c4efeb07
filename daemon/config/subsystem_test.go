package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSubsystemsAreChecked: a subsystem that cannot be is refused, and why is said; one that can be is what its file says,
// and is written as it was read.
func TestSubsystemsAreChecked(t *testing.T) {
	load := func(text string) (*Config, error) {
		t.Helper()
		dir := t.TempDir()
		main := filepath.Join(dir, "ironwarp.yaml")
		if err := os.WriteFile(main, []byte("exports: [{name: docs, path: /srv/docs.img}]\npeers: [{name: beta, address: 192.0.2.2, insecure_plaintext: true}]\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(main, true)
	}
	const whole = "{name: a, nqn: nqn.2026-01.org.example:a, peers: [beta], hosts: [\"nqn.2026-01.org.example:h\"], port: 4421, namespaces: [{nsid: 2, path: /srv/a.img, thin: false}, {nsid: 1, export: docs, block_size: 4096}]}"
	c, err := load("nvme: [" + whole + "]")
	if err != nil {
		t.Fatal(err)
	}
	s, ok := c.Subsystem("a")
	if !ok || s.Port != 4421 || len(s.Namespaces) != 2 || s.Namespaces[0].NSID != 1 || s.Namespaces[0].BlockSize != 4096 || s.Namespaces[1].Export != "a-ns2" || !s.Namespaces[1].Thick {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{"docs", "a-ns2"} {
		if e, ok := c.Export(name); !ok || !e.LUN {
			t.Errorf("export %s: %+v", name, e)
		}
	}
	if f := fileOfSubsystem(s); f.Namespaces[1].Export != "" || f.Namespaces[1].Path != "/srv/a.img" || f.Port != 4421 || *f.Namespaces[1].Thin {
		t.Errorf("%+v", f)
	}
	for text, why := range map[string]string{
		"nvme: [{nqn: nqn.2026-01.org.example:a}]":                                                                              "without name",
		"nvme: [{name: a}]":                                                                                                     "without nqn",
		"nvme: [{name: a, nqn: iqn.2026-01.org.example:a}]":                                                                     "is no NVMe qualified name",
		"nvme: [{name: a, nqn: nqn.2014-08.org.nvmexpress.discovery}]":                                                          "is the name of discovery",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, hosts: [me]}]":                                                        "is no NVMe qualified name",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, peers: [gamma]}]":                                                     "no configured peer",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, port: 7471}]":                                                         "which this host listens on",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, namespaces: [{nsid: 1}]}]":                                            "not one of export and path",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, namespaces: [{export: docs}]}]":                                       "without nsid",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, namespaces: [{nsid: 1, export: x}]}]":                                 "is not declared",
		"nvme: [" + whole + ", " + strings.Replace(whole, "name: a", "name: b", 1) + "]":                                        "have the same nqn",
		"nvme: [" + whole + ", {name: b, nqn: nqn.2026-01.org.example:b, namespaces: [{nsid: 1, export: docs}]}]":               "and may be written",
		"nvme: [" + whole + "]\ntargets: [{name: t, iqn: iqn.2026-01.org.example:t, luns: [{number: 0, export: docs}]}]":        "and may be written",
		"nvme: [{name: a, nqn: nqn.2026-01.org.example:a, namespaces: [{nsid: 1, export: docs}, {nsid: 1, path: /srv/a.img}]}]": "namespace 1 twice",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s\n%v, not %q", text, err, why)
		}
	}
}
