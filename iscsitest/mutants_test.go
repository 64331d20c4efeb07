package iscsitest_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsitest"
)

// mutant is a fault that our target is given.
type mutant struct {
	over  string // "": TCP; chap, iser, or iser-streaming
	says  string
	file  string
	edits []edit
}

// edit is what a mutant has in place of some lines.
type edit struct{ old, new string }

// apply makes a mutant's file.
func (m *mutant) apply(b []byte) []byte {
	for _, e := range m.edits {
		b = bytes.Replace(b, []byte(e.old), []byte(e.new), 1)
	}
	return b
}

// mutants reads testdata/mutants.txt.
func mutants(t *testing.T) (all []mutant) {
	t.Helper()
	b, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(b), "\n\n") {
		var m mutant
		var is, becomes []string
		next := func() {
			if len(is) > 0 {
				m.edits = append(m.edits, edit{strings.Join(is, "\n"), strings.Join(becomes, "\n")})
			}
			is, becomes = nil, nil
		}
		for line := range strings.SplitSeq(strings.Trim(block, "\n"), "\n") {
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, "! "):
				m.over = line[2:]
			case strings.HasPrefix(line, "= "):
				m.says = line[2:]
			case strings.HasPrefix(line, "-"):
				if len(becomes) > 0 {
					next()
				}
				is = append(is, line[1:])
			case strings.HasPrefix(line, "+"):
				becomes = append(becomes, line[1:])
			default:
				m.file = line
			}
		}
		next()
		if m.says != "" {
			all = append(all, m)
		}
	}
	return all
}

// TestMutantsApply: each of them changes the places that it names.
func TestMutantsApply(t *testing.T) {
	all := mutants(t)
	if len(all) < 150 {
		t.Errorf("%d mutants", len(all))
	}
	for _, m := range all {
		b, err := os.ReadFile(filepath.Join("..", m.file))
		if err != nil {
			t.Errorf("%s: %v", m.says, err)
		}
		for _, e := range m.edits {
			if n := strings.Count(string(b), e.old); n != 1 || e.old == e.new {
				t.Errorf("%s: what it changes is %d times in %s:\n%s", m.says, n, m.file, e.old)
			}
		}
		if len(m.edits) == 0 {
			t.Errorf("%s: it changes nothing", m.says)
		}
	}
}

// TestJudgeMutant is what a binary with a mutant runs: it fails at the first case that is bad.
func TestJudgeMutant(t *testing.T) {
	over := os.Getenv("IRONWARP_MUTANT")
	if over == "" {
		t.Skip("it is for the binaries of TestMutants")
	}
	var credentials []chap.Credentials
	if over == "chap" {
		credentials = []chap.Credentials{{Name: "alice", Secret: []byte("secret of the initiator"), OwnName: "disk", OwnSecret: []byte("secret of the target")}}
	}
	target := serve(t, credentials)
	o := iscsitest.Options{Allow: iscsitest.Data | iscsitest.Hostile, Soak: time.Second, Timeout: 2 * time.Second, Recover: time.Second}
	switch over {
	case "chap":
		target.CHAP = &credentials[0]
		o.Only = []string{"chap"}
	case "iser":
		target.Over = iscsitest.ISER
	case "iser-streaming":
		target.Over = iscsitest.ISERStreaming
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var found string
	o.Progress = func(r *iscsitest.Result, _, _ int) {
		if (r.Verdict.Bad() || r.Verdict == iscsitest.Warn) && found == "" { // ours has neither
			found = fmt.Sprintf("%s: %s", r.Case, r.Found)
			cancel()
		}
	}
	if _, err := iscsitest.Run(ctx, target, o); err != nil && found == "" {
		t.Fatal(err)
	}
	if found != "" {
		fmt.Println("FOUND", found)
		os.Exit(3) // what a target like this leaves behind is not looked at
	}
}

// TestMutants gives our target one fault at a time, and has the suite judge it: it has to find each of them.
func TestMutants(t *testing.T) {
	if os.Getenv("IRONWARP_MUTANTS") == "" {
		t.Skip("it builds a target for each of some 190 faults, for twenty minutes: IRONWARP_MUTANTS=1 runs it")
	}
	var killed atomic.Int32
	all := mutants(t)
	t.Run("all", func(t *testing.T) {
		for _, m := range all {
			t.Run(m.over+" "+m.says, func(t *testing.T) {
				t.Parallel()
				if found := m.judged(t); found != "" {
					killed.Add(1)
					t.Log(found)
				}
			})
		}
	})
	note(t, "\n## Faults of our target\n\n%d of %d were found (iscsitest/testdata/mutants.txt).\n", killed.Load(), len(all))
}

// judged builds the target with the fault, and returns what the suite has found, "" if nothing.
func (m *mutant) judged(t *testing.T) string {
	dir := t.TempDir()
	path, err := filepath.Abs(filepath.Join("..", m.file))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed, overlay, binary := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "judge.test")
	if err := os.WriteFile(changed, m.apply(b), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, j, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("it can't be built: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestJudgeMutant$", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), "IRONWARP_MUTANT="+cmp.Or(m.over, "tcp"))
	out, err := cmd.CombinedOutput()
	_, found, _ := strings.Cut(string(out), "FOUND ")
	found, _, _ = strings.Cut(found, "\n")
	switch {
	case err == nil:
		t.Error("it is not found")
	case strings.Contains(string(out), "panic: "):
		return "the target crashes"
	case found == "":
		t.Errorf("the suite does not come to its end: %v\n%s", err, out[max(0, len(out)-3000):])
	}
	return found
}
