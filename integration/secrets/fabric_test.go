package secrets

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// numberNeedles are the forms of a management key's file, which has a number of 64 bits.
func numberNeedles(t *testing.T, what, file string) []needle {
	t.Helper()
	text := strings.TrimSpace(string(readFile(t, file)))
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return []needle{
		{what + " in hex", fmt.Appendf(nil, "%016x", n)}, {what + " in hex", fmt.Appendf(nil, "%016X", n)}, {what + " in decimal", fmt.Appendf(nil, "%d", n)},
		{what, binary.BigEndian.AppendUint64(nil, n)}, {what, binary.LittleEndian.AppendUint64(nil, n)},
	}
}

// managementKeys adds what the files of a host's management keys have now to what is searched for.
func (s *story) managementKeys(when string) {
	s.t.Helper()
	for _, h := range []*host{s.alpha, s.beta} {
		for _, name := range []string{"m_key", "sm_key", "sa_key"} {
			file := filepath.Join(filepath.Dir(h.Config), "secrets", "fabric."+name)
			s.files = append(s.files, file)
			s.needles = append(s.needles, numberNeedles(s.t, fmt.Sprintf("%s of %s, %s", name, h.Name(), when), file)...)
		}
	}
}

// fabric has alpha keep a directory, with all keys, and beta be drained through its agent.
func (s *story) fabric() {
	t := s.t
	t.Helper()
	alphaID, _ := names()
	before := map[*host][]byte{}
	for _, h := range []*host{s.alpha, s.beta} {
		before[h] = readFile(t, h.Config)
		var conf strings.Builder
		for i, name := range []string{"m_key", "sm_key", "sa_key"} {
			file := filepath.Join(filepath.Dir(h.Config), "secrets", "fabric."+name)
			fmt.Fprintf(&conf, "%s %s\n", name, file)
			if err := os.WriteFile(file, fmt.Appendf(nil, "%#016x\n", 0x5ec2e7a11e0ddba1+uint64(i)<<20), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		main := fmt.Appendf(bytes.Clone(before[h]), "fabric: {managers: [%s], agent: true}\n", alphaID)
		for file, data := range map[string][]byte{filepath.Join(filepath.Dir(h.Config), "fabric.conf"): []byte(conf.String()), h.Config: main} {
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.files = append(s.files, filepath.Join(h.Dir(), "state", "fabric-ports.key"), filepath.Join(h.Dir(), "state", "fabric-agent.json"), filepath.Join(h.Dir(), "state", "fabric.key"))
	}
	s.managementKeys("at first")
	for _, h := range []*host{s.alpha, s.beta} {
		h.must("reload")
	}
	s.until("the directory has the export", func() bool {
		all, err := s.alpha.Client().FabricServices(t.Context(), "docs")
		return err == nil && len(all) == 1
	})
	secret, err := auth.LoadSecret(filepath.Join(s.beta.Dir(), "state", "fabric.key"))
	if err != nil {
		t.Fatal(err)
	}
	s.needles = append(s.needles, forms("what beta's service keys are made of", secret.Reveal())...)
	h := hmac.New(sha256.New, secret.Reveal())
	h.Write([]byte("docs"))
	s.needles = append(s.needles, forms("the service key", h.Sum(nil)[:16])...)
	for _, h := range []*host{s.alpha, s.beta} {
		h.must("fabric", "status")
		h.must("fabric", "services")
		h.must("fabric", "paths", "--json")
	}
	s.look()
	s.until("beta is drained", func() bool { _, ok := s.alpha.run(nil, "fabric", "drain", "beta"); return ok })
	s.alpha.must("fabric", "drain", "--off", "beta")
	for _, what := range []string{"subscriptions", "guids", "groups", "drops"} {
		s.alpha.must("fabric", what)
	}
	s.alpha.must("fabric", "keys", "rotate")
	s.managementKeys("after a rotation")
	s.look()
	// Keys that do not match, and ones that can't be used.
	s.beta.must("fabric", "status")
	file := filepath.Join(filepath.Dir(s.alpha.Config), "secrets", "fabric.m_key")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	s.alpha.fails("mode 0644", "reload")
	s.alpha.must("fabric", "status")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	for h, main := range before {
		if err := os.WriteFile(h.Config, main, 0o600); err != nil {
			t.Fatal(err)
		}
		h.must("reload")
	}
}

func (s *story) until(what string, ok func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
	defer cancel()
	if err := node.Until(ctx, func() (bool, error) { return ok(), nil }); err != nil {
		s.t.Fatalf("never happened: %s: %v", what, err)
	}
}
