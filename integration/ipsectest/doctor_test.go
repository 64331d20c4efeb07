package ipsectest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/daemon/doctor"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// examine runs the doctor on alpha, whose peer is beta.
func (p *pair) examine(t *testing.T) map[string]doctor.Finding {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"ironwarp.yaml":     fmt.Sprintf("runtime_dir: %s/run\nipsec: {vici: \"unix://%s\"}\n", dir, p.alpha.ViciSocket()),
		"peers.d/beta.yaml": fmt.Sprintf("name: beta\naddress: %v\npsk_file: beta.psk\n", p.beta.at()),
		"beta.psk":          string(p.key.Reveal()),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := map[string]doctor.Finding{}
	err := p.alpha.Do(func() error {
		for _, f := range doctor.Run(t.Context(), doctor.Options{Config: filepath.Join(dir, "ironwarp.yaml"), Named: true}) {
			found[f.What] = f
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func says(t *testing.T, found map[string]doctor.Finding, what, level string, words ...string) {
	t.Helper()
	f := found[what]
	text := f.Found + " " + strings.Join(f.Do, " ")
	if f.Level != level {
		t.Errorf("%s is %q, want %s: %s", what, f.Level, level, text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q: %s", what, w, text)
		}
	}
}

func TestDoctorShowsThePlaneTheGuardAndItsHoles(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			p := newPair(t, lab.Config{})
			p.alpha.v6, p.beta.v6 = v6, v6
			before := p.examine(t)
			says(t, before, "guard of beta", doctor.Fail, "is missing", "does not stop clear packets")
			if g := before["guard of beta"].Guard; g == nil || g.Passed || len(g.Holes) == 0 {
				t.Errorf("without a guard: %+v", g)
			}
			p.addPeers(t)
			p.beta.echo(t, nil)
			if err := ping(p.alpha.mustDial(t, p.beta), "up"); err != nil {
				t.Fatal(err)
			}
			found := p.examine(t)
			plane := p.lab.DataPlane()
			says(t, found, "data plane", doctor.OK, plane.String(), map[esp.Plane]string{
				esp.Userland: "kernel-libipsec", esp.Kernel: "the kernel has ESP"}[plane])
			says(t, found, "guard of beta", doctor.OK, "a clear packet is stopped", "policies block")
			says(t, found, "kernel guard", doctor.OK, "on their way out")
			if f := found["algorithms"]; f.Level == doctor.Fail || f.Found == "" {
				t.Errorf("algorithms: %+v", f)
			}
			if f, ok := found["left over guard"]; ok {
				t.Errorf("policies of a configured peer are called left over: %s", f.Found)
			}
			b, err := json.Marshal(found["guard of beta"])
			if err != nil || !strings.Contains(string(b), `"self_test_passed":true`) || !strings.Contains(string(b), `"direction":"out"`) {
				t.Errorf("as JSON: %s, %v", b, err)
			}
			bypass := fmt.Sprintf("ip xfrm policy %%s dst %v src %v/0 dir in", p.alpha.at(), map[bool]string{false: "0.0.0.0", true: "::"}[v6])
			sh(t, p.alpha.Host, fmt.Sprintf(bypass, "add")+" action allow priority 10")
			says(t, p.examine(t), "guard of beta", doctor.Fail, "priority 10", "ip xfrm policy delete")
			sh(t, p.alpha.Host, fmt.Sprintf(bypass, "delete"))
			says(t, p.examine(t), "guard of beta", doctor.OK)
		})
	}
}

func TestDoctorShowsBlocks(t *testing.T) {
	p := newPair(t, lab.Config{NoCharon: true})
	says(t, p.examine(t), "blocks", doctor.OK, "can block", "none is blocked")
	if err := p.alpha.m.AddPeer(t.Context(), p.peerOf(p.alpha)); err != nil {
		t.Fatal(err)
	}
	block(t, p.alpha, "beta", time.Hour)
	says(t, p.examine(t), "blocks", doctor.Warn, "beta ("+p.beta.Addr().String()+")", "too many streams", "0 packets dropped", "ironwarp block rm beta")
	p.alpha.stop() // or it would restore the rules
	err := p.alpha.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.FlushTable(&nftables.Table{Name: "ironwarp-block", Family: nftables.TableFamilyINet})
		return c.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
	says(t, p.examine(t), "blocks", doctor.Fail, "the rules of chain in", "systemctl restart ironwarp")
}
