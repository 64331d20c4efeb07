package initiators

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/iwarptest/agent"
)

// In the machine these name the program, and the agent.
const (
	programVar = "IRONWARP_BINARY"
	agentVar   = "IRONWARP_AGENT"
	liarVar    = "IRONWARP_LIAR"
)

// lie passes on what an agent says, but for the lengths of what it has received.
func lie() {
	b := make([]byte, 1<<16)
	for {
		n, err := os.Stdin.Read(b)
		if _, werr := os.Stdout.Write(bytes.ReplaceAll(b[:n], []byte(" recv "), []byte(" recv 1"))); err != nil || werr != nil {
			return
		}
	}
}

// TestRDMATest: `ironwarp rdma test` judges soft-iWARP behind an agent, by streams in both manners, and an agent that tells
// other lengths than have come is found out.
func TestRDMATest(t *testing.T) {
	t.Attr("row", "`ironwarp rdma test` judges soft-iWARP in another namespace, in both manners of opening a stream, and finds a peer out that tells wrong lengths")
	if os.Getenv(insideVar) == "" {
		dir := t.TempDir()
		program, err := node.Build(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		built, err := agent.Build(t.Context(), dir)
		if err != nil {
			t.Skip(err)
		}
		t.Setenv(programVar, program)
		t.Setenv(agentVar, built)
	}
	if _, ran := inMachine(t, programVar, agentVar); ran {
		return
	}
	source := filepath.Join(t.TempDir(), "source")
	if out, err := exec.Command(os.Getenv(programVar), "rdma", "agent", source).CombinedOutput(); err != nil || !strings.Contains(string(out), "-lrdmacm") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command("ip", "netns", "exec", "B", "rdma", "link", "add", "siwb", "type", "siw", "netdev", "vb0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	right := "exec ip netns exec B " + os.Getenv(agentVar) + " siwb"
	// A part of the cases: make interop runs all against soft-iWARP, without the command.
	report, bad := rdmaTest(t, right, "--only", "*.send*", "--only", "*.read.*", "--only", "*.write.*", "--only", "listen.close.*")
	if bad || report["PASS"] == 0 {
		t.Errorf("soft-iWARP: %v", report)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report, bad = rdmaTest(t, "ip netns exec B "+os.Getenv(agentVar)+" siwb | "+liarVar+"=1 "+self, "--only", "dial.send.*")
	if !bad || report["FAIL"] == 0 {
		t.Errorf("an agent that tells wrong lengths: %v", report)
	}
}

// rdmaTest runs the program, and counts verdicts; bad is its exit status.
func rdmaTest(t *testing.T, agent string, more ...string) (count map[string]int, bad bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machineTime)
	defer cancel()
	args := append([]string{"rdma", "test", "--json", "--insecure-plaintext", "--agent", agent}, more...)
	cmd := exec.CommandContext(ctx, os.Getenv(programVar), append(args, "10.9.0.2")...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	var report struct {
		Results []struct{ Case, Verdict, Found string }
	}
	if jerr := json.Unmarshal(out, &report); jerr != nil {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	count = map[string]int{}
	for _, r := range report.Results {
		if count[r.Verdict]++; r.Verdict != "PASS" && r.Verdict != "SKIP" {
			t.Logf("%s %s: %s", r.Verdict, r.Case, r.Found)
		}
	}
	return count, err != nil
}
